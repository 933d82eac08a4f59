"""How long steps are in a round."""

import pytest

from hatdfed.errors import ConfigError
from hatdfed.server.step_schedule import StepSchedule


def test_without_a_cool_down_every_step_has_full_length():
    assert [StepSchedule(5).at(t) for t in range(7)] == [1.0] * 7


def test_a_cool_down_ends_in_a_straight_line_at_almost_nothing():
    pace = StepSchedule(rounds=10, cool_down=0.4)
    assert [pace.at(t) for t in range(5, 10)] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    assert [pace.at(t) for t in range(6)] == [1.0] * 6


def test_beyond_its_rounds_a_run_keeps_the_last_length():
    pace = StepSchedule(rounds=10, cool_down=1.0)
    assert pace.at(10) == pace.at(25) == pace.at(9) == pytest.approx(1 / 11)


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_cool_down_is_a_share(share):
    with pytest.raises(ConfigError, match=r"learner\.cool_down is"):
        StepSchedule(10, share)
