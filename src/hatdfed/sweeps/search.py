"""A search with Optuna: trials are proposed in groups, played, and told; all of it in one SQLite file.

With a pruner, the trials of a group pause after given rounds, and those that are clearly worse end there.

It is a function of the sweep file: every trial is proposed by a sampler with a seed of its own, knows all groups before
its own, and is told in the order of numbers. So a search that was killed goes on to the trials that it would have made.
Only validation accuracy and joules are told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from hatdfed.errors import ConfigError, MissingDependencyError, RunFolderError
from hatdfed.setup.config import Config
from hatdfed.sweeps.catalogue import PlannedRun
from hatdfed.sweeps.file import SearchPlan, SweepFile
from hatdfed.sweeps.points import Point, PointMaker, Settings, all_runs, configs
from hatdfed.sweeps.pruners import Measured, find_losers, find_rounds
from hatdfed.sweeps.samplers import SAMPLER, propose
from hatdfed.sweeps.table import OBJECTIVES, Figures

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

_DECIDE_FEEDBACK = ("dataset", "method", "feedback")  # layers of settings that can bring `feedback`, and itself
_MEASURED, _PRUNED_AFTER = "measured", "pruned_after"  # attributes of a trial in Optuna's file


class Player(Protocol):
    """Plays the runs of a search."""

    @property
    def figures(self) -> Mapping[str, Figures]:
        """Of the runs that are done, by name."""

    def play(self, runs: Sequence[PlannedRun]) -> None:
        """Bring each run that has not ended yet to its end."""

    def play_until(self, runs: Sequence[PlannedRun], rounds: int) -> Mapping[str, Figures]:
        """Play so many rounds of each run, and tell what it has come to, by name; those that failed are left out."""

    def drop(self, runs: Sequence[PlannedRun], rounds: int) -> None:
        """These runs are not played beyond so many rounds."""


@dataclass(frozen=True)
class Trial:
    """One trial of a search."""

    number: int
    point: Point
    sampler: str
    state: Literal["open", "done", "pruned", "failed"]
    values: tuple[float, ...] | None  # of every objective after the last round; None unless it is done
    pruned_after: int | None  # rounds
    measured: Mapping[int, tuple[float, ...]]  # of every objective after so many rounds, of trials that were judged


def require_optuna() -> None:
    """Say what to install."""
    if find_spec("optuna") is None:
        raise MissingDependencyError("A search needs Optuna, which is not installed: pip install 'hatdfed[search]'.")


class Search:
    """What was tried so far, and what comes next."""

    def __init__(self, sweep: SweepFile, path: Path | None, runs: Path | None = None) -> None:
        """`path` is the SQLite file; None keeps it in memory. `runs` is where the runs have their folders."""
        require_optuna()
        if sweep.search is None:
            raise ValueError("this sweep has no search")
        self._sweep, self._plan = sweep, sweep.search
        self._study = _study(self._plan, path)
        self._maker, self._points = PointMaker(sweep, runs), list[Point]()
        self._judged_after = find_judged_rounds(sweep)

    @property
    def trials(self) -> list[Trial]:
        """All trials so far, in the order of their numbers."""
        return [self._read(trial, point) for trial, point in zip(self._trials(), self.points, strict=True)]

    @property
    def points(self) -> list[Point]:
        """Their points."""
        for trial in self._trials()[len(self._points) :]:
            self._points.append(self._maker.point(_settings(self._plan, trial), f"trial={trial.number:03d}"))
        return list(self._points)

    @property
    def told(self) -> int:
        """How many trials are over."""
        return sum(trial.state.is_finished() for trial in self._trials())

    @property
    def is_over(self) -> bool:
        """Whether every trial that was asked for has been told."""
        return self.told >= self._plan.num_trials

    def go_on(self, player: Player) -> None:
        """Play group after group."""
        self._refuse_leaks()
        self._take_up(player)
        while not self.is_over:
            self._fill_group()
            self._refuse_leaks()
            for rounds in self._judged_after:
                self._prune(player, rounds)
            player.play(all_runs([trial.point for trial in self._open]))
            self._tell(player.figures)

    @property
    def _open(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.state == "open"]

    def _trials(self) -> list[FrozenTrial]:
        return list(self._study.get_trials(deepcopy=False))

    def _read(self, trial: FrozenTrial, point: Point) -> Trial:
        states = {"COMPLETE": "done", "PRUNED": "pruned", "FAIL": "failed"}
        state: Any = states.get(trial.state.name, "open")
        measured = {int(rounds): tuple(values) for rounds, values in trial.user_attrs.get(_MEASURED, {}).items()}
        return Trial(
            trial.number,
            point,
            trial.user_attrs.get(SAMPLER, self._plan.sampler),
            state,
            tuple(trial.values) if state == "done" else None,
            trial.user_attrs.get(_PRUNED_AFTER) if state == "pruned" else None,
            measured,
        )

    def _take_up(self, player: Player) -> None:
        """Trials that were told before: most of their runs are done, those that failed are tried again."""
        player.play(all_runs([trial.point for trial in self.trials if trial.state in ("done", "failed")]))
        for trial in self.trials:
            if trial.pruned_after is not None:
                player.drop(trial.point.runs, trial.pruned_after)

    def _fill_group(self) -> None:
        """Propose trials up to the end of the group that is open: a kill may have left it half proposed."""
        end = min((self.told // self._plan.at_once + 1) * self._plan.at_once, self._plan.num_trials)
        for number in range(len(self._trials()), end):
            self._study.add_trial(self._propose(number))  # whole or not at all

    def _propose(self, number: int) -> FrozenTrial:
        return propose(self._plan, number, self._trials(), self._study.directions)

    def _prune(self, player: Player, rounds: int) -> None:
        """Play so many rounds of the open trials, and stop those that are clearly worse than others after them.

        All are measured before the first is stopped, so a search that was killed here comes to the same verdicts.
        """
        if self._plan.pruner is None:
            return
        longer = [trial for trial in self._open if trial.point.runs[0].config.rounds > rounds]
        figures = player.play_until(all_runs([trial.point for trial in longer]), rounds)
        for trial in longer:
            self._measure(trial, rounds, figures)
        known = [trial for trial in self.trials if rounds in trial.measured]
        losers = find_losers(self._plan.pruner, [_make_measured(self._plan, trial, rounds) for trial in known])
        for trial in longer:
            if trial.number in losers:
                self._stop(trial, rounds)
                player.drop(trial.point.runs, rounds)

    def _measure(self, trial: Trial, rounds: int, figures: Mapping[str, Figures]) -> None:
        values = _values(self._plan, [figures.get(run.name) for run in trial.point.runs])
        if values is None:  # a run failed: there is nothing to judge
            return
        storage, key = self._study._storage, self._key(trial)  # Optuna offers no other way
        measured = {str(t): list(known) for t, known in trial.measured.items()} | {str(rounds): values}
        storage.set_trial_user_attr(key, _MEASURED, measured)
        if len(values) == 1:  # Optuna's sampler learns from these, where there is one objective
            storage.set_trial_intermediate_value(key, rounds, values[0])

    def _stop(self, trial: Trial, rounds: int) -> None:
        from optuna.trial import TrialState

        self._study._storage.set_trial_user_attr(self._key(trial), _PRUNED_AFTER, rounds)
        self._study.tell(trial.number, state=TrialState.PRUNED)

    def _key(self, trial: Trial) -> int:
        """Its number in Optuna's file."""
        return int(self._trials()[trial.number]._trial_id)

    def _tell(self, figures: Mapping[str, Figures]) -> None:
        """What the trials of the open group brought; one of which a run failed has failed."""
        from optuna.trial import TrialState

        self._refuse_leaks()
        for trial in self._open:
            values = _values(self._plan, [figures.get(run.name) for run in trial.point.runs])
            state = TrialState.FAIL if values is None else TrialState.COMPLETE
            self._study.tell(trial.number, values, state=state)

    def _refuse_leaks(self) -> None:
        for point in self.points:
            _refuse_leak(point.runs[0].config, point.settings)


def check_search(sweep: SweepFile) -> None:
    """Refuse a search without Optuna, and settings under which validation accuracy would be that of the test set."""
    if sweep.search is None:
        return
    require_optuna()
    tried = sweep.search.parameters
    choices = {key: tried[key].choices or () for key in _DECIDE_FEEDBACK if key in tried}
    for values in product(*choices.values()):
        settings = dict(zip(choices, values, strict=True))
        (config,) = configs(sweep, settings, seeds=sweep.worlds[:1])
        _refuse_leak(config, settings)
    find_judged_rounds(sweep)


def find_judged_rounds(sweep: SweepFile) -> list[int]:
    """The rounds after which trials may be stopped; none without a pruner."""
    if sweep.search is None or sweep.search.pruner is None:
        return []
    (base,) = configs(sweep, {}, seeds=sweep.worlds[:1])
    if base.checkpoint_every == 0:
        raise ConfigError(
            "search.pruner goes on with trials from their checkpoints, but checkpoint_every is 0. Use 1 or more, or "
            "leave the pruner out."
        )
    return find_rounds(sweep.search.pruner, base.rounds)


def _make_measured(plan: SearchPlan, trial: Trial, rounds: int) -> Measured:
    values, config = trial.measured[rounds], trial.point.runs[0].config
    signed = tuple(v if OBJECTIVES[name][1] else -v for name, v in zip(plan.objectives, values, strict=True))
    accuracy = values[plan.objectives.index(plan.judged or plan.objectives[0])]
    return Measured(trial.number, f"{trial.point.world} {config.rounds}", accuracy, signed)


def _refuse_leak(config: Config, settings: Settings) -> None:
    """Of validation accuracy that is test accuracy nothing may be told."""
    if config.leaks_test:
        chosen = ", ".join(f"{key}: {settings[key]}" for key in _DECIDE_FEEDBACK if key in settings)
        where = f"with {chosen}" if chosen else "here"
        raise ConfigError(
            f"A search never sees the test set, but feedback is test {where}. Search with feedback: validation in base."
        )


def corners(plan: SearchPlan) -> list[Settings]:
    """Settings at both ends of every parameter: its lowest and highest value, or the first and last of its choices."""
    lows = {key: choice.choices[0] if choice.choices else choice.low for key, choice in plan.parameters.items()}
    highs = {key: choice.choices[-1] if choice.choices else choice.high for key, choice in plan.parameters.items()}
    return [lows, highs]


def _values(plan: SearchPlan, figures: Sequence[Figures | None]) -> list[float] | None:
    """Means over seeds, one for each objective; None where a run is missing or brought nothing."""
    found = []
    for column, _ in (OBJECTIVES[name] for name in plan.objectives):
        values = [None if one is None else one[column] for one in figures]
        if any(value is None for value in values):
            return None
        found.append(sum(value for value in values if value is not None) / len(values))
    return found


def _study(plan: SearchPlan, path: Path | None) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    up, down = optuna.study.StudyDirection.MAXIMIZE, optuna.study.StudyDirection.MINIMIZE
    directions = [up if OBJECTIVES[name][1] else down for name in plan.objectives]
    address = None if path is None else f"sqlite:///{path.resolve()}"
    try:
        return optuna.create_study(storage=address, study_name="sweep", directions=directions, load_if_exists=True)
    except Exception as error:  # noqa: BLE001 (whatever the database raises)
        raise RunFolderError(f"{path} cannot be used for a search ({type(error).__name__}: {error}).") from None


def _settings(plan: SearchPlan, trial: FrozenTrial) -> Settings:
    """In the order of the file."""
    return {key: trial.params[key] for key in plan.parameters if key in trial.params}
