from __future__ import annotations

import numpy as np
import pytest

import hatdfed.report.run_data as rp
from hatdfed.report import findings as fd
from hatdfed.report import formatting as fm
from hatdfed.runs.statistics import PairedDifference


def test_cumulative_joules_begin_at_nothing_and_end_at_the_total(make_run) -> None:
    run = make_run(rounds=4)
    spent = rp.cumulative_joules(run)
    assert set(spent) == rp.PAPER_COLUMNS
    assert all(joules[0] == 0 and len(joules) == 5 for joules in spent.values())
    assert spent["training_joules"].tolist() == [0, 5, 10, 15, 20]
    assert sum(joules[-1] for joules in spent.values()) == pytest.approx(rp.total_joules(run))


def test_rounds_are_counted_from_one_whatever_their_first_t(make_run) -> None:
    run = make_run(rounds=3)
    later = run._replace(rounds=[{**record, "t": record["t"] + 7} for record in run.rounds])
    assert rp.rounds_played(run).tolist() == rp.rounds_played(later).tolist() == [1, 2, 3]


def test_a_server_without_a_report_has_no_accuracy(make_run) -> None:
    run = make_run(num_servers=2, rounds=2, accuracy=50.0)
    silent = run._replace(servers=[{**run.servers[0], "accuracy": None}, *run.servers[1:3]])
    np.testing.assert_array_equal(rp.server_accuracy(silent), [[np.nan, 50], [50, np.nan]])


def test_last_links_are_those_of_the_last_round_at_the_receiver_s_price(make_run) -> None:
    run = make_run(num_servers=3, rounds=2, link_share=1.0)
    links = rp.last_links(run)
    assert len(links.sender) == 6
    assert links.joules is not None
    assert run.link_joules is not None
    assert links.joules[0] == run.link_joules[links.receiver[0]][links.sender[0]]
    assert rp.last_links(run._replace(link_joules=None)).joules is None


def test_mean_and_sd_leave_out_what_was_not_measured() -> None:
    assert rp.mean_and_sd(np.array([1.0, np.nan, 3.0])) == pytest.approx((2.0, 2**0.5))
    assert rp.mean_and_sd(np.array([4.0])) == (4.0, 0.0)
    assert np.isnan(rp.mean_and_sd(np.array([np.nan]))[0])


def test_a_seed_that_stopped_early_counts_as_far_as_it_went(make_run) -> None:
    long, short = make_run(rounds=3, accuracy=80.0), make_run(rounds=2, accuracy=60.0)
    rounds, mean, sd = rp.curve([long, short], "avg_accuracy")
    assert rounds.tolist() == [1, 2, 3]
    assert mean.tolist() == [70, 70, 80]
    assert sd[-1] == 0


def test_the_front_has_every_point_that_none_beats_at_both() -> None:
    points = np.array([[3.0, 90.0], [1.0, 50.0], [2.0, 40.0], [3.0, 80.0], [4.0, 90.0], [2.0, 70.0]])
    assert rp.pareto_front(points) == [1, 5, 0]
    assert rp.pareto_front(np.empty((0, 2))) == []


def test_equal_points_are_on_the_front_together() -> None:
    assert rp.pareto_front(np.array([[2.0, 60.0], [1.0, 50.0], [2.0, 60.0], [2.0, 50.0]])) == [1, 0, 2]


def test_a_range_is_never_empty() -> None:
    assert rp.limits(np.array([np.nan]), least=2) == (0, 2)
    assert rp.limits(np.array([5.0, 5.0]), least=2) == (4, 6)


@pytest.mark.parametrize(
    ("joules", "text"),
    [(0, "0 J"), (0.25, "0.25 J"), (12.345, "12.3 J"), (999.9, "1 kJ"), (3421.7, "3.42 kJ"), (5.25e9, "5,250 MJ")],
)
def test_joules_are_written_in_the_unit_that_fits(joules: float, text: str) -> None:
    assert fm.format_joules(joules) == text


def test_the_spread_is_written_as_exactly_as_the_mean() -> None:
    assert fm.format_joules(3421.7, 98) == "3.42 ± 0.10 kJ"
    assert fm.format_joules(3421.7, 1) == "3.42 ± 0.00 kJ"
    assert fm.format_percent(91.234, 0.42) == "91.2 ± 0.4 %"
    assert fm.format_percent(float("nan")) == "not reported"


def test_no_difference_is_a_negative_zero() -> None:
    assert fm.difference(PairedDifference(-0.04, -0.04, 3.0, 3), "points") == [
        "+0.0\N{NO-BREAK SPACE}points",
        "[+0.0, +3.0]",
    ]
    assert fm.difference(PairedDifference(-1.0, None, None, 1), "%") == ["−1.0\N{NO-BREAK SPACE}%", "(one seed)"]


@pytest.mark.parametrize(
    ("joules", "said"),
    [
        (100.6, "as much"),
        (105.5, "5 % more"),
        (149.0, "48 % more"),
        (155.0, "1.5 times as much"),
        (2510.0, "25 times as much"),
    ],
)
def test_a_title_says_how_much_more_is_spent(joules: float, said: str) -> None:
    assert fd.cost_finding({"ring": 100.4, "rnd": joules}).endswith(f"; rnd spends {said}")


def test_titles_say_what_is_seen(make_run) -> None:
    run = make_run(num_servers=3, rounds=2, link_share=1.0)
    assert fd.accuracy_finding(np.array([50.0, 80.0])) == "Mean accuracy rises from 50.0 % to 80.0 % over 2 rounds"
    assert "% of it on links" in fd.energy_finding(rp.cumulative_joules(run))
    assert fd.links_finding(rp.last_links(run), 3, 2).startswith("6 of 6 possible links")
    assert fd.cost_finding({"ring": 10.0, "full": 25.0}) == "ring spends least, 10 J; full spends 2.5 times as much"
    assert fd.front_finding(["a", "b", "c"], 9).endswith("a, b and c")
    assert fd.regret_finding("rnd", 16.73, 40, None) == "The regret of rnd is 16.7 after 40 rounds"
    assert fd.regret_finding("rnd", 16.73, 1, 196.0).endswith("after 1 round, 9 % of the standard bound")
    assert "less than 1 %" in fd.regret_finding("rnd", 0.1, 40, 196.0)
