"""The groups that a run found, and how they changed, from the rows of its table `trust`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np

from hatdfed.runs.records.cleaning import number, text, whole
from hatdfed.runs.trust_log import TrustChange, Verdicts

MOST_SERVERS = 100_000
_MOST_LISTED = 40  # servers that are listed by number
_LONGEST_WORD = 40
START = "start"
_REASONS = {  # as sentences say them; others are plain words already
    "joined": "joined the deployment later",
    "data changed": "its own data changed",
    "harm": "models of those left were harmful",
    "fit": "models of those joined are harmless",
    "hearsay": "decided by verdicts of and on other servers",
    "others left": "the others of its group left",
}


class TrustHistory(NamedTuple):
    """A run's beliefs about its servers over time."""

    changes: Sequence[TrustChange]
    verdicts: Verdicts | None = None  # [N, N] those that were kept last; row receives, nan: unknown
    verdicts_at: int | None = None  # the round after which they were


class Span(NamedTuple):
    """Rounds in which nothing changed for a server."""

    server: int
    first: int
    end: int  # the first round after them
    state: str
    group: int | None


class Mark(NamedTuple):
    """Something that happened to one server, as a picture of its groups shows it."""

    t: int
    server: int
    kind: Literal["introduced again", "left"]


class TrustEvent(NamedTuple):
    """What happened to some servers in one round, for the same reason."""

    t: int
    servers: tuple[int, ...]
    before: str
    after: str
    reason: str
    verdict_left: float | None
    verdict_joined: float | None


def read_changes(rows: Iterable[Mapping[str, Any]]) -> list[TrustChange]:
    """Rows of the table `trust`; those that make no sense are left out."""
    found = []
    for row in rows:
        t, server = whole(row["t"]), whole(row["server"])
        if t is not None and server is not None and t >= 0 and 0 <= server < MOST_SERVERS:
            state, reason = (text(row[name], _LONGEST_WORD) for name in ("state", "reason"))
            means = (number(row[name]) for name in ("verdict_left", "verdict_joined"))
            found.append(TrustChange(t, server, state, whole(row["group_number"]), reason, *means))
    return found


def summarise_groups(changes: Sequence[TrustChange]) -> dict[str, Any]:
    """Groups after the last change, and since which round they are as they are; empty where nothing is on record."""
    if not changes:
        return {}
    last = {change.server: change for change in changes}
    return {
        "groups": _list_groups(last),
        "alone": sorted(server for server, change in last.items() if change.state == "alone"),
        "waiting": sorted(server for server, change in last.items() if change.state == "waiting"),
        "groups_since": _find_last_change(changes),
    }


def format_groups(summary: Mapping[str, Any]) -> str:
    """The same as a line of text, with rounds counted from 1.

    >>> format_groups({"groups": [[0, 2], [1, 3]], "alone": [4], "waiting": [], "groups_since": 11})
    '{0, 2}, {1, 3}; alone: 4; last changed in round 12'
    """
    parts = [", ".join(map(format_members, summary["groups"])) or "none"]
    parts += [f"{name}: {_list_servers(summary[name])}" for name in ("alone", "waiting") if summary[name]]
    return "; ".join([*parts, f"last changed in round {summary['groups_since'] + 1}"])


def format_members(servers: Sequence[int]) -> str:
    """A group as a set.

    >>> format_members([0, 2])
    '{0, 2}'
    """
    return f"{{{_list_servers(servers)}}}"


def find_spans(changes: Sequence[TrustChange], end: int) -> list[Span]:
    """For each server the stretches of rounds in which its group and state stayed the same, up to round `end`."""
    starts: dict[int, list[TrustChange]] = {}
    for change in changes:
        own = starts.setdefault(change.server, [])
        if _is_other(own[-1] if own else None, change):
            own.append(change)
    return [
        Span(server, start.t, until, start.state, start.group_number)
        for server, own in sorted(starts.items())
        for start, until in zip(own, [*(change.t for change in own[1:]), end], strict=True)
    ]


def find_marks(changes: Sequence[TrustChange]) -> list[Mark]:
    """Where servers left a group, and where they were introduced after their first time."""
    present: dict[int, TrustChange] = {}
    introduced: set[int] = set()
    marks = []
    for change in changes:
        before = present.get(change.server)
        if before is not None and before.state == "member" and before.group_number != change.group_number:
            marks.append(Mark(change.t, change.server, "left"))
        if change.reason.startswith("introduced"):
            if change.server in introduced:
                marks.append(Mark(change.t, change.server, "introduced again"))
            introduced.add(change.server)
        present[change.server] = change
    return marks


def order_by_group(changes: Sequence[TrustChange]) -> list[int]:
    """All servers in the order of their groups at the end: groups of several, then those alone, then the others."""
    last = {change.server: change for change in changes}
    together = [server for group in _list_groups(last) for server in group]
    alone = sorted(server for server, change in last.items() if change.state == "alone")
    known = {*together, *alone}
    return [*dict.fromkeys([*together, *alone]), *(server for server in sorted(last) if server not in known)]


def index_groups(changes: Sequence[TrustChange]) -> dict[int, int]:
    """Numbers of the groups that ever had several members, with a colour's index for each; final groups come first."""
    last = {change.server: change for change in changes}
    final = [last[group[0]].group_number for group in _list_groups(last)]
    ever = sorted(
        {change.group_number for change in changes if change.state == "member" and change.group_number is not None}
    )
    return {number: index for index, number in enumerate(dict.fromkeys([*final, *ever])) if number is not None}


def find_events(changes: Sequence[TrustChange]) -> Iterator[TrustEvent]:
    """Changes in their order; servers to which the same happened in a round are one event."""
    present: dict[int, TrustChange] = {}
    for t, of_round in groupby(changes, key=lambda change: change.t):
        new = list(of_round)
        told = [change.server for change in new if change.reason != START]
        was = _describe_servers(present, told)
        present |= {change.server: change for change in new}
        now = _describe_servers(present, told)
        alike: dict[tuple[str, str, str], list[TrustChange]] = {}
        for server in told:
            alike.setdefault((was[server], now[server], present[server].reason), []).append(present[server])
        for (before, after, reason), some in alike.items():
            servers = tuple(change.server for change in some)
            left, joined = _mean(each.verdict_left for each in some), _mean(each.verdict_joined for each in some)
            yield TrustEvent(t, servers, before, after, reason, left, joined)


def format_event(event: TrustEvent) -> tuple[str, str, str, str]:
    """Round, servers, what changed, and why."""
    change = event.after if event.before == event.after else f"{event.before} → {event.after}"
    verdicts = [
        f"mean verdict with {who} {mean:+.2f}".replace("-", "−")
        for who, mean in (("those left", event.verdict_left), ("those joined", event.verdict_joined))
        if mean is not None
    ]
    return (
        str(event.t + 1),
        _list_servers(event.servers),
        change,
        ", ".join([_REASONS.get(event.reason, event.reason), *verdicts]),
    )


def _find_last_change(changes: Sequence[TrustChange]) -> int:
    """The last round after which a server was in another group, or in another state, than before."""
    present: dict[int, TrustChange] = {}
    found = 0
    for change in changes:
        found = change.t if _is_other(present.get(change.server), change) else found
        present[change.server] = change
    return found


def _is_other(before: TrustChange | None, now: TrustChange) -> bool:
    return before is None or (before.state, before.group_number) != (now.state, now.group_number)


def _list_groups(present: Mapping[int, TrustChange]) -> list[list[int]]:
    """Groups of at least two, in the order of their first members."""
    members: dict[int, list[int]] = {}
    for server in sorted(present):
        if (group := present[server].group_number) is not None:
            members.setdefault(group, []).append(server)
    return [servers for servers in members.values() if len(servers) > 1]


def _describe_servers(present: Mapping[int, TrustChange], servers: Iterable[int]) -> dict[int, str]:
    """The groups of these servers as sets; the state of those without a group, a dash before it is known."""
    groups = {server: format_members(group) for group in _list_groups(present) for server in group}
    states = {server: change.state for server, change in present.items()}
    return {server: groups.get(server) or states.get(server, "–") for server in servers}


def _list_servers(servers: Sequence[int]) -> str:
    shown = ", ".join(map(str, servers[:_MOST_LISTED]))
    return shown if len(servers) <= _MOST_LISTED else f"{shown} and {len(servers) - _MOST_LISTED} more"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
