"""Which runs of an experiment are there, and which have to be played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hatdfed.setup.config import Config
from hatdfed.setup.layers import merge_layers, resolve
from hatdfed.setup.run_identity import run_key
from hatdfed_paper.experiments import EXPERIMENTS, experiment_named
from hatdfed_paper.plan import Scale, Settings
from hatdfed_paper.results import ResultFile, read_all, run_name


@dataclass(frozen=True)
class Wanted:
    """A run, and the experiment that keeps it."""

    experiment: str
    settings: Settings
    config: Config


@dataclass(frozen=True)
class Todo:
    """What has to be played, and what is there."""

    names: tuple[str, ...]
    scale: Scale
    folder: Path
    files: dict[str, ResultFile]
    missing: dict[str, Wanted]  # by the name of the run
    known: int
    stale: int  # of the missing, there with other defaults than today's


def todo(
    names: Sequence[str],
    scale: Scale,
    folder: Path,
    dataset: str | None = None,
    *,
    files: dict[str, ResultFile] | None = None,
) -> Todo:
    """The runs of these experiments, or of one data set in them, that no file in `folder` has yet.

    `files` are those of the folder, where somebody has read them already.
    """
    files = read_all(folder, EXPERIMENTS, scale.name) if files is None else files
    there = {(name, record["key"]) for file in files.values() for name, record in file.records.items()}
    wanted = _wanted(names, scale, dataset)
    missing = {name: run for name, run in wanted.items() if (name, run_key(run.config)) not in there}
    stale = len(missing.keys() & {name for name, _ in there})
    return Todo(tuple(names), scale, folder, files, missing, len(wanted) - len(missing), stale)


def _wanted(names: Sequence[str], scale: Scale, dataset: str | None) -> dict[str, Wanted]:
    """Every run once, by its name, under the first experiment that has it; what decides nothing comes last."""
    found: dict[str, Wanted] = {}
    secondary: set[str] = set()
    for name in names:
        experiment = experiment_named(name)
        decisive = experiment.decisive_runs(scale)
        for settings in experiment.runs(scale):
            if dataset in (None, settings["dataset"]) and run_name(settings) not in found:
                config = resolve(merge_layers(scale.common, {"checkpoint_every": 0}, settings))
                found[run_name(settings)] = Wanted(name, settings, config)
                if decisive and run_name(settings) not in decisive:
                    secondary.add(run_name(settings))
    return dict(sorted(found.items(), key=lambda run: run[0] in secondary))
