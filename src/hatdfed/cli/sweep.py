"""hatdfed sweep: execute many runs from one file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sized
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hatdfed.cli.console import interruptible, note, out, require_torch
from hatdfed.cli.options import DataDir, DeviceName, FleetName, Jobs, Json, MlflowFlag, MlflowUri, TensorBoardFlag
from hatdfed.cli.progress import watch_download, watch_sweep
from hatdfed.cli.sinks import SinkOptions
from hatdfed.cli.tables import describe_spread, make_sweep_table, print_failures, print_search
from hatdfed.errors import require_one_of
from hatdfed.runs.records.folder import named_path
from hatdfed.setup.component_names import DEVICES, FLEETS
from hatdfed.sweeps.file import read_sweep, refuse_unknown_values
from hatdfed.sweeps.retries import RETRIES

if TYPE_CHECKING:
    from hatdfed.sweeps.file import SearchPlan, SweepFile
    from hatdfed.sweeps.sweep import SweepPlan, SweepResult

RUNS_FAILED = 1
_MOST_LISTED = 60

Address = Annotated[str | None, typer.Option("--address", help="Of a Ray cluster, host:port; this machine by default.")]
Cpus = Annotated[float | None, typer.Option("--cpus-per-batch", help="Cores for a batch of runs on Ray.")]
Gpus = Annotated[float | None, typer.Option("--gpus-per-batch", help="GPUs for a batch of runs on Ray, e.g. 0.25.")]


def sweep_command(
    file: Annotated[
        Path, typer.Argument(metavar="SWEEP.yaml", help="What to run; docs/sweeps.md says how to write it.")
    ],
    executor: Annotated[str, typer.Option("--executor", help="Where runs are executed: local or ray.")] = "local",
    folder: Annotated[
        Path | None,
        typer.Option("--out", parser=named_path, help="Folder for all runs; by default one that belongs to this file."),
    ] = None,
    jobs: Jobs = None,
    retries: Annotated[
        int, typer.Option("--retries", min=0, help="How often a run that dies is tried again.")
    ] = RETRIES,
    address: Address = None,
    cpus_per_batch: Cpus = None,
    gpus_per_batch: Gpus = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs, and execute none.")] = False,
    data_dir: DataDir = None,
    fleet: FleetName = "auto",
    device: DeviceName = "auto",
    tensorboard: TensorBoardFlag = False,
    mlflow: MlflowFlag = False,
    mlflow_uri: MlflowUri = None,
    as_json: Json = False,
) -> None:
    """Execute the runs of a sweep file that are not done yet, and print the table of all."""
    require_torch()
    refuse_unknown_values(read_sweep(file))  # before torch is imported: a wrong name is told at once
    require_one_of("--fleet", fleet, FLEETS)
    require_one_of("--device", device, DEVICES)
    from hatdfed.setup.build.placement import Placement
    from hatdfed.sweeps.batches import PlayOptions
    from hatdfed.sweeps.executors import make_executor
    from hatdfed.sweeps.sweep import SweepFailedError, plan_sweep, play_sweep

    plan = plan_sweep(file, folder)
    cluster = {"address": address, "cpus_per_batch": cpus_per_batch, "gpus_per_batch": gpus_per_batch}
    player = make_executor(executor, jobs=jobs, retries=retries, **cluster)
    how = PlayOptions(Placement(fleet, device), data_dir, on_note=note)
    with watch_download() as progress:
        plan.check(how.datasets, data_dir, progress)
    _print_plan(file, plan, dry_run=dry_run)
    if dry_run:
        return
    place = plan.folder.path
    publishers = SinkOptions(tensorboard, mlflow, mlflow_uri).publishers(place)
    with interruptible(f"What is done is in {place}; the same command goes on."), watch_sweep() as watch:
        on_run, on_rounds = watch
        try:
            result = play_sweep(plan, player, replace(how, on_rounds=on_rounds), on_run, publishers)
        except SweepFailedError as error:  # told below, reason by reason
            result = error.result
    _report(file, plan.file, result, as_json=as_json)
    if result.failed:
        print_failures(result.failed, "The same command tries them again.")
        raise typer.Exit(RUNS_FAILED)


def _print_plan(file: Path, plan: SweepPlan, *, dry_run: bool) -> None:
    """Print how many runs there are and their states; on standard error, unless this is a dry run."""
    say = out.print if dry_run else _print_to_stderr
    if plan.file.search is not None:
        say(_search_plan(file, plan, plan.file.search), soft_wrap=True, markup=False)
        return
    from hatdfed.sweeps.catalogue import State
    from hatdfed.sweeps.points import all_runs

    runs = {run.name: run.state for run in all_runs(plan.points)}
    count = Counter(runs.values())
    begun = f", {count[State.BEGUN]} begun" if count[State.BEGUN] else ""
    say(
        f"{file.stem}: {_count(runs, 'run')} ({_count(plan.points, 'point')}, {_count(plan.file.worlds, 'seed')}), "
        f"{count[State.DONE]} done{begun}, "
        f"{len(runs) - count[State.DONE]} to do. Folder: {plan.folder.path}",
        soft_wrap=True,
        markup=False,
    )
    if dry_run:
        for name, state in list(runs.items())[:_MOST_LISTED]:
            say(f"  {state:5}  {name}", soft_wrap=True, markup=False)
        if len(runs) > _MOST_LISTED:
            say(f"  … and {len(runs) - _MOST_LISTED} more")


def _search_plan(file: Path, plan: SweepPlan, search: SearchPlan) -> str:
    from hatdfed.sweeps.search import Search

    tried = plan.folder.search
    told = Search(plan.file, tried).told if tried.is_file() else 0
    return (
        f"{file.stem}: a search over {', '.join(search.parameters)}: {search.num_trials} trials of "
        f"{_count(plan.file.worlds, 'seed')}, {told} trials done, {max(search.num_trials - told, 0)} to do. "
        f"Folder: {plan.folder.path}"
    )


def _count(things: Sized, what: str) -> str:
    return f"{len(things)} {what}" if len(things) == 1 else f"{len(things)} {what}s"


def _print_to_stderr(text: str, **how: Any) -> None:
    from hatdfed.cli.console import err

    err.print(text, **how)


def _report(file: Path, plan: SweepFile, result: SweepResult, *, as_json: bool) -> None:
    from hatdfed.sweeps.table import summary_document

    if as_json:
        document = summary_document(plan, result.rows, result.failed, result.search)
        typer.echo(json.dumps({**document, "folder": str(result.folder)}))
        return
    what = "search" if plan.search is not None else "sweep"
    over = describe_spread(result.rows)
    sought = {} if plan.search is None else {"objectives": plan.search.objectives}
    out.print(make_sweep_table(result.rows, title=f"{what} {file.stem}, {over}", **sought))
    if result.search is not None:
        print_search(result.search)
    written = ("summary.json", "summary.csv", "summary.tex", "pareto.png", "importance.png")
    *files, last = (name for name in written if (result.folder / name).is_file())
    out.print(f"{', '.join(['Runs', *files])} and {last}: {result.folder}", soft_wrap=True)
