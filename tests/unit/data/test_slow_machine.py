import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hatdfed.data.devices import LocalWork, SimulatedDevices
from hatdfed.data.own.source import SlowMachine
from hatdfed.errors import ConfigError
from hatdfed.server.work import Batch

POOL = Batch(torch.arange(200.0).view(200, 1, 1, 1), torch.arange(200))
VALIDATION = Batch(torch.zeros(5, 1, 1, 1), torch.zeros(5, dtype=torch.long))


def devices(**settings):
    return SimulatedDevices(POOL, np.arange(200), VALIDATION, 200, LocalWork(**settings), 0, 0)


@given(
    share=st.floats(0, 1, exclude_min=True),
    passes=st.integers(1, 4),
    size=st.integers(1, 70),
    online=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    t=st.integers(0, 50),
)
def test_a_share_of_the_passes_is_done_and_at_least_one_batch(share, passes, size, online, t):
    source = devices(local_passes=passes, batch_size=size, online_probability=online)
    full, work = source.work(t), SlowMachine(source, share).work(t)
    a_pass = math.ceil(full.num_samples / size)
    assert len(full.batches) == passes * a_pass
    wanted = passes * share * a_pass  # a fraction of a pass is that fraction of its batches
    assert wanted - 1e-6 <= len(work.batches) <= wanted + 1
    assert bool(work.batches) == bool(full.batches)
    for ours, theirs in zip(work.batches, full.batches, strict=False):
        assert torch.equal(ours.y, theirs.y)
    assert work.num_samples == len({label for batch in work.batches for label in batch.y.tolist()})
    assert work._replace(batches=(), num_samples=0, probe=None, label_counts=None) == full._replace(
        batches=(), num_samples=0, probe=None, label_counts=None
    )


@given(smaller=st.floats(0.01, 1), larger=st.floats(0.01, 1))
def test_a_faster_machine_never_does_less(smaller, larger):
    smaller, larger = sorted([smaller, larger])
    source = devices(batch_size=7, online_probability=1.0)
    assert len(SlowMachine(source, smaller).work(0).batches) <= len(SlowMachine(source, larger).work(0).batches)


def test_the_whole_share_changes_nothing():
    source = devices(online_probability=1.0)
    work, full = SlowMachine(source, 1.0).work(3), source.work(3)
    assert work.num_samples == full.num_samples
    assert len(work.batches) == len(full.batches)
    assert SlowMachine(source, 1.0).validation is VALIDATION


@pytest.mark.parametrize("share", [0.0, -1.0, 1.01, math.nan])
def test_a_share_that_cannot_be_is_refused(share):
    with pytest.raises(ConfigError, match="must be above 0 and at most 1; 1 is all of the work"):
        SlowMachine(devices(), share)
