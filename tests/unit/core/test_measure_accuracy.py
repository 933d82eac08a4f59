"""Accuracies on each server's own mix of labels."""

import numpy as np

from hatdfed.core.fleet import measure_accuracy


def test_a_server_without_a_label_that_is_tested_has_no_personal_accuracy():
    correct = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    shares = np.array([[0.25, 0.75, 0.0], [0.0, 0.0, 1.0]])  # no test sample has label 2
    found = measure_accuracy(correct, np.array([0, 0, 1]), shares)
    np.testing.assert_allclose(found.personal, [0.25, np.nan])
    np.testing.assert_allclose(found.overall, [2 / 3, 1 / 3])
