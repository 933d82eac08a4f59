"""Plug points by name: what comes with hatdfed, and what other installed packages add.

A package adds to one by an entry point, and nothing in hatdfed has to change:

    [project.entry-points."hatdfed.policies"]
    my-policy = "my_package.policy:MyPolicy"

The groups are hatdfed.policies, hatdfed.training, hatdfed.aggregators, hatdfed.losses, hatdfed.networks,
hatdfed.codecs, hatdfed.tasks, hatdfed.datasets and hatdfed.methods. Names are listed without importing anything; a
plug-in is loaded when it is first asked for. In a script, `POLICIES.add(…)` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from hatdfed.errors import ConfigError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Built-in things by name, then those of installed packages."""

    def __init__(self, group: str, built_in: Mapping[str, T], *, wanted: str, fits: Callable[[Any], bool]) -> None:
        self.group = group
        self._wanted, self._fits = wanted, fits  # what a plug-in must be, in words and as a test
        self._built_in = dict(built_in)
        self._loaded: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name in self._built_in:
            return self._built_in[name]
        if name not in self._loaded:
            self._loaded[name] = self._load(self._plug_ins[name])
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in self._loaded or name in self._plug_ins

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._built_in, *self._plug_ins, *self._loaded]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def add(self, name: str, thing: T) -> None:
        """Add something of your own for this process; worker processes of a comparison know only entry points."""
        if self._loaded.get(name) is thing:
            return  # a cell of a notebook that is run again
        if name in self:
            raise ConfigError(f"The name {name!r} in {self.group} is taken. Choose another one.")
        self._loaded[name] = self._checked(name, thing, "this script")

    @property
    def built_in(self) -> Mapping[str, T]:
        """What comes with hatdfed."""
        return self._built_in

    @cached_property
    def _plug_ins(self) -> dict[str, EntryPoint]:
        found: dict[str, EntryPoint] = {}
        for point in entry_points(group=self.group):
            if point.name in self._built_in or point.name in found:
                raise ConfigError(
                    f"The name {point.name!r} in {self.group} is taken twice, the second time by {_owner(point)}. "
                    "Uninstall that package or have it choose another name."
                )
            found[point.name] = point
        return found

    def _load(self, point: EntryPoint) -> T:
        try:
            thing: T = point.load()
        except Exception as error:  # noqa: BLE001 (anything may go wrong in somebody else's module)
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"{point.name!r} of {self.group} cannot be loaded from {_owner(point)} ({reason}). "
                "Fix or uninstall that package."
            ) from None
        return self._checked(point.name, thing, _owner(point))

    def _checked(self, name: str, thing: T, owner: str) -> T:
        if not self._fits(thing):
            raise ConfigError(f"{name!r} of {self.group}, from {owner}, is {thing!r}, but must be {self._wanted}.")
        return thing


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value
