from __future__ import annotations

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hatdfed.errors import RunFolderError
from hatdfed.report.run_figures import accuracy_figure, write_run_figures
from hatdfed.report.style import save
from hatdfed.report.topology_figure import topology_figure

NAMES = ["accuracy.png", "energy.png", "accuracy_vs_energy.png", "topology.png"]


def assert_pictures(paths: list[Path], names: list[str]) -> None:
    assert [path.name for path in paths] == names
    for path in paths:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
        assert content.endswith(b"IEND\xaeB`\x82")
        assert len(content) > 5_000


@pytest.mark.parametrize("num_servers", [2, 30])  # a line for each, and bands
def test_four_pictures_are_drawn_of_a_run(num_servers: int, make_run, tmp_path: Path) -> None:
    assert_pictures(write_run_figures(make_run(num_servers, link_share=2 / num_servers), tmp_path / "figures"), NAMES)


def test_accuracy_is_drawn_against_simulated_time_where_that_is_known(make_run, tmp_path: Path) -> None:
    run = make_run()
    rounds = [{**record, "simulated_seconds": 12.5} for record in run.rounds]
    timed = [*NAMES[:3], "accuracy_vs_time.png", *NAMES[3:]]
    assert_pictures(write_run_figures(run._replace(rounds=rounds), tmp_path / "all"), timed)
    some = [{**record, "simulated_seconds": None if record["t"] else 12.5} for record in run.rounds]
    assert_pictures(write_run_figures(run._replace(rounds=some), tmp_path / "some"), NAMES)


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param({"rounds": 1, "num_servers": 3}, id="one round"),
        pytest.param({"rounds": 1, "num_servers": 13, "with_prices": False}, id="one round of many servers"),
        pytest.param({"accuracy": 100.0, "joules": 0.0, "num_servers": 4}, id="equal accuracies and no energy"),
        pytest.param({"accuracy": math.nan, "link_share": 0.0, "num_servers": 45}, id="no accuracy and no links"),
    ],
)
def test_a_run_at_the_edge_is_drawn_without_a_warning(odd: dict[str, float], make_run, tmp_path: Path) -> None:
    assert_pictures(write_run_figures(make_run(**odd), tmp_path), NAMES)


def test_gaps_in_the_reports_are_gaps_in_the_lines(make_run, tmp_path: Path) -> None:
    run = make_run()
    rounds = [{**record, "avg_accuracy": math.nan if record["t"] % 2 else 50.0} for record in run.rounds]
    servers = [{**record, "accuracy": None if record["server"] == 1 else 40.0} for record in run.servers]
    links = [{**record, "propensity": None} for record in run.links]
    holey = run._replace(rounds=rounds, servers=servers, links=links, link_joules=None)
    assert_pictures(write_run_figures(holey, tmp_path), NAMES)


def test_the_picture_follows_the_data(make_run, tmp_path: Path) -> None:
    run = make_run(num_servers=3, rounds=2, seed=1)
    one = write_run_figures(run, tmp_path / "1")
    other = write_run_figures(make_run(num_servers=3, rounds=2, seed=2)._replace(title=run.title), tmp_path / "2")
    assert all(first.read_bytes() != second.read_bytes() for first, second in zip(one, other, strict=True))


def test_figures_are_drawn_in_threads(make_run, tmp_path: Path) -> None:
    run = make_run(num_servers=3, rounds=2)
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda name: save(accuracy_figure(run), tmp_path / name), "abcd"))
    assert len({path.read_bytes() for path in paths}) == 1


def test_every_link_of_thousands_of_servers_has_its_mark(make_run) -> None:
    """And nothing has a number for each pair of them: 30,000 servers have 900 million."""
    few = make_run(num_servers=4, rounds=1, link_share=1.0, with_prices=False)
    spread = [{**link, "receiver": 7_000 * link["receiver"], "sender": 7_000 * link["sender"]} for link in few.links]
    axes = topology_figure(few._replace(num_servers=30_000, servers=[], links=spread)).axes[0]
    marks = axes.collections[0]
    assert len(marks.get_offsets()) == 12
    assert marks.get_sizes().min() >= 1.0


def test_a_run_without_rounds_is_refused(make_run, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="has no rounds"):
        write_run_figures(make_run()._replace(rounds=[]), tmp_path)


def test_neither_pyplot_nor_global_settings_are_touched(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
import hatdfed.report.run_data
assert "matplotlib" not in sys.modules
import matplotlib
from hatdfed.report.comparison_figures import write_comparison_figures
from hatdfed.report.run_figures import write_run_figures
before = matplotlib.rcParams.copy()
one = {"t": 0, "avg_accuracy": 50.0, "upload_joules": 1.0, "training_joules": 1.0, "link_joules": 1.0}
run = hatdfed.report.run_data.RunData("ring", "ring", 2, [one], [], [], {"avg_accuracy": 50.0})
write_run_figures(run, Path(sys.argv[1]))
write_comparison_figures({"ring": [run]}, Path(sys.argv[1]))
assert "matplotlib.pyplot" not in sys.modules
assert matplotlib.rcParams.copy() == before
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
