"""Checks the history of a deployment against its promises, P1 to P8; all layers of fault tests share this checker.

A history is a list of events, each a dict with `at` (seconds), `node` ("coordinator" or the index of an edge) and
`what`. `hatdfed.deploy.history` records it.

Events of the coordinator:

    start     epoch, round, round_seconds, away_seconds    a process has opened the journal; `round` is the next one
    restore   round, state                                 the state that it goes on from, as a digest
    quorum    active, wanted                               enough servers are there
    plan      round, links, active, state                  a plan is committed, or was found in the journal (no state)
    open      round, seconds                               a round begins, and closes after so long at the latest
    announce  round, epoch, to, links                      an order is sent, with the links of its receiver
    report    round, server, accepted, reason, merged, sent    a report came; `sent` are shares of a model by receiver
    close     round, reported                              a round ends
    ledger    round, links                                 what is charged for links: sender, receiver, bits, joules
    learn     round, reports                               what it learns from: the servers' reports without sketches
    state     round, state                                 all rounds before `round` are done, and this is committed
    wait      waits_for, until                             what the status says; an empty text while it computes

Events of an edge:

    load      round, source, model, finite                 its first model: its "own", a "fresh" one, or of a peer
    give      model                                        it gave its model to a peer that joins
    begin     round, seconds                               it begins a round
    send      round, receiver, digest                      it begins to send its model
    sent      round, receiver, share                       this much of a model was sent, until the end or a failure
    accept    round, sender, digest                        a message passed all checks
    receive   round, sender, run                           and its model was kept for the merge
    merge     round, senders, finite                       these models and its own were merged
    save      round, model                                 it begins to save the model with which `round` begins
    commit    round, model                                 that is on disk
    alarm     sentence                                     something is wrong, but it goes on

Events of whoever tests, with the node that they are about:

    sample    quantity, value, bound                       a measured resource and its limit
    exit      code, expected                               a process ended
    freeze, thaw                                           a process was stopped for a while
    wipe                                                   an edge's disk was lost
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

Event = dict[str, Any]
Links = Sequence[Sequence[int]]  # pairs of receiver and sender

_COORDINATOR = "coordinator"
_TOLERANCE = 1e-6
_PAUSES = ("servers: ", "a majority ")  # waits without an end, for as long as there are too few servers


class Violation(NamedTuple):
    """A promise that a history breaks."""

    promise: str
    sentence: str  # which events break it

    def __str__(self) -> str:
        return f"{self.promise} is broken: {self.sentence}"


class History:
    """Events in order of time, found by what they are."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = sorted(events, key=lambda event: float(event["at"]))
        self._by_kind: dict[str, list[Event]] = defaultdict(list)
        for place, event in enumerate(self.events):
            self._by_kind[event["what"]].append({"place": place, **event})

    def all_of(self, *kinds: str, **fields: Any) -> list[Event]:
        """Return the events of these kinds that have these fields, in order."""
        found = [event for kind in kinds for event in self._by_kind[kind]]
        chosen = [event for event in found if all(event.get(name) == value for name, value in fields.items())]
        return chosen if len(kinds) == 1 else sorted(chosen, key=lambda event: int(event["place"]))


def find_violations(
    events: Iterable[Event], *, slack: float = 2.0, expected_links: Sequence[Links] | None = None
) -> list[Violation]:
    """Return every promise that the history breaks, with the events that break it.

    `slack` are the seconds that a busy machine may take on top of a limit. `expected_links` are the topologies of an
    undisturbed run with the same inputs, for as many rounds as it has.
    """
    history = History(events)
    checks: list[tuple[str, Callable[[], Iterator[str]]]] = [
        ("P1", lambda: _check_committed_rounds(history)),
        ("P2", lambda: _check_restored_states(history)),
        ("P2", lambda: _check_expected_links(history, expected_links)),
        ("P3", lambda: _check_first_models(history)),
        ("P4", lambda: _check_merges(history)),
        ("P4", lambda: _check_reports(history)),
        ("P5", lambda: _check_round_times(history, slack)),
        ("P5", lambda: _check_quorum(history)),
        ("P6", lambda: _check_resources(history)),
        ("P7", lambda: _check_sent_shares(history)),
        ("P7", lambda: _check_ledger(history)),
        ("P8", lambda: _check_waits(history, slack)),
    ]
    return [Violation(promise, sentence) for promise, check in checks for sentence in check()]


def assert_promises(
    events: Iterable[Event], *, slack: float = 2.0, expected_links: Sequence[Links] | None = None
) -> None:
    """Raise an `AssertionError` with a sentence for every promise that the history breaks."""
    if violations := find_violations(events, slack=slack, expected_links=expected_links):
        raise AssertionError("\n".join(map(str, violations)))


# P1: a round that is announced is never lost or changed.


def _check_committed_rounds(history: History) -> Iterator[str]:
    plans: dict[int, Event] = {}
    done = 0  # rounds before this one are done
    for event in history.all_of("start", "plan", "announce", "open", "state"):
        t = int(event["round"])
        match event["what"]:
            case "start" if t != done:
                yield f"the coordinator began at round {t} at {_at(event)}, but rounds before {done} were done."
            case "plan":
                yield from _check_plan(event, plans)
                plans.setdefault(t, event)
            case "announce":
                yield from _check_announcement(event, plans.get(t))
            case "state":
                if t not in (done, done + 1):
                    yield f"state {t} was committed at {_at(event)}, right after state {done}."
                done = t
        if event["what"] in ("plan", "announce", "open") and t < done:
            yield f"round {t} was done, but {_say(event)} followed at {_at(event)}."


def _check_plan(event: Event, plans: dict[int, Event]) -> Iterator[str]:
    t = int(event["round"])
    if (known := plans.get(t)) is None:
        if plans and t != max(plans) + 1:
            yield f"the plan of round {t} came at {_at(event)}, right after that of round {max(plans)}."
    elif (known["links"], known["active"]) != (event["links"], event["active"]):
        yield f"the plan of round {t} was committed at {_at(known)} and is another one at {_at(event)}."


def _check_announcement(event: Event, plan: Event | None) -> Iterator[str]:
    t, to = event["round"], event["to"]
    if plan is None:
        yield f"round {t} was announced to server {to} at {_at(event)}, before its plan was committed."
    elif sorted(map(tuple, event["links"])) != sorted(tuple(link) for link in plan["links"] if to in link):
        yield f"server {to} was told of other links of round {t} at {_at(event)} than were committed at {_at(plan)}."


# P2: after a restart the coordinator goes on as if nothing had happened.


def _check_restored_states(history: History) -> Iterator[str]:
    last: Event | None = None
    for event in history.all_of("restore", "state", "plan"):
        if event["what"] != "restore":
            last = event if event["state"] is not None else last
        elif event["state"] != (None if last is None else last["state"]):
            was = "nothing was committed" if last is None else f"round {last['round']} was committed at {_at(last)}"
            yield f"the state restored at {_at(event)} for round {event['round']} is another one: {was}."


def _check_expected_links(history: History, expected: Sequence[Links] | None) -> Iterator[str]:
    plans = {int(event["round"]): event["links"] for event in history.all_of("plan")}
    for t, links in enumerate(expected or ()):
        if t in plans and _sorted_links(plans[t]) != _sorted_links(links):
            yield f"the topology of round {t} differs from that of an undisturbed run with the same inputs."


def _sorted_links(links: Links) -> list[tuple[int, ...]]:
    return sorted(map(tuple, links))


# P3: an edge begins with its last committed model or with a peer's, never with garbage.


def _check_first_models(history: History) -> Iterator[str]:
    commits: dict[Any, Event] = {}
    saves: dict[Any, list[Event]] = defaultdict(list)  # since the last commit
    given: dict[Any, set[str]] = defaultdict(set)
    for event in history.all_of("load", "save", "commit", "give", "wipe"):
        node = event["node"]
        match event["what"]:
            case "wipe":
                commits.pop(node, None)
                saves.pop(node, None)
            case "save":
                saves[node].append(event)
            case "commit":
                commits[node], saves[node] = event, []
            case "give":
                given[node].add(event["model"])
            case "load":
                yield from _check_load(event, [*saves[node], *([commits[node]] if node in commits else [])], given)


def _check_load(event: Event, own: list[Event], given: dict[Any, set[str]]) -> Iterator[str]:
    who = f"server {event['node']} began at {_at(event)}"
    if not event["finite"]:
        yield f"{who} with a model that is not finite."
    if event["source"] == "own":
        if (event["round"], event["model"]) not in [(saved["round"], saved["model"]) for saved in own]:
            yield f"{who} with a model for round {event['round']} that is not the last that it committed."
    elif any(saved["what"] == "commit" for saved in own):
        yield f"{who} with a model from {event['source']} although it had committed its own for {own[-1]['round']}."
    elif event["source"] != "fresh" and event["model"] not in given[event["source"]]:
        yield f"{who} with a model that server {event['source']} never gave."


# P4: a model is merged once, in its round, along its link, undamaged and finite.


class _Exchange(NamedTuple):
    """What one edge has received since it began its round."""

    round: int
    received: dict[int, int]  # by sender: how often


def _check_merges(history: History) -> Iterator[str]:
    plans = {event["round"]: event for event in history.all_of("plan")}
    sent: dict[tuple[Any, Any], set[str]] = defaultdict(set)
    accepted: dict[tuple[Any, Any, Any], Event] = {}
    exchanges: dict[Any, _Exchange] = {}
    committed: dict[Any, int] = defaultdict(int)
    runs: set[str] = set()
    for event in history.all_of("load", "begin", "send", "accept", "receive", "merge", "commit", "wipe"):
        node: Any = event["node"]
        t: Any = event.get("round")
        match event["what"]:
            case "load":
                exchanges.pop(node, None)
            case "wipe":
                committed[node] = 0
            case "begin":
                exchanges[node] = _Exchange(t, {})
                if t < committed[node]:
                    yield f"server {node} began round {t} at {_at(event)}, which it had committed."
            case "send":
                sent[node, t].add(event["digest"])
            case "accept":
                accepted[node, t, event["sender"]] = event
                if event["digest"] not in sent[event["sender"], t]:
                    yield f"server {node} accepted a model at {_at(event)} that {event['sender']} never sent in {t}."
            case "receive":
                yield from _check_receipt(event, exchanges.get(node), accepted, runs)
            case "merge":
                yield from _check_merge(event, exchanges.get(node), plans.get(t))
            case "commit":
                committed[node] = max(committed[node], t)


def _check_receipt(
    event: Event, exchange: _Exchange | None, accepted: dict[tuple[Any, Any, Any], Event], runs: set[str]
) -> Iterator[str]:
    node, t, sender = event["node"], event["round"], event["sender"]
    what = f"server {node} kept the model of {sender} for round {t} at {_at(event)}"
    if exchange is None or exchange.round != t:
        yield f"{what}, but it was not in that round."
        return
    exchange.received[sender] = exchange.received.get(sender, 0) + 1
    if exchange.received[sender] > 1:
        yield f"{what} for the second time."
    if (node, t, sender) not in accepted:
        yield f"{what}, which no check had accepted."
    runs.add(event["run"])
    if len(runs) > 1:
        yield f"{what}, which is of run {event['run']}, while others are of another."


def _check_merge(event: Event, exchange: _Exchange | None, plan: Event | None) -> Iterator[str]:
    node, t = event["node"], event["round"]
    what = f"server {node} merged at {_at(event)} in round {t}"
    if not event["finite"]:
        yield f"{what} a model that is not finite."
    links = set() if plan is None else set(map(tuple, plan["links"]))
    for sender in event["senders"]:
        if (node, sender) not in links:
            yield f"{what} the model of {sender}, from which it has no link."
        if exchange is None or exchange.round != t or sender not in exchange.received:
            yield f"{what} the model of {sender}, which it had not received."
    if len(set(event["senders"])) < len(event["senders"]):
        yield f"{what} a model twice: senders {event['senders']}."


def _check_reports(history: History) -> Iterator[str]:
    """Check that a report counts once, while its round is open, and names the models that its server merged."""
    merges: dict[tuple[Any, Any], set[int]] = {}
    open_round: int | None = None
    taken: set[int] = set()
    for event in history.all_of("start", "open", "close", "report", "merge"):
        match event["what"]:
            case "start" | "close":
                open_round, taken = None, set()
            case "open":
                open_round, taken = event["round"], set()
            case "merge":
                merges[event["node"], event["round"]] = {event["node"], *event["senders"]}
            case "report" if event["accepted"]:
                server, t = event["server"], event["round"]
                what = f"the report of server {server} for round {t} was accepted at {_at(event)}"
                if t != open_round:
                    yield f"{what}, while that round was not open."
                if server in taken:
                    yield f"{what} for the second time."
                taken.add(server)
                if not set(event["merged"]) <= merges.get((server, t), set(event["merged"])):
                    yield f"{what} with models that it had not merged."


# P5: a bad node delays a round by a known time at most, and too few servers pause the run.


def _check_round_times(history: History, slack: float) -> Iterator[str]:
    opened: Event | None = None
    frozen = 0.0  # seconds of the open round in which the coordinator was stopped
    frozen_at: float | None = None
    for event in history.all_of("start", "open", "close", "freeze", "thaw"):
        match event["what"]:
            case "start":
                opened = None
            case "open":
                opened, frozen = event, 0.0
            case "freeze" if event["node"] == _COORDINATOR:
                frozen_at = event["at"]
            case "thaw" if event["node"] == _COORDINATOR and frozen_at is not None:
                frozen, frozen_at = frozen + event["at"] - frozen_at, None
            case "close" if opened is not None:
                seconds = event["at"] - opened["at"] - frozen
                if seconds > opened["seconds"] + slack:
                    yield (
                        f"round {event['round']} was open for {seconds:.1f} s from {_at(opened)} on, longer than its "
                        f"{opened['seconds']:g} s."
                    )
                opened = None


def _check_quorum(history: History) -> Iterator[str]:
    known: Event | None = None
    for event in history.all_of("quorum", "plan"):
        if event["what"] == "quorum":
            known = event
            if event["active"] < event["wanted"]:
                yield f"a round began at {_at(event)} with {event['active']} servers, fewer than {event['wanted']}."
        elif event["state"] is not None and known is not None and len(event["active"]) < known["wanted"]:
            yield f"round {event['round']} was planned at {_at(event)} for {len(event['active'])} servers only."


# P6: memory and disk stay bounded, and no process ends by itself.


def _check_resources(history: History) -> Iterator[str]:
    for event in history.all_of("sample"):
        if event["value"] > event["bound"]:
            yield (
                f"{event['quantity']} of {_name(event['node'])} was {event['value']:g} at {_at(event)}, above "
                f"{event['bound']:g}."
            )
    for event in history.all_of("exit"):
        if event["code"] not in event["expected"]:
            yield f"{_name(event['node'])} ended at {_at(event)} with code {event['code']}."


# P7: every byte that was sent is counted, also those of transfers that failed.


def _check_sent_shares(history: History) -> Iterator[str]:
    """Check that a server reports at least what it sent in this round since its process began."""
    sent: dict[tuple[Any, Any, Any], float] = defaultdict(float)
    for event in history.all_of("load", "sent", "report"):
        match event["what"]:
            case "load":
                sent = defaultdict(float, {key: share for key, share in sent.items() if key[0] != event["node"]})
            case "sent":
                sent[event["node"], event["round"], event["receiver"]] += event["share"]
            case "report" if event["accepted"]:
                reported = {int(receiver): share for receiver, share in event["sent"].items()}
                for (node, t, receiver), share in sent.items():
                    told = reported.get(receiver, 0.0)
                    if (node, t) == (event["server"], event["round"]) and share > told + _TOLERANCE:
                        yield (
                            f"server {node} sent {share:.3f} models to {receiver} in round {t}, but reported "
                            f"{told:.3f} at {_at(event)}."
                        )


def _check_ledger(history: History) -> Iterator[str]:
    """Check that the ledger charges for what the accepted reports of a round say, at one price for all."""
    reports: dict[Any, dict[tuple[int, int], float]] = defaultdict(dict)
    price = 0.0  # bits of a model
    for event in history.all_of("open", "report", "ledger"):
        t = event["round"]
        match event["what"]:
            case "open":
                reports[t] = {}
            case "report" if event["accepted"]:
                shares = {(event["server"], int(receiver)): share for receiver, share in event["sent"].items()}
                reports[t] |= {link: share for link, share in shares.items() if share > 0}
            case "ledger":
                charged = {(sender, receiver): bits for sender, receiver, bits, _ in event["links"]}
                for link, share in reports[t].items():
                    bits = charged.get(link, 0.0)
                    price = price or bits / share
                    if bits == 0 or abs(bits - share * price) > _TOLERANCE * bits:
                        yield (
                            f"the ledger of round {t} charges {bits:g} bits from {link[0]} to {link[1]}, where "
                            f"{share:.3f} models were reported."
                        )


# P8: every wait is named, with its timeout.


def _check_waits(history: History, slack: float) -> Iterator[str]:
    current: Event | None = None  # the last event `wait`; None after a start, whose first wait is for servers
    last: Event | None = None
    for event in history.events:
        if event["node"] != _COORDINATOR or event["what"] in ("sample", "exit"):
            continue
        if event["what"] in ("start", "thaw"):
            current = None
        elif event["what"] != "freeze" and current is not None and last is not None:
            yield from _check_silence(current, last, event, slack)
        if event["what"] == "wait":
            current = event
            if event["waits_for"] and event["until"] is None and not event["waits_for"].startswith(_PAUSES):
                yield f"the wait for {event['waits_for']} at {_at(event)} has no timeout."
        last = event


def _check_silence(wait: Event, last: Event, event: Event, slack: float) -> Iterator[str]:
    """Check that the time between the last two events was named, and within the timeout of what was waited for."""
    seconds = event["at"] - last["at"]
    if not wait["waits_for"] and seconds > slack:
        yield f"the coordinator did nothing for {seconds:.1f} s before {_at(event)} and named no wait."
    if wait["until"] is not None and event["what"] == "wait" and event["at"] > wait["until"] + slack:
        yield f"the wait for {wait['waits_for']} lasted {event['at'] - wait['until']:.1f} s beyond its end."


def _at(event: Event) -> str:
    return f"{event['at']:.3f} s"


def _say(event: Event) -> str:
    return {"plan": "its plan", "announce": "its announcement", "open": "its opening"}[event["what"]]


def _name(node: int | str) -> str:
    return str(node) if isinstance(node, str) else f"server {node}"
