"""A sweep file: which settings are the same in all runs, which ones vary and how, and over which seeds.

    base: {dataset: digits, rounds: 40}       # any settings; they hold for all runs
    grid:                                     # every combination of these
      method: [hat-dfed, rnd]
      learner.cool_down: [0.0, 0.25]          # dotted names reach into sections
    zip:                                      # these go together, the first with the first
      servers: [5, 10]
      rounds: [40, 20]
    seeds: 3                                  # worlds 0, 1, 2; or a list of seeds

or, instead of `grid` and `zip`, a `search` (see `SearchPlan`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field, ValidationError

from hatdfed.errors import ConfigError, did_you_mean, require_one_of
from hatdfed.setup.config import Count, Section
from hatdfed.setup.layers import describe_error, name_own_data, refuse_unknown, refuse_unknown_names
from hatdfed.setup.plain_yaml import read_yaml
from hatdfed.setup.run_identity import digest_of

_DIGEST = 8  # letters that stand for a file or for settings
Seed = Annotated[int, Field(ge=0)]
Seeds = Annotated[int, Field(ge=1, le=100_000)]  # far more than anybody plays
Objective = Literal["accuracy", "worst_accuracy", "joules", "link_joules"]
Sampler = Literal["tpe", "random", "sobol", "grid"]
PrunerName = Literal["median", "halving"]
TRIALS = 20  # of a search, unless it says how many or is a grid
_LARGEST_GRID = 100_000  # far more than anybody plays
_MOST_STEPS = 10**15
_LARGEST_BOUND = 1e300
_ROUND_OFF = 1e-9  # 0.3 is three steps of 0.1


class Choice(Section):
    """Where a search may look for one setting: between two numbers, or among values."""

    low: float | int | None = None
    high: float | int | None = None
    log: bool = False
    """Whether small numbers are as interesting as large ones: 0.001 to 0.01 counts as much as 0.01 to 0.1."""
    step: float | int | None = None
    """Only low, low + step, low + 2 step, …"""
    choices: list[Any] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is a range of whole numbers."""
        return all(isinstance(bound, int) for bound in (self.low, self.high, 1 if self.step is None else self.step))

    @property
    def num_values(self) -> int | None:
        """How many values there are; None of a continuous range."""
        if self.choices is not None:
            return len(self.choices)
        step = 1 if self.step is None and self.is_whole else self.step
        if self.low is None or self.high is None or step is None:
            return None
        steps = (self.high - self.low) // step if self.is_whole else (self.high - self.low) / step + _ROUND_OFF
        return int(min(steps, _MOST_STEPS)) + 1

    def value(self, index: int) -> Any:
        """The value of this number, of those that can be counted."""
        if self.choices is not None:
            return self.choices[index]
        value = (self.low or 0) + index * (1 if self.step is None else self.step)
        return value if self.is_whole else float(f"{value:.12g}")  # 0.3, not 0.30000000000000004


class Pruner(Section):
    """When a trial that is clearly worse than others is stopped early; judged on validation data alone."""

    name: PrunerName
    """median: below the median of all trials; halving: not among the best 1 / factor of them."""
    rounds: Annotated[list[Count], Field(min_length=1)] | None = None
    """After how many rounds trials are judged; by default a quarter and a half of the rounds of a run."""
    min_trials: Count = 4
    """Fewer trials than this are not compared, so none of them is stopped."""
    factor: Annotated[float, Field(gt=1, le=100)] | None = None
    """For halving: the best 1 / factor of all trials go on; 2 by default."""


class SearchPlan(Section):
    """Settings that Optuna tries; judged on validation data alone, averaged over the seeds of the sweep."""

    parameters: dict[str, Choice] = Field({})
    """What is tried: `{low, high, log, step}` or `{choices: […]}` for each setting."""
    trials: Count | None = None
    """Points in all: 20 by default, of a grid all. A larger number goes on with a search that has ended."""
    at_once: Count = 4
    """Trials that are proposed, and played, together; what they bring is known to those after them."""
    objectives: Annotated[list[Objective], Field(min_length=1)] = Field(["accuracy", "joules"])
    """accuracy and worst_accuracy (of validation) up, joules and link_joules down."""
    sampler: Sampler = "tpe"
    """What proposes trials: tpe (learns from the trials before), random, sobol (evenly spread), or grid (all)."""
    sampler_seed: Seed = 0
    pruner: Pruner | None = None
    """Stops trials that are clearly worse: `median`, `halving`, or a section (see `Pruner`)."""

    @property
    def judged(self) -> Objective | None:
        """The objective that a pruner judges: the first that is an accuracy."""
        return next((name for name in self.objectives if name.endswith("accuracy")), None)

    @property
    def num_trials(self) -> int:
        """Trials that are asked for; a grid has no more than its combinations."""
        if self.sampler != "grid":
            return TRIALS if self.trials is None else self.trials
        size = self.num_combinations
        return size if self.trials is None else min(self.trials, size)

    @property
    def num_combinations(self) -> int:
        """The size of a grid over all parameters."""
        return math.prod(choice.num_values or 0 for choice in self.parameters.values())


class SweepFile(Section):
    """What a sweep file says."""

    base: dict[str, Any] = Field({})
    grid: dict[str, list[Any]] = Field({})
    zip: dict[str, list[Any]] = Field({})
    seeds: Seeds | list[Seed] = 1
    search: SearchPlan | None = None

    @property
    def worlds(self) -> list[int]:
        """The seeds, each once."""
        return list(range(self.seeds)) if isinstance(self.seeds, int) else list(dict.fromkeys(self.seeds))

    @property
    def version(self) -> str:
        """Stands for what the file says, however it is written; a search with more trials is the same search."""
        said = self.model_dump(mode="json")
        if said["search"] is not None:
            del said["search"]["trials"]
            if said["search"]["pruner"] is None:  # a search that was begun before there were any goes on
                del said["search"]["pruner"]
        return digest_of(said, _DIGEST)


def read_sweep(source: Path | str | Mapping[str, Any] | SweepFile) -> SweepFile:
    """A sweep from a YAML file or from what one would hold, or one sentence about what is wrong with it."""
    if isinstance(source, SweepFile):
        return source
    content = _name_data(source) if isinstance(source, Mapping) else read_yaml(Path(source))
    _refuse_unknown(content)
    try:
        sweep = SweepFile.model_validate(_spell_out(content))
    except ValidationError as error:
        raise ConfigError(f"The sweep cannot be read: {describe_error(error)}") from None
    _check(sweep)
    return sweep


def _name_data(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a sweep file would hold, with a name in place of data that were given as Python objects."""
    base = content.get("base")
    if not isinstance(base, Mapping) or isinstance(base.get("dataset"), str | None):
        return content
    return {**content, "base": name_own_data(dict(base))}


def _refuse_unknown(content: Mapping[str, Any]) -> None:
    _refuse_unknown_keys(content, SweepFile, "The sweep")
    search = content.get("search")
    if isinstance(search, Mapping):
        _refuse_unknown_keys(search, SearchPlan, "The sweep's search")
        if isinstance(search.get("sampler"), str):
            require_one_of("search.sampler", search["sampler"], get_args(Sampler))
        _refuse_unknown_pruner(search.get("pruner"))
        parameters = search.get("parameters")
        for name, choice in parameters.items() if isinstance(parameters, Mapping) else ():
            if isinstance(choice, Mapping):
                _refuse_unknown_keys(choice, Choice, f"search.parameters.{name}")


def _refuse_unknown_pruner(pruner: object) -> None:
    name = pruner
    if isinstance(pruner, Mapping):
        _refuse_unknown_keys(pruner, Pruner, "search.pruner")
        name = pruner.get("name")
    if isinstance(name, str):
        require_one_of("search.pruner", name, get_args(PrunerName))


def _refuse_unknown_keys(content: Mapping[str, Any], model: type[BaseModel], where: str) -> None:
    for key in content:
        if key not in model.model_fields:
            raise ConfigError(f"{where} has a key {key!r}, which is none of ours. {_nearest(key, model)}")


def _nearest(key: object, model: type[BaseModel]) -> str:
    return did_you_mean(str(key), model.model_fields)


def _spell_out(content: Mapping[str, Any]) -> dict[str, Any]:
    """Empty sections are none; a list in a search is a choice among its values, a pruner may be a name."""
    given = {key: value for key, value in content.items() if value is not None}
    search = given.get("search")
    if isinstance(search, Mapping) and isinstance(search.get("pruner"), str):
        search = given["search"] = {**search, "pruner": {"name": search["pruner"]}}
    if isinstance(search, Mapping) and isinstance(search.get("parameters"), Mapping):
        parameters = {
            key: {"choices": choice} if isinstance(choice, list) else choice
            for key, choice in search["parameters"].items()
        }
        given["search"] = {**search, "parameters": parameters}
    return given


def _check(sweep: SweepFile) -> None:
    parameters = {} if sweep.search is None else sweep.search.parameters
    for where, part in (("base", sweep.base), ("grid", sweep.grid), ("zip", sweep.zip), ("search", parameters)):
        check_keys(part, where)
        if "seed" in part:
            raise ConfigError(f"{where} sets seed, but a sweep sets it for each run by itself. Use seeds instead.")
    if not sweep.worlds:
        raise ConfigError("seeds is empty. Give at least one, or how many: seeds: 3.")
    for where, lists in (("grid", sweep.grid), ("zip", sweep.zip)):
        for key, values in lists.items():
            if not values:
                raise ConfigError(f"{where}.{key} is empty, so there is nothing to run. Give it at least one value.")
    if sweep.search is None and not sweep.grid and not sweep.zip and len(sweep.worlds) == 1:
        raise ConfigError("This sweep varies nothing. Give it a grid, a zip, a search or several seeds.")
    _check_together(sweep)
    if sweep.search is not None:
        _check_search(sweep, sweep.search)


def refuse_unknown_values(sweep: SweepFile) -> None:
    """Refuse names of methods, data sets and components that do not exist, wherever the file has them."""
    parameters = {} if sweep.search is None else sweep.search.parameters
    choices = {key: choice.choices or [] for key, choice in parameters.items()}
    refuse_unknown_names(nested(sweep.base))
    for part in (sweep.grid, sweep.zip, choices):
        for key, values in part.items():
            for value in values:
                refuse_unknown_names(nested({key: value}))


def _check_together(sweep: SweepFile) -> None:
    """Lists of one length, and no setting in two places."""
    lengths = {key: len(values) for key, values in sweep.zip.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{key} has {length}" for key, length in lengths.items())
        raise ConfigError(f"The lists of a zip go together, but {found} values. Give all of them the same length.")
    varied = [*sweep.grid, *sweep.zip]
    for key in varied:
        if varied.count(key) > 1:
            raise ConfigError(f"{key} is in grid and in zip. Keep it in one of them.")
        inside = next((other for other in varied if other.startswith(f"{key}.")), None)
        if inside is not None:
            raise ConfigError(f"{key} is varied as a whole, and so is {inside}, which is a part of it. Keep one.")


def _check_search(sweep: SweepFile, search: SearchPlan) -> None:
    if sweep.grid or sweep.zip:
        raise ConfigError("A sweep has a search, or a grid and a zip, but not both. Put fixed settings into base.")
    if not search.parameters:
        raise ConfigError("search.parameters is empty, so there is nothing to try. Name at least one setting.")
    if len(set(search.objectives)) < len(search.objectives):
        raise ConfigError("search.objectives names one twice. Name each once.")
    for key, choice in search.parameters.items():
        _check_choice(key, choice)
    if search.sampler == "grid":
        _check_grid(search)
    if search.pruner is not None:
        _check_pruner(search, search.pruner)


def _check_pruner(search: SearchPlan, pruner: Pruner) -> None:
    if search.judged is None:
        raise ConfigError(
            "search.pruner judges validation accuracy, but it is none of search.objectives. Add accuracy or "
            "worst_accuracy, or leave the pruner out."
        )
    if pruner.name == "median" and pruner.factor is not None:
        raise ConfigError("search.pruner.factor is for halving, but the pruner is median. Leave one of them out.")


def _check_grid(search: SearchPlan) -> None:
    """A grid is over values that can be counted, and not too many."""
    for key, choice in search.parameters.items():
        if choice.num_values is None:
            raise ConfigError(
                f"search.parameters.{key} is a continuous range, of which a grid has no end. "
                "Give it a step or choices, or use another sampler (tpe, random, sobol)."
            )
    if search.num_combinations > _LARGEST_GRID:
        raise ConfigError(
            f"The grid has {search.num_combinations} combinations, but at most {_LARGEST_GRID} are tried. "
            "Use larger steps, or another sampler (tpe, random, sobol)."
        )


def _check_choice(key: str, choice: Choice) -> None:
    wanted = "Write {low: 0.001, high: 0.1, log: true} or {choices: [a, b]}"
    low, high = choice.low, choice.high
    if choice.choices is not None:
        if low is not None or high is not None or choice.log or choice.step is not None:
            raise ConfigError(f"search.parameters.{key} has choices and a range. {wanted}.")
        if not choice.choices or any(not isinstance(value, str | int | float | None) for value in choice.choices):
            raise ConfigError(f"search.parameters.{key} wants choices that are numbers or names, at least one of them.")
        return
    if low is None or high is None:
        raise ConfigError(f"search.parameters.{key} has no range and no choices. {wanted}.")
    if not all(abs(bound) <= _LARGEST_BOUND for bound in (low, high)):
        raise ConfigError(f"search.parameters.{key} has no finite range. {wanted}.")
    if not low < high:
        raise ConfigError(f"search.parameters.{key} goes from {low:g} to {high:g}, but low must be below high.")
    if choice.log and low <= 0:
        raise ConfigError(f"search.parameters.{key} is logarithmic and starts at {low:g}, but must start above 0.")
    if choice.step is not None and (choice.log or not choice.step > 0):
        raise ConfigError(f"search.parameters.{key} has step {choice.step:g}; wanted a number above 0, and no log.")


_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,23}|-[0-9][0-9.e+-]{0,22}")  # values that may stand in a file name
_LONGEST = 96  # letters of a name; what is longer ends in a digest


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names as the sections that they stand for.

    >>> nested({"policy.name": "ring", "servers": 3, "learner": {"momentum": 0.9}, "learner.cool_down": 0.2})
    {'policy': {'name': 'ring'}, 'servers': 3, 'learner': {'momentum': 0.9, 'cool_down': 0.2}}
    """
    layer: dict[str, Any] = {}
    for key, value in settings.items():
        *sections, last = key.split(".")
        place = layer
        for section in sections:
            inner = place.setdefault(section, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{section} is given as a whole and as {key!r}. Give one of the two.")
            place = inner
        place[last] = dict(value) if isinstance(value, Mapping) else value
    return layer


def check_keys(keys: Iterable[str], where: str) -> None:
    """Refuse a key that is no setting, naming the nearest one."""
    for key in keys:
        if "" in key.split("."):
            raise ConfigError(f"{where} has the key {key!r}. Write settings as in policy.learning_rate.")
        try:
            refuse_unknown(nested({key: {}}))
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """The last part of each name, or more of it where that would be ambiguous.

    >>> short_keys(["method", "policy.thrift", "utility.thrift"])
    {'method': 'method', 'policy.thrift': 'policy.thrift', 'utility.thrift': 'utility.thrift'}
    >>> short_keys(["learner.cool_down"])
    {'learner.cool_down': 'cool_down'}
    """
    names = list(keys)
    last = [name.rpartition(".")[2] for name in names]
    return {name: end if last.count(end) == 1 else name for name, end in zip(names, last, strict=True)}


def value_text(value: Any) -> str:
    """A value as people write it.

    >>> value_text(0.25), value_text(None), value_text(True), value_text([1, 2])
    ('0.25', 'none', 'true', '[1, 2]')
    """
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else _plain(value)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def folder_name(settings: Mapping[str, Any], short: Mapping[str, str]) -> str:
    """`method=rnd,cool_down=0.2,seed=1`; with a digest at its end where a value is no file name or the whole too long.

    >>> folder_name({"method": "rnd", "energy.link_kbit_per_joule": [2, 5]}, {"method": "method"})
    'method=rnd,energy.link_kbit_per_joule-f4804e18'
    """
    parts, is_exact = [], True
    for key, value in settings.items():
        text, name = value_text(value), short.get(key, key)
        is_plain = _PLAIN.fullmatch(text) is not None
        parts.append(f"{name}={text}" if is_plain else name)
        is_exact = is_exact and is_plain
    name = ",".join(parts)
    if is_exact and len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 9]}-{digest_of(settings, _DIGEST)}"
