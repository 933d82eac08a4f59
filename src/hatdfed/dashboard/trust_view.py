"""What a run's policy believes, as the charts need it: verdicts, groups over rounds, and why they changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hatdfed.report.findings as fd
from hatdfed.dashboard.run_views import to_json_numbers
from hatdfed.report.trust_data import MOST_SERVERS, order_verdicts
from hatdfed.runs.records.cleaning import whole
from hatdfed.runs.records.reading import reading
from hatdfed.runs.trust_history import (
    TrustHistory,
    find_events,
    find_marks,
    find_spans,
    format_event,
    format_members,
    index_groups,
    order_by_group,
    summarise_groups,
)

MAX_EVENTS = 200  # the last ones
_MAX_CHANGES = 50_000


def read_trust_view(folder: Path) -> dict[str, Any]:
    """Read everything that the run page shows of trust; no servers where the policy believes nothing."""
    with reading(folder / "run.sqlite") as reader:
        progress = reader.progress()
        first, last = whole(progress["first"]), whole(progress["last"])
        trust = reader.trust(_MAX_CHANGES)
    if trust is None or first is None or last is None:
        return {"servers": []}
    return _make_view(trust, first, last)


def _make_view(trust: TrustHistory, first: int, last: int) -> dict[str, Any]:
    found, events = summarise_groups(trust.changes), list(find_events(trust.changes))
    servers = order_by_group(trust.changes)
    is_drawn = len(servers) <= MOST_SERVERS
    return {
        "servers": servers,
        "groups": [format_members(group) for group in found["groups"]],
        "title": fd.groups_finding(found),
        "spans": _list_spans(trust, first, last) if is_drawn else [],
        "marks": _list_marks(trust, first) if is_drawn else [],
        "verdicts": _describe_verdicts(trust, first) if is_drawn else None,
        "events": [format_event(event) for event in events[-MAX_EVENTS:]],
        "events_are_cut": len(events) > MAX_EVENTS,
    }


def _list_marks(trust: TrustHistory, first: int) -> list[dict[str, Any]]:
    marks = find_marks(trust.changes)
    return [{"round": mark.t - first + 1, "server": mark.server, "kind": mark.kind} for mark in marks]


def _list_spans(trust: TrustHistory, first: int, last: int) -> list[dict[str, Any]]:
    """List the stretches of rounds, counted from 1; `group` is the index of a colour, None without a group."""
    colours = index_groups(trust.changes)
    return [
        {
            "server": span.server,
            "from": span.first - first + 1,
            "to": span.end - first,
            "state": span.state,
            "group": None if span.state != "member" or span.group is None else colours.get(span.group),
        }
        for span in find_spans(trust.changes, last + 1)
    ]


def _describe_verdicts(trust: TrustHistory, first: int) -> dict[str, Any] | None:
    verdicts = order_verdicts(trust)
    if verdicts is None:
        return None
    return {
        "note": f"{fd.describe_verdicts((trust.verdicts_at or 0) - first + 1)} In the order of groups.",
        "servers": verdicts.servers,
        "values": [to_json_numbers(row) for row in verdicts.verdict],
        "title": fd.verdicts_finding(verdicts.inside, verdicts.outside),
    }
