"""Random schedules of faults: no promise is broken, whatever happens when.

`HATDFED_SCHEDULES_SEED=5 pytest tests/schedules` tries other schedules, `HATDFED_SCHEDULES=20000` more of them.
"""

import gc
import os

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.schedules.schedule import make_schedules

SEED = int(os.environ.get("HATDFED_SCHEDULES_SEED", "0"))
PARTS = 8  # so that several processes can share the work
IN_EACH = int(os.environ.get("HATDFED_SCHEDULES", "2000")) // PARTS


@pytest.fixture
def frozen_heap():
    """Everything that was imported is left out of garbage collections, which would take as long as the schedules."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_breaks_a_promise(part, frozen_heap, record_property):
    record_property("schedules", f"{IN_EACH} of seed {SEED}, part {part}")

    @seed(1000 * SEED + part)
    @settings(
        max_examples=IN_EACH,
        derandomize=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(make_schedules())
    def check(schedule):
        _, violations = schedule.play()
        again = f"python -m tests.schedules.schedule '{schedule.to_json()}'"
        assert not violations, "\n".join([*map(str, violations), f"To see it again: {again}"])

    check()
