"""hatdfed paper: the paper's experiments, tables and figures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from hatdfed.cli.console import err, interruptible, note, out, require_torch
from hatdfed.cli.options import DataDir, DeviceName, Json
from hatdfed.cli.progress import watch_download
from hatdfed.errors import ConfigError, did_you_mean
from hatdfed.runs.progress import counter
from hatdfed.runs.records.checkpoint import write_atomically
from hatdfed_paper.claims import Claims
from hatdfed_paper.experiments import EXPERIMENTS, THE_PAPER, experiment_named
from hatdfed_paper.folders import choice_path, no_results, not_frozen, paper_folder, plan_path, results_folder
from hatdfed_paper.plan import FULL, Scale, scale_named
from hatdfed_paper.protocol import CONFIRMATORY, estimated_minutes, server_rounds
from hatdfed_paper.provenance import check_plan, refuse_changed_code
from hatdfed_paper.results import Results, locked, read_all
from hatdfed_paper.tables import all_markdown, all_tables
from hatdfed_paper.todo import Todo, todo

if TYPE_CHECKING:
    from hatdfed.runs.progress import OnRounds
    from hatdfed.setup.build.placement import Placement
    from hatdfed.sweeps.batches import PlayOptions
    from hatdfed_paper.play import OnRun, Outcome

_Table = TypeVar("_Table")
_NOT_PLAYED = "Planned, not played: there are no rows. The table `planned` says how much is missing."

app = typer.Typer(
    help="The paper's experiments: run them, and make its tables and figures.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ScaleName = Annotated[
    str, typer.Option("--scale", help="smoke or explore (digits, minutes on a CPU), or full (a GPU).")
]
ResultsDir = Annotated[
    Path | None,
    typer.Option("--results", help="Folder of packed results; paper/results, paper/explored or runs/paper-smoke."),
]


@app.command("list")
def list_command(scale: ScaleName = "full", results: ResultsDir = None) -> None:
    """List the experiments and how much of each is done."""
    from rich.table import Table

    chosen = scale_named(scale)
    folder = results_folder(results, chosen)
    files = read_all(folder, EXPERIMENTS, chosen.name)
    table = Table("experiment", "kind", "question", "runs", "done", "server-rounds", "GPU minutes", box=None)
    for name, experiment in EXPERIMENTS.items():
        what = todo([name], chosen, folder, files=files)
        total = what.known + len(what.missing)
        amount = server_rounds(experiment.runs(chosen), chosen)
        minutes = f"{estimated_minutes(amount):.0f}" if chosen == FULL and total else "–"
        cells = (str(total), str(what.known), f"{sum(amount.values()):,}", minutes)
        table.add_row(name, experiment.kind, experiment.question, *cells)
    out.print(table)
    out.print(
        "Experiments share runs. `hatdfed paper run all` plays RQ1 to RQ5; `hatdfed paper plan NAME` shows a plan. "
        "GPU minutes are estimates for one H200, at the rates of the fast sessions in paper/results/sessions.json."
    )
    if results is None and chosen == FULL and not any(file.records for file in files.values()):
        raise no_results(folder, chosen)  # outside a checkout, where nobody has begun to make them


@app.command("plan")
def plan_command(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Experiments.")],
    write: Annotated[
        bool, typer.Option("--write", help="Write the plan of a confirmatory experiment to paper/plans.")
    ] = False,
) -> None:
    """Print the plan of an experiment: what is compared, what decides, its runs, and what they take."""
    for name in names:
        experiment = experiment_named(name)
        if not write:
            typer.echo(experiment.write_plan())
            continue
        if experiment.kind != CONFIRMATORY:
            raise ConfigError(f"{name} is exploratory and has no plan to commit; only confirmatory experiments have.")
        if experiment.first is not None and not experiment.all_points(FULL):
            raise not_frozen(name, experiment.first)
        path = plan_path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, experiment.write_plan().encode())
        out.print(str(path), soft_wrap=True)


@app.command("freeze")
def freeze_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The experiment whose settings are frozen.")],
    scale: ScaleName = "full",
    results: ResultsDir = None,
) -> None:
    """Write what the first stage of an experiment chose on validation data to a file that its plan reads."""
    experiment, chosen = experiment_named(name), scale_named(scale)
    if experiment.freeze is None:
        raise ConfigError(f"{name} has no first stage that chooses settings for it.")
    path = choice_path(name, chosen)
    text = experiment.freeze(_read(chosen, results)[0], chosen)
    write_atomically(path, text.encode())
    after = "plan {} --write, and commit both files." if chosen == FULL else f"run {{}}{_at(chosen)}"
    out.print(f"{path}; next: hatdfed paper {after.format(name)}", soft_wrap=True)


def _at(scale: Scale) -> str:
    """The option that a command of this scale has."""
    return "" if scale == FULL else f" --scale {scale.name}"


@app.command("run")
def run_command(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Experiments, or `all` for RQ1 to RQ5.")],
    scale: ScaleName = "full",
    dataset: Annotated[str | None, typer.Option("--dataset", help="Only the runs on this data set.")] = None,
    results: ResultsDir = None,
    time_limit: Annotated[
        float | None, typer.Option("--time-limit", metavar="SECONDS", help="Start nothing that would end later.")
    ] = None,
    data_dir: DataDir = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Processes; a few on a GPU.")] = None,
    device: DeviceName = "auto",
    exploratory: Annotated[
        bool, typer.Option("--exploratory", help="Play without a committed plan; the results are marked exploratory.")
    ] = False,
) -> None:
    """Execute the missing runs of an experiment and pack its results into one file."""
    require_torch()
    from hatdfed.setup.build.placement import Placement
    from hatdfed.sweeps.batches import PlayOptions, TimeLimit, default_processes
    from hatdfed_paper.play import play_missing

    if time_limit is not None and not time_limit > 0:
        raise ConfigError(f"--time-limit is {time_limit:g}, but must be a number of seconds above 0.")
    chosen, placement = scale_named(scale), Placement("auto", device)
    wanted, dataset = _first_stages(_experiments(names), chosen), _of_scale(dataset, chosen)
    folder, plans = results_folder(results, chosen), _check_plans(wanted, chosen, exploratory=exploratory)
    with locked(folder), interruptible(f"What is done is in {folder}; the same command goes on."):
        what = todo(wanted, chosen, folder, dataset)
        how = PlayOptions(placement, data_dir, on_note=note)
        _load_data(what, how)  # before the workers want it
        processes = jobs or default_processes(placement, sum(run.config.servers for run in what.missing.values()))
        _say_if_they_take_turns(placement, processes)
        with _watch() as (on_run, on_rounds):
            limit = TimeLimit(float("inf") if time_limit is None else time_limit)
            how = replace(how, on_rounds=on_rounds, limit=limit)
            outcome = play_missing(what, plans=plans, processes=processes, how=how, on_run=on_run)
    _tell(what, outcome)


def _tell(what: Todo, outcome: Outcome) -> None:
    if what.stale:
        note(f"{what.stale} results in {what.folder} were made with other defaults; runs replace them as they end.")
    if outcome.missing:
        note(f"The time limit left {outcome.missing} runs undone. The same command goes on with them.")
    out.print(
        f"{outcome.played} runs played in {outcome.seconds:.0f} s, {what.known} were known. Results: {what.folder}",
        soft_wrap=True,
    )


def _experiments(names: list[str]) -> list[str]:
    wanted = list(dict.fromkeys(name for given in names for name in (THE_PAPER if given == "all" else (given,))))
    return [experiment_named(name).name for name in wanted]


def _first_stages(names: list[str], scale: Scale) -> list[str]:
    """An experiment whose settings are not frozen yet makes way for the one that chooses them."""
    wanted = []
    for name in names:
        first = experiment_named(name).first
        if first is not None and not experiment_named(name).all_points(scale):
            note(
                f"{name} has no frozen settings yet: its first stage {first} is played. "
                f"Then: hatdfed paper freeze {name}{_at(scale)}"
            )
            name = first
        wanted.append(name)
    return list(dict.fromkeys(wanted))


def _check_plans(names: list[str], scale: Scale, *, exploratory: bool) -> dict[str, str]:
    """The digests of the committed plans of confirmatory experiments; a smoke run confirms nothing and needs none."""
    found = [experiment_named(name) for name in names]
    if scale != FULL or exploratory:
        return {}
    confirmatory = [each for each in found if each.kind == CONFIRMATORY]
    plans = {each.name: check_plan(each.name, each.write_plan(), plan_path(each.name)) for each in confirmatory}
    refuse_changed_code(list(plans))
    return plans


def _of_scale(dataset: str | None, scale: Scale) -> str | None:
    if dataset is not None and dataset not in scale.datasets:
        raise ConfigError(f"--dataset is {dataset!r}, but scale {scale.name} has {' and '.join(scale.datasets)}.")
    return dataset


def _say_if_they_take_turns(placement: Placement, processes: int) -> None:
    from hatdfed.setup.build.placement import device_of
    from hatdfed.sweeps.workers import multi_process_service

    if device_of(placement) == "cuda" and processes > 1 and not multi_process_service():
        note("Processes take turns on the GPU. NVIDIA's service lets them share it: nvidia-cuda-mps-control -d")


def _load_data(what: Todo, how: PlayOptions) -> None:
    with watch_download() as progress:
        for run in what.missing.values():
            how.datasets.get(run.config.dataset, run.config.dataset_options, how.data_dir, progress)


@app.command("tables")
def tables_command(
    names: Annotated[list[str] | None, typer.Argument(metavar="[TABLE…]", help="Only these tables.")] = None,
    scale: ScaleName = "full",
    results: ResultsDir = None,
    as_json: Json = False,
) -> None:
    """Print the tables of the results, with the published figures beside ours."""
    chosen = scale_named(scale)
    tables = all_tables(*_read(chosen, results), chosen)
    if empty := [name for name in _only(names, tables) if not tables[name]]:
        note(f"Planned, not played, so without rows: {', '.join(empty)}. The table `planned` says how much is missing.")
    if as_json:
        typer.echo(json.dumps(_only(names, tables), ensure_ascii=False))
        return
    written = all_markdown(tables)
    for name in _only(names, tables) if names else written:
        typer.echo(f"## {name}\n\n{written.get(name) or _NOT_PLAYED}\n")


@app.command("figures")
def figures_command(
    scale: ScaleName = "full",
    results: ResultsDir = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Folder for the pictures.")] = None,
) -> None:
    """Draw the paper's figures from the results."""
    from hatdfed_paper.figures import write_figures

    chosen = scale_named(scale)
    place = folder or (paper_folder() / "figures" if chosen == FULL else results_folder(results, chosen) / "figures")
    for path in write_figures(*_read(chosen, results), chosen, place):
        out.print(str(path), soft_wrap=True)


def _read(scale: Scale, chosen: Path | None) -> tuple[Results, Claims]:
    folder = results_folder(chosen, scale)
    results = Results(read_all(folder, EXPERIMENTS, scale.name))
    if results.is_empty:
        raise no_results(folder, scale)
    return results, Claims.read()


def _only(names: list[str] | None, tables: Mapping[str, _Table]) -> dict[str, _Table]:
    for name in names or ():
        if name not in tables:
            raise ConfigError(f"There is no table called {name!r} in these results. {did_you_mean(name, tables)}")
    return {name: tables[name] for name in names or tables}


@contextmanager
def _watch() -> Iterator[tuple[OnRun, OnRounds]]:
    """The runs of the paper's experiments, which are too many for a line each."""
    last = "runs begin"
    with counter("round", err, lines=20) as show:

        def on_run(settings: Mapping[str, Any], figures: Mapping[str, Any], done: int, total: int) -> None:
            nonlocal last
            where = f"{settings['dataset']} seed {settings['seed']}"
            last = f"run {done} of {total}: {settings['method']} on {where}, accuracy {figures['avg_accuracy']:.1f} %"

        yield on_run, lambda done, total: show(done, total, last)
