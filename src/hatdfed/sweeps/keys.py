"""Settings by their dotted names, as in `policy.thrift`, and names for what is set."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from hatdfed.errors import ConfigError
from hatdfed.resolve import refuse_unknown

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
    return f"{name[: _LONGEST - 9]}-{digest(settings)}"


def digest(content: Any) -> str:
    """Eight letters that stand for a value of plain types."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
