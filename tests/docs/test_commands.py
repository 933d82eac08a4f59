"""Commands in the documents work as typed: their options, settings and files, and images for all of their servers."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from hatdfed.cli.app import app
from hatdfed.cli.options import read_user_layer
from hatdfed.data.datasets import load_dataset
from hatdfed.errors import ConfigError
from hatdfed.fleets.sharded.orders import even_bounds
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.program import make_actors
from hatdfed.setup.build.world import make_world
from hatdfed.setup.layers import merge_layers, resolve
from hatdfed.setup.methods import METHODS
from hatdfed.sweeps.file import read_sweep
from hatdfed.sweeps.points import configs, points
from hatdfed.sweeps.search import check_search, corners

ROOT = Path(__file__).resolve().parents[2]
VERBS = ("run", "compare", "sweep")
BUILT_IN = ("digits", "synthetic")
MEASURED_PROFILE = {
    "name": "my-machine",
    "idle_watts": 3.0,
    "training_watts": {"value": 4.0, "how": "measured"},
    "sample_seconds": {"value": 0.01, "how": "measured"},
    "upload_mbit_per_second": 100.0,
    "uplink_mbit_per_second": 100.0,
    "latency_seconds": 0.005,
}
ELSEWHERE = ("my.yaml", "runs/…")  # files and folders that only a reader has


def commands(text):
    """Every `hatdfed run`, `compare` or `sweep` in the console blocks of a page, as words after `hatdfed`."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words and re.match(r"[A-Z_]+=", words[0]):  # the environment of the command
                words.pop(0)
            if len(words) > 1 and Path(words[0]).name == "hatdfed" and words[1] in VERBS:
                found.append(words[1:])
    return found


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TYPED = {" ".join(words): words for page in PAGES for words in commands(page.read_text(encoding="utf-8"))}


def options(words):
    """What the command's own parser makes of the words; it refuses those that it does not know."""
    with get_command(app).get_command(None, words[0]).make_context(words[0], words[1:]) as context:
        return dict(context.params)


def wanted(words):
    """The settings of the runs that a command would play, from what the command itself would read them."""
    given = options(words)
    if words[0] == "sweep":
        plan = read_sweep(ROOT / given["file"])
        if plan.search is not None:
            pytest.importorskip("optuna")
        check_search(plan)
        varied = [point.settings for point in points(plan)] if plan.search is None else corners(plan.search)
        return [configs(plan, settings)[0] for settings in varied]
    flags = {name: given.get(name) for name in ("method", "dataset", "servers", "rounds", "seed")}
    file = ROOT / given["config"] if given["config"] else None
    layer = read_user_layer(file, given["assignments"], **flags)
    if words[0] == "run":
        return [resolve(layer)]
    names = list(METHODS) if given["methods"] == "all" else given["methods"].split(",")
    return [resolve(merge_layers(layer, {"method": name})) for name in names]


def check(words):
    """Everything up to the first round: what would be refused there is refused here."""
    given = options(words)
    placement = Placement(given["fleet"], given["device"], given.get("shards"), given.get("address"))
    for config in wanted(words):
        if placement.shards is not None:
            even_bounds(config.servers, placement.shards)
        if config.dataset in BUILT_IN or "file" in config.dataset_options:
            dataset = load_dataset(config.dataset, options=config.dataset_options)
            make_world(config, dataset)
            make_actors(config, dataset)


def test_commands_are_found():
    assert {words[0] for words in TYPED.values()} == set(VERBS)
    assert commands("```console\nA=b .venv/bin/hatdfed run --servers 9 \\\n    --rounds 2   # so\nls\n```\n") == [
        ["run", "--servers", "9", "--rounds", "2"]
    ]


@pytest.fixture
def _own_files(tmp_path, monkeypatch):
    """The files that docs/data.md and docs/traces.md are about, where the command is typed."""
    x = np.random.default_rng(0).normal(size=(200, 4))
    np.savez(tmp_path / "table.npz", x=x, y=x[:, 0])
    monkeypatch.chdir(tmp_path)
    traces = "traces solar --servers 5 --days 2 --peak-watts 0.2 -o sun.csv"
    assert f"hatdfed {traces}\n" in (ROOT / "docs/traces.md").read_text(encoding="utf-8")
    assert CliRunner().invoke(app, traces.split()).exit_code == 0
    (tmp_path / "my-machine.yaml").write_text(yaml.safe_dump(MEASURED_PROFILE))


@pytest.mark.usefixtures("_own_files")
@pytest.mark.parametrize("words", TYPED.values(), ids=TYPED)
def test_a_command_of_the_documents_works_as_typed(words):
    if any(word.startswith(ELSEWHERE) for word in words):
        options(words)  # all that can be known of it
    else:
        check(words)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("run --servers 5000 --fleet sharded --shards 64 --address 10.0.0.1:6379", "servers is 5000"),
        ("run --dataset synthetic --servers 5000 --set network=linear --set candidates=16", "servers is 5000"),
        ("compare --methods hat-dfed,hat-dfad", "hat-dfad"),
        ("run --shards 2", "--fleet sharded"),
    ],
)
def test_a_command_that_cannot_work_is_noticed(command, why):
    with pytest.raises(ConfigError, match=why):
        check(command.split())
