"""Groups and their changes, from the rows of a run."""

from hatdfed.runs.trust_history import (
    Span,
    find_events,
    find_spans,
    format_event,
    format_groups,
    read_changes,
    summarise_groups,
)
from hatdfed.runs.trust_log import TrustChange

ROWS = [
    *(TrustChange(0, server, "waiting", None, "start") for server in range(5)),
    TrustChange(3, 0, "member", 0, "introduced", None, 0.5),
    TrustChange(3, 1, "member", 1, "introduced", None, 0.25),
    TrustChange(3, 2, "member", 0, "introduced", None, 0.5),
    TrustChange(3, 3, "member", 1, "introduced", None, 0.25),
    TrustChange(3, 4, "alone", 2, "introduced"),
    TrustChange(6, 2, "member", 1, "harm", -0.5, 0.25),
    TrustChange(6, 0, "alone", 0, "harm", -0.5, None),
    TrustChange(8, 4, "alone", 2, "introduced again"),
]


def test_groups_of_at_least_two_and_who_is_alone():
    found = summarise_groups(ROWS)
    assert found == {"groups": [[1, 2, 3]], "alone": [0, 4], "waiting": [], "groups_since": 6}
    assert format_groups(found) == "{1, 2, 3}; alone: 0, 4; last changed in round 7"


def test_before_the_introduction_everybody_waits():
    found = summarise_groups(ROWS[:5])
    assert format_groups(found) == "none; waiting: 0, 1, 2, 3, 4; last changed in round 1"


def test_of_a_policy_without_beliefs_nothing_is_summarised():
    assert summarise_groups([]) == {}


def test_many_servers_are_not_listed_one_by_one():
    found = summarise_groups([TrustChange(0, server, "waiting", None, "start") for server in range(1000)])
    assert "38, 39 and 960 more" in format_groups(found)


def test_spans_are_the_rounds_in_which_a_server_stayed_the_same():
    spans = find_spans(ROWS, 10)
    assert [span for span in spans if span.server == 2] == [
        Span(2, 0, 3, "waiting", None),
        Span(2, 3, 6, "member", 0),
        Span(2, 6, 10, "member", 1),
    ]
    assert [span for span in spans if span.server == 4] == [Span(4, 0, 3, "waiting", None), Span(4, 3, 10, "alone", 2)]


HARMED = "models of those left were harmful, mean verdict with those left −0.50"


def test_servers_to_which_the_same_happened_are_one_event():
    assert [format_event(event) for event in find_events(ROWS)] == [
        ("4", "0, 2", "waiting → {0, 2}", "introduced, mean verdict with those joined +0.50"),
        ("4", "1, 3", "waiting → {1, 3}", "introduced, mean verdict with those joined +0.25"),
        ("4", "4", "waiting → alone", "introduced"),
        ("7", "2", "{0, 2} → {1, 2, 3}", f"{HARMED}, mean verdict with those joined +0.25"),
        ("7", "0", "{0, 2} → alone", HARMED),
        ("9", "4", "alone", "introduced again"),
    ]


def test_rows_that_make_no_sense_are_left_out():
    good = ROWS[5]._asdict()
    bad = [good | {"t": -1}, good | {"server": "0"}, good | {"server": 10**9}, good | {"t": None}]
    assert read_changes([*bad, good]) == [ROWS[5]]
    (odd,) = read_changes([good | {"state": b"\xff", "group_number": "x", "verdict_joined": float("inf")}])
    assert (odd.group_number, odd.verdict_joined) == (None, None)
