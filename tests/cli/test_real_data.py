"""What needs real data and minutes: `make test-slow`."""

import numpy as np
import pytest

from hatdfed.data.datasets import DATASETS
from hatdfed.runs.calls import run


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_d_psgd_on_fashion_mnist_reaches_75_percent():
    if DATASETS["fashion-mnist"].locate(None) is None:
        pytest.skip("Fashion-MNIST is not on this machine: set HATDFED_DATA or install dataset-fashion-mnist")
    accuracy = [run(dataset="fashion-mnist", method="d-psgd", seed=seed).summary["avg_accuracy"] for seed in (0, 1, 2)]
    assert np.mean(accuracy) >= 75
