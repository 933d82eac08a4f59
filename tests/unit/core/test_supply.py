"""Where energy comes from: batteries, prices of the grid, upkeep, and runs in which servers have too little."""

import json

import numpy as np
import pytest
from tests.small_runs import SMALL

import hatdfed
from hatdfed.core.coordinator import read_state
from hatdfed.core.energy.energy_model import Cause, EnergyRow, draw_prices
from hatdfed.core.energy.supply import JOULES_PER_KWH, Batteries, Span, Supply, own_joules
from hatdfed.core.energy.upkeep import Upkeep
from hatdfed.core.round import RoundReport, ServerReport
from hatdfed.core.traces import Trace
from hatdfed.errors import ConfigError
from hatdfed.jsonable import to_jsonable
from hatdfed.setup.build.supply import make_supply
from hatdfed.setup.layers import resolve

ROWS = (
    EnergyRow(0, Cause.UPLOAD, None, 0, 10.0, 1.0),
    EnergyRow(0, Cause.TRAINING, 0, 0, 0.0, 20.0),
    EnergyRow(0, Cause.LINK, 1, 0, 5.0, 300.0),
    EnergyRow(0, Cause.IDLE, 1, 1, 0.0, 4000.0),
)


def constant(*values):
    return Trace(np.zeros(1), np.array([values], dtype=float))


def batteries(capacity, charge, harvest, reserve=0.0):
    size = len(capacity)
    return Batteries(np.array(capacity, float), np.array(charge, float), np.full(size, reserve), constant(*harvest))


def test_the_sender_pays_for_a_link_and_devices_for_uploads():
    assert own_joules(ROWS, 2).tolist() == [20.0, 4300.0]


def test_a_battery_is_charged_up_to_its_capacity():
    settled = batteries([100, 100], [50, 90], [2, 2]).settle(np.array([50.0, 90.0]), np.array([10.0, 0.0]), Span(0, 10))
    assert settled.tolist() == [60.0, 100.0]


def test_a_battery_must_cover_the_most_that_a_round_can_cost_and_the_reserve():
    enough = batteries([100] * 3, [0] * 3, [0] * 3, reserve=5.0).can_cover(np.array([29.9, 30.0, 31.0]), np.full(3, 25))
    assert enough.tolist() == [False, True, True]


def test_carbon_and_cost_are_those_of_the_joules_from_the_grid():
    supply = Supply(60.0, carbon=constant(400.0, 100.0), tariff=constant(0.3, -0.1))
    bill = supply.find_bill(supply.span(0), ROWS, 2)
    assert bill.carbon_grams == pytest.approx((21 * 400 + 4300 * 100) / JOULES_PER_KWH)
    assert bill.cost == pytest.approx((21 * 0.3 - 4300 * 0.1) / JOULES_PER_KWH)


def test_what_comes_from_a_battery_is_not_billed():
    held = batteries([50, np.inf], [50, np.inf], [0, 0])
    bill = Supply(60.0, held, carbon=constant(400.0, 100.0)).find_bill(Span(0, 60), ROWS, 2)
    assert bill.carbon_grams == pytest.approx((1 * 400 + 4300 * 100) / JOULES_PER_KWH)
    assert bill.cost is None


def test_prices_are_those_of_the_time_of_the_round():
    supply = Supply(60.0, carbon=Trace(np.array([0.0, 90.0]), np.array([[100.0], [500.0]])).spread(2))
    grams = [supply.find_bill(supply.span(t), ROWS, 2).carbon_grams for t in range(3)]
    assert [each / grams[0] for each in grams] == pytest.approx([1, 3, 5])


def test_by_the_simulated_clock_a_round_lasts_as_long_as_its_machines_take():
    supply = Supply(None, carbon=Trace(np.array([0.0, 90.0]), np.array([[100.0], [500.0]])).spread(2))
    assert supply.span(7, elapsed=60.0, seconds=20.0) == (60.0, 80.0)
    assert supply.find_bill(supply.span(7, 60.0, 20.0), ROWS, 2) == supply.find_bill(Span(0, 1), ROWS, 2)
    assert supply.find_bill(supply.span(7, 90.0, 1.0), ROWS, 2) == supply.find_bill(Span(100, 200), ROWS, 2)


def test_idle_energy_harvest_and_carbon_follow_simulated_seconds(tmp_path):
    (tmp_path / "grid.csv").write_text("seconds constant once, all\n0, 100\n")
    supply = {"round_seconds": "simulated", "battery_joules": 1e6, "first_charge": 0.5, "harvest_watts": 2.0}
    supply["carbon_trace"] = str(tmp_path / "grid.csv")
    prices = {"idle_watts": 3.0}
    result = hatdfed.run(SMALL, rounds=3, supply=supply, energy=prices)
    seconds = [row["simulated_seconds"] for row in result.rounds]
    assert len(set(seconds)) > 1
    for t, length in enumerate(seconds):
        idle = [row["joules"] for row in result.ledger if row["t"] == t and row["cause"] == "idle"]
        assert idle == pytest.approx([3.0 * length] * SMALL["servers"])
    spent = sum(row["joules"] for row in result.ledger if row["receiver"] == 0 and row["cause"] in ("idle", "training"))
    spent += sum(row["joules"] for row in result.ledger if row["sender"] == 0 and row["cause"] == "link")
    last = next(row["charge"] for row in result.servers if (row["t"], row["server"]) == (2, 0))
    assert last == pytest.approx(5e5 - spent + 2.0 * sum(seconds))


def make_report(senders, scores):
    return ServerReport(0.5, 3, np.array(senders), np.ones(len(senders)), (), scores)


def test_upkeep_follows_from_what_servers_report():
    report = RoundReport((make_report([0, 1, 2], {"loss": np.ones(3)}), make_report([1], {}), None))
    rows = Upkeep(2.0, 3.0, np.array([1.0, 0.5, 9.0])).find_rows(7, report, np.ones(3, dtype=bool), 10.0)
    assert [(row.t, row.cause, row.sender, row.joules) for row in rows] == [
        (7, Cause.PROBE, 0, 6.0),
        (7, Cause.MERGE, 0, 6.0),
        (7, Cause.IDLE, 0, 10.0),
        (7, Cause.IDLE, 1, 5.0),
    ]


def test_who_is_away_has_no_upkeep():
    report = RoundReport((make_report([0], {"loss": np.ones(1)}),))
    assert Upkeep(2.0, 3.0, np.ones(1)).find_rows(0, report, np.zeros(1, dtype=bool), 10.0) == ()


def test_overhead_is_paid_for_every_message_and_compression_does_not_reduce_it():
    settings = {
        "num_devices": 3, "samples_per_device": 2, "bits_per_sample": 5, "model_bits": 1000.0,
        "weak_joules_per_sample": 1, "strong_joules_per_sample": 1, "device_kbit_per_joule": 1.0,
        "link_kbit_per_joule": (1.0, 1.0),
    }  # fmt: skip
    plain, more = draw_prices(0, 3, **settings), draw_prices(0, 3, **settings, overhead_bits=200.0)
    assert plain.link(0, 0, 1, compression=0.5).joules == pytest.approx(0.5)
    assert more.link(0, 0, 1, compression=0.5).joules == pytest.approx(0.7)
    assert more.link_joules[0, 1] * more.with_overhead(0.5) == pytest.approx(0.7)
    assert more.link(0, 0, 1, compression=0.0).bits == 0
    assert plain.with_overhead(0.5) == 0.5


@pytest.mark.parametrize("codec", ["float32", "int8"])
def test_reports_with_overhead_are_believed_and_cost_more(codec):
    settings = {**SMALL, "method": "rnd", "codec": codec}
    plain, more = hatdfed.run(**settings), hatdfed.run(**settings, energy={"overhead_bits": 5e4})
    assert more.summary["caught"] == []
    assert len(more.links) == len(plain.links) > 0
    for before, after in zip(plain.ledger, more.ledger, strict=True):
        extra = 5e4 if before["cause"] == "link" else 0.0
        assert after["bits"] == pytest.approx(before["bits"] + extra)


def test_a_budget_of_link_joules_holds_with_overhead():
    settings = {**SMALL, "method": "full", "rounds": 12, "codec": "int8", "energy": {"overhead_bits": 5e4}}
    spent = hatdfed.run(**settings).summary["link_energy_mj"] * 1e6
    limited = hatdfed.run(**settings, schedule={"budget_joules": spent / 2})
    assert 0 < limited.summary["link_energy_mj"] * 1e6 <= spent / 2


def test_without_any_of_it_there_is_no_supply():
    assert make_supply(resolve(SMALL)) is None
    assert make_supply(resolve({**SMALL, "supply": {"round_seconds": 5}})) is None


def test_servers_on_mains_have_no_end():
    supply = make_supply(resolve({**SMALL, "supply": {"battery_joules": [10, None, 30], "first_charge": 0.0}}))
    assert supply.batteries.capacity.tolist() == [10, np.inf, 30]
    assert supply.first_charge.tolist() == [0, np.inf, 0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"supply": {"battery_joules": [1, 2]}}, "supply.battery_joules has 2 values, but there are 3 servers"),
        ({"energy": {"idle_watts": [1, 2]}}, "energy.idle_watts has 2 values, but there are 3 servers"),
        ({"supply": {"harvest_watts": 2}}, "supply.harvest_watts is set, but servers have no battery"),
        ({"supply": {"battery_joules": -1}}, "supply.battery_joules"),
        ({"supply": {"carbon_trace": "nowhere.csv"}}, "supply.carbon_trace: .*nowhere.csv cannot be read"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        resolve({**SMALL, **settings})


def test_a_constant_harvest_and_a_trace_are_not_set_together(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("seconds constant once, all\n0, 1\n")
    with pytest.raises(ConfigError, match="are both set"):
        resolve({**SMALL, "supply": {"battery_joules": 5, "harvest_watts": 2, "harvest_trace": str(path)}})


SUNNY = {**SMALL, "method": "hat-dfed", "servers": 5, "rounds": 20, "seed": 3, "churn": 0.2}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    texts = {
        "sun.csv": "seconds linear every 600, all\n0, 0\n300, 0.6\n",
        "there.csv": "seconds constant once, a, b, c, d, e\n0, 1, 1, 1, 1, 0\n300, 1, 1, 1, 0, 1\n",
        "grid.csv": "seconds constant every 600, all\n0, 100\n300, 500\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def supply(files):
    return {
        "battery_joules": [40, 60, 80, 120, None],
        "first_charge": 0.8,
        "reserve_joules": 2,
        "harvest_trace": str(files / "sun.csv"),
        "availability_trace": str(files / "there.csv"),
        "carbon_trace": str(files / "grid.csv"),
        "round_seconds": 30,
    }


@pytest.fixture(scope="module")
def run(supply):
    return hatdfed.run(**SUNNY, supply=supply, energy={"idle_watts": 0.1, "probe_joules": 0.2, "merge_joules": 0.1})


def test_a_run_has_servers_that_are_away_for_every_reason(run):
    reasons = [row["away"] for row in run.servers]
    assert set(reasons) == {None, "battery", "trace", "churn"}
    assert [row["servers_away"] for row in run.rounds] == [
        sum(1 for row in run.servers if row["t"] == t and row["away"]) for t in range(20)
    ]
    assert run.summary["servers_away"] == sum(1 for reason in reasons if reason)


def test_a_server_without_charge_neither_trains_nor_sends_nor_pays(run):
    away = {(row["t"], row["server"]) for row in run.servers if row["away"]}
    assert away
    for row in run.servers:
        assert (row["t"], row["server"]) not in away or row["num_samples"] == 0
    for row in run.links:
        assert not {(row["t"], row["sender"]), (row["t"], row["receiver"])} & away
    for row in run.ledger:
        assert row["joules"] == 0 or not {(row["t"], row["sender"]), (row["t"], row["receiver"])} & away


def test_its_devices_upload_nothing(run):
    away = {(row["t"], row["server"]) for row in run.servers if row["away"] == "battery"}
    uploads = [row["bits"] for row in run.ledger if row["cause"] == "upload" and (row["t"], row["receiver"]) in away]
    assert len(uploads) == len(away)
    assert not any(uploads)


def test_it_keeps_the_model_that_it_had(run):
    accuracy = {(row["t"], row["server"]): row["accuracy"] for row in run.servers}
    kept = [row for row in run.servers if row["away"] == "battery" and row["t"]]
    assert len(kept) > 5
    for row in kept:
        assert row["accuracy"] == accuracy[row["t"] - 1, row["server"]]


def test_no_charge_is_below_zero_and_servers_on_mains_have_none(run):
    assert all(row["charge"] is None for row in run.servers if row["server"] == 4)
    charges = [row["charge"] for row in run.servers if row["server"] != 4]
    assert min(charges) >= 0
    assert [row["lowest_charge"] for row in run.rounds] == [
        min(row["charge"] for row in run.servers if row["t"] == t and row["charge"] is not None) for t in range(20)
    ]


def test_the_charge_is_what_the_ledger_leaves(run):
    for server, capacity in enumerate([40, 60, 80, 120]):
        charge = 0.8 * capacity
        sun = Trace(np.array([0.0, 300.0]), np.array([[0.0], [0.6]]), is_linear=True, period=600.0)
        for t in range(20):
            rows = [row for row in run.ledger if row["t"] == t and row["sender"] == server]
            charge -= sum(row["joules"] for row in rows)
            charge = min(capacity, charge + sun.integrate(30 * t, 30 * t + 30).item())
            (kept,) = (row["charge"] for row in run.servers if (row["t"], row["server"]) == (t, server))
            assert kept == pytest.approx(charge, abs=1e-6)


def test_causes_that_the_paper_does_not_have_are_in_every_sum(run):
    by_cause = run.summary["energy_by_cause_mj"]
    assert all(by_cause[cause] > 0 for cause in ("probe", "merge", "idle"))
    assert run.summary["total_energy_mj"] == pytest.approx(sum(row["joules"] for row in run.ledger) / 1e6)
    assert sum(row["idle_joules"] for row in run.rounds) == pytest.approx(by_cause["idle"] * 1e6)


def test_emissions_are_recorded_and_a_tariff_that_nobody_gave_is_unknown(run):
    assert all(row["carbon_grams"] > 0 for row in run.rounds if row["upload_joules"])
    assert run.summary["carbon_grams"] == pytest.approx(sum(row["carbon_grams"] for row in run.rounds))
    assert run.summary["cost"] is None


def test_both_fleets_mean_the_same(run, supply):
    mailbox = hatdfed.run(
        **SUNNY,
        supply=supply,
        energy={"idle_watts": 0.1, "probe_joules": 0.2, "merge_joules": 0.1},
        fleet="mailbox",
        device="cpu",
    )
    assert [row["away"] for row in mailbox.servers] == [row["away"] for row in run.servers]
    assert [(r["t"], r["sender"], r["receiver"]) for r in mailbox.links] == [
        (r["t"], r["sender"], r["receiver"]) for r in run.links
    ]
    assert mailbox.ledger == run.ledger


def test_a_run_that_is_resumed_goes_on_with_its_charge(supply, tmp_path, run):
    costs = {"idle_watts": 0.1, "probe_joules": 0.2, "merge_joules": 0.1}
    hatdfed.run(**{**SUNNY, "rounds": 9, "horizon": 20}, supply=supply, energy=costs, out=tmp_path / "run")
    resumed = hatdfed.resume(tmp_path / "run", {"rounds": 20})
    assert resumed.servers[-5:] == run.servers[-5:]
    assert [row["servers_away"] for row in resumed.rounds] == [row["servers_away"] for row in run.rounds]


def test_batteries_that_are_large_enough_change_nothing():
    plain = hatdfed.run(**SUNNY)
    charged = hatdfed.run(**SUNNY, supply={"battery_joules": 1e9})
    assert [row["avg_accuracy"] for row in plain.rounds] == [row["avg_accuracy"] for row in charged.rounds]
    assert plain.ledger == charged.ledger
    assert plain.links == charged.links


def test_a_state_of_before_has_no_charge():
    from tests.unit.core.test_coordinator import N, coordinator

    boss = coordinator()
    old = to_jsonable(boss.start(np.zeros(N)))
    del old["charge"]
    assert read_state(json.loads(json.dumps(old)), boss.start(np.zeros(N))).charge is None
