"""Settings of runs that take a moment, and can be gone on with after every round."""

from tests import small_runs

SMALL = {**small_runs.SMALL, "checkpoint_every": 1}
