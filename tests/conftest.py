"""Settings of the whole suite: repeatable examples, no deadlines, one thread for torch."""

import torch
from hypothesis import settings

# Examples are derived from the test's name, so a run on another day tries the same ones.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=40, database=None)
settings.load_profile("repeatable")

torch.set_num_threads(1)
