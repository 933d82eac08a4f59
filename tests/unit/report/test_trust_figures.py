"""Pictures of trust are drawn of runs whose policy believes something, and of no others."""

from pathlib import Path

import numpy as np
import pytest

from hatdfed.report.findings import groups_finding, verdicts_finding
from hatdfed.report.run_figures import write_run_figures
from hatdfed.report.style import FigureStyle
from hatdfed.report.trust_data import order_verdicts
from hatdfed.report.trust_figures import trust_figures
from hatdfed.runs.trust_history import TrustHistory
from hatdfed.runs.trust_log import TrustChange

CHANGES = [
    *(TrustChange(0, server, "waiting", None, "start") for server in range(5)),
    *(TrustChange(1, server, "member", server % 2, "introduced", None, 0.5) for server in range(4)),
    TrustChange(1, 4, "alone", 2, "introduced"),
    TrustChange(3, 2, "waiting", None, "data changed"),
    TrustChange(4, 2, "member", 1, "introduced", None, 0.3),
    TrustChange(4, 0, "alone", 0, "others left"),
    TrustChange(5, 4, "alone", 2, "introduced again"),
]


def verdicts_of(size=5):
    verdicts = np.linspace(-1, 1, size * size, dtype=np.float32).reshape(size, size)
    verdicts[0, 1] = np.nan
    np.fill_diagonal(verdicts, np.nan)
    return verdicts


TRUST = TrustHistory(CHANGES, verdicts_of(), 5)


def test_verdicts_and_groups_are_drawn_beside_the_other_pictures(make_run, tmp_path: Path) -> None:
    files = write_run_figures(make_run()._replace(trust=TRUST), tmp_path)
    assert [file.name for file in files[-2:]] == ["verdicts.png", "groups.png"]
    assert all(len(file.read_bytes()) > 5_000 for file in files)


def test_nothing_is_drawn_of_a_policy_that_believes_nothing_or_of_too_many_servers(make_run) -> None:
    assert trust_figures(make_run()) == {}
    many = TrustHistory([TrustChange(0, server, "introduced", None, "start") for server in range(401)])
    assert trust_figures(make_run()._replace(trust=many)) == {}


def test_without_verdicts_groups_are_drawn_alone(make_run) -> None:
    assert list(trust_figures(make_run()._replace(trust=TrustHistory(CHANGES)))) == ["groups"]


@pytest.mark.parametrize("changes", [CHANGES[:5], CHANGES[:10]])
def test_a_run_at_its_beginning_is_drawn_without_a_warning(changes, make_run, tmp_path: Path) -> None:
    nothing = np.full((5, 5), np.nan, dtype=np.float32)
    run = make_run(rounds=1)._replace(trust=TrustHistory(changes, nothing, 0))
    assert len(write_run_figures(run, tmp_path)) == 6


def test_servers_stand_in_the_order_of_their_final_groups() -> None:
    ordered = order_verdicts(TRUST)
    assert ordered.servers == [1, 2, 3, 0, 4]
    assert ordered.group.tolist() == [1, 1, 1, 0, 2]
    np.testing.assert_array_equal(ordered.verdict[0, 1], TRUST.verdicts[1, 2])
    assert len(ordered.inside) == 3 * 3 + 2  # with the diagonal


def test_titles_say_what_is_shown() -> None:
    found = {"groups": [[0, 1]], "alone": [2], "waiting": [], "groups_since": 6}
    assert groups_finding(found) == "1 group of servers and 1 alone, unchanged since round 7"
    assert groups_finding({**found, "groups": [], "alone": [], "waiting": [0, 1]}) == (
        "No group of servers and 2 not introduced, unchanged since round 7"
    )
    assert verdicts_finding(np.array([0.5, np.nan]), np.array([-0.25])) == (
        "Mean verdict +0.50 inside groups, −0.25 between them"
    )
    assert verdicts_finding(np.array([np.nan]), np.array([])) == "No verdict is known yet"


def test_rows_of_a_narrow_figure_have_room_for_the_numbers_of_servers(make_run) -> None:
    changes = [TrustChange(0, server, "waiting", None, "start") for server in range(8)]
    changes += [TrustChange(1, server, "member", server % 2, "introduced") for server in range(8)]
    style = FigureStyle(width=4.2, font_size=9)
    figure = trust_figures(make_run()._replace(trust=TrustHistory(changes)), style)["groups"]
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert len(boxes) == 8
    assert all(box.count_overlaps(boxes[:index]) == 0 for index, box in enumerate(boxes))


def test_captions_explain_what_a_verdict_and_a_group_are(make_run) -> None:
    figures = trust_figures(make_run()._replace(trust=TRUST))
    words = {name: " ".join(text.get_text() for text in figure.texts) for name, figure in figures.items()}
    assert "1 is harmless, −1 harmful" in " ".join(words["verdicts"].replace("\u00a0", " ").split())
    assert "Servers of one colour exchange models" in " ".join(words["groups"].split())
