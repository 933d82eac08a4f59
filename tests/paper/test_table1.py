"""Table 1: the titles of its learning curves follow from their numbers."""

import pytest

from hatdfed_paper.figures import figure_title


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ({"rnd": 52.0, "sgp": 53.5}, "baselines end 2.0 to 3.5 points above hat-dfed"),
        ({"rnd": 48.0, "sgp": 49.0}, "baselines end 1.0 to 2.0 points below hat-dfed"),
        ({"rnd": 48.0, "sgp": 53.0}, "baselines end from 2.0 points below to 3.0 above hat-dfed"),
        ({"full": 60.0}, "validation accuracy over rounds"),
    ],
)
def test_the_title_follows_from_the_numbers(ends, expected):
    lines = [{"name": name, "x": [1, 2], "y": [10.0, end]} for name, end in {"hat-dfed": 50.0, **ends}.items()]
    data = {"kind": "accuracy", "dataset": "cifar-10", "panels": [{"lines": lines}]}
    assert figure_title(data) == f"CIFAR-10: {expected}"


def test_energy_is_compared_where_as_much_is_spent():
    ours = {"name": "hat-dfed", "x": [1.0, 2.0], "y": [30.0, 50.0]}
    rival = {"name": "rnd", "x": [1.0, 3.0], "y": [40.0, 60.0]}  # 50 at 2 MJ, not 60
    data = {"kind": "accuracy-vs-energy", "dataset": "cifar-10", "panels": [{"lines": [ours, rival]}]}
    assert "baselines are 0.0 points above it" in figure_title(data)
