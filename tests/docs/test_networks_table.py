"""Networks and ways without figures stay visible in the table of networks, with what failed."""

import json
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
LOOP = {"workload": "mlp", "servers": 4, "fleet": "loop", "seconds_per_round": 0.5, "speedup_over_loop": 1.0}


@pytest.fixture
def make_table(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.delitem(sys.modules, "bench_tables", raising=False)
    import bench_tables

    monkeypatch.setattr(bench_tables, "RESULTS", tmp_path)

    def make(rows):
        (tmp_path / "n.json").write_text(json.dumps({"machine": {"name": "a GPU"}, "networks": rows}))
        return bench_tables.networks_table("n.json")

    yield make
    del sys.modules["bench_tables"]


def test_a_way_that_failed_is_missing_and_its_error_is_told(make_table):
    failed = {"workload": "mlp", "servers": 4, "error": "TimeoutError: late"}
    table = make_table([{**failed, "fleet": "stacked"}, {**failed, "fleet": "lifted+graphs"}, LOOP])
    assert "| `mlp` | 4 | 0.50 | – | – |" in table
    assert table.endswith("- `TimeoutError: late`: `mlp` as chosen, lifted+graphs")


def test_a_network_whose_loop_failed_is_only_named_as_such(make_table):
    table = make_table([LOOP, {"workload": "lstm", "servers": 4, "fleet": "loop", "error": "RuntimeError: no"}])
    assert "| `lstm`" not in table
    assert "- `RuntimeError: no`: `lstm` loop" in table


def test_nothing_is_said_where_nothing_failed(make_table):
    assert "Without figures" not in make_table([LOOP, {**LOOP, "fleet": "stacked", "kernels": "torch"}])


def test_a_loop_that_failed_does_not_hide_what_was_measured(make_table):
    chosen = {**LOOP, "fleet": "stacked", "kernels": "lifted", "speedup_over_loop": 2.5}
    table = make_table([chosen, {"workload": "mlp", "servers": 4, "fleet": "loop", "error": "RuntimeError: no"}])
    assert "| `mlp` | 4 | – | 2.50 | `lifted` |" in table
