from __future__ import annotations

from itertools import product
from typing import Any

from hatdfed.report.groups import row_labels


def settings(
    policy: dict[str, Any] | None = None, learner: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    return {"method": "plus", "seed": 0, "policy": policy or {"name": "ring"}, "learner": learner or {}, **more}


def test_settings_inside_sections_tell_rows_apart() -> None:
    rows = [
        settings({"name": "balanced-links", "thrift": thrift}, {"optimiser": "adam", "cool_down": cool_down})
        for cool_down, thrift in product((0.0, 0.5), (2, 8))
    ]
    assert row_labels(rows) == [
        f"plus (thrift {thrift}, cool_down {cool_down})" for cool_down, thrift in product((0.0, 0.5), (2, 8))
    ]


def test_another_policy_is_named_without_the_settings_that_only_it_has() -> None:
    rows = [settings(), settings({"name": "balanced-links", "thrift": 2}), settings({"name": "pens", "thrift": 8})]
    assert row_labels(rows) == ["plus (policy ring)", "plus (policy balanced-links)", "plus (policy pens)"]


def test_settings_of_one_name_are_written_with_their_sections() -> None:
    rows = [settings({"name": "ring", "learning_rate": rate}, {"learning_rate": rate}) for rate in (0.1, 0.2)]
    assert row_labels(rows)[0] == "plus (policy.learning_rate 0.1, learner.learning_rate 0.1)"


def test_seeds_and_other_methods_are_no_difference() -> None:
    rows = [settings(servers=4), {**settings(servers=5), "method": "rnd", "seed": 1}]
    assert row_labels(rows) == ["plus", "rnd"]


def test_no_label_is_there_twice_however_many_settings_differ() -> None:
    names = ("a", "b", "c", "d", "e")
    rows = [settings(learner=dict(zip(names, values, strict=True))) for values in product((0, 1), repeat=5)]
    labels = row_labels(rows)
    assert len(set(labels)) == len(labels) == 32
    assert labels[:2] == ["plus no. 1 (a 0, b 0, c 0, d 0, …)", "plus no. 2 (a 0, b 0, c 0, d 0, …)"]
