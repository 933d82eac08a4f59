"""The checker of histories: it accepts a good one, and names the promise that a broken one breaks."""

import copy

import pytest

from hatdfed.deploy import history
from hatdfed.testing.promises import assert_promises, find_violations

COORDINATOR = "coordinator"


def edge_round(t, receiver, sender):
    """What an edge with one sender does in a round."""
    return [
        {"node": receiver, "what": "begin", "round": t, "seconds": 10.0},
        {"node": sender, "what": "send", "round": t, "receiver": receiver, "digest": f"model-{sender}-{t}"},
        {"node": sender, "what": "sent", "round": t, "receiver": receiver, "share": 1.0},
        {"node": receiver, "what": "accept", "round": t, "sender": sender, "digest": f"model-{sender}-{t}"},
        {"node": receiver, "what": "receive", "round": t, "sender": sender, "run": "r"},
        {"node": receiver, "what": "merge", "round": t, "senders": [sender], "finite": True},
        {"node": receiver, "what": "save", "round": t + 1, "model": f"merged-{receiver}-{t}"},
        {"node": receiver, "what": "commit", "round": t + 1, "model": f"merged-{receiver}-{t}"},
    ]


def coordinator(what, **fields):
    return {"node": COORDINATOR, "what": what, **fields}


def one_round(t):
    links = [[0, 1], [1, 0]]
    told = [coordinator("announce", round=t, epoch=1, to=to, links=links) for to in (0, 1)]
    reports = [
        coordinator("report", round=t, server=i, accepted=True, reason="", merged=[i, 1 - i], sent={1 - i: 1.0})
        for i in (0, 1)
    ]
    return [
        coordinator("wait", waits_for="", until=None),
        coordinator("quorum", active=2, wanted=2),
        coordinator("plan", round=t, links=links, active=[0, 1], state=f"state-{t}"),
        coordinator("open", round=t, seconds=10.0),
        *told,
        coordinator("wait", waits_for="reports of a, b", until=100.0),
        *edge_round(t, 0, 1),
        *edge_round(t, 1, 0),
        *reports,
        coordinator("wait", waits_for="", until=None),
        coordinator("close", round=t, reported=[0, 1]),
        coordinator("ledger", round=t, links=[[0, 1, 64.0, 0.1], [1, 0, 64.0, 0.2]]),
        coordinator("state", round=t + 1, state=f"state-{t + 1}"),
    ]


def good():
    """Two rounds of two servers, then a restart of everything."""
    start = {"round_seconds": 10.0, "away_seconds": 3.0}
    events = [
        coordinator("start", epoch=1, round=0, **start),
        *({"node": i, "what": "load", "round": 0, "source": "fresh", "model": "x", "finite": True} for i in (0, 1)),
        coordinator("restore", round=0, state=None),
        coordinator("state", round=0, state="state-0"),
        *one_round(0),
        *one_round(1),
        coordinator("start", epoch=2, round=2, **start),
        coordinator("restore", round=2, state="state-2"),
        {"node": 0, "what": "load", "round": 2, "source": "own", "model": "merged-0-1", "finite": True},
        {"node": 0, "what": "sample", "quantity": "memory", "value": 5.0, "bound": 6.0},
        {"node": 0, "what": "exit", "code": 0, "expected": [0]},
    ]
    return [{"at": 0.01 * place, **event} for place, event in enumerate(events)]


def find(events, what, **fields):
    """The first such event."""
    return next(e for e in events if e["what"] == what and all(e[name] == value for name, value in fields.items()))


def drop(events, what, **fields):
    events.remove(find(events, what, **fields))


def repeat(events, what, **fields):
    event = find(events, what, **fields)
    events.insert(events.index(event) + 1, copy.deepcopy(event))


def change(events, what, where, **fields):
    find(events, what, **where).update(fields)


def delay(events, what, where, seconds):
    """Everything from an event on happens later."""
    first = events.index(find(events, what, **where))
    for event in events[first:]:
        event["at"] += seconds


def add(events, **event):
    events.append({"at": events[-1]["at"] + 0.01, **event})


BROKEN = [
    ("P1", "another one", lambda h: add(h, **coordinator("plan", round=1, links=[], active=[0, 1], state=None))),
    ("P1", "before its plan", lambda h: drop(h, "plan", round=1)),
    ("P1", "other links", lambda h: change(h, "announce", {"round": 1, "to": 0}, links=[[0, 1]])),
    ("P1", "rounds before 2 were done", lambda h: change(h, "start", {"epoch": 2}, round=1)),
    ("P1", "after that of round 1", lambda h: add(h, **coordinator("plan", round=3, links=[], active=[0], state="s"))),
    ("P1", "right after state 2", lambda h: add(h, **coordinator("state", round=4, state="state-4"))),
    ("P1", "was done", lambda h: add(h, **coordinator("open", round=0, seconds=10.0))),
    ("P2", "another one", lambda h: change(h, "restore", {"round": 2}, state="state-1")),
    ("P2", "another one", lambda h: change(h, "restore", {"round": 2}, state=None)),
    ("P3", "not the last", lambda h: change(h, "load", {"source": "own"}, round=1, model="merged-0-0")),
    ("P3", "not finite", lambda h: change(h, "load", {"source": "own"}, finite=False)),
    ("P3", "although it had committed", lambda h: change(h, "load", {"source": "own"}, source="fresh")),
    ("P3", "never gave", lambda h: change(h, "load", {"node": 1}, source=0)),
    ("P4", "for the second time", lambda h: repeat(h, "receive", round=1)),
    ("P4", "a model twice", lambda h: change(h, "merge", {"round": 1}, senders=[1, 1])),
    ("P4", "never sent", lambda h: change(h, "accept", {"round": 1}, digest="damaged")),
    ("P4", "no check had accepted", lambda h: drop(h, "accept", round=1)),
    ("P4", "not in that round", lambda h: change(h, "receive", {"round": 1}, round=0)),
    ("P4", "another", lambda h: change(h, "receive", {"round": 1}, run="s")),
    ("P4", "no link", lambda h: change(h, "merge", {"round": 1}, senders=[1, 2])),
    ("P4", "had not received", lambda h: drop(h, "receive", round=1)),
    ("P4", "not finite", lambda h: change(h, "merge", {"round": 1}, finite=False)),
    ("P4", "which it had committed", lambda h: add(h, node=0, what="begin", round=0, seconds=10.0)),
    ("P4", "not open", lambda h: repeat(h, "report", round=0) or change(h, "report", {"round": 0}, round=1)),
    ("P4", "second time", lambda h: repeat(h, "report", round=1)),
    ("P4", "had not merged", lambda h: change(h, "report", {"round": 1}, merged=[0, 1, 2])),
    ("P5", "longer than its 10 s", lambda h: delay(h, "report", {"round": 1}, 13.0)),
    ("P5", "fewer than 2", lambda h: change(h, "quorum", {}, active=1)),
    ("P5", "1 servers only", lambda h: change(h, "plan", {"round": 0}, active=[0])),
    ("P6", "memory of server 0 was 7", lambda h: change(h, "sample", {}, value=7.0)),
    ("P6", "ended at", lambda h: change(h, "exit", {}, code=-11)),
    ("P7", "sent 2.000 models", lambda h: repeat(h, "sent", round=1)),
    ("P7", "charges 0 bits", lambda h: change(h, "ledger", {"round": 1}, links=[[0, 1, 64.0, 0.1]])),
    ("P7", "charges 32 bits", lambda h: change(h, "ledger", {"round": 1}, links=[[0, 1, 64.0, 1], [1, 0, 32.0, 1]])),
    ("P8", "named no wait", lambda h: delay(h, "ledger", {"round": 1}, 5.0)),
    ("P8", "has no timeout", lambda h: change(h, "wait", {"waits_for": "reports of a, b"}, until=None)),
    ("P8", "beyond its end", lambda h: change(h, "wait", {"waits_for": "reports of a, b"}, until=-3.0)),
]  # fmt: skip


def test_a_good_history_keeps_every_promise():
    assert_promises(good(), expected_links=[[[0, 1], [1, 0]]] * 2)


@pytest.mark.parametrize(("promise", "words", "break_it"), BROKEN)
def test_a_broken_history_is_told_by_promise_and_event(promise, words, break_it):
    events = good()
    break_it(events)
    told = [str(violation) for violation in find_violations(events)]
    assert any(sentence.startswith(f"{promise} is broken") and words in sentence for sentence in told), told
    with pytest.raises(AssertionError, match=promise):
        assert_promises(events)


def test_every_promise_has_a_history_that_breaks_it():
    assert {promise for promise, _, _ in BROKEN} == {f"P{number}" for number in range(1, 9)}


def test_another_topology_than_that_of_an_undisturbed_run_breaks_a_promise():
    (violation,) = find_violations(good(), expected_links=[[[0, 1], [1, 0]], [[0, 1]]])
    assert violation.promise == "P2"
    assert "round 1" in violation.sentence


def test_a_coordinator_that_is_stopped_for_a_while_breaks_no_promise():
    events = good()
    stopped = find(events, "wait", waits_for="reports of a, b")
    place = events.index(stopped)
    delay(events, "begin", {"round": 0}, 60.0)
    for event in events:
        event["until"] = event["until"] and event["until"] + 60 if "until" in event else None
    events.insert(place + 1, {"at": stopped["at"] + 0.001, "node": COORDINATOR, "what": "freeze"})
    events.insert(place + 2, {"at": stopped["at"] + 60.001, "node": COORDINATOR, "what": "thaw"})
    assert_promises(events)


def test_events_are_appended_as_lines_and_read_back_in_order(tmp_path):
    file = tmp_path / "history.jsonl"
    with history.recorded(file):
        assert history.is_kept()
        history.note("begin", 1, round=0, seconds=2.0)
    assert not history.is_kept()
    history.note("begin", 1, round=1, seconds=2.0)
    with file.open("a") as more:
        more.write('{"at": -1.0, "node": 0, "what": "begin"}\n{"at": 3')
    first, second = history.read_history(file)
    assert (first["node"], second["node"], second["what"], second["round"]) == (0, 1, "begin", 0)
