"""What the rows of a comparison are called: the method, and the settings in which it differs from its like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hatdfed.records.cleaning import flat_settings, text

_NOT_A_DIFFERENCE = ("seed", "checkpoint_every", "method")
_MOST_NAMED = 4  # settings in the label of a row

Flat = Mapping[str, str]  # values by dotted names, as in policy.thrift


def row_labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """A label for each row, none twice: pictures know their rows by them."""
    methods = [text(one.get("method"), 60) for one in settings]
    flat = [_flat(one) for one in settings]
    named = []
    for mine, method in zip(flat, methods, strict=True):
        others = [other for other, its in zip(flat, methods, strict=True) if its == method]
        named.append((method, _named(mine, [key for key in mine if any(_differs(key, mine, o) for o in others)])))
    counts = [named[: index + 1].count(one) if named.count(one) > 1 else 0 for index, one in enumerate(named)]
    return [f"{method}{f' no. {n}' if n else ''}{words}" for (method, words), n in zip(named, counts, strict=True)]


def _flat(settings: Mapping[str, Any]) -> Flat:
    return dict(flat_settings({key: value for key, value in settings.items() if key not in _NOT_A_DIFFERENCE}))


def _differs(key: str, mine: Flat, other: Flat) -> bool:
    """Whether a setting tells two rows apart; those of another policy do not, for its name says enough."""
    name = f"{key.rpartition('.')[0]}.name"
    return mine[key] != other.get(key) and (key == name or mine.get(name) == other.get(name))


def _named(mine: Flat, keys: Sequence[str]) -> str:
    """The settings in brackets, as ` (cool_down 0.5, thrift 8)`; nothing where there are none."""
    short = _short(keys)
    words = [f"{text(short[key], 30)} {text(mine[key], 30)}" for key in keys[:_MOST_NAMED]]
    return f" ({', '.join([*words, *(['…'] if len(keys) > _MOST_NAMED else [])])})" if words else ""


def _short(keys: Sequence[str]) -> dict[str, str]:
    """The last part of each name, its section for the name of a component, all of it where that is ambiguous."""
    last = {key: key.removesuffix(".name").rpartition(".")[2] for key in keys}
    return {key: end if list(last.values()).count(end) == 1 else key for key, end in last.items()}
