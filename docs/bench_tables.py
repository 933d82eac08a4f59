"""Tables of what `benchmarks/results/` holds, as Markdown; `generate.py` puts them where they belong."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from hatdfed.runs.statistics import paired_difference

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"

SHORT_SECONDS = 0.1  # between two readings of a counter, in which it is updated once at most
MANY_SERVERS = 100  # below, the loop is timed in the same process and its modules count, too

_HEADINGS = (
    "servers",
    "fleet",
    "seconds per round",
    "server-rounds per second",
    "speed-up over loop",
    "of matrix product",
    "peak MB",
)


def fleets_table(*names: str) -> str:
    """The rows of `hatdfed bench --out`, of one or several files."""
    rows = [row for name in names for row in load(name)["workloads"]]
    return table(_HEADINGS, [_fleet_row(row) for row in rows])


def networks_table(name: str) -> str:
    """The rows of `benchmarks/networks.py`: one line for each network."""
    by_network: dict[str, dict[str, dict[str, Any]]] = {}
    for row in load(name)["networks"]:
        if "error" not in row:
            by_network.setdefault(row["workload"], {})[row["fleet"]] = row
    forced = dict.fromkeys(way for ways in by_network.values() for way in ways if way not in ("loop", "stacked"))
    rows = []
    for network, ways in by_network.items():
        speeds = [f"{ways[way]['speedup_over_loop']:.2f}" if way in ways else "–" for way in (*forced, "stacked")]
        chosen = f"`{ways['stacked']['kernels']}`" if "stacked" in ways else "–"
        seconds = f"{ways['loop']['seconds_per_round']:.2f}" if "loop" in ways else "–"
        servers = next(iter(ways.values()))["servers"]
        rows.append([f"`{network}`", str(servers), seconds, *speeds, chosen])
    headings = ("network", "servers", "loop, s per round", *forced, "as chosen", "chosen")
    parts = [load(name)["machine"]["name"], table(headings, rows), _describe_failures(load(name)["networks"])]
    return "\n\n".join(filter(None, parts))


def _describe_failures(rows: list[dict[str, Any]]) -> str:
    """The ways that were tried and have no figures, by what failed."""
    by_error: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        if "error" in row:
            way = "as chosen" if row["fleet"] == "stacked" else row["fleet"]
            by_error.setdefault(row["error"], {}).setdefault(row["workload"], []).append(way)
    lines = []
    for error, networks in by_error.items():
        tried = "; ".join(f"`{network}` {', '.join(ways)}" for network, ways in networks.items())
        lines.append(f"- `{error}`: {tried}")
    return "\n".join(["Without figures:", "", *lines]) if lines else ""


def machine_line(name: str) -> str:
    """What was measured on, and its yardstick."""
    report = load(name)
    return f"{report['machine']['name']}, matrix product {report['gemm_gflops']:,.0f} GFLOP/s"


def coordinator_table(*names: str) -> str:
    """The coordinator's milliseconds, a column for each file."""
    columns = [{row["servers"]: row["milliseconds"] for row in load(name)["coordinator"]} for name in names]
    machines = [load(name)["machine"]["processor"] for name in names]
    rows = [
        [str(size), f"{size * (size - 1):,}", *(f"{column[size]:.1f}" for column in columns)] for size in columns[0]
    ]
    return table(("servers", "links", *(f"ms, {machine}" for machine in machines)), rows)


def privacy_table() -> str:
    """What private training costs, by the size of the noise."""
    report = load("privacy.json")
    methods = list(report["rows"][0]["accuracy"])
    rows = []
    for row in report["rows"]:
        noise = "no privacy" if row["noise"] is None else f"{row['noise']:g}" + (" (clipped only)" * (not row["noise"]))
        epsilon = "–" if row["epsilon"] is None else f"{row['epsilon']:.1f}"
        rows.append([noise, epsilon, *(f"{row['accuracy'][m][0]:.1f} ± {row['accuracy'][m][1]:.1f}" for m in methods)])
    return table(("σ", "ε at δ = 10⁻⁵", *(f"`{method}`" for method in methods)), rows)


def effort_table(name: str) -> str:
    """What changes to training and uploads save, by each way to charge for training that was tried; paired by seed."""
    rows = load(name)["rows"]
    ways = [per for per in ("pass", "sample") if any(row["charged_per"] == per for row in rows)]
    cells = []
    for recipe in dict.fromkeys(row["recipe"] for row in rows):
        figures = [_compare_effort(rows, recipe, per) for per in ways]
        seeds, accuracy, gain, error, _ = next(each for each in figures if each)
        spread = f" ± {error:.2f}" if error is not None else ""
        told = "–" if recipe == rows[0]["recipe"] else f"{gain:+.2f}{spread}"
        saved = [f"{100 * each[-1]:.0f}" if each else "–" for each in figures]
        cells.append([recipe, str(seeds), f"{accuracy:.2f}", told, *saved])
    return table(("recipe", "seeds", "accuracy, %", "difference", *(f"saved by the {per}, %" for per in ways)), cells)


def _compare_effort(
    rows: list[Mapping[str, Any]], recipe: str, per: str
) -> tuple[int, float, float, float | None, float] | None:
    """Seeds, accuracy, difference to the first recipe, its standard error, and the share of joules saved."""
    charged = [row for row in rows if row["charged_per"] == per]
    reference = {row["seed"]: row for row in charged if row["recipe"] == rows[0]["recipe"]}
    found = [row for row in charged if row["recipe"] == recipe]
    if not found:
        return None
    gains = [row["accuracy"] - reference[row["seed"]]["accuracy"] for row in found]
    saved = [1 - row["total_joules"] / reference[row["seed"]]["total_joules"] for row in found]
    error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else None
    accuracy = statistics.mean(row["accuracy"] for row in found)
    return len(found), accuracy, statistics.mean(gains), error, statistics.mean(saved)


def adapters_table() -> str:
    """Ways to adapt a pretrained network: what is sent, and what comes of it."""
    rows = load("adapters-cpu.json")["rows"]
    whole = max(row["numbers_sent"] for row in rows)
    cells = []
    for row in rows:
        links = "–" if row["method"] == "local" else f"{row['link_kilojoules'][0]:.2f}"
        sent = "–" if row["method"] == "local" else f"{row['numbers_sent']:,} ({row['numbers_sent'] / whole:.1%})"
        accuracy = f"{row['accuracy'][0]:.1f} ± {row['accuracy'][1]:.1f}"
        cells.append([row["way"], f"`{row['method']}`", sent, accuracy, links, f"{row['total_kilojoules'][0]:.2f}"])
    return table(("trained", "method", "numbers sent", "accuracy, %", "links, kJ", "total, kJ"), cells)


def adapters_lines() -> dict[str, str]:
    """What the table of adapters is about, and how far averaged factors are from averaged products."""
    report = load("adapters-cpu.json")
    (watched,) = (row for row in report["rows"] if "apart" in row)
    return {
        "adapters-size": f"{max(row['numbers_sent'] for row in report['rows']):,}",
        "adapters-seeds": str(report["seeds"]),
        "adapters-factors": (
            "Where both factors were trained and averaged, the product of the averages differed from the average of "
            f"the products by {watched['apart']:.1%} of its norm (mean over all merges and layers). The best "
            "approximation of the same rank, by a truncated singular value decomposition, differs by "
            f"{watched['cut_off']:.1%}; merging in this way is the last row of the table."
        ),
    }


def batteries_table() -> str:
    """Servers on mains and on solar panels: who is away, and what comes of it."""
    cells = []
    for case, runs in load("batteries-cpu.json")["cases"].items():
        accuracy, joules = ([run[name] for run in runs] for name in ("validation_accuracy", "joules"))
        by_hour = [sum(run["away_by_hour"][hour] for run in runs) for hour in range(24)]
        night = sum(by_hour[18:] + by_hour[:8]) / sum(by_hour) if sum(by_hour) else None
        charges = [run["lowest_charge"] for run in runs if run["lowest_charge"] is not None]
        cells.append(
            [
                case,
                f"{statistics.mean(accuracy):.1f} ± {statistics.stdev(accuracy):.1f}",
                f"{statistics.mean(joules) / 1e3:.1f}",
                f"{statistics.mean(run['share_away'] for run in runs):.1%}",
                "–" if night is None else f"{night:.0%}",
                f"{min(charges):.0f} J" if charges else "–",
                str(sum(run["payments_of_absent_servers"] for run in runs)),
            ]
        )
    heads = (
        "energy from",
        "accuracy, %",
        "total, kJ",
        "away",
        "away at night",
        "lowest charge",
        "payments of the absent",
    )
    return table(heads, cells)


def versions_table() -> str:
    """How fast the present version is, compared with version 0.1.0."""
    rows = []
    for name in ("versions-cpu.json", "versions-h200.json"):
        report = load(name)
        machine = report["machine"]["processor"] if report["device"] == "cpu" else "NVIDIA H200"
        turns = len({row["turn"] for row in report["rows"]})
        rows += [
            [machine, str(ratio["servers"]), ratio["fleet"], f"{ratio['speed']:.2f}",
             f"{ratio['lowest']:.2f} to {ratio['highest']:.2f}", str(turns)]
            for ratio in report["ratios"]
        ]  # fmt: skip
    return table(("machine", "servers", "fleet", "speed, times that of 0.1.0", "lowest to highest", "turns"), rows)


def bad_network_line() -> str:
    """What arrives over links that are cut all the time."""
    report = load("bad-network-cpu.json")
    seconds = ", ".join(f"{each:.0f}" for each in report["round_seconds"])
    joules = f"{report['relayed_joules'] / 1e6:.2f} MJ of {report['link_joules'] / 1e6:.2f} MJ"
    return (
        f"{report['edges']} edges that nobody can connect to, a model of {report['megabytes_a_model']:.0f} MB, links "
        f"of {report['mbit_per_second']:.0f} Mbit/s that are cut every {report['cut_seconds']:.0f} s "
        f"({report['connections_cut']} connections in all): {report['rounds_played']} of {report['rounds']} rounds "
        f"({seconds} s), {report['links_delivered']} of {report['links']} models arrive, "
        f"{100 * report['sent_again']:.1f} % of the bytes are sent twice; relayed links are charged {joules}"
    )


_WORLD_METHODS = {
    "local with parts": "`local`",
    "hat-dfed-plus-0.1": "`hat-dfed-plus-0.1`",
    "dac with parts": "`dac`",
    "pens with parts": "`pens`",
    "hat-dfed-trust": "`hat-dfed-trust`",
    "oracle-groups": "`oracle-groups`",
}


def worlds_table(name: str) -> str:
    """Validation accuracy by world and method: all sound servers, and where there are groups the smallest of them."""
    rows = load(name)["rows"]
    worlds = dict.fromkeys(row["world"] for row in rows)
    methods = [method for method in _WORLD_METHODS if any(row["method"] == method for row in rows)]
    cells = [[world, *(_world_cell(rows, world, method) for method in methods)] for world in worlds]
    joules = [_mean([row["link_joules"] for row in rows if row["method"] == method]) for method in methods]
    cells.append(["link energy, kJ", *(f"{each / 1000:.1f}" for each in joules)])
    return table(("world", *(_WORLD_METHODS[method] for method in methods)), cells)


def attacks_table(name: str) -> str:
    """Validation accuracy of the honest servers by attack and defence, and what the links cost."""
    rows = load(name)["rows"]
    defences = list(dict.fromkeys(row["method"] for row in rows))
    cells = []
    for world in dict.fromkeys(row["world"] for row in rows):
        attack, share = world.split(", ")
        words = "no liars" if attack == "none" else f"`{attack}`, {share.replace('%', ' %')}"
        cells.append([words, *(_world_cell(rows, world, defence) for defence in defences)])
    joules = [_mean([row["link_joules"] for row in rows if row["method"] == defence]) for defence in defences]
    cells.append(["link energy, kJ", *(f"{each / 1000:.1f}" for each in joules)])
    return table(("attack", *(f"`{defence}`" for defence in defences)), cells)


def _world_cell(rows: list[dict[str, Any]], world: str, method: str) -> str:
    found = [row for row in rows if (row["world"], row["method"]) == (world, method)]
    if not found:
        return "–"
    mean, smallest = (_mean([row[name] for row in found]) for name in ("accuracy", "smallest_group"))
    return f"{mean:.1f}" if mean == smallest else f"{mean:.1f} / {smallest:.1f}"


_NATURAL_FIGURES = {
    "vowels": ("explained variance (R²), %", "r2"),
    "flights": ("root mean square error, minutes", "rmse"),
    "typefaces": ("accuracy, %", "accuracy"),
    "speeches": ("right characters, %", "accuracy"),
}


def natural_runs_table() -> str:
    """What was run on each data set with a natural split, and what is reported of it."""
    rows = load("natural-cpu.json")["rows"]
    cells = []
    for name, (figure, _) in _NATURAL_FIGURES.items():
        found = [row for row in rows if row["dataset"] == name]
        if found:
            seeds = {row["seed"] for row in found}
            setting = [str(found[0][key]) for key in ("servers", "rounds")]
            cells.append([f"`{name}`", f"`{found[0]['network']}`", *setting, str(len(seeds)), figure])
    return table(("data set", "network", "servers", "rounds", "seeds", "figure"), cells)


def natural_table() -> str:
    """Test results on the data sets with a natural split, by method."""
    rows = load("natural-cpu.json")["rows"]
    return _natural_cells(rows, _natural_cell)


def natural_energy_table() -> str:
    """What the links of these runs cost."""
    rows = load("natural-cpu.json")["rows"]
    return _natural_cells(rows, lambda found, _: f"{_mean([row['link_joules'] for row in found]) / 1000:.1f}")


def _natural_cells(rows: list[dict[str, Any]], cell: Callable[[list[dict[str, Any]], str], str]) -> str:
    datasets = [name for name in _NATURAL_FIGURES if any(row["dataset"] == name for row in rows)]
    cells = []
    for method in dict.fromkeys(row["method"] for row in rows):
        found = {name: [row for row in rows if (row["dataset"], row["method"]) == (name, method)] for name in datasets}
        cells.append([f"`{method}`", *(cell(found[name], _NATURAL_FIGURES[name][1]) for name in datasets)])
    return table(("method", *(f"`{name}`" for name in datasets)), cells)


def _natural_cell(found: list[dict[str, Any]], metric: str) -> str:
    """Mean over runs, their standard deviation, and the mean of the worst servers; R² in percent."""
    if metric == "accuracy":
        values, worst = ([row[name] for row in found] for name in ("accuracy", "worst"))
    else:
        unit = 100 if metric == "r2" else 1
        values, worst = ([unit * row[name][metric] for row in found] for name in ("metrics", "worst_metrics"))
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{_mean(values):.1f}{spread} ({_mean(worst):.1f})"


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


_HOSTILE_ROUNDS = 200  # of the runs in the table; the file may have shorter ones, too
_HOSTILE_REFERENCES = {"absent": "the two are absent", "none": "nobody is hostile"}


def hostile_edges_table() -> str:
    """Accuracy of the honest edges by attack, method and seed: mean, and the worst edge."""
    rows = [row for row in load("hostile-edges-cpu.json")["rows"] if row["rounds"] == _HOSTILE_ROUNDS]
    columns = list(dict.fromkeys((row["method"], row["seed"]) for row in rows))
    attacks = sorted({row["attack"]: None for row in rows}, key=lambda attack: attack not in _HOSTILE_REFERENCES)
    cells = [
        [_HOSTILE_REFERENCES.get(attack, f"`{attack}`"), *(_hostile_cell(rows, attack, *column) for column in columns)]
        for attack in attacks
    ]
    return table(("attack", *(f"`{method}`, seed {seed}" for method, seed in columns)), cells)


def _hostile_cell(rows: list[dict[str, Any]], attack: str, method: str, seed: int) -> str:
    found = [row for row in rows if (row["attack"], row["method"], row["seed"]) == (attack, method, seed)]
    return f"{found[0]['accuracy']:.1f} ({found[0]['worst']:.1f})" if found else "–"


def fuzz_table() -> str:
    """How much bad input was tried on every reader."""
    report = load("fuzz.json")
    rows = [
        [f"`{name}`", row["kind"], f"{row['cases']:,}", f"{row['refused']:,}", str(row["defects"])]
        for name, row in report["targets"].items()
    ]
    total = f"{report['messages']:,} messages and {report['files']:,} files"
    machine = f"{report['machine']['processor']}, {report['machine']['cores']} cores"
    return f"{total}, {machine}:\n\n" + table(("reader", "kind", "cases", "refused", "defects"), rows)


def profile_table(name: str, count: int = 12) -> str:
    """The kernels that take most of a round."""
    profile = load(name)
    busy = profile["gpu_milliseconds"]
    rows = [
        [f"`{row['kernel'][:40]}`", f"{row['milliseconds']:.2f}", f"{100 * row['milliseconds'] / busy:.0f} %"]
        for row in profile["kernels"][:count]
    ]
    total = ["all kernels", f"{busy:.1f}", "100 %"]
    wall = ["wall clock", f"{profile['wall_milliseconds']:.1f}", ""]
    return table(("kernel", "ms", "share"), [*rows, total, wall])


def speed_table() -> str:
    """The few rows that say most."""
    wanted = (
        ("bench-cpu.json", (5, 20, 50)),
        ("bench-h200.json", (50, 350, 1000)),
        ("bench-h200-10-runs-of-50.json", (50,)),
    )
    rows = []
    for name, sizes in wanted:
        report = load(name)
        for row in report["workloads"]:
            if row["fleet"] == "stacked" and row["servers"] in sizes:
                machine = report["machine"]["name"].split(",")[0]
                cells = _fleet_row(row)
                rows.append([machine, cells[0], cells[3], cells[4], cells[5]])
    return table(("machine", "servers", "server-rounds per second", "speed-up over loop", "of matrix product"), rows)


def method_time_line() -> str:
    """What a round takes with learned trust."""
    report = load("method-time-cpu.json")
    (first, before), (second, after) = report["mean_seconds"].items()
    return (
        f"a round of `{second}` takes {after / before:.2f} times as long as one of `{first}` (mean of "
        f"{report['rounds']} rounds, {report['servers']} servers, {report['dataset']}, {report['threads']} thread)"
    )


def phases_table() -> str:
    """Milliseconds per server, phase by phase."""
    report = load("phases-cpu.json")
    rows = [[phase, f"{value:.1f}"] for phase, value in report["milliseconds_a_server"].items()]
    return f"{report['machine']['processor']}\n\n{table(('phase', 'ms per server'), rows)}"


def added_passes_line() -> str:
    """What the passes over all parameters take that version 0.1.0 did not make."""
    phases = load("phases-cpu.json")["milliseconds_a_server"]
    added = sum(phases[name] for name in ("keep the models before training", "check norms", "consensus distance"))
    return f"{added:.1f} of {phases['whole round']:.0f} ms per server"


def memory_table(name: str) -> str:
    """What was predicted for stacked fleets, and what was used."""
    rows = [row for row in load(name)["workloads"] if row["fleet"] == "stacked"]
    cells = [
        [
            str(row["servers"]),
            f"{row['predicted_memory_mb']:,.0f}",
            f"{row['peak_memory_mb']:,.0f}",
            f"{100 * (row['predicted_memory_mb'] / row['peak_memory_mb'] - 1):+.0f} %",
        ]
        for row in rows
        if row["servers"] >= MANY_SERVERS
    ]
    return table(("servers", "predicted", "used", "difference"), cells)


def group_recovery_table() -> str:
    """How often the groups of drawn verdicts are the true ones, without liars, and what is proved."""
    rows = [row for row in load("group-recovery.json")["rows"] if not row["liars"]]
    means = sorted({row["mean"] for row in rows})
    proved = sorted({row["mean"] for row in rows if (row["failure_bound"] or 1) < 1})
    cells = []
    for known in sorted({row["known"] for row in rows}, reverse=True):
        for sizes in _sizes(rows):
            mine = {row["mean"]: row for row in rows if (row["sizes"], row["known"]) == (sizes, known)}
            links = [f"{mine[mean]['wrong_links']:.2f}, {mine[mean]['missed_links']:.2f}" for mean in means[:2]]
            exact, least = ([form(mine[each]) for each in of] for form, of in ((_exact, means), (_proved, proved)))
            cells.append([" + ".join(map(str, sizes)), f"{known:g}", *exact, *least, *links])
    headings = ("groups", "q", *(f"exact, μ = {mean:g}" for mean in means))
    headings += tuple(f"proved, μ = {mean:g}" for mean in proved)
    return table((*headings, *(f"wrong, missed, μ = {mean:g}" for mean in means[:2])), cells)


def group_liars_table() -> str:
    """The same with liars, where all verdicts are known."""
    rows = [row for row in load("group-recovery.json")["rows"] if row["liars"] and row["known"] == 1]
    means, attacks = sorted({row["mean"] for row in rows}), list(dict.fromkeys(row["attack"] for row in rows))
    cells = []
    for liars in sorted({row["liars"] for row in rows}):
        for sizes in _sizes(rows):
            line = [" + ".join(map(str, sizes)), f"{100 * liars:.0f} %"]
            for attack in attacks:
                kind = (sizes, liars, attack)
                mine = [row for row in rows if (row["sizes"], row["liars"], row["attack"]) == kind]
                links = " / ".join(f"{row['wrong_links'] + row['missed_links']:.1f}" for row in mine)
                line += [" / ".join(_exact(row).removesuffix(" %") for row in mine) + " %", links]
            cells.append(line)
    order = " / ".join(f"{mean:g}" for mean in means)
    headings = [name for attack in attacks for name in (f"{attack}: exact, μ = {order}", f"{attack}: links")]
    return table(("groups", "liars", *headings), cells)


def group_memory_table() -> str:
    """How often a verdict on a link inside a group is not good, the more often it is judged."""
    report = load("group-recovery.json")
    cells = []
    for row in report["memory"]:
        both = ((f"memory {row['memory']:g}", row["running"]), ("plain mean", row["plain"]))
        cells += [[f"{row['mean']:g}", name, *(f"{100 * share:.2f} %" for share in shares)] for name, shares in both]
    return table(("μ", "verdict", *(f"after {number:,}" for number in report["judgements"])), cells)


def group_evidence_table() -> str:
    """Samples behind each verdict at which bound (b) is small enough."""
    rows = load("group-recovery.json")["needed"]
    servers = sorted({row["servers"] for row in rows})
    samples = {(row["margin"], row["servers"]): row["samples"] for row in rows}
    cells = [
        [f"{margin:g}", *(str(samples[margin, size]) for size in servers)]
        for margin in sorted({row["margin"] for row in rows})
    ]
    return table(("margin δ", *(f"samples, {size} servers" for size in servers)), cells)


def group_lines() -> dict[str, str]:
    """The settings of the draws, by the names of the places where they stand within a line."""
    report = load("group-recovery.json")
    return {
        "group-terms": str(report["terms"]),
        "group-draws": str(report["draws"]),
        "group-failure": f"{100 * report['failure']:g} %",
    }


def _sizes(rows: list[dict[str, Any]]) -> list[list[int]]:
    return [list(sizes) for sizes in dict.fromkeys(tuple(row["sizes"]) for row in rows)]


def _exact(row: dict[str, Any]) -> str:
    return f"{100 * row['exact']:.3g} %"


def _proved(row: dict[str, Any]) -> str:
    failure = row["failure_bound"]
    return "–" if failure is None or failure >= 1 else f"{math.floor(1000 * (1 - failure)) / 10:g} %"


def half_precision_table() -> str:
    """Differences between TF32 and bfloat16."""
    result = load("half-precision-h200.json")
    rows = [
        [
            f"{name}, {row['images']:,} images",
            f"{row['largest_difference']:.2f}",
            f"{row['difference_of_the_mean']:.3f}",
            f"{row['answers_that_differ']:.3f} %",
        ]
        for name, row in (("test", result["test"]), ("validation", result["validation"]))
    ]
    headings = (
        "set",
        "largest difference of a server, points",
        "difference of the mean over servers",
        "predictions that differ",
    )
    return table(headings, rows)


def first_run_line() -> str:
    """How long README's first commands take."""
    report = load("first-run-cpu.json")
    seconds = {command["typed"]: command["seconds"] for command in report["commands"]}
    machine, gigabytes = report["machine"], report["environment_megabytes"] / 1000
    return (
        f"On {machine['cores']} cores ({machine['processor']}), `make run` took {seconds['make run']:.0f} s, "
        f"{report['installed_after_seconds']:.0f} s of them to install {gigabytes:.1f} GB, "
        f"and the last line {seconds['hatdfed run --method hat-dfed']:.0f} s."
    )


def first_run_table() -> str:
    """Every command of a newcomer with its seconds."""
    commands = load("first-run-cpu.json")["commands"]
    return table(("typed", "seconds"), [[f"`{each['typed']}`", f"{each['seconds']:.0f}"] for each in commands])


def round_walk_table() -> str:
    """How many files a round goes through, for ARCHITECTURE."""
    ways = load("round-walk.json")["ways"]
    return table(
        ("one round of", "files"),
        [[f"`{name}`" if name != "deployment" else name, str(way["files"])] for name, way in ways.items()],
    )


def wire_line() -> str:
    """A model between two edges, and the bare copy."""
    row = load("wire-cpu.json")
    return (
        f"{row['model_bytes'] / 1e6:.1f} MB in {row['edge_ms']:.0f} ms, the bare copy in {row['bare_ms']:.0f} ms: "
        f"{row['ratio']:.2f} times as long (median of {row['repeats']})"
    )


def sweep_line() -> str:
    """A sweep of forty runs, in turns."""
    row = load("sweep.json")
    alone, together = row["seconds"]["one after another"], row["seconds"]["2 processes, in batches"]
    ratios = [one / other for one, other in zip(alone, together, strict=True)]
    return (
        f"{row['runs']} runs of digits on two cores take {min(alone):.0f} to {max(alone):.0f} s one after another, "
        f"{min(together):.0f} to {max(together):.0f} s as a sweep: {min(ratios):.1f} to {max(ratios):.1f} times as "
        f"fast, compared turn by turn in {len(ratios)} turns"
    )


def shards_table() -> str:
    """One run in shards on one machine: the same two cores for all."""
    rows = load("shards.json")["rows"]
    cells = [
        [
            str(row["shards"] or "none: one fleet"),
            row["codec"],
            f"{row['seconds_a_round']:.1f}",
            f"{row['megabytes_between_shards_a_round']:.1f}",
            "–" if row["own_megabytes_of_a_shard"] is None else f"{row['own_megabytes_of_a_shard']:,}",
        ]
        for row in rows
    ]
    return table(("shards", "codec", "s per round", "MB between shards per round", "MB of its own per shard"), cells)


def edge_memory_table() -> str:
    """How much an edge grows in rounds."""
    rows = load("edge-memory-cpu.json")["rows"]
    cells = []
    for degree in sorted({row["in_degree"] for row in rows}):
        mine = [row for row in rows if row["in_degree"] == degree]
        growth = [value for row in mine for value in row["growth_models"]]
        idle, peak = (max(value for row in mine for value in row[name]) for name in ("idle_mb", "peak_mb"))
        cells.append(
            [str(degree), f"{idle:.0f}", f"{peak:.0f}", f"{min(growth):.2f} to {max(growth):.2f}", str(degree + 4)]
        )
    return table(("models received per round", "idle MB", "peak MB", "growth in models", "in-degree + 4"), cells)


def fifty_edges_line() -> str:
    """What fifty processes cost, and what they lose."""
    row = load("fifty-edges-cpu.json")
    reports, most = row["edges"] * row["rounds"], max(row["own_ms"])
    return (
        f"{row['edges']} edges, {row['rounds']} rounds: {row['links_lost']} of {row['links']:,} models and "
        f"{row['reports_lost']} of {reports:,} reports lost; {row['round_seconds']:.1f} s per round, of which "
        f"{row['own_mean_ms']:.0f} ms are the coordinator's own work ({most:.0f} ms at most), and "
        f"{row['cpu_ms_a_round']:.0f} ms of processor time with all its connections"
    )


def paper_run_line() -> str:
    """How long a whole run takes."""
    run = load("paper-run-cpu.json")
    return f"{run['seconds']:.0f} seconds"


def _fleet_row(row: dict[str, Any]) -> list[str]:
    size = f"{row['runs']} × {row['servers']}" if row["runs"] > 1 else str(row["servers"])
    ratio = "–" if row["speedup_over_loop"] is None else f"{row['speedup_over_loop']:.1f}"
    return [
        size,
        row["fleet"],
        f"{row['seconds_per_round']:.3g}",
        f"{row['server_rounds_per_second']:,.0f}",
        ratio,
        f"{100 * row['share_of_gemm']:.0f} %",
        f"{row['peak_memory_mb']:,.0f}",
    ]


def wrong_prices_table() -> str:
    """What deciding by wrong prices costs: means, and paired differences to right prices."""
    rows = load("wrong-prices-digits.json")["rows"]
    right = {row["method"]: row["runs"] for row in rows if row["factor"] == 1}
    cells = []
    for row in rows:
        pairs = list(zip(row["runs"], right[row["method"]], strict=True))
        accuracy = [(mine["validation_accuracy"], theirs["validation_accuracy"]) for mine, theirs in pairs]
        joules = [(mine["joules"], theirs["joules"]) for mine, theirs in pairs]
        points = _interval([mine - theirs for mine, theirs in accuracy])
        percent = _interval([100 * (mine / theirs - 1) for mine, theirs in joules])
        cells.append(
            [
                f"`{row['method']}`",
                f"{row['factor']:g}",
                f"{sum(mine for mine, _ in accuracy) / len(pairs):.1f}",
                "–" if row["factor"] == 1 else points,
                f"{sum(mine for mine, _ in joules) / len(pairs) / 1e3:.2f}",
                "–" if row["factor"] == 1 else percent,
            ]
        )
    return table(
        ("method", "prices off by up to", "accuracy %", "difference, points", "energy kJ", "difference %"), cells
    )


def calibration_block(name: str = "calibration-h200.json") -> str:
    """Calibrated joules against a GPU's counter; where they were not measured, the command that does it."""
    if not (RESULTS / name).exists():
        return f"Not measured yet. `python benchmarks/calibration.py --out benchmarks/results/{name}` does it on a GPU."
    found = load(name)
    parts = [_calibration_machine(found), _calibration_table(found), _calibration_verdict(found)]
    if any("rhythms" not in cell for cell in found["cells"]):
        parts.append(_calibration_by_steps(found))
    if found["stacked"]:
        what = "Whole rounds of a stacked fleet on the same GPU, and what their ledger charges for training"
        parts += [f"{what} (which is not meant to be the same):", _stacked_table(found)]
    return "\n\n".join(parts)


def _calibration_machine(found: dict[str, Any]) -> str:
    idle = found["cells"][0]["idle"]
    free, held = idle["gross_joules"] / idle["seconds"], idle["watts_while_held"]
    alone = " That nobody else used the GPU was not asked of NVML." if found["asked"]["alone"] else ""
    return f"{found['machine']['name']}; idle {free:.0f} W, idle while a process holds it {held:.0f} W.{alone}"


def _calibration_table(found: dict[str, Any]) -> str:
    rows = []
    for cell in found["cells"]:
        windows = cell["held_out"]
        trained = _trained(cell)
        ratios = [each["charged_joules"] / each["reading"]["joules"] for each in windows]
        gross, seconds = (sum(each["reading"][key] for each in windows) for key in ("gross_joules", "seconds"))
        of_seconds = cell["profile"]["sample_seconds"] * trained / seconds
        of_watts = cell["profile"]["training_watts"] * seconds / _measured(windows)
        rows.append(
            [
                f"`{_network_of(cell)}`",
                str(cell["batch"]),
                f"{gross / seconds:.0f}",
                f"{1e3 * _charged(windows) / trained:.3g}",
                f"{1e3 * _measured(windows) / trained:.3g}",
                f"{_charged(windows) / _measured(windows):.3f}",
                f"{of_seconds:.3f}",
                f"{of_watts:.3f}",
                f"{min(ratios):.3f} to {max(ratios):.3f}",
            ]
        )
    figures = ("calibrated, mJ", "measured, mJ", "ratio", "of seconds", "of watts", "of single windows")
    return table(("network", "batch", "watts", *figures), rows)


def _calibration_verdict(found: dict[str, Any]) -> str:
    """How far off the figures are, and those of another batch size's profile."""
    cells = found["cells"]
    ratios = [_charged(cell["held_out"]) / _measured(cell["held_out"]) for cell in cells]
    within = sum(abs(ratio - 1) <= 0.1 for ratio in ratios)
    wrong = [
        _per_sample(profile) / (_measured(cell["held_out"]) / _trained(cell))
        for cell in cells
        for profile in cells
        if profile["network"] == cell["network"] and profile["batch"] != cell["batch"]
    ]
    counted = "all" if within == len(cells) else f"{within} of"
    said = f"The ratio is {min(ratios):.3f} to {max(ratios):.3f}: within 10 % in {counted} {len(cells)} rows."
    if not wrong:
        return said
    other = (
        f"With the profile of another batch size of the same network it would be {min(wrong):.2g} to {max(wrong):.2g}."
    )
    return f"{said} {other}"


def _calibration_by_steps(found: dict[str, Any]) -> str:
    """What rows are worth that were measured before calibration played whole rounds in aligned windows."""
    cells = [cell for cell in found["cells"] if "rhythms" not in cell]
    windows = [window["reading"] for cell in cells for window in cell["calibration"]]
    seconds = [each["seconds"] for each in windows]
    shares = [each["uncertainty"] / each["joules"] for each in windows]
    return (
        f"{len(cells)} of {len(found['cells'])} rows were measured when calibration waited for the GPU after every "
        "batch and windows began and ended between two updates of the counter; they were not measured again since. "
        f"{_describe_updates(cells)} Windows of a calibration, of {min(seconds):.1f} to {max(seconds):.1f} s, were "
        f"uncertain by {min(shares):.0%} to {max(shares):.0%} each."
    )


def _describe_updates(cells: list[dict[str, Any]]) -> str:
    """How often a counter is updated that was read about once a second: pairs of readings happen to be close."""
    counters = [cell["calibration_counter"] for cell in cells]
    counters += [window["counter"] for cell in cells for window in cell["held_out"]]
    pairs = [pair for counter in counters for pair in pairwise(counter) if pair[1][0] - pair[0][0] < SHORT_SECONDS]
    steps = [(later[1] - earlier[1]) / 1e3 for earlier, later in pairs if later[1] > earlier[1]]
    interval = math.fsum(later[0] - earlier[0] for earlier, later in pairs) / len(steps)
    return (
        f"Of {len(pairs)} readings of the counter less than {SHORT_SECONDS:g} s after the one before, "
        f"{len(pairs) - len(steps)} showed the same value and {len(steps)} a step of {min(steps):.0f} to "
        f"{max(steps):.0f} J: it was updated about every {interval:.1f} s."
    )


def _stacked_table(found: dict[str, Any]) -> str:
    rows = [
        [
            f"`{_network_of(row)}`",
            str(row["servers"]),
            str(row["batch"]),
            f"{_charged(row['windows']):,.0f}",
            f"{_measured(row['windows']):,.0f}",
            f"{_charged(row['windows']) / _measured(row['windows']):.2f}",
        ]
        for row in found["stacked"]
    ]
    return table(("network", "servers", "batch", "charged to all, J", "GPU of the simulation, J", "ratio"), rows)


def _charged(windows: list[dict[str, Any]]) -> float:
    return math.fsum(each["charged_joules"] for each in windows)


def _measured(windows: list[dict[str, Any]]) -> float:
    return math.fsum(each["reading"]["joules"] for each in windows)


def _trained(cell: dict[str, Any]) -> int:
    passes: int = cell["passes"]
    return passes * sum(each["samples"] for each in cell["held_out"])


def _per_sample(cell: dict[str, Any]) -> float:
    joules: float = cell["profile"]["training_watts"] * cell["profile"]["sample_seconds"]
    return joules


def _network_of(row: dict[str, Any]) -> str:
    """The paper's network is named with the images that it is for."""
    return {"fashion-mnist": "paper-cnn", "cifar-10": "paper-cnn, CIFAR-10"}.get(row["network"], row["network"])


def _interval(values: list[float]) -> str:
    found = paired_difference(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))
    return f"{found.mean:+.1f} [{found.low:+.1f}, {found.high:+.1f}]"


def table(headings: tuple[str, ...], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [list(headings), ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def load(name: str) -> dict[str, Any]:
    """One of the files."""
    content: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return content
