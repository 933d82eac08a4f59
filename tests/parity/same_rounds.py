"""What parity means for the rounds of two fleets."""

import numpy as np


def assert_same_rounds(mine, theirs, *, tolerance=1e-5, distance_error=0.0):
    """`distance_error` is relative, for a fleet that estimates how far the models are from their mean."""
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        assert one.draw.topology == other.draw.topology
        np.testing.assert_array_equal(one.report.accuracy, other.report.accuracy)
        assert one.report.energy == other.report.energy
        distances = (each.report.consensus_distance for each in (one, other))
        np.testing.assert_allclose(*distances, atol=tolerance, rtol=distance_error)
        assert one.caught == other.caught
        np.testing.assert_array_equal(one.report.reported, other.report.reported)
        for server, same in zip(one.report.servers, other.report.servers, strict=True):
            if server is None:
                continue
            assert server.num_samples == same.num_samples
            assert_same_loss(server.training_loss, same.training_loss)
            assert_same_loss(server.validation_loss, same.validation_loss)
            np.testing.assert_array_equal(server.senders, same.senders)
            np.testing.assert_allclose(server.importance, same.importance, atol=tolerance)
            assert server.scores.keys() == same.scores.keys()
            for name in server.scores:
                np.testing.assert_allclose(server.scores[name], same.scores[name], atol=10 * tolerance)


def assert_same_loss(one, other):
    assert (one is None) == (other is None)
    if one is not None:
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
