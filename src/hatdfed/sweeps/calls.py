"""`hatdfed.compare` and `hatdfed.sweep`: names are checked before torch is imported, which takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatdfed.errors import advising_on_interrupt, require_one_of
from hatdfed.runs.calls import with_target
from hatdfed.runs.progress import OnNamedRun, OnRounds, OnRun, follow_named_runs, follow_runs, interactive_counter
from hatdfed.runs.statistics import Comparison
from hatdfed.setup.component_names import DEVICES, FLEETS
from hatdfed.setup.layers import refuse_set_by_itself, refuse_unknown_names
from hatdfed.setup.methods import check_question
from hatdfed.sweeps.file import SweepFile, read_sweep, refuse_unknown_values

if TYPE_CHECKING:
    from hatdfed.report.sinks import Publisher
    from hatdfed.sweeps.executors import Executor
    from hatdfed.sweeps.sweep import SweepResult


def compare(
    methods: Iterable[str],
    *,
    seeds: int | Sequence[int] = 3,
    jobs: int = 1,
    fleet: str = "auto",
    device: str = "auto",
    out: Path | str | None = None,
    data_dir: Path | str | None = None,
    on_run: OnRun | None = None,
    on_rounds: OnRounds | None = None,
    on_note: Callable[[str], None] | None = None,
    show_progress: bool | None = None,
    reference: str | None = None,
    target_accuracy: float | None = None,
    target: str | None = None,
    **settings: Any,
) -> Comparison:
    """Run every method on every seed; `jobs` processes share the work. `out` keeps the runs and is gone on with.

    Runs of one network are played together in stacked fleets, on the GPU where there is one. `dataset` and `target`
    and `show_progress` are as for `hatdfed.run`; data that are Python objects are for one process.
    """
    layer = with_target(settings, target)
    methods = [methods] if isinstance(methods, str) else list(methods)
    _refuse_typos(methods, layer, reference, target_accuracy)
    require_one_of("--fleet", fleet, FLEETS)
    require_one_of("--device", device, DEVICES)
    from hatdfed.report.comparison_files import write_comparison_files
    from hatdfed.setup.build.placement import Placement
    from hatdfed.sweeps.batches import PlayOptions
    from hatdfed.sweeps.catalogue import check_runs, unfinished
    from hatdfed.sweeps.compare import plan_comparison, play_comparison, refuse_other_folder, summarise_comparison
    from hatdfed.sweeps.workers import refuse_in_unguarded_script

    refuse_in_unguarded_script()
    folder = None if out is None else Path(out)
    if folder is not None:
        refuse_other_folder(folder)
    runs = [run.within(folder) for run in plan_comparison(methods, seeds, layer)]
    how = PlayOptions(Placement(fleet, device), data_dir, on_rounds, on_note)
    check_runs((run.config for run in unfinished(runs)), how.datasets, data_dir)
    advice = None if folder is None else f"The same call, with out={str(folder)!r}, goes on with what is missing."
    with (
        advising_on_interrupt(advice),
        interactive_counter("round", show_progress if on_rounds is None else False) as show,
    ):
        if show is not None:
            tell_run, tell_rounds = follow_runs(show)
            how, on_run = replace(how, on_rounds=tell_rounds), tell_run if on_run is None else on_run
        results = play_comparison(runs, jobs, how, folder, on_run)
    comparison = summarise_comparison(results, reference, target_accuracy)
    if folder is not None:
        write_comparison_files(comparison, folder)
    return comparison


def _refuse_typos(
    methods: Sequence[object], layer: Mapping[str, Any], reference: str | None, target_accuracy: float | None
) -> None:
    """Refuse names that nothing has; `plan_comparison` finds out the rest."""
    refuse_set_by_itself(layer)
    names = [name for name in methods if isinstance(name, str)]
    if names:
        check_question(names, reference, target_accuracy)
    refuse_unknown_names(layer, names)


def sweep(
    source: Path | str | Mapping[str, Any] | SweepFile,
    *,
    out: Path | str | None = None,
    executor: str | Executor = "local",
    jobs: int | None = None,
    fleet: str = "auto",
    device: str = "auto",
    data_dir: Path | str | None = None,
    on_run: OnNamedRun | None = None,
    on_rounds: OnRounds | None = None,
    on_note: Callable[[str], None] | None = None,
    show_progress: bool | None = None,
    publishers: Sequence[Publisher] = (),
) -> SweepResult:
    """Play all runs of a sweep file, or of what one would hold, and sum them up in a table.

    `out` is gone on with; by default it is a folder under runs/ that belongs to this version of the file. `executor` is
    local (`jobs` processes, by default one for each core, and one for data that are Python objects), ray, or one of
    your own. `show_progress` is as for `hatdfed.run`. The result names runs that failed; where all did, it raises.
    """
    file = read_sweep(source)
    refuse_unknown_values(file)
    require_one_of("--fleet", fleet, FLEETS)
    require_one_of("--device", device, DEVICES)
    from hatdfed.setup.build.placement import Placement
    from hatdfed.sweeps.batches import PlayOptions
    from hatdfed.sweeps.executors import make_executor
    from hatdfed.sweeps.sweep import default_folder, plan_sweep, play_sweep
    from hatdfed.sweeps.workers import refuse_in_unguarded_script

    refuse_in_unguarded_script()
    plan = plan_sweep(file, default_folder(source, file) if out is None else Path(out))
    how = PlayOptions(Placement(fleet, device), data_dir, on_rounds, on_note)
    player = make_executor(executor, jobs=jobs) if isinstance(executor, str) else executor
    plan.check(how.datasets, data_dir)
    advice = f"What is done is in {plan.folder.path}; the same call goes on."
    with (
        advising_on_interrupt(advice),
        interactive_counter("round", show_progress if on_rounds is None else False) as show,
    ):
        if show is not None:
            tell_run, tell_rounds = follow_named_runs(show)
            how, on_run = replace(how, on_rounds=tell_rounds), tell_run if on_run is None else on_run
        return play_sweep(plan, player, how, on_run, publishers)
