"""Values from files of unknown origin, made safe to show: finite numbers, short texts, small tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

_DEEPEST = 6
_MOST_SETTINGS = 400
_LONGEST = 300  # letters of one text


def number(value: Any) -> float | None:
    """A finite number, or None: JSON knows no other.

    >>> number(2), number("2"), number(float("nan"))
    (2.0, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number beyond all floats
        return None


def whole(value: Any) -> int | None:
    """A whole number of at most 15 digits, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**15 else None


def text(value: Any, longest: int = _LONGEST) -> str:
    """Something short to read; containers are not written out, for a small file can hold endless ones.

    >>> text("abcdef", 4), text(None), text([1])
    ('abc…', '–', '…')
    """
    if value is None:
        return "–"
    if isinstance(value, list | tuple | dict | set):
        return "…"
    if isinstance(value, int) and not isinstance(value, bool) and whole(value) is None:
        return "a very large number"
    # Letters that no encoding knows come from file names; control characters are not for people.
    written = str(value)[: longest + 1].encode("utf-8", "replace").decode()
    written = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in written)
    return written if len(written) <= longest else f"{written[: longest - 1]}…"


def texts(value: Any, longest: int = _LONGEST, most: int = 20) -> list[str]:
    """The texts of a list, at most so many; nothing of anything else."""
    return [text(part, longest) for part in value[:most]] if isinstance(value, list) else []


def flat_settings(settings: Any) -> list[tuple[str, str]]:
    """Settings as lines of a table, `energy.model_bits` for a setting inside a section; cut where there is no end."""
    lines: list[tuple[str, str]] = []
    for line in _flat(settings, "", 0):
        if len(lines) == _MOST_SETTINGS:
            return [*lines, ("…", f"more than {_MOST_SETTINGS} settings: the rest is in the file")]
        lines.append(line)
    return lines


def _flat(value: Any, name: str, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value and depth < _DEEPEST:
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{text(key, 80)}" if name else text(key, 80), depth + 1)
    elif isinstance(value, list | tuple) and all(not isinstance(part, list | tuple | Mapping) for part in value[:20]):
        shown = ", ".join(text(part, 60) for part in value[:20])
        yield name, f"{shown}, …" if len(value) > 20 else shown or "none"
    elif isinstance(value, Mapping) and not value:
        yield name, "none"
    else:
        yield name, text(value)
