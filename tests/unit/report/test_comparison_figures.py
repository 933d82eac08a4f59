from __future__ import annotations

import math
from pathlib import Path

import pytest

from hatdfed.errors import RunFolderError
from hatdfed.report.comparison_figures import write_comparison_figures

NAMES = ["accuracy.png", "accuracy_vs_energy.png", "energy.png", "link_use.png"]


def assert_pictures(paths: list[Path], names: list[str] = NAMES) -> None:
    assert [path.name for path in paths] == names
    for path in paths:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
        assert content.endswith(b"IEND\xaeB`\x82")
        assert len(content) > 5_000


@pytest.mark.parametrize(("num_methods", "num_seeds"), [(4, 3), (10, 2)])  # colours for all, and too few
def test_pictures_are_drawn_of_methods(num_methods: int, num_seeds: int, make_run, tmp_path: Path) -> None:
    runs = {
        f"method-{method}": [
            make_run(3, label=f"method-{method}", seed=100 * method + seed, link_share=method / 20, budget=2)
            for seed in range(num_seeds)
        ]
        for method in range(num_methods)
    }
    assert_pictures(write_comparison_figures(runs, tmp_path / "figures"), [*NAMES, "regret.png"])


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param({"rounds": 1}, id="one round"),
        pytest.param({"accuracy": 100.0, "joules": 0.0}, id="equal accuracies and no energy"),
        pytest.param({"accuracy": math.nan}, id="no accuracy"),
    ],
)
def test_methods_at_the_edge_are_drawn_without_a_warning(odd: dict[str, float], make_run, tmp_path: Path) -> None:
    runs = {"ring": [make_run(3, **odd)], "full": [make_run(3, **odd), make_run(3, **odd)]}
    assert_pictures(write_comparison_figures(runs, tmp_path))


def test_one_run_alone_is_drawn(make_run, tmp_path: Path) -> None:
    assert_pictures(write_comparison_figures({"ring": [make_run(3)]}, tmp_path))


def test_methods_that_differ_by_far_share_a_logarithmic_axis(make_run, tmp_path: Path) -> None:
    runs = {
        "thrifty": [make_run(3), make_run(3, rounds=4, seed=1)],
        "lavish": [make_run(3, joules=1e3, seed=2)],
        "silent": [make_run(3, accuracy=math.nan)],
    }
    assert_pictures(write_comparison_figures(runs, tmp_path))


def test_the_comparison_follows_the_data(make_run, tmp_path: Path) -> None:
    ring, full = [make_run(3, seed=1)], [make_run(3, seed=2)]
    one = write_comparison_figures({"ring": ring, "full": full}, tmp_path / "1")
    other = write_comparison_figures({"ring": full, "full": ring}, tmp_path / "2")
    assert all(first.read_bytes() != second.read_bytes() for first, second in zip(one, other, strict=True))


@pytest.mark.parametrize("runs", [{}, {"ring": []}])
def test_nothing_to_compare_is_refused(runs: dict[str, list[object]], tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="nothing to compare"):
        write_comparison_figures(runs, tmp_path)  # type: ignore[arg-type]


def test_how_often_links_were_drawn_is_not_shown_of_more_servers_than_pixels(make_run, tmp_path: Path) -> None:
    many = make_run(num_servers=4, rounds=2)._replace(num_servers=5_000, servers=[])
    files = write_comparison_figures({"rnd": [many]}, tmp_path)
    assert "accuracy.png" in {path.name for path in files}
    assert "link_use.png" not in {path.name for path in files}
