"""Plug points by name: what comes with hatdfed, and what other installed packages add.

A package adds to one by an entry point, and nothing in hatdfed has to change:

    [project.entry-points."hatdfed.policies"]
    my-policy = "my_package.policy:MyPolicy"

The groups are hatdfed.policies, hatdfed.training, hatdfed.aggregators, hatdfed.losses, hatdfed.networks,
hatdfed.codecs, hatdfed.tasks, hatdfed.metrics, hatdfed.datasets, hatdfed.partitioners and hatdfed.methods. Names are
listed without importing anything; a plug-in is loaded when it is first asked for. In a script or a notebook,
`POLICIES.add(…)` does. Worker processes import the modules that added something (`list_sources`) and read the script
that started them, but for its main block; what was added there or in a notebook is known to its own process only.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import FrameType
from typing import Any, Generic, NamedTuple, TypeVar

from hatdfed.errors import ConfigError

T = TypeVar("T")
_MAIN = ("__main__", "__mp_main__")  # a script, here and in a worker process that reads it again


class Source(NamedTuple):
    """A module that adds things when it is imported."""

    module: str
    file: str | None = None  # for a module that is not found by its name


_sources: dict[Source, None] = {}


def list_sources() -> list[Source]:
    """The modules that have added things in this process: what another process must import to know them."""
    return list(_sources)


def import_named(name: str) -> None:
    """Import what a user names, a module or the path of a .py file, for the things that it adds."""
    path = Path(name)
    if path.suffix == ".py":
        source = Source(path.stem, str(path.resolve()))
    else:
        source = Source(name)
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    import_sources([source])


def find_classes(package: str, path: Iterable[str], method: str) -> dict[str, type]:
    """Import the modules of a package and collect its classes that have this method and a `name`, sorted by name."""
    found: dict[str, type] = {}
    for module in pkgutil.iter_modules(path):
        for member in vars(importlib.import_module(f"{package}.{module.name}")).values():
            if not (isinstance(member, type) and method in dir(member) and "name" in vars(member)):
                continue
            name = vars(member)["name"]
            if found.setdefault(name, member) is not member:  # a class that another module imports is found twice
                raise TypeError(f"{member.__name__} and {found[name].__name__} have the same name: {name}")
    return dict(sorted(found.items()))


def import_sources(sources: Iterable[Source]) -> None:
    """Import modules, each once."""
    for source in sources:
        if source not in _sources:
            try:
                _import(source)
            except ConfigError as error:
                raise ConfigError(f"{source.file or source.module}: {error}") from None
            except Exception as error:  # noqa: BLE001 (anything may go wrong in somebody else's module)
                reason = f"{type(error).__name__}: {error}"
                raise ConfigError(
                    f"{source.file or source.module} cannot be imported ({reason}). Name a module that Python finds "
                    "here, or the path of a .py file."
                ) from None
            _sources[source] = None


def _import(source: Source) -> None:
    if source.file is None or _is_from(source.module, source.file):
        importlib.import_module(source.module)
        return
    if source.module in sys.modules:
        raise ImportError(f"there is another module called {source.module}, so the file needs another name")
    spec = importlib.util.spec_from_file_location(source.module, source.file)
    if spec is None or spec.loader is None or not Path(source.file).is_file():
        raise FileNotFoundError(f"there is no file {source.file}")
    if (folder := str(Path(source.file).parent)) not in sys.path:
        sys.path.append(folder)  # so that the file finds modules beside it, as it does when Python runs it
    module = importlib.util.module_from_spec(spec)
    sys.modules[source.module] = module  # as an import does, before anything in it runs
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[source.module]
        raise


def _is_from(module: str, file: str) -> bool:
    known = sys.modules.get(module)
    return known is not None and getattr(known, "__file__", None) == file


class Registry(Mapping[str, T], Generic[T]):
    """Built-in things by name, then those of installed packages."""

    def __init__(
        self,
        group: str,
        built_in: Mapping[str, T],
        *,
        wanted: str,
        fits: Callable[[Any], bool],
        is_dataclass: bool = False,
        methods: Sequence[str] = (),
        values: Sequence[str] = (),
    ) -> None:
        self.group = group
        self._wanted, self._fits = wanted, fits  # what a plug-in must be, in words and as a test
        self._is_dataclass, self._methods, self._values = is_dataclass, methods, values  # what it must have
        self._built_in = dict(built_in)
        self._loaded: dict[str, T] = {}
        self._of_notebook: set[str] = set()
        self._lines: dict[str, tuple[str, int]] = {}  # of a script that was run when a thing was added, by its name

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
        """Add something of your own; what is defined again in the same place replaces what was added before."""
        _check_name(name, self.group)
        if self._loaded.get(name) is thing:
            return  # a cell of a notebook that is run again
        frame = sys._getframe(1)
        caller = frame.f_globals
        module, file = str(caller.get("__name__")), caller.get("__file__")
        is_notebook = module in _MAIN and (file is None or not Path(file).is_file())
        if name in self and not (name in self._loaded and self._is_redefined(name, thing, is_notebook)):
            raise ConfigError(f"The name {name!r} in {self.group} is taken. Choose another one.")
        self._loaded[name] = self._check(name, thing, "this notebook" if is_notebook else f"module {module}")
        if is_notebook:
            self._of_notebook.add(name)
        elif module in _MAIN:
            self._lines[name] = str(file), _find_line(frame)
        elif module.partition(".")[0] != "hatdfed":
            _sources[Source(module, file)] = None

    def is_of_notebook(self, name: str) -> bool:
        """Whether this was added in a notebook or at a prompt, so that no other process knows it."""
        return name in self._of_notebook

    def is_of_main_block(self, name: str) -> bool:
        """Whether this was added under `if __name__ == "__main__":` of a script, which other processes do not run."""
        return name in self._lines and _is_in_main_block(*self._lines[name])

    def _is_redefined(self, name: str, thing: T, is_notebook: bool) -> bool:
        """Whether `thing` is what was added as `name`, defined once more: a cell or a module was run again."""
        if is_notebook and name in self._of_notebook:
            return True
        before = self._loaded[name]
        places = [(getattr(each, "__module__", None), getattr(each, "__qualname__", None)) for each in (before, thing)]
        return places[0] == places[1] and places[0][1] is not None

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
        return self._check(point.name, thing, _owner(point))

    def _check(self, name: str, thing: T, owner: str) -> T:
        if not self._fits(thing):
            found = " ".join(repr(thing).split())
            raise ConfigError(f"{name!r} of {self.group}, from {owner}, is {found:.100}, but must be {self._wanted}.")
        if lacks := self._list_lacks(thing):
            raise ConfigError(
                f"{name!r} of {self.group}, from {owner}, has {' and '.join(lacks)}, but must be {self._wanted}."
            )
        return thing

    def _list_lacks(self, thing: T) -> list[str]:
        """What a thing does not have, in words."""
        lacks = []
        if self._is_dataclass and not dataclasses.is_dataclass(thing):
            lacks.append("no decorator @dataclass(frozen=True)")
        names = {
            "method": [name for name in self._methods if not _has_method(thing, name)],
            "value": [name for name in self._values if not hasattr(thing, name)],
        }
        for what, missing in names.items():
            if missing:
                lacks.append(f"no {what if len(missing) == 1 else f'{what}s'} {', '.join(map(repr, missing))}")
        return lacks


def _check_name(name: object, group: str) -> None:
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"The name {name!r:.100} cannot be added to {group}: a name is text that is not empty.")


def _find_line(frame: FrameType) -> int:
    """The line of a script that is run, of the statement outside all functions that leads to this frame."""
    line, script = frame.f_lineno, frame.f_globals
    outer: FrameType | None = frame
    while outer is not None:
        if outer.f_globals is script and outer.f_code.co_name == "<module>":
            line = outer.f_lineno
        outer = outer.f_back
    return line


def _is_in_main_block(file: str, line: int) -> bool:
    """Whether the line is under `if __name__ == "__main__":`."""
    try:
        statements = ast.parse(Path(file).read_bytes()).body
    except (OSError, SyntaxError, ValueError):  # the file has changed meanwhile
        return False
    blocks = [each.body for each in statements if isinstance(each, ast.If) and _asks_for_main(each.test)]
    return any(body[0].lineno <= line <= (body[-1].end_lineno or line) for body in blocks)


def _asks_for_main(test: ast.expr) -> bool:
    words = {getattr(node, "id", getattr(node, "value", None)) for node in ast.walk(test)}
    return {"__name__", "__main__"} <= words


def _has_method(thing: Any, name: str) -> bool:
    """Whether a class, or an object's class, defines the method; an abstract one or a protocol's does not count."""
    for owner in (thing if isinstance(thing, type) else type(thing)).__mro__:
        if name in vars(owner) and not getattr(owner, "_is_protocol", False):
            found = vars(owner)[name]
            return callable(found) and not getattr(found, "__isabstractmethod__", False)
    return False


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value
