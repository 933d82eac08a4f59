"""`hatdfed.run` and `hatdfed.resume`: names and folders are checked before torch is imported, which takes seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from hatdfed.core.round import RoundRecord
from hatdfed.data.datasets.base import Progress
from hatdfed.errors import ConfigError, RunFolderError, advising_on_interrupt, require_one_of
from hatdfed.runs.callbacks import Callback, tell_end, tell_rounds
from hatdfed.runs.progress import follow_rounds, interactive_counter
from hatdfed.runs.recorder import OnRound
from hatdfed.runs.records.cleaning import whole
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.result import RunResult
from hatdfed.setup.component_names import DEVICES, FLEETS
from hatdfed.setup.config import Config
from hatdfed.setup.layers import find_removed_choice, merge_layers, overlay, refuse_unknown_names, resolve
from hatdfed.setup.run_identity import continued, resume_difference


def run(
    config: Config | Mapping[str, Any] | str | None = None,
    *,
    out: Path | str | None = None,
    data_dir: Path | str | None = None,
    on_round: OnRound | None = None,
    callbacks: Sequence[Callback] = (),
    progress: Progress | None = None,
    show_progress: bool | None = None,
    fleet: str = "auto",
    device: str = "auto",
    shards: int | None = None,
    address: str | None = None,
    target: str | None = None,
    **settings: Any,
) -> RunResult:
    """Execute one run. Settings come from `config`, from keywords, or both; `out` keeps it in a folder.

    `config` may be the name of a method: `run("rnd", rounds=20)`. Progress is shown in a terminal and in a notebook;
    `show_progress` says whether, `on_round` is told of every round, `progress` of downloads, and
    `callbacks` of rounds and the result; they may end the run early (docs/python.md).

    `dataset` is the name of a data set or data of your own: arrays or tensors (x, y), an .npz file, a folder of images,
    a torch or Hugging Face data set, or a pandas frame, of which `target` names the column to be learned
    (docs/data.md).

    `fleet` (stacked, mailbox, sharded) and `device` (cpu, cuda) say how it is computed: on CPUs the same but for
    round-off, on a GPU with training in TF32 and accuracies measured in half precision. A sharded fleet is one large
    run in so many `shards`, processes of the Ray cluster at `address` or of one on this machine.

    >>> result = run("rnd", rounds=1, servers=2)
    >>> result.summary["rounds"]
    1
    """
    complete = _complete(config, with_target(settings, target))
    require_one_of("--fleet", fleet, FLEETS)
    require_one_of("--device", device, DEVICES)
    from hatdfed.runs.play import Job, play
    from hatdfed.setup.build.placement import Placement

    job = Job(complete, None if out is None else Path(out), keeps_models=out is None)
    placement = Placement(fleet, device, shards, address)
    with _advise(job.out), _show_rounds(show_progress, job.out, tell_rounds(callbacks, on_round)) as watch:
        (result,) = play([job], placement, data_dir=data_dir, on_round=watch, progress=progress)
    tell_end(callbacks, result)
    return result


def resume(
    path: Path | str,
    settings: Mapping[str, Any] | None = None,
    *,
    data_dir: Path | str | None = None,
    on_round: OnRound | None = None,
    callbacks: Sequence[Callback] = (),
    progress: Progress | None = None,
    show_progress: bool | None = None,
    fleet: str = "auto",
    device: str = "auto",
    shards: int | None = None,
    address: str | None = None,
) -> RunResult:
    """Go on with the run in a folder, to the same result as if it had never stopped; `rounds` may grow.

    By default it goes on with the fleet that it was begun with. To the very same bits on the same fleet and device;
    elsewhere it goes on with their round-off. Data that were given
    as Python objects are given again, as `settings["dataset"]`.
    """
    folder = RunFolder.open(Path(path))
    config = _same_run(folder, settings or {})
    fleet, shards = _same_fleet(folder, fleet, shards)
    from hatdfed.runs.play import Job, play
    from hatdfed.setup.build.placement import Placement

    job = Job(config, folder.path, resumed=True)
    placement = Placement(fleet, device, shards, address)
    with _advise(job.out), _show_rounds(show_progress, job.out, tell_rounds(callbacks, on_round)) as watch:
        (result,) = play([job], placement, data_dir=data_dir, on_round=watch, progress=progress)
    tell_end(callbacks, result)
    return result


def _advise(folder: Path | None) -> AbstractContextManager[None]:
    """Say after Ctrl-C how to go on with a run in a folder."""
    again = None if folder is None else f"hatdfed.resume({str(folder)!r}) goes on from the last checkpoint, if any."
    return advising_on_interrupt(again)


@contextmanager
def _show_rounds(wanted: bool | None, folder: Path | None, on_round: OnRound | None) -> Iterator[OnRound | None]:
    """Who is told of every round: the caller, and whoever looks on."""
    with interactive_counter("round", wanted) as show:
        if show is None:
            yield on_round
            return
        follow = follow_rounds(show, folder)

        def both(config: Config, record: RoundRecord) -> None:
            follow(config, record)
            if on_round is not None:
                on_round(config, record)

        yield both


def with_target(settings: Mapping[str, Any], target: str | None) -> Mapping[str, Any]:
    """The settings with the column that is to be learned among the options of their data set."""
    return settings if target is None else overlay(settings, {"dataset_options": {"target": target}})


def _complete(config: Config | Mapping[str, Any] | str | None, settings: Mapping[str, Any]) -> Config:
    if isinstance(config, str):
        if "method" in settings:
            raise ConfigError(f"The method is named twice: {config!r} and {settings['method']!r}. Name it once.")
        config = {"method": config}
    if isinstance(config, Config):
        return config if not settings else resolve(merge_layers(config.model_dump(), settings))
    layer = merge_layers(config or {}, settings)
    refuse_unknown_names(layer)
    return resolve(layer)


def _same_run(folder: RunFolder, settings: Mapping[str, Any]) -> Config:
    """The folder's own settings; others may be named only if they say the same, but for more rounds."""
    old = folder.config()
    removed = find_removed_choice(old)
    if removed is not None:
        raise RunFolderError(f"The run in {folder.path} can be shown and exported, but not gone on with: {removed}.")
    new = continued(old, resolve(overlay(old.model_dump(), settings)))
    if new.rounds < old.rounds:
        raise RunFolderError(
            f"The run in {folder.path} was started for {old.rounds} rounds, but {new.rounds} were asked for. "
            f"Ask for {old.rounds} or more."
        )
    difference = resume_difference(old, new)
    if difference is not None:
        raise RunFolderError(
            f"The run in {folder.path} {difference}. Resume it with its own settings, or start a new run."
        )
    return new


def _same_fleet(folder: RunFolder, fleet: str, shards: int | None) -> tuple[str, int | None]:
    """The fleet that is asked for; by default the one that the run was begun with, in as many shards."""
    begun = folder.first_fleet()
    if fleet != "auto" or begun.get("fleet") not in FLEETS:
        return fleet, shards
    return str(begun["fleet"]), shards or whole(begun.get("shards"))
