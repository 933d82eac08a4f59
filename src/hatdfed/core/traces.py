"""Values that change with time: power of a panel, a price, a rate, whether a server is there.

A trace is text: CSV with one header line, which docs/traces.md describes.

    # Power of two panels, in watts.
    seconds linear every 86400, roof, wall
    0, 0, 0
    43200, 20.5, 11
    64800, 0, 0.5

The first name says how values lie between rows (`constant`: as in the row before, `linear`: on a straight line to the
next) and what comes after the last (`once`: its value for ever, `every S`: the trace from its beginning, every S
seconds). The other names are free: one column is for all servers, several are for the servers in their order.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cached_property
from io import StringIO

import numpy as np
from numpy.typing import NDArray

from hatdfed.errors import ConfigError

Values = NDArray[np.float64]

_HEADER = "`seconds constant once`, `seconds linear once`, `seconds constant every S` or `seconds linear every S`"
_LARGEST = 1e15  # of times and values: integrals of such do not overflow


@dataclass(frozen=True, eq=False)
class Trace:
    """Values of C columns over time."""

    seconds: Values  # [n] ascending from 0
    values: Values  # [n, C]
    is_linear: bool = False  # between rows; otherwise constant
    period: float | None = None  # after which it begins anew; None: the last value stays

    @property
    def num_columns(self) -> int:
        """C: 1 where all servers have the same values."""
        return int(self.values.shape[1])

    def at(self, second: float) -> Values:  # -> [C]
        """The values at one time."""
        row, since = self._find(self._wrap(second)[1])
        values: Values = self.values[row] + since * self._slopes[row]
        return values

    def mean(self, begin: float, end: float) -> Values:  # -> [C]
        """The mean values of a span of time; the value itself where the span has no length."""
        return self.at(begin) if end <= begin else self.integrate(begin, end) / (end - begin)

    def integrate(self, begin: float, end: float) -> Values:  # -> [C]
        """The integral over a span of time: joules, of a trace in watts."""
        (first, after_first), (last, after_last) = self._wrap(begin), self._wrap(end)
        whole: Values = (last - first) * self._areas[-1]
        return whole + self._area_up_to(after_last) - self._area_up_to(after_first)

    def spread(self, num_servers: int) -> Trace:
        """The trace with one column for each server; a `ConfigError` ends in what is wrong with it."""
        if self.num_columns == 1:
            return Trace(self.seconds, np.repeat(self.values, num_servers, axis=1), self.is_linear, self.period)
        if self.num_columns < num_servers:
            raise ConfigError(
                f"has {self.num_columns} columns of values, but there are {num_servers} servers. Give it one column "
                "for all servers, or one for each."
            )
        return Trace(self.seconds, self.values[:, :num_servers], self.is_linear, self.period)

    def _wrap(self, second: float) -> tuple[float, float]:
        """How often the trace has been through before this time, and how long ago it began."""
        return (0.0, second) if self.period is None else divmod(second, self.period)

    def _find(self, second: float) -> tuple[int, float]:
        """The row before a time within the trace, and how long before."""
        row = max(0, int(np.searchsorted(self.seconds, second, side="right")) - 1)
        return row, second - float(self.seconds[row])

    def _area_up_to(self, second: float) -> Values:
        row, since = self._find(second)
        area: Values = self._areas[row] + since * (self.values[row] + 0.5 * since * self._slopes[row])
        return area

    @cached_property
    def _slopes(self) -> Values:
        """[n, C] by which values change in a second after each row."""
        if not self.is_linear:
            return np.zeros_like(self.values)
        following = np.roll(self.values, -1, axis=0)
        if self.period is None:
            following[-1] = self.values[-1]
        slopes: Values = (following - self.values) / self._lengths[:, None]
        return slopes

    @cached_property
    def _lengths(self) -> Values:
        """[n] seconds from each row to the next; the last one of a trace that does not repeat counts 1."""
        end = float(self.seconds[-1]) + 1 if self.period is None else self.period
        return np.diff(self.seconds, append=end)

    @cached_property
    def _areas(self) -> Values:
        """[n + 1, C] the integral from the beginning to each row, and to the end."""
        means = self.values + 0.5 * self._slopes * self._lengths[:, None]
        areas = np.cumsum(means * self._lengths[:, None], axis=0)
        return np.concatenate([np.zeros((1, self.num_columns)), areas])


def parse_trace(text: str, *, lowest: float = 0.0) -> Trace:
    """The trace that a text describes; the message of a `ConfigError` is the end of a sentence about its source."""
    lines = [
        (number, cells)
        for number, line in enumerate(text.splitlines(), start=1)
        if (cells := _split_line(line, number)) is not None
    ]
    if not lines:
        raise ConfigError(f"is empty. Its first line must be a header that begins with {_HEADER}.")
    (_, header), *rows = lines
    is_linear, period = _read_header(header[0])
    if len(header) < 2:
        raise ConfigError("has no column of values. Give it one for all servers, or one for each, after the seconds.")
    if not rows:
        raise ConfigError("has a header, but no values. Add a row for second 0.")
    table = np.array([_read_row(number, cells, len(header)) for number, cells in rows])
    numbers = np.array([number for number, _ in rows])
    _check_times(table[:, 0], numbers, period)
    _check_values(table[:, 1:], numbers, lowest)
    return Trace(table[:, 0].copy(), table[:, 1:].copy(), is_linear, period)


def format_trace(trace: Trace, names: list[str], comments: list[str]) -> str:
    """The text of a trace, with comments above it; read again it gives the very same numbers."""
    ends = "once" if trace.period is None else f"every {_write_number(trace.period)}"
    header = ", ".join([f"seconds {'linear' if trace.is_linear else 'constant'} {ends}", *names])
    rows = (
        ", ".join(_write_number(number) for number in (second, *values))
        for second, values in zip(trace.seconds.tolist(), trace.values.tolist(), strict=True)
    )
    return "\n".join([*(f"# {comment}" for comment in comments), header, *rows, ""])


def _write_number(number: float) -> str:
    """The shortest text that is read as the same number."""
    return repr(number).removesuffix(".0")


def _split_line(line: str, number: int) -> list[str] | None:
    """The cells of a line; None of one that is empty or a comment."""
    content = line.partition("#")[0].strip()
    if not content:
        return None
    try:
        return [cell.strip() for cell in next(csv.reader(StringIO(content), skipinitialspace=True))]
    except csv.Error as error:
        raise ConfigError(f"cannot be read in line {number} ({error}). Write numbers, separated by commas.") from None


def _read_header(first: str) -> tuple[bool, float | None]:
    """Whether values are linear between rows, and after how many seconds the trace begins anew."""
    match first.split():
        case ["seconds", ("constant" | "linear") as between, "once"]:
            return between == "linear", None
        case ["seconds", ("constant" | "linear") as between, "every", period]:
            seconds = _read_number(period)
            if seconds is not None and 0 < seconds <= _LARGEST:
                return between == "linear", seconds
    raise ConfigError(f"has a header that begins with {first[:60]!r}, wanted {_HEADER}, where S is a number above 0.")


def _read_row(number: int, cells: list[str], wanted: int) -> list[float]:
    if len(cells) != wanted:
        raise ConfigError(f"has {len(cells)} values in line {number}, but {wanted} columns in its header.")
    found = [_read_number(cell) for cell in cells]
    for cell, value in zip(cells, found, strict=True):
        if value is None or not math.isfinite(value) or abs(value) > _LARGEST:
            raise ConfigError(f"has {cell[:40]!r} in line {number}, wanted a number, at most {_LARGEST:g} in size.")
    return [value for value in found if value is not None]


def _read_number(text: str) -> float | None:
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


def _check_times(seconds: Values, numbers: NDArray[np.int64], period: float | None) -> None:
    if seconds[0] != 0:
        raise ConfigError(f"begins at second {seconds[0]:g}. Its first row must be that of second 0.")
    if (back := np.flatnonzero(np.diff(seconds) <= 0)).size:
        raise ConfigError(
            f"does not go on in time at line {numbers[back[0] + 1]}. Sort its rows by seconds, each once."
        )
    if period is not None and seconds[-1] >= period:
        raise ConfigError(
            f"begins anew every {period:g} seconds, but has a row for second {seconds[-1]:g}. Take it out, or write a "
            "longer time into the header."
        )


def _check_values(values: Values, numbers: NDArray[np.int64], lowest: float) -> None:
    if (low := np.argwhere(values < lowest)).size:
        row, column = low[0]
        raise ConfigError(
            f"has the value {values[row, column]:g} in line {numbers[row]}. Its values must be at least {lowest:g}."
        )
