"""docs/results.md names every field that a run and a comparison leave behind."""

import json
import re
from pathlib import Path

from hatdfed.runs.calls import run

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
SMALL = {"servers": 2, "rounds": 1, "images_per_server": 20, "samples_per_round": 4, "network": "linear"}


def unnamed(names):
    return [name for name in names if f"`{name}`" not in PAGE]


def test_every_field_of_a_run_is_named(tmp_path):
    result = run(**SMALL, out=tmp_path / "run")
    assert unnamed(json.loads((tmp_path / "run" / "results.json").read_text())) == []
    for records in (result.rounds, result.servers, result.links, result.ledger):
        assert unnamed(records[0]) == []


def test_every_figure_of_a_comparison_is_named():
    row, *_ = json.loads((ROOT / "docs" / "make_run" / "comparison.json").read_text(encoding="utf-8"))
    assert unnamed({re.sub(r"_(sd|low|high)$", "", name) for name in row}) == []
