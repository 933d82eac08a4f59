"""What `benchmarks/results/` says about large fleets, as parts of docs/scale.md."""

from __future__ import annotations

from typing import Any

from bench_tables import load, table

GIB = 2**30 / 1e6  # MB
PAPER_SERVERS = 100_000
PAPER_CANDIDATES = 16
SHARDS = 20
FEWEST_SEEDS = 5  # for an interval to mean something
HEADER_LIMIT_MB = 100  # what a safetensors file may have in front of its tensors
WORLDS = {
    "candidates-digits-linear.json": "digits, softmax regression",
    "candidates-digits.json": "digits, small CNN",
    "candidates-fashion-mnist-linear.json": "Fashion-MNIST, softmax regression",
}


def scale_blocks() -> dict[str, str]:
    """The generated parts of the page, by their names."""
    return {
        "scale-coordinator": _coordinator(),
        "scale-runs": _runs(),
        "scale-given-up": _given_up(),
        "scale-fit": _fit(),
        "scale-on-paper": _on_paper(),
    }


def scale_lines() -> dict[str, str]:
    """Those that stand within a line."""
    return {"scale-machine": _machine(), "scale-memory": _memory()}


def _machine() -> str:
    machine = load("many_servers.json")["machine"]
    return f"{machine['processor']}, {machine['cores']} cores."


def _alone(method: str) -> dict[tuple[int, int | None], dict[str, Any]]:
    rows = load("many_servers.json")["coordinator"]
    return {(row["servers"], row["candidates"]): row for row in rows if row["method"] == method}


def _coordinator() -> str:
    """Milliseconds of a round with links, and of the worst."""
    cells = []
    for method in ("hat-dfed", "hat-dfed-plus"):
        rows = _alone(method)
        for servers in sorted({servers for servers, _ in rows}):
            cells.append([f"`{method}`", f"{servers:,}", *(_times(rows.get((servers, d))) for d in (None, 16, 32))])
    return table(("method", "servers", "all links", "16 candidates", "32 candidates"), cells)


def _times(row: dict[str, Any] | None) -> str:
    return "–" if row is None else f"{row['with_links_ms']:,.0f} ({row['worst_ms']:,.0f})"


def _runs() -> str:
    """Whole runs."""
    cells = []
    for row in load("many_servers.json")["runs"]:
        servers, disk = row["servers"], row["disk_mb"]
        cells.append(
            [
                f"{servers:,}",
                str(row["candidates"] or "all"),
                f"{row['seconds_a_round']:.2f}",
                f"{1e3 * row['seconds_a_round'] / servers:.2f}",
                f"{row['coordinator_ms']:.0f} ({row['coordinator_worst_ms']:.0f})",
                f"{row['peak_memory_mb']:,.0f}",
                f"{1e3 * disk['run.sqlite'] / row['rounds'] / servers:.2f}",
                f"{1e3 * disk['checkpoint.safetensors'] / servers:.1f}",
            ]
        )
    headings = (
        "servers", "candidates", "s per round", "ms per server and round", "of which the coordinator, ms (worst)",
        "peak MB", "records, kB per server and round", "checkpoint, kB per server",
    )  # fmt: skip
    return table(headings, cells)


def _memory() -> str:
    row = _large_run()
    memory = row["memory_mb"]
    return (
        f"{row['servers']:,} servers, {row['rounds']} rounds: {memory[1]:,.0f} MB after the second round, "
        f"{memory[len(memory) // 2]:,.0f} MB half-way, {memory[-1]:,.0f} MB after the last; on average the second half "
        f"is {row['growth_mb']:+.0f} MB from the first. Mean validation accuracy {row['first_accuracy']:.0f} % after "
        f"the first round, {row['accuracy']:.0f} % after the last."
    )


def _large_run() -> dict[str, Any]:
    rows: list[dict[str, Any]] = load("many_servers.json")["runs"]
    return max(rows, key=lambda row: row["servers"])


def _given_up() -> str:
    """Differences to all links, over seeds."""
    cells = []
    for name, words in WORLDS.items():
        try:
            rows = load(name)["rows"]
        except FileNotFoundError:
            continue
        for row in rows:
            if row["candidates"] is not None and row["seeds"] >= FEWEST_SEEDS:
                plain = next(r for r in rows if r["recipe"] == row["recipe"] and r["candidates"] is None)
                joules = 100 * (row["link_joules"] / plain["link_joules"] - 1)
                cells.append(
                    [
                        words,
                        row["recipe"],
                        str(row["candidates"]),
                        f"{plain['validation_accuracy']:.1f}",
                        _interval(row["validation_accuracy_difference"]),
                        _interval(row["validation_worst_difference"]),
                        _interval(row["avg_accuracy_difference"]),
                        f"{joules:+.0f} %",
                        str(row["seeds"]),
                    ]
                )
    headings = (
        "world", "recipe", "d", "all links, %", "difference in points, validation", "worst server, validation", "test",
        "link joules", "seeds",
    )  # fmt: skip
    return table(headings, cells)


def _interval(change: dict[str, Any]) -> str:
    if change["low"] is None:
        return f"{change['mean']:+.1f}"
    return f"{change['mean']:+.1f} ({change['low']:+.1f} to {change['high']:+.1f})"


def _fit() -> str:
    """How many servers a machine holds, from what was used at the largest size that was measured."""
    cells = []
    linear = _large_run()
    cells.append(_fit_row("2 cores, 24 GiB", "softmax regression, 650 numbers", linear["servers"],
                          linear["peak_memory_mb"], 1 / linear["seconds_a_round"] * linear["servers"], 24))  # fmt: skip
    for machine, name, words, gib in (
        ("2 cores, 24 GiB", "bench-cpu.json", "paper's Fashion-MNIST network", 24),
        ("2 cores, 24 GiB", "bench-cpu-cifar.json", "paper's CIFAR-10 network", 24),
        ("H200, 139 GiB", "bench-h200.json", "paper's Fashion-MNIST network", 139),
        ("H200, 139 GiB", "bench-h200-cifar.json", "paper's CIFAR-10 network", 139),
    ):
        rows = [row for row in load(name)["workloads"] if row["fleet"] == "stacked"]
        row = max(rows, key=lambda row: row["servers"])
        cells.append(_fit_row(machine, words, row["servers"], row["peak_memory_mb"],
                              row["server_rounds_per_second"], gib))  # fmt: skip
    headings = (
        "machine",
        "network",
        "measured with",
        "MB per server",
        "server-rounds per second",
        "servers that fit, about",
        "seconds per round",
    )
    return table(headings, cells)


def _largest(name: str) -> tuple[int, float]:
    """Servers of the largest stacked fleet in a file, and its peak in MB."""
    rows = [row for row in load(name)["workloads"] if row["fleet"] == "stacked"]
    row = max(rows, key=lambda row: row["servers"])
    return row["servers"], row["peak_memory_mb"]


def _most(servers: int, peak: float, gib: int) -> int:
    return int(0.8 * gib * GIB / (peak / servers))


def _fit_row(machine: str, network: str, servers: int, peak: float, rate: float, gib: int) -> list[str]:
    most = _most(servers, peak, gib)
    rounded = round(most, -max(0, len(str(most)) - 2))
    return [
        machine, network, f"{servers:,}", f"{peak / servers:.2f}", f"{rate:,.0f}", f"{rounded:,}",
        f"{rounded / rate:,.1f}",
    ]  # fmt: skip


def _slope(method: str) -> float:
    """Milliseconds of the coordinator for every server more, between the two largest fleets measured."""
    rows = _alone(method)
    low, high = sorted(servers for servers, d in rows if d == PAPER_CANDIDATES)[-2:]
    small, large = rows[low, PAPER_CANDIDATES], rows[high, PAPER_CANDIDATES]
    return float(large["with_links_ms"] - small["with_links_ms"]) / (high - low)


def _extrapolated_ms(method: str) -> float:
    rows = _alone(method)
    largest = max(servers for servers, d in rows if d == PAPER_CANDIDATES)
    known = float(rows[largest, PAPER_CANDIDATES]["with_links_ms"])
    return known + _slope(method) * (PAPER_SERVERS - largest)


def _on_paper() -> str:
    """100,000 servers, from what 5,000 to 20,000 cost."""
    run, count, links = _large_run(), PAPER_SERVERS, 1.2 * PAPER_SERVERS
    records = run["disk_mb"]["run.sqlite"] / run["rounds"] / run["servers"] * count
    a_server = run["seconds_a_round"] / run["servers"]
    crossing = links * (1 - 1 / SHARDS)
    paper_mb = 47.2 / 8
    table_mb = count * PAPER_CANDIDATES * 8 / 1e6
    header_mb = run["disk_mb"]["header of the checkpoint"] / run["servers"] * count
    lines = [
        ["coordinator, `hat-dfed`, d = 16", f"{_extrapolated_ms('hat-dfed') / 1e3:.1f} s per round", "extrapolated"],
        [
            "coordinator, `hat-dfed-plus`, d = 16, rounds with links",
            f"{_extrapolated_ms('hat-dfed-plus') / 1e3:.1f} s",
            "extrapolated",
        ],
        [
            "the coordinator's tables (candidates, weights, sums)",
            f"{3 * table_mb:,.0f} MB",
            "N·d·8 bytes, three of them",
        ],
        ["the same with all links", f"{2 * count * count * 8 / 1e9:,.0f} GB", "N²·8 bytes, two of them"],
        ["plan, to all shards", f"{links * 16 / 1e6:.1f} MB", "16 bytes per link"],
        ["reports", f"{count * 100 / 1e6:.0f} MB", "about 100 bytes per server"],
        [
            f"training, {SHARDS} shards of {count // SHARDS:,} on cores like these",
            f"{a_server * count / SHARDS:.1f} s per round",
            "extrapolated, softmax regression",
        ],
        [
            "models between shards, 650 numbers in float32",
            f"{crossing * 650 * 4 / 1e6:,.0f} MB per round",
            f"1.2 links per server, {100 * (1 - 1 / SHARDS):.0f} % cross",
        ],
        [
            "models between shards, the paper's Fashion-MNIST network",
            f"{crossing * paper_mb / 1e3:,.0f} GB per round; {crossing * paper_mb / 8e3:,.0f} GB in four bits",
            "47.2 Mbit each",
        ],
        [
            "H200s that hold the paper's Fashion-MNIST network",
            f"{count / _most(*_largest('bench-h200.json'), 139):,.0f}",
            "memory per server as measured",
        ],
        ["records", f"{records:,.0f} MB per round", "extrapolated"],
        [
            "header of a checkpoint (the state)",
            f"{header_mb:,.0f} MB",
            f"extrapolated; the format allows {HEADER_LIMIT_MB} MB",
        ],
    ]
    return table(("quantity", "amount", "source"), lines)
