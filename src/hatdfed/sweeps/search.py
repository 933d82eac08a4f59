"""A search with Optuna: trials are proposed in groups, played, and told; all of it in one SQLite file.

It is a function of the sweep file: every trial is proposed by a sampler with a seed of its own, knows all groups before
its own, and is told in the order of numbers. So a search that was killed goes on to the trials that it would have made.
Only validation accuracy and joules are told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from hatdfed.errors import ConfigError, MissingDependencyError, RunFolderError
from hatdfed.setup.config import Config
from hatdfed.sweeps.file import SearchPlan, SweepFile
from hatdfed.sweeps.points import Point, PointMaker, Settings, configs
from hatdfed.sweeps.samplers import propose
from hatdfed.sweeps.table import OBJECTIVES, Figures

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

Play = Callable[[Sequence[Point]], None]
_DECIDE_FEEDBACK = ("dataset", "method", "feedback")  # layers of settings that can bring `feedback`, and itself


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

    @property
    def points(self) -> list[Point]:
        """All trials so far, in the order of their numbers."""
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

    def go_on(self, play: Play, figures: dict[str, Figures]) -> None:
        """Play group after group; `figures` grow as runs end."""
        while not self.is_over:
            self._fill_group()
            self._refuse_leaks()
            play(self.points)
            self._tell(figures)

    def _trials(self) -> list[FrozenTrial]:
        return list(self._study.get_trials(deepcopy=False))

    def _fill_group(self) -> None:
        """Propose trials up to the end of the group that is open: a kill may have left it half proposed."""
        end = min((self.told // self._plan.at_once + 1) * self._plan.at_once, self._plan.num_trials)
        for number in range(len(self._trials()), end):
            self._study.add_trial(self._proposed(number))  # whole or not at all

    def _proposed(self, number: int) -> FrozenTrial:
        return propose(self._plan, number, self._trials(), self._study.directions)

    def _tell(self, figures: dict[str, Figures]) -> None:
        """What the trials of the open group brought; one of which a run failed has failed."""
        from optuna.trial import TrialState

        self._refuse_leaks()
        for trial, point in zip(self._trials(), self.points, strict=True):
            if not trial.state.is_finished():
                values = _values(self._plan, [figures.get(run.name) for run in point.runs])
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


def _refuse_leak(config: Config, settings: Settings) -> None:
    """Of validation accuracy that is test accuracy nothing may be told."""
    if config.leaks_test:
        chosen = ", ".join(f"{key}: {settings[key]}" for key in _DECIDE_FEEDBACK if key in settings)
        where = f"with {chosen}" if chosen else "here"
        raise ConfigError(
            f"A search never sees the test set, but feedback is test {where}. Search with feedback: validation in base."
        )


def corners(plan: SearchPlan) -> list[Settings]:
    """The lowest and the highest value of every parameter, and the first and the last of choices."""
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
