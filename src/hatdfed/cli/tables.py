"""Tables on a terminal: results of runs, comparisons and sweeps."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from hatdfed.cli.console import note, out, print_error
from hatdfed.core.energy.energy_model import PAPER_CAUSES, Cause
from hatdfed.errors import RunFolderError
from hatdfed.runs.display import format_energy
from hatdfed.runs.duration import format_seconds
from hatdfed.runs.summary import JOULES_PER_MJ
from hatdfed.setup.config import Config
from hatdfed.sweeps.file import short_keys, value_text

COLUMNS = (
    ("avg_accuracy", "accuracy %"),
    ("std_accuracy", "sd of servers"),
    ("best_accuracy", "best %"),
    ("worst_accuracy", "worst %"),
    ("total_energy_mj", "energy"),
    ("link_energy_mj", "link energy"),
    ("links_per_round", "links"),
)
_JOULES = {"J": 1.0, "kJ": 1e3, "MJ": 1e6}
_LEAK = "†"
_CENTRAL = "‡"
_CAPTIONS = {
    "leaks_test": f"{_LEAK} sees the test set: not comparable, never ranked",
    "has_parameter_server": f"{_CENTRAL} has a parameter server: a centralised reference, not decentralised",
}
_SPREAD = "± standard deviation over seeds"
_LARGEST = 1e300

# Cells have a line break where a narrow table may break them; a table that fits writes a space there.
SummaryRow = Mapping[str, Any]


def make_summary_table(rows: Sequence[SummaryRow], *, title: str) -> Table:
    """Make a table with one row for each run or method: the paper's six metrics and the number of links."""
    return _fit_table(rows, title, [heading for _, heading in COLUMNS], [_format_figures(row) for row in rows])


def make_difference_table(rows: Sequence[SummaryRow], *, reference: str, target_accuracy: float | None) -> Table:
    """Make a table with one row for each method: its difference to the reference, and what its accuracy costs."""
    target = "target" if target_accuracy is None else f"{target_accuracy:.1f} %"
    headings = ["accuracy, points", "energy", "personal %", "upload + training + links", f"until {target} (seeds)"]
    cells = []
    for row in rows:
        is_reference = row["method"] == reference
        accuracy = "reference" if is_reference else _format_points(row)
        energy = "–" if is_reference else _format_signed(row["total_energy_percent_difference"], 0, " %")
        cells.append(
            [
                accuracy,
                energy,
                "–" if row["personal_accuracy"] is None else _allow_break(format_cell(row, "personal_accuracy")),
                _format_causes(row),
                _format_price(row),
            ]
        )
    title = f"Difference to {reference} paired by seed, mean [95 % interval], and costs"
    has_spread = any("±" in cell for line in cells for cell in line)
    return _fit_table(rows, title, headings, cells, [_SPREAD] if has_spread else [])


def make_time_table(rows: Sequence[SummaryRow], *, target_accuracy: float | None) -> Table:
    """Make a table with one row for each method: how long its runs take in simulated time, in all and to the target."""
    target = "target" if target_accuracy is None else f"{target_accuracy:.1f} %"
    times = ("simulated_seconds", "simulated_seconds_to_target")
    cells = [[_format_time(row.get(key)) for key in times] for row in rows]
    return _fit_table(rows, "Simulated time, mean over seeds", ["all rounds", f"until {target}"], cells)


def format_cell(row: SummaryRow, key: str) -> str:
    """Format one number of a row, with its standard deviation over seeds if there is one."""
    value, deviation = _read_number(row, key), row.get(f"{key}_sd")
    if key.endswith("_mj"):
        text = format_energy(value * JOULES_PER_MJ)
        return text if deviation is None else f"{text} ± {_format_percent(deviation, value)}"
    if key == "links_per_round":
        return f"{value:.1f}"
    return f"{value:.1f}" if deviation is None else f"{value:.1f} ± {deviation:.1f}"


def _read_number(row: SummaryRow, key: str) -> float:
    """Read a number of a row; a row that was read from a file may hold anything."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _LARGEST:
        found = "missing" if key not in row else "not a number that can be shown"
        raise RunFolderError(f"The results are incomplete: {key} is {found}. Finish the run again by --resume.")
    return float(value)


def format_run_title(config: Config) -> str:
    """Describe a run in one line."""
    return f"{config.method} on {config.dataset}, {config.servers} servers, {config.rounds} rounds, seed {config.seed}"


def _fit_table(
    rows: Sequence[SummaryRow],
    title: str,
    headings: Sequence[str],
    cells: Sequence[Sequence[str]],
    words: Sequence[str] = (),
) -> Table:
    """Make a table with one line a row if the terminal is wide enough, otherwise with several; `words` explain it."""
    caption = "\n".join([*words, *_explain_marks(rows)])
    wide = _make_table(rows, title, caption, headings, [[text.replace("\n", " ") for text in line] for line in cells])
    folded = [
        _fold_heading(heading, column) for heading, column in zip(headings, zip(*cells, strict=True), strict=True)
    ]
    tries = (wide, *(_make_table(rows, title, caption, folded, cells, space=space) for space in (1, 0)))
    at_will = out.options.update(width=1000)
    return next((table for table in tries if out.measure(table, options=at_will).maximum <= out.width), tries[-1])


def _fold_heading(heading: str, column: Sequence[str]) -> str:
    """Fold the heading onto several lines, no wider than its column."""
    words = [*heading.split(), *(line for text in column for line in text.splitlines())]
    return textwrap.fill(heading, max(map(len, words)))


def _make_table(
    rows: Sequence[SummaryRow],
    title: str,
    caption: str,
    headings: Sequence[str],
    cells: Sequence[Sequence[str]],
    *,
    space: int = 1,
) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.padding, table.collapse_padding, table.caption_justify = (0, space), True, "left"
    table.caption = caption or None
    table.add_column("method", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    for row, line in zip(rows, cells, strict=True):
        table.add_row(f"{row.get('method', '–')} {_find_mark(row)}".rstrip(), *line)
    return table


def _find_mark(row: SummaryRow) -> str:
    return _LEAK if row.get("leaks_test") else _CENTRAL if row.get("has_parameter_server") else ""


def _explain_marks(rows: Sequence[SummaryRow]) -> list[str]:
    return [words for key, words in _CAPTIONS.items() if any(row.get(key) for row in rows)]


def _format_figures(row: SummaryRow) -> list[str]:
    return [_allow_break(format_cell(row, key)) for key, _ in COLUMNS]


def _allow_break(text: str) -> str:
    return text.replace(" ±", "\n±")


def _format_percent(deviation: float, value: float) -> str:
    return f"{100 * deviation / value:.0f} %" if value else "0 %"


def _format_points(row: SummaryRow) -> str:
    """Format the difference in accuracy and its interval; a single seed has none."""
    if not row["same_world"]:
        return "other setup:\nnot paired"
    mean, low, high = (row[f"avg_accuracy_difference{end}"] for end in ("", "_low", "_high"))
    interval = "(one seed)" if low is None else f"[{_format_signed(low, 1)}, {_format_signed(high, 1)}]"
    return f"{_format_signed(mean, 1)}\n{interval}"


def _format_signed(value: float | None, decimals: int, unit: str = "") -> str:
    return "–" if value is None else f"{value:+z.{decimals}f}{unit}".replace("-", "−")


def _format_causes(row: SummaryRow) -> str:
    """Format the energy by cause in one unit, that of the sum; causes that the paper does not have are one number."""
    joules = {cause: JOULES_PER_MJ * row[f"{cause}_energy_mj"] for cause in Cause}
    unit = format_energy(sum(joules.values())).split()[1]
    *others, link = (f"{joules[cause] / _JOULES[unit]:.2f}" for cause in PAPER_CAUSES)
    more = sum(joules[cause] for cause in Cause if cause not in PAPER_CAUSES) / _JOULES[unit]
    return f"{' + '.join(others)}\n+ {link} {unit}" + (f"\n+ {more:.2f} other" if more else "")


def _format_price(row: SummaryRow) -> str:
    """Format the joules and the simulated time to the target accuracy and how many seeds reached it."""
    if row["seeds_reached"] is None:
        return "–"
    price = "never" if row["joules_to_target"] is None else format_energy(row["joules_to_target"])
    return f"{price}\n({row['seeds_reached']} of {len(row['seeds'])})"


def _format_time(seconds: float | None) -> str:
    return "–" if seconds is None else format_seconds(seconds)


ON_FRONT = "★"
_HEADINGS = {
    "validation_accuracy": "validation %",
    "avg_accuracy": "test %",
    "worst_accuracy": "worst test %",
    "total_joules": "energy",
    "link_joules": "link energy",
    "links_per_round": "links",
}
_SOUGHT = {
    "accuracy": "validation accuracy",
    "worst_accuracy": "validation accuracy of the worst server",
    "joules": "energy",
    "link_joules": "link energy",
}
_LEAST = ("worst_accuracy", "links_per_round", "link_joules", "avg_accuracy")  # left out first on a narrow terminal
_MOST_REASONS = 20
_MOST_VARIED = 5  # settings that get a column each


def describe_spread(rows: Sequence[SummaryRow]) -> str:
    """What the numbers of a sweep's table are, as the end of its title; tables before 0.2 have no deviation."""
    seeds = max((len(row["seeds"]) for row in rows), default=0)
    if seeds <= 1:
        return "one seed each"
    has_deviation = any(row.get("total_joules_sd") is not None for row in rows)
    return f"mean ± sd over {seeds} seeds" if has_deviation else f"mean over {seeds} seeds"


def make_sweep_table(
    rows: Sequence[SummaryRow], *, title: str, objectives: Sequence[str] = ("accuracy", "joules")
) -> Table:
    """Make a table with one row for each point: means and standard deviations; fewer columns if narrow."""
    columns = [name for name in _HEADINGS if name in rows[0]]
    kept = [[name for name in columns if name not in _LEAST[:count]] for count in range(len(_LEAST) + 1)]
    tries = [_make_sweep_table(rows, title, _format_sweep_caption(rows, objectives), some) for some in kept]
    at_will = out.options.update(width=1000)
    return next((table for table in tries if out.measure(table, options=at_will).maximum <= out.width), tries[-1])


def _make_sweep_table(rows: Sequence[SummaryRow], title: str, caption: str, columns: Sequence[str]) -> Table:
    table = Table(title=escape(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.collapse_padding, table.caption, table.caption_justify = True, caption, "left"
    varied = short_keys(dict.fromkeys(key for row in rows for key in row["settings"]))
    in_one = not 0 < len(varied) <= _MOST_VARIED
    table.add_column("")
    for heading in ["point"] if in_one else varied.values():
        table.add_column(escape(heading), overflow="fold")
    for name in columns:
        table.add_column(_HEADINGS[name], justify="right", no_wrap=True)
    has_pruned = any(row.get("pruned_after") is not None for row in rows)
    if has_pruned:
        table.add_column("pruned after", justify="right", no_wrap=True)
    table.add_column("seeds", justify="right", no_wrap=True)
    for row in rows:
        mark = (ON_FRONT if row["is_on_front"] else "") + _find_mark(row)
        seeds, missing = len(row["seeds"]), len(row["missing_seeds"])
        count = f"{seeds} of {seeds + missing}" if missing else str(seeds)
        point = [row["point"]] if in_one else [_format_sweep_value(row["settings"].get(key)) for key in varied]
        cells = [_format_sweep_cell(row, name) for name in columns] + [_format_pruned(row)] * has_pruned
        table.add_row(mark, *(escape(str(part)) for part in point), *cells, count)
    return table


def _format_pruned(row: SummaryRow) -> str:
    if row.get("pruned_after") is None:
        return ""
    accuracy = row.get("accuracy_when_pruned")
    return f"round {row['pruned_after']}" + ("" if accuracy is None else f" ({accuracy:.1f} %)")


def print_search(search: Mapping[str, Any]) -> None:
    """Print what pruning saved and which settings mattered."""
    pruning, importance = search.get("pruning"), search["importance"]
    if pruning is not None:
        saved, rounds = pruning["rounds_saved"], pruning["rounds"]
        share = f" ({100 * saved / rounds:.0f} %)" if rounds else ""
        out.print(
            f"Pruning ({pruning.get('pruner')}) stopped {pruning['pruned_trials']} of {search.get('trials')} trials "
            f"and saved {saved} of {rounds} rounds{share}.",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
    if importance["objectives"]:
        after = importance.get("after_round")
        when = "the last round" if after is None else f"round {after}, which all trials have reached"
        heading = f"Importance of settings: fANOVA over {importance.get('trials')} trials, after {when}"
        out.print(escape(heading), style="bold", highlight=False, soft_wrap=True)
        out.print(_make_importance_table(importance))
        out.print("R²: how well the settings predict trials that the forest has not seen", style="italic dim")
    for sentence in importance["notes"]:
        note(str(sentence))


def _make_importance_table(importance: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("setting")
    objectives: Mapping[str, Any] = importance["objectives"]
    for name in objectives:
        table.add_column(escape(_SOUGHT.get(name, name)), justify="right")
    for key in next(iter(objectives.values()))["shares"]:
        shares = [found["shares"].get(key) for found in objectives.values()]
        table.add_row(escape(str(key)), *("–" if share is None else f"{100 * share:.0f} %" for share in shares))
    explained = [found["explained"] for found in objectives.values()]
    table.add_section()
    table.add_row("R²", *("–" if score is None else f"{score:.2f}".replace("-", "−") for score in explained))
    return table


def _format_sweep_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else value_text(value)


def _format_sweep_caption(rows: Sequence[SummaryRow], objectives: Sequence[str]) -> str:
    sought = " and ".join(_SOUGHT.get(name, name) for name in objectives)
    worse = " and worse at none" if len(objectives) > 1 else ""
    better = f"better at {'one of ' if worse else ''}{sought}{worse}"
    return "\n".join([f"{ON_FRONT} no other point is {better}", *_explain_marks(rows)])


def _format_sweep_cell(row: SummaryRow, name: str) -> str:
    mean, deviation = row[name], row.get(f"{name}_sd")
    if mean is None:
        return "–"
    if name == "links_per_round":
        return f"{mean:.1f}"
    if name.endswith("_joules"):
        return format_energy(mean) + ("" if deviation is None else f" ± {_format_percent(deviation, mean)}")
    return f"{mean:.1f}" if deviation is None else f"{mean:.1f} ± {deviation:.1f}"


def print_failures(failed: Mapping[str, str], go_on: str) -> None:
    """Print one line for each reason, with the runs that failed for it, and how to go on."""
    reasons = Counter(failed.values())
    for reason, count in reasons.most_common(_MOST_REASONS):
        names = [name for name, why in failed.items() if why == reason]
        more = f" and {count - 3} more" if count > 3 else ""
        print_error(f"{', '.join(names[:3])}{more}: {reason}")
    if len(reasons) > _MOST_REASONS:
        note(f"{len(reasons) - _MOST_REASONS} other reasons are in summary.json.")
    print_error(f"{len(failed)} {'run' if len(failed) == 1 else 'runs'} failed; all others are kept. {go_on}")
