"""hatdfed compare: several methods on the same seeds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand

from hatdfed.cli.console import interruptible, note, out, require_torch
from hatdfed.cli.options import (
    Assignments,
    ConfigFile,
    DataDir,
    DatasetName,
    DeviceName,
    FleetName,
    Jobs,
    Json,
    MlflowFlag,
    MlflowUri,
    Rounds,
    Servers,
    TensorBoardFlag,
    new_run_folder,
    read_user_layer,
)
from hatdfed.cli.progress import watch_download, watch_runs
from hatdfed.cli.sinks import SinkOptions, publish_runs
from hatdfed.cli.tables import make_difference_table, make_summary_table, make_time_table
from hatdfed.cli.verbs import Click, as_application
from hatdfed.errors import ConfigError, require_one_of
from hatdfed.runs.records.folder import named_path
from hatdfed.runs.round_row import format_metric
from hatdfed.setup.component_names import DEVICES, FLEETS
from hatdfed.setup.config import Config
from hatdfed.setup.layers import refuse_set_by_itself, refuse_unknown_names
from hatdfed.setup.methods import check_question, list_decentralised
from hatdfed.setup.notes import collect_notes

if TYPE_CHECKING:
    from hatdfed.runs.statistics import Comparison

Reference = Annotated[
    str | None, typer.Option("--reference", help="Method that the others are compared with; the first by default.")
]
TargetAccuracy = Annotated[
    float | None,
    typer.Option(
        "--target-accuracy", help="Validation accuracy (%) to count joules to; 90 % of the best one by default."
    ),
]


def compare_command(
    config: ConfigFile = None,
    methods: Annotated[
        str, typer.Option("--methods", help="Names separated by commas or spaces, or `all` decentralised ones.")
    ] = "all",
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="NUMBER|LIST", help="Number of seeds (0, 1, …), or a list: 0,3,7.")
    ] = "3",
    dataset: DatasetName = None,
    servers: Servers = None,
    rounds: Rounds = None,
    assignments: Assignments = None,
    reference: Reference = None,
    target_accuracy: TargetAccuracy = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="PATH", parser=named_path, help="Folder for all runs; a comparison in it is continued."
        ),
    ] = None,
    data_dir: DataDir = None,
    jobs: Jobs = None,
    fleet: FleetName = "auto",
    device: DeviceName = "auto",
    tensorboard: TensorBoardFlag = False,
    mlflow: MlflowFlag = False,
    mlflow_uri: MlflowUri = None,
    as_json: Json = False,
) -> None:
    """Compare methods on the same seeds and save all runs in a folder."""
    require_torch()
    layer = read_user_layer(config, assignments, dataset=dataset, servers=servers, rounds=rounds)
    refuse_set_by_itself(layer)
    names, worlds = _names(methods), _read_seeds(seeds)
    check_question(names, reference, target_accuracy)  # before torch is imported: a wrong name is told at once
    refuse_unknown_names(layer, names)
    require_one_of("--fleet", fleet, FLEETS)
    require_one_of("--device", device, DEVICES)
    from hatdfed.setup.build.placement import Placement
    from hatdfed.sweeps.batches import PlayOptions
    from hatdfed.sweeps.catalogue import check_runs, unfinished
    from hatdfed.sweeps.compare import (
        plan_comparison,
        play_comparison,
        refuse_other_folder,
        summarise_comparison,
    )

    if folder is not None:
        refuse_other_folder(folder)  # before data are fetched
    placement = Placement(fleet, device)
    planned = plan_comparison(names, worlds, layer)
    folder = folder or new_run_folder("compare", planned[0].config.dataset)
    runs = [run.within(folder) for run in planned]
    _tell_notes([run.config for run in runs])
    how = PlayOptions(placement, data_dir, on_note=note)
    with watch_download() as progress:
        check_runs((run.config for run in unfinished(runs)), how.datasets, data_dir, progress)
    publishers = SinkOptions(tensorboard, mlflow, mlflow_uri).publishers(folder)
    with interruptible(f"The same command with --out {folder} goes on with what is missing."), watch_runs() as watch:
        on_run, on_rounds = publish_runs(publishers, watch[0]), watch[1]
        results = play_comparison(runs, jobs, replace(how, on_rounds=on_rounds), folder, on_run)
    comparison = summarise_comparison(results, reference, target_accuracy)
    _report(comparison, runs[0].config, folder, as_json=as_json)


def _report(comparison: Comparison, config: Config, folder: Path, *, as_json: bool) -> None:
    from hatdfed.report.comparison_files import results_document

    _write(comparison, folder)
    if as_json:
        typer.echo(json.dumps({**results_document(comparison), "run_folder": str(folder)}))
        return
    seeds = len(comparison.summary[0]["seeds"])
    over = f"mean ± sd over {seeds} seeds" if seeds > 1 else "one seed"
    heading = f"{config.dataset}, {config.servers} servers, {config.rounds} rounds, {over}"
    out.print(make_summary_table(comparison.summary, title=heading))
    against, target = comparison.reference, comparison.target_accuracy
    out.print(make_difference_table(comparison.summary, reference=against, target_accuracy=target))
    out.print(make_time_table(comparison.summary, target_accuracy=target))
    for name in comparison.summary[0]["metrics"]:
        figures = [f"{row['method']} {format_metric(row['metrics'].get(name))}" for row in comparison.summary]
        out.print(f"{name} on the test data: {', '.join(figures)}.", soft_wrap=True)
    if seeds == 1:
        note("One seed says nothing about spread: there are no intervals. Use --seeds 3 or more.")
    out.print(f"Plots, tables and all runs: {folder}", soft_wrap=True)


def _names(methods: str) -> list[str]:
    names = list_decentralised() if methods == "all" else methods.replace(",", " ").split()
    if not names:
        raise ConfigError("--methods names no method. Give names separated by commas, or `all`.")
    return names


class CompareCommand(TyperCommand):
    """Reads the words after --methods as names, up to the next option or settings file."""

    def parse_args(self, ctx: Click, args: list[str]) -> list[str]:
        """Parse the arguments with all methods in one word."""
        return super().parse_args(ctx, join_methods(args))


def join_methods(args: list[str]) -> list[str]:
    """The arguments with the names after --methods joined by commas; of several --methods the last counts.

    >>> join_methods(["my.yaml", "--methods", "rnd", "full", "--seeds", "2"])
    ['my.yaml', '--seeds', '2', '--methods', 'rnd,full']
    """
    names: list[str] = []
    others: list[str] = []
    is_named = in_names = False
    for word in args:
        if word == "--methods" or word.startswith("--methods="):
            is_named = in_names = True
            names = [word.partition("=")[2]] if "=" in word else []
        elif in_names and not word.startswith("-") and not word.endswith((".yaml", ".yml")):
            names.append(word)
        else:
            in_names = False
            others.append(word)
    return [*others, "--methods", ",".join(names)] if is_named else others


def _read_seeds(text: str) -> int | list[int]:
    """A number of seeds, or a list of seeds, which has a comma."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    is_list = "," in text
    if not words or not all(word.isascii() and word.isdecimal() for word in words) or (words == ["0"] and not is_list):
        raise ConfigError(
            f"--seeds is {text!r}, but must be a number of seeds from 1, or a list of seeds such as 0,3,7."
        )
    return [int(word) for word in words] if is_list else int(words[0])


def _tell_notes(configs: list[Config]) -> None:
    for sentence in dict.fromkeys(sentence for config in configs for sentence in collect_notes(config)):
        note(sentence)


def _write(comparison: Comparison, folder: Path) -> None:
    from hatdfed.report.comparison_figures import select_runs, write_comparison_figures
    from hatdfed.report.comparison_files import write_comparison_files

    write_comparison_files(comparison, folder)
    if shown := select_runs(comparison):
        write_comparison_figures(shown, folder)


compare_app = as_application(compare_command, cls=CompareCommand)
