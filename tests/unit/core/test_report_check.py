"""Every bound of a report, and what is kept of one that breaks it."""

from dataclasses import replace

import numpy as np
import pytest

from hatdfed.core.effort import Effort, full_effort
from hatdfed.core.energy.energy_model import Cause, Source, draw_prices
from hatdfed.core.energy.price_drift import PriceDrift
from hatdfed.core.links import LinkTable
from hatdfed.core.policies.base import certain
from hatdfed.core.report_check import ReportLimits, find_breaches, recompute_energy
from hatdfed.core.round import LinkUse, RoundPlan, WorkDone, make_server_report

N, T, SERVER = 4, 7, 1
LIMITS = ReportLimits(samples=60, devices=30, probe=16, sent_share=1.001)
PRICES = draw_prices(
    0, N, num_devices=30, samples_per_device=2, bits_per_sample=512, model_bits=1e6, weak_joules_per_sample=0.5,
    strong_joules_per_sample=0.25, device_kbit_per_joule=1.0, link_kbit_per_joule=(20.0, 50.0),
    drift=PriceDrift(0, 2.0, 50),
)  # fmt: skip
LINKS = LinkTable.all_of(N)
PLAN = RoundPlan(T, certain(LINKS, LINKS.sender != 3))  # nobody hears server 3
GOOD = make_server_report(
    PLAN, PRICES, SERVER, WorkDone(40, 20, 40), accuracy=0.5, senders=np.array([1, 0, 2]), importance=np.full(3, 1 / 3),
    scores={
        "loss": np.array([0.1, 5.0, np.inf]), "harm": np.array([0.0, -10.0, 10.0]),
        "evidence": np.array([16.0, 0.0, 3.0]), "knowledge": np.full(3, -np.inf), "custom": np.array([1e9, 0.0, 0.0]),
    },
    compression=1.0,
)  # fmt: skip


def find_reason(report, prices=PRICES, limits=LIMITS):
    return find_breaches({SERVER: report}, PLAN, prices, limits).get(SERVER)


def with_row(cause, **fields):
    rows = [row._replace(**fields) if row.cause is cause else row for row in GOOD.energy]
    return GOOD._replace(energy=tuple(rows))


def with_score(name, value):
    return GOOD._replace(scores={**GOOD.scores, name: np.array([0.0, value, 0.0])})


def test_an_honest_report_breaks_no_bound():
    assert find_reason(GOOD) is None
    assert find_breaches({}, PLAN, PRICES, LIMITS) == {}


def test_a_server_that_was_to_rest_or_to_ask_nobody_did_neither():
    resting = PLAN._replace(effort=full_effort(N, 2).rest(np.arange(N) == SERVER))
    claims = find_breaches({SERVER: GOOD}, resting, PRICES, LIMITS)
    assert "at most 0" in claims[SERVER]
    asking_nobody = PLAN._replace(effort=Effort(np.full(N, 2), np.zeros(N, dtype=bool)))
    assert "was to ask no device" in find_breaches({SERVER: GOOD}, asking_nobody, PRICES, LIMITS)[SERVER]
    kept = {row.cause for row in recompute_energy(SERVER, GOOD, resting, PRICES, LIMITS)}
    assert kept == {Cause.LINK}
    assert find_breaches({SERVER: GOOD}, PLAN._replace(effort=full_effort(N, 2)), PRICES, LIMITS) == {}


def test_training_is_checked_against_the_passes_of_the_plan():
    prices = replace(PRICES, local_passes=2)
    for plan, passes in ((PLAN, 2), (PLAN._replace(effort=full_effort(N, 5)), 5)):
        row = prices.training(T, SERVER, 40, plan.effort_of(SERVER))
        assert row.joules == pytest.approx(40 * passes * PRICES.compute_joules[SERVER])
        told = GOOD._replace(energy=(GOOD.energy[0], row, *GOOD.energy[2:]))
        assert find_breaches({SERVER: told}, plan, prices, LIMITS) == {}
        assert "for training" in find_breaches({SERVER: GOOD}, plan, prices, LIMITS)[SERVER]
        assert recompute_energy(SERVER, GOOD, plan, prices, LIMITS)[1].joules == row.joules


def test_samples_that_devices_sent_are_checked_where_each_is_charged_for():
    prices = replace(PRICES, sample_upload_bits=512.0)
    keeping = LIMITS._replace(keeps_uploads=True)

    def find(sent, limits, plan=PLAN, samples=40):
        row, training = prices.upload(T, SERVER, 20, sent), prices.training(T, SERVER, samples)
        report = GOOD._replace(num_samples=samples, energy=(row, training, *GOOD.energy[2:]))
        return find_breaches({SERVER: report}, plan, prices, limits).get(SERVER)

    assert find(40, LIMITS) is None
    assert "do not fit its samples" in find(39, LIMITS)
    assert all(find(sent, keeping) is None for sent in (0, 7, 60))
    assert all("do not fit its samples" in find(sent, keeping) for sent in (61, 7.5, -1, np.nan))
    resting = PLAN._replace(effort=Effort(np.zeros(N, dtype=np.int64), np.ones(N, dtype=bool)))
    assert find(33, LIMITS, resting, samples=0) is None, "it may collect data for later"


def test_scores_that_are_no_numbers_say_nothing():
    scores = {name: np.full(3, np.nan) for name in GOOD.scores}
    assert find_reason(GOOD._replace(scores=scores, importance=np.full(3, np.nan))) is None


BREACHES = {
    "accuracy above 1": (GOOD._replace(accuracy=1.5), "accuracy of 1.5"),
    "accuracy below 0": (GOOD._replace(accuracy=-0.1), "accuracy of -0.1"),
    "accuracy that is none": (GOOD._replace(accuracy=np.nan), "accuracy of nan"),
    "too many samples": (GOOD._replace(num_samples=61), "61 samples; it can have had at most 60"),
    "fewer samples than none": (GOOD._replace(num_samples=-1), "-1 samples"),
    "a model that was not sent": (GOOD._replace(senders=np.array([1, 0, 3])), "the model of server 3"),
    "a server that is none": (GOOD._replace(senders=np.array([1, 0, 77])), "the model of server 77"),
    "a number that wraps around": (GOOD._replace(senders=np.array([1, 0, 2 - N])), "the model of server -2"),
    "one model twice": (GOOD._replace(senders=np.array([1, 0, 0])), "one model twice"),
    "a weight above 1": (GOOD._replace(importance=np.array([0.0, 1.1, 0.0])), "weight of 1.1"),
    "a weight below 0": (GOOD._replace(importance=np.array([1.0, -0.1, 0.0])), "weight of -0.1"),
    "harm above 10": (with_score("harm", 10.5), "harm of 10.5; it can be at most 10"),
    "harm below -10": (with_score("harm", -11.0), "at least -10"),
    "endless harm": (with_score("harm", np.inf), "harm of inf"),
    "more evidence than images": (with_score("evidence", 100.0), "evidence of 100; it can be at most 16"),
    "negative evidence": (with_score("evidence", -1.0), "evidence of -1"),
    "negative loss": (with_score("loss", -0.5), "loss of -0.5; it can be at least 0"),
    "too much knowledge": (with_score("knowledge", 1.1), "knowledge of 1.1"),
    "similarity above 1": (with_score("similarity", 1.5), "similarity of 1.5"),
    "no energy": (GOOD._replace(energy=()), "one upload, one training and 3 links"),
    "a link too few": (GOOD._replace(energy=GOOD.energy[:-1]), "3 links"),
    "a row twice": (GOOD._replace(energy=(*GOOD.energy, GOOD.energy[0])), "3 links"),
    "a link of another server": (with_row(Cause.LINK, sender=2), "3 links"),
    "a receiver that is none": (with_row(Cause.LINK, receiver=99), "3 links"),
    "another round": (with_row(Cause.UPLOAD, t=T + 1), "another round"),
    "too many bits of a model": (with_row(Cause.LINK, bits=3e6), "3e+06 bits sent"),
    "more sent again than sent": (with_row(Cause.LINK, bits_again=2e6), "bits sent"),
    "too many hops": (with_row(Cause.LINK, hops=3), "bits sent"),
    "bits of training": (with_row(Cause.TRAINING, bits=1.0), "bits for its training"),
    "too many devices": (with_row(Cause.UPLOAD, bits=31 * 1024.0), "31 devices; it has 30"),
    "half a device": (with_row(Cause.UPLOAD, bits=1.5 * 1024), "1.5 devices"),
    "endless uploads": (with_row(Cause.UPLOAD, bits=np.inf), "inf bits of uploads"),
    "uploads that are no number": (with_row(Cause.UPLOAD, bits=np.nan), "nan bits of uploads"),
    "endless bits of a model": (with_row(Cause.LINK, bits=np.inf), "inf bits sent"),
    "cheap training": (with_row(Cause.TRAINING, joules=1.0), "1 J for training"),
    "cheap links": (with_row(Cause.LINK, joules=1.0), "1 J for link"),
    "cheap uploads": (with_row(Cause.UPLOAD, joules=0.0), "0 J for upload"),
    "joules that are none": (with_row(Cause.TRAINING, joules=np.nan), "nan J for training"),
    "samples that do not fit the joules": (GOOD._replace(num_samples=60), "J for training"),
}  # fmt: skip


@pytest.mark.parametrize("name", BREACHES)
def test_a_report_that_breaks_a_bound_is_named_with_the_reason(name):
    report, words = BREACHES[name]
    reason = find_reason(report)
    assert reason is not None
    assert words in reason
    assert reason.endswith(".")


def test_measured_joules_are_not_computed_again():
    assert find_reason(with_row(Cause.TRAINING, joules=1.0, source=Source.MEASURED)) is None


def test_uploads_that_are_charged_by_the_image_fit_the_samples():
    prices = replace(PRICES, sample_upload_bits=500.0)
    rows = (prices.upload(T, SERVER, 20, 40), *GOOD.energy[1:])
    assert find_reason(GOOD._replace(energy=rows), prices) is None
    assert "do not fit its samples" in find_reason(GOOD, prices)


def test_models_through_a_relay_and_sent_in_part_are_possible():
    use = {0: LinkUse(1.0, 0.0, 2), 2: LinkUse(0.3, 0.1), 3: LinkUse(0.0)}
    more = {"accuracy": 0.5, "senders": GOOD.senders, "importance": GOOD.importance, "scores": {}}
    report = make_server_report(PLAN, PRICES, SERVER, WorkDone(40, 20, 40), compression=use, **more)
    assert find_reason(report) is None


def test_each_server_has_its_own_number_of_samples():
    limits = LIMITS._replace(samples_of=(60, 39))
    assert "at most 39" in find_reason(GOOD, limits=limits)
    assert limits.most_samples(3) == 60
    away = LIMITS.without(np.array([False, True, False, False]))
    assert "at most 0" in find_reason(GOOD, limits=away)
    assert away.most_samples(0) == 60


def test_of_several_reports_only_the_false_ones_are_named():
    other = make_server_report(
        PLAN, PRICES, 0, WorkDone(10, 5, 10), accuracy=0.1, senders=np.array([0]), importance=np.ones(1), scores={},
        compression=0.5,
    )  # fmt: skip
    assert find_breaches({0: other, SERVER: GOOD}, PLAN, PRICES, LIMITS) == {}
    assert list(find_breaches({0: other, SERVER: GOOD._replace(accuracy=2.0)}, PLAN, PRICES, LIMITS)) == [SERVER]


def test_false_joules_are_computed_again():
    false = GOOD._replace(energy=tuple(row._replace(joules=row.joules / 10) for row in GOOD.energy))
    rows = recompute_energy(SERVER, false, PLAN, PRICES, LIMITS)
    assert [row._replace(joules=0) for row in rows] == [row._replace(joules=0) for row in GOOD.energy]
    np.testing.assert_allclose([row.joules for row in rows], [row.joules for row in GOOD.energy])


def test_impossible_amounts_are_left_out_of_the_ledger():
    samples = recompute_energy(SERVER, GOOD._replace(num_samples=10**9), PLAN, PRICES, LIMITS)
    assert [row.cause for row in samples] == [Cause.UPLOAD, *[Cause.LINK] * 3]
    bits = recompute_energy(SERVER, with_row(Cause.LINK, bits=1e30), PLAN, PRICES, LIMITS)
    assert [row.cause for row in bits] == [Cause.UPLOAD, Cause.TRAINING]
    foreign = recompute_energy(SERVER, with_row(Cause.LINK, sender=2), PLAN, PRICES, LIMITS)
    assert [row.cause for row in foreign] == [Cause.UPLOAD, Cause.TRAINING]
