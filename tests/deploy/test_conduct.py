"""Who loses its links for how long, and on whose word."""

import ast
import importlib
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

import hatdfed
from hatdfed.core.refusals import COORDINATOR_MEANINGS, WORDS
from hatdfed.deploy.coordinator.conduct import FIRST_ROUNDS, STRIKES, Conduct, RoundEvidence
from hatdfed.deploy.coordinator.journal import Journal
from hatdfed.deploy.coordinator.membership import Membership
from hatdfed.deploy.coordinator.participation import Participation

ALL = {"a", "b", "c", "x"}


def evidence(t, blame=(), *, reason="too-large", missing=(), receivers=None):
    """A round in which those of `blame` refused the model of x."""
    refusals = {name: {"x": Counter({reason: 1})} if name in blame else {} for name in ALL - set(missing)}
    return RoundEvidence(t, ALL, refusals, {"x": {"a", "b"} if receivers is None else receivers})


def test_who_is_refused_by_all_receivers_in_every_round_is_found():
    conduct = Conduct()
    found = [conduct.judge(evidence(t, {"a", "b"})) for t in range(STRIKES)]
    assert found == [[], [], ["x"]]
    assert conduct.of("x").refused == {"too-large": 6}
    assert conduct.of("x").refused_by == {"a", "b"}


@pytest.mark.parametrize(
    "each_round",
    [
        {"blame": {"a"}},  # the other receiver took it
        {"blame": {"a"}, "receivers": {"a"}},  # one server's word against another's
        {"blame": {"c"}, "receivers": set()},  # nobody was to receive it
        {"blame": {"a", "b"}, "reason": "cut-short"},  # the network may have done it
    ],
)
def test_what_proves_nothing_is_held_against_nobody(each_round):
    conduct = Conduct()
    assert [conduct.judge(evidence(t, **each_round)) for t in range(10)] == [[]] * 10


def test_two_servers_may_say_so_in_different_rounds():
    conduct = Conduct()
    rounds = [{"a"}, {"b"}, {"a"}]
    assert [conduct.judge(evidence(t, who, receivers=who)) for t, who in enumerate(rounds)][-1] == ["x"]


def test_a_good_round_makes_up_for_the_bad_ones():
    conduct = Conduct()
    for t, blame in enumerate([{"a", "b"}, {"a", "b"}, set(), {"a", "b"}, {"a", "b"}]):
        assert conduct.judge(evidence(t, blame)) == []


def test_who_takes_part_and_never_reports_is_found():
    """As an edge that crashes in every round."""
    conduct = Conduct()
    assert [conduct.judge(evidence(t, missing={"x"})) for t in range(STRIKES)] == [[], [], ["x"]]


def test_a_quarantine_ends_and_the_next_one_comes_sooner_and_lasts_longer():
    conduct = Conduct()
    for t in range(STRIKES):
        conduct.judge(evidence(t, missing={"x"}))
    end = conduct.quarantine("x", STRIKES - 1)
    assert end == STRIKES + FIRST_ROUNDS
    assert [conduct.is_quarantined("x", t) for t in (end - 1, end)] == [True, False]
    assert conduct.judge(evidence(end, missing={"x"})) == ["x"]
    assert conduct.quarantine("x", end) == end + 1 + 2 * FIRST_ROUNDS
    again = Conduct(conduct.quarantines())
    assert again.is_quarantined("x", end + 2 * FIRST_ROUNDS)
    assert not again.is_quarantined("a", 0)


@pytest.fixture
def journal(tmp_path):
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        yield journal


def make_members(journal, next_round=0):
    membership = Membership(4, away_seconds=10.0)
    participation = Participation(membership, journal, next_round)
    for name in sorted(ALL):
        member = membership.admit(name, "host:1", now=0.0)
        member.is_ready = True
        participation.restore(member)
    return membership, participation


def quarantine(participation, wanted):
    participation.admit_for_round(wanted, 0.0)
    for t in range(STRIKES):
        participation.judge(evidence(t, missing={"x"}), 0.0)


def test_a_server_in_quarantine_is_not_active_until_it_ends_also_after_a_restart(journal):
    membership, participation = make_members(journal)
    quarantine(participation, wanted=2)
    assert membership.active_mask(0.0).tolist() == [True, True, True, False]
    membership, participation = make_members(journal, next_round=STRIKES)
    assert membership.active_mask(0.0).tolist() == [True, True, True, False]
    membership.find("x").dial_results = {0: True}
    participation.judge(evidence(STRIKES + FIRST_ROUNDS - 1), 0.0)
    participation.admit_for_round(2, 0.0)
    assert membership.active_mask(0.0).all()
    assert membership.find("x").dial_results == {}, "who reaches it is found out anew"


def test_no_quarantine_keeps_a_run_from_going_on(journal):
    membership, participation = make_members(journal)
    quarantine(participation, wanted=4)
    assert membership.active_mask(0.0).all()
    quarantine(participation, wanted=3)
    assert membership.find("x").is_quarantined
    membership.find("a").has_left = True
    participation.admit_for_round(3, 0.0)
    assert not membership.find("x").is_quarantined


def test_heartbeats_alone_do_not_keep_others_waiting_for_a_lost_connection():
    membership = Membership(1, away_seconds=10.0)
    member = membership.admit("x", "host:1", now=0.0)
    member.lost_at = 0.0
    assert membership.expected_back(9.0) == [member]
    member.last_seen = 11.0
    assert membership.expected_back(11.0) == []


def find_reasons(path, module):
    """The words with which a module refuses messages, literal or named."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("WireError", "IdentityError"):
            word = node.args[0]
            yield word.value if isinstance(word, ast.Constant) else getattr(importlib.import_module(module), word.id)


def test_every_reason_of_an_edge_is_a_word_that_the_coordinator_counts():
    """A new reason has to be added to the words, or it would be counted as `other`."""
    package = Path(hatdfed.__file__).parent
    reasons = set()
    for folder in ("server", "deploy/edge", "deploy/transport"):
        for path in (package / folder).rglob("*.py"):
            module = ".".join(["hatdfed", *path.relative_to(package).with_suffix("").parts])
            reasons |= set(find_reasons(path, module))
    assert {"wrong-shape", "early", "too-large"} <= reasons
    assert reasons - WORDS == set()


def test_every_reason_of_the_coordinator_has_a_meaning():
    folder, reasons = Path(hatdfed.__file__).parent / "deploy" / "coordinator", set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "count_refusal":
                reasons |= {node.args[0].value} if isinstance(node.args[0], ast.Constant) else set()
    assert {"not-asked", "protocol", "drained"} <= reasons
    assert reasons - WORDS - COORDINATOR_MEANINGS.keys() == set()
