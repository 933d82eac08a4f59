"""Write the generated parts of the documents: `python docs/generate.py`, or `--check` to see that they are current.

README.md              the table of `make run`, from docs/make_run/comparison.json, and how long it takes
first-run.md           how long a newcomer's first commands take, from benchmarks/results
methods.md             the methods, from their definition
claims.md              every sentence with a figure, from its list and the raw runs
evaluation.md          what reproduces and what goes beyond the paper, in short, from paper/results
benchmarks/README.md   what is in benchmarks/results
results.md             the tables of a run's database, from their declaration
dashboard.md           how fast it is, and whether it grows, from benchmarks/results
settings.md            every setting, from the config's own definition
cli.md                 every command, from its own definition
paper/README.md        what of the paper reproduces, from paper/results
deviations.md          what each reading is worth, from the same
sweeps.md, ray.md      what a sweep gains and what shards cost, from the same; a search, from docs/sweeps
scale.md               what thousands of servers cost, from benchmarks/results
theory.md              how often learned trust finds the groups of drawn verdicts, from the same
ARCHITECTURE.md        how many files a round goes through, from the same
faults.md              which faults were injected and what was observed, from docs/faults
measuring.md           calibrated joules against a GPU's counter, what deciding by wrong prices costs, from the same
privacy.md             what private training costs, from the same
training.md            what decisions about training and uploads save, from benchmarks/results
parameters.md          what adapters save, from benchmarks/results
energy.md              who is away where servers have batteries, from the same
hat-dfed-plus.md       what goes beyond the paper, from the same
time.md                profiles of machines, and how simulated time compares, from benchmarks/results
operations.md          every metric of a deployment, from their declaration
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from bench_tables import (
    adapters_lines,
    adapters_table,
    added_passes_line,
    attacks_table,
    bad_network_line,
    batteries_table,
    calibration_block,
    coordinator_table,
    edge_memory_table,
    effort_table,
    fifty_edges_line,
    first_run_line,
    first_run_table,
    fleets_table,
    fuzz_table,
    group_evidence_table,
    group_liars_table,
    group_lines,
    group_memory_table,
    group_recovery_table,
    half_precision_table,
    hostile_edges_table,
    machine_line,
    memory_table,
    method_time_line,
    natural_energy_table,
    natural_runs_table,
    natural_table,
    networks_table,
    paper_run_line,
    phases_table,
    privacy_table,
    profile_table,
    round_walk_table,
    shards_table,
    speed_table,
    sweep_line,
    table,
    versions_table,
    wire_line,
    worlds_table,
    wrong_prices_table,
)
from claims import claims_page
from cli_page import cli_page
from dashboard_blocks import dashboard_blocks
from fault_blocks import fault_blocks
from paper_blocks import Reproduction
from plus_blocks import explored_lead, plus_blocks
from scale_blocks import scale_blocks, scale_lines
from search_blocks import importance_table, search_lines
from time_blocks import time_blocks

from hatdfed.cli.tables import COLUMNS, format_cell
from hatdfed.core.refusals import COORDINATOR_MEANINGS, MEANINGS
from hatdfed.deploy.monitoring.metrics import (
    COORDINATOR_METRICS,
    EDGE_METRICS,
    PROCESS_METRICS,
    RELAY_METRICS,
    ExportedMetric,
)
from hatdfed.runs.records.schema import TABLES
from hatdfed.runs.round_row import ROUND_COLUMNS
from hatdfed.setup.methods import METHODS
from hatdfed.setup.setting_list import list_settings

ROOT = Path(__file__).resolve().parent.parent
_COUNTED_BY = {"servers": MEANINGS, "coordinator": COORDINATOR_MEANINGS}
H200_FILES = ("bench-h200.json", "bench-h200-70-runs-of-5.json", "bench-h200-10-runs-of-50.json")


def make_run_table() -> str:
    """What `make run` printed, as Markdown."""
    rows = json.loads((ROOT / "docs/make_run/comparison.json").read_text(encoding="utf-8"))
    cells = [[f"`{row['method']}`", *(format_cell(row, key) for key, _ in COLUMNS)] for row in rows]
    return table(("method", *(heading for _, heading in COLUMNS)), cells)


def methods_table() -> str:
    """The named recipes."""
    return table(("name", "what it is"), [[f"`{method.name}`", method.summary] for method in METHODS.values()])


def records_tables() -> str:
    """Every column of a run's database with its unit and its meaning."""
    parts = []
    for each in TABLES.values():
        cells = [[f"`{name}`", column.unit or "–", column.meaning] for name, column in each.columns.items()]
        parts.append(
            f"`{each.name}` has a row for each {each.row_for}.\n\n{table(('column', 'unit', 'meaning'), cells)}"
        )
    return "\n\n".join(parts)


def last_figures() -> str:
    """The columns of rounds whose last value stands in results.json."""
    columns = ROUND_COLUMNS.values()
    return ", ".join(f"`{column.name}`" for column in columns if column.in_results and column.over_rounds == "last")


def settings_page() -> str:
    """Every setting with its default and its meaning."""
    lines = [
        "# Settings",
        "",
        "Data sets and methods may have other defaults; a run's `config.yaml` has the values that were used. Sections",
        "are nested in YAML files and written with dots after `--set`, as in `--set learner.momentum=0.9`. This page",
        "is written by `docs/generate.py` from `hatdfed.setup.config`.",
        "",
        "| setting | default | meaning |",
        "|---|---|---|",
    ]
    for entry in list_settings():
        default = entry.default if entry.name.endswith(".name") else json.dumps(entry.default)
        lines.append(_line([f"`{entry.name}`", "" if entry.owners else f"`{default}`", entry.meaning]))
    return "\n".join(lines) + "\n"


def metrics_table(metrics: Mapping[str, ExportedMetric]) -> str:
    """Every metric with its labels and its meaning."""
    cells = []
    for metric in metrics.values():
        labels = f"{{{', '.join(metric.labels)}}}" if metric.labels else ""
        cells.append([f"`{metric.name}{labels}`", metric.kind, metric.meaning])
    return table(("metric", "kind", "meaning"), cells)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def refusals_table() -> str:
    """Every reason of refusal with its meaning."""
    rows = [
        (f"`{word}`", who, meaning) for who, words in _COUNTED_BY.items() for word, meaning in sorted(words.items())
    ]
    return table(("reason", "counted by", "meaning"), rows)


def generated() -> dict[Path, str]:
    """Every document that has a generated part, as it should read."""
    benchmarks = {
        "speed-table": speed_table(),
        "bench-cpu": f"{machine_line('bench-cpu.json')}\n\n{fleets_table('bench-cpu.json')}",
        "bench-cpu-cifar": fleets_table("bench-cpu-cifar.json"),
        "bench-h200": f"{machine_line('bench-h200.json')}\n\n{fleets_table(*H200_FILES)}",
        "bench-h200-cifar": fleets_table("bench-h200-cifar.json"),
        "profile-h200": profile_table("profile-h200.json"),
        "memory": memory_table("bench-h200.json"),
        "half-precision": half_precision_table(),
        "phases": phases_table(),
        "versions": versions_table(),
        "networks-cpu": networks_table("networks-cpu.json"),
        "networks-h200": networks_table("networks-h200.json"),
        "coordinator": coordinator_table("bench-cpu.json", "bench-h200.json"),
        "edge-memory": edge_memory_table(),
        "fuzz": fuzz_table(),
        "hostile-edges": hostile_edges_table(),
    }
    inline = {"paper-run": paper_run_line(), "wire": wire_line(), "fifty-edges": fifty_edges_line()}
    inline |= {"sweep": sweep_line(), "bad-network": bad_network_line(), "added-passes": added_passes_line()}
    inline["method-time"] = method_time_line()
    paper = Reproduction()
    numbers = ("D3", "D4", "D7", "D8", "D9", "D12", "D15", "D16", "D17", "D18")
    worth = {f"worth-{number}": paper.worth(number) for number in numbers}
    readings = {"calibration": paper.calibration(), "readings": paper.readings()}
    metrics = {
        "refusals": refusals_table(),
        "coordinator-metrics": metrics_table(COORDINATOR_METRICS),
        "edge-metrics": metrics_table(EDGE_METRICS),
        "relay-metrics": metrics_table(RELAY_METRICS),
        "process-metrics": metrics_table(PROCESS_METRICS),
    }
    groups = {
        "group-recovery": group_recovery_table(),
        "group-liars": group_liars_table(),
        "group-memory": group_memory_table(),
        "group-evidence": group_evidence_table(),
    }
    natural = {
        "natural-runs": natural_runs_table(),
        "natural": natural_table(),
        "natural-energy": natural_energy_table(),
    }
    beyond = plus_blocks(paper)
    evaluation = {"paper-short": paper.short(), "plus-brief": beyond.pop("plus-brief")}
    explored = {"frontier-explored": explored_lead()}
    return {
        ROOT / "paper/README.md": _filled(ROOT / "paper/README.md", paper.blocks(), {"paper-repeat": paper.repeat()}),
        ROOT / "docs/deviations.md": _filled(ROOT / "docs/deviations.md", readings, worth),
        ROOT / "docs/hat-dfed-plus.md": _filled(ROOT / "docs/hat-dfed-plus.md", beyond, {}),
        ROOT / "docs/scale.md": _filled(ROOT / "docs/scale.md", scale_blocks(), scale_lines()),
        ROOT / "README.md": _filled(
            ROOT / "README.md", {"make-run-table": make_run_table()}, {"first-run-line": first_run_line()}
        ),
        ROOT / "docs/first-run.md": _filled(ROOT / "docs/first-run.md", {"first-run": first_run_table()}, {}),
        ROOT / "docs/evaluation.md": _filled(ROOT / "docs/evaluation.md", evaluation, explored),
        ROOT / "docs/methods.md": _filled(ROOT / "docs/methods.md", {"methods-table": methods_table()}, {}),
        ROOT / "benchmarks/README.md": _filled(ROOT / "benchmarks/README.md", benchmarks, inline),
        ROOT / "docs/dashboard.md": _filled(ROOT / "docs/dashboard.md", dashboard_blocks(), {}),
        ROOT / "docs/faults.md": _filled(ROOT / "docs/faults.md", fault_blocks(), {}),
        ROOT / "docs/results.md": _filled(
            ROOT / "docs/results.md", {"records": records_tables()}, {"last-figures": last_figures()}
        ),
        ROOT / "ARCHITECTURE.md": _filled(ROOT / "ARCHITECTURE.md", {"round-walk": round_walk_table()}, {}),
        ROOT / "docs/operations.md": _filled(ROOT / "docs/operations.md", metrics, {}),
        ROOT / "docs/ray.md": _filled(ROOT / "docs/ray.md", {"shards": shards_table()}, {}),
        ROOT / "docs/sweeps.md": _filled(
            ROOT / "docs/sweeps.md", {"importance": importance_table()}, inline | search_lines()
        ),
        ROOT / "docs/privacy.md": _filled(ROOT / "docs/privacy.md", {"privacy": privacy_table()}, {}),
        ROOT / "docs/parameters.md": _filled(
            ROOT / "docs/parameters.md", {"adapters": adapters_table()}, adapters_lines()
        ),
        ROOT / "docs/energy.md": _filled(ROOT / "docs/energy.md", {"batteries": batteries_table()}, {}),
        ROOT / "docs/worlds.md": _filled(
            ROOT / "docs/worlds.md",
            {
                "worlds-digits": worlds_table("worlds-groups-digits.json"),
                "worlds-bad-data": worlds_table("worlds-bad-data-digits.json"),
                "worlds-strong-skew": worlds_table("worlds-strong-skew-digits.json"),
                "worlds-candidates": worlds_table("worlds-candidates-digits.json"),
            },
            {},
        ),
        ROOT / "docs/robust.md": _filled(
            ROOT / "docs/robust.md", {"attacks-digits": attacks_table("worlds-attacks-digits.json")}, {}
        ),
        ROOT / "docs/training.md": _filled(
            ROOT / "docs/training.md",
            {f"effort-{name}": effort_table(f"effort-{name}.json") for name in ("digits", "fashion-mnist")},
            {},
        ),
        ROOT / "docs/measuring.md": _filled(
            ROOT / "docs/measuring.md",
            {"wrong-prices": wrong_prices_table(), "calibration-h200": calibration_block()},
            {},
        ),
        ROOT / "docs/natural.md": _filled(ROOT / "docs/natural.md", natural, {}),
        ROOT / "docs/theory.md": _filled(ROOT / "docs/theory.md", groups, group_lines()),
        ROOT / "docs/settings.md": settings_page(),
        ROOT / "docs/cli.md": cli_page(),
        ROOT / "docs/claims.md": claims_page(),
        ROOT / "docs/time.md": _filled(ROOT / "docs/time.md", time_blocks(), {}),
    }


def _filled(path: Path, blocks: dict[str, str], inline: dict[str, str]) -> str:
    """The document with what belongs between its markers."""
    text = path.read_text(encoding="utf-8")
    parts = {name: f"\n{block}\n" for name, block in blocks.items()} | inline
    for name, content in parts.items():
        pattern = rf"(<!-- {name} -->).*?(<!-- /{name} -->)"
        text = re.sub(pattern, lambda m, c=content: f"{m[1]}{c}{m[2]}", text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    stale = [
        path for path, text in generated().items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if "--check" in sys.argv:
        sys.exit(f"out of date: {', '.join(map(str, stale))}; run docs/generate.py" if stale else 0)
    for path in stale:
        path.write_text(generated()[path], encoding="utf-8")
