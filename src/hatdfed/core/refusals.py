"""The words under which servers report refused messages and unusable models, and what a run says about them.

An edge that reports other words cannot fill the counters of the coordinator with them: those count as `OTHER`. The
coordinator counts what it refuses itself under words of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

NOT_FINITE = "not-finite"  # a received model
TOO_LARGE = "too-large"  # a received model, finite but with a norm beyond the bound
OWN_NOT_FINITE = "own-not-finite"  # a server's own model was not finite or not bounded: it went back to a usable one
NOTHING_FINITE = "nothing-finite"  # likewise, but there was none to go back to and none was received

OTHER = "other"  # what an edge reports under a word that is none of ours

MEANINGS = {
    NOT_FINITE: "A model has numbers that are not finite.",
    TOO_LARGE: "A model is finite, but its norm exceeds the bound.",
    OWN_NOT_FINITE: "A server's own model was not finite or not bounded; it went back to a usable one.",
    NOTHING_FINITE: "The same, and there was no usable one.",
    "wrong-shape": "A model has another number of parameters, or other types, than the run's.",
    "damaged": "A digest does not match: the network, or memory, changed bytes.",
    "not-a-message": "Bytes that are no message of hatdfed.",
    "bad-header": "A transfer announced digests that do not fit its size.",
    "too-long": "More bytes or entries than were announced or agreed upon.",
    "foreign": "A message of another run, round, sender or codec.",
    "not-a-neighbour": "There is no link to or from this server in this round.",
    "duplicate": "A model or report that has already been received.",
    "early": "The round has not begun at the receiver; the sender tries again.",
    "late": "The round is over at the receiver.",
    "cut-short": "A transfer ended before its last byte; it is resumed.",
    "stalled": "A transfer did not move for `idle_seconds`; it is resumed.",
    "moved": "A transfer began at another byte than the one that was awaited; it is resumed.",
    "replaced": "A newer connection of the same sender took its place.",
    "slow": "A sender was slower than `least_kbit_per_second`; it is not waited for in this round.",
    "spent": "A model was sent, or failed its checks, too often in this round.",
    "no-relay": "A peer is to be called through a relay, and this edge has none.",
    "bad-certificate": "A certificate cannot be read.",
    "bad-name": "A name that no member can have.",
    "denied": "The caller is on the deny list.",
    "expired": "The caller's certificate has expired.",
    "no-node-name": "A certificate that names no member, or several.",
    "too-early": "A certificate that is not valid yet: compare the clocks.",
    "wrong-role": "The caller's certificate is for another role.",
    OTHER: "An edge reported a reason that this version does not know.",
}
WORDS = frozenset(MEANINGS)

# What the coordinator counts by itself; the join server's words begin with `desk-`.
COORDINATOR_MEANINGS = {
    "bad-report": "A report with impossible numbers, or with more entries than the server has links.",
    "bad-final": "Final figures outside 0 to 1.",
    "not-asked": "Final figures that nobody asked for.",
    "other-model": "An edge describes another model or data set than the majority.",
    "protocol": "An edge speaks a version of the protocol that this coordinator does not know.",
    "bad-address": "An edge announced an address that cannot be dialled.",
    "moved-too-soon": "An edge changed its address twice within seconds; it tries again.",
    "renewed-too-soon": "An edge asked for a certificate before it was due.",
    "started-twice": "Two processes have the identity of one edge.",
    "drained": "The edge was drained from this run.",
}

_ABOUT_OWN = {
    OWN_NOT_FINITE: "A server's own model was not finite, or far too large, {}; the server went back to a usable one.",
    NOTHING_FINITE: "A server had no usable model, neither its own nor a received one, {}: its accuracy means nothing.",
}


def describe_own(refused: Mapping[str, int]) -> list[str]:
    """Sentences about servers whose own model could not be used."""
    counts = {word: refused.get(word, 0) for word in _ABOUT_OWN}
    return [_ABOUT_OWN[word].format("once" if n == 1 else f"{n} times") for word, n in counts.items() if n]


def describe_received(refused: Mapping[str, int]) -> list[str]:
    """A sentence about models that their receivers refused."""
    counts = ", ".join(f"{count} {word}" for word, count in sorted(refused.items()) if word not in _ABOUT_OWN)
    return [f"Models were refused by their receivers: {counts}."] if counts else []
