"""Energy that edges measure: beside the modelled one, charged where the settings say so, and never mixed in silence."""

import json
from contextlib import closing
from importlib.util import find_spec

import pytest
from tests.deploy.deployment import Deployment, settings

import hatdfed.deploy.edge.setup as edge_setup
from hatdfed.cli.edge import _read_metering
from hatdfed.core.energy.energy_model import Cause, EnergyRow, Source
from hatdfed.core.energy.measured import Metered, add_measured
from hatdfed.deploy.coordinator.open_round import _read_metered
from hatdfed.deploy.edge.round_meter import RoundMeter
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.errors import ConfigError, EnergyMeterError
from hatdfed.meters.base import Reading
from hatdfed.meters.choose import Metering, MeterOptions
from hatdfed.report.document import make_document, render_html
from hatdfed.report.formatting import keep_units_together
from hatdfed.runs.calls import run
from hatdfed.runs.records.folder import RunFolder
from hatdfed.setup.layers import resolve

JOULES = 7.0


class FixedMeter:
    """Every window takes so many joules; every `fails`-th cannot be read."""

    source, domains, idle_watts = "rapl", ("package-0",), 0.0

    def __init__(self, fails=0):
        self._fails, self._windows = fails, 0

    def start(self):
        self._windows += 1
        if self._fails and self._windows % self._fails == 0:
            raise EnergyMeterError("the counter is gone.")
        return self

    def stop(self):
        return Reading(JOULES, 0.5, 1.0, self.source, self.domains, JOULES)

    def with_idle(self, watts):
        return self


async def play_deployment(folder, config):
    async with Deployment(folder, config, secure=False) as deployment:
        await deployment.start_edges(3)
        await deployment.run


def read(folder):
    with closing(RunFolder(folder / "run").read()) as database:
        ledger = database.records("ledger")
    return json.loads((folder / "run" / "results.json").read_text()), ledger


def show(folder):
    """The report on the run, and its page on the dashboard where that is installed."""
    pages = [render_html(make_document([folder / "run"], folder / "pictures"))]
    if all(find_spec(package) for package in ("fastapi", "httpx2", "plotly")):
        from fastapi.testclient import TestClient

        from hatdfed.dashboard.app import make_app
        from hatdfed.dashboard.catalogue import Catalogue
        from hatdfed.dashboard.site import Site

        site = Site(Catalogue(folder))
        (card,) = site.catalogue.cards()
        with TestClient(make_app(site), base_url="http://127.0.0.1") as client:
            pages.append(client.get(f"/runs/{card.id}").text)
    return pages


@pytest.fixture
def with_meter(monkeypatch):
    def use(meter):
        monkeypatch.setattr(edge_setup, "find_meter", lambda config, metering: meter)

    return use


def test_a_deployment_without_sensors_is_modelled_and_says_so(play, tmp_path):
    play(play_deployment(tmp_path, settings(rounds=2)))
    results, ledger = read(tmp_path)
    assert results["energy_source"] == "modelled"
    assert results["measured_energy"] == {}
    assert results["notes"] == []
    page = render_html(make_document([tmp_path / "run"], tmp_path / "pictures"))
    assert "Energy, modelled" in page
    assert "measured by" not in page
    assert {row["source"] for row in ledger} == {"modelled"}
    assert all(row["measured_joules"] is None and row["meter"] is None for row in ledger)


def test_measured_energy_stands_beside_the_modelled_one_which_counts(play, tmp_path, with_meter):
    with_meter(FixedMeter())
    play(play_deployment(tmp_path, settings(rounds=2)))
    results, ledger = read(tmp_path)
    training = [row for row in ledger if row["cause"] == "training"]
    assert {row["source"] for row in ledger} == {"modelled"}
    assert all(row["joules"] == row["modelled_joules"] for row in training)
    assert {row["measured_joules"] for row in training} == {JOULES}
    assert {row["meter"] for row in training} == {"rapl"}
    exchange = [row for row in ledger if row["cause"] == "exchange"]
    assert len(exchange) == len(training) == 6
    assert {row["joules"] for row in exchange} == {0.0}, "the price list knows nothing of it"
    found = results["measured_energy"]["training"]
    modelled = sum(row["joules"] for row in training)
    assert found["measured_joules"] == pytest.approx(6 * JOULES)
    assert found["ratio"] == pytest.approx(6 * JOULES / modelled)
    assert results["energy_by_cause_mj"]["training"] == pytest.approx(modelled / 1e6)
    text = f"measured by rapl: 42 J, by the price list {modelled:.4g} J, a ratio of {found['ratio']:.3g}."
    for shown in show(tmp_path):
        assert "Energy, modelled" in shown
        assert text in shown or keep_units_together(text) in shown
        assert "The modelled energy counts." in shown


def test_measured_energy_counts_where_the_settings_say_so(play, tmp_path, with_meter):
    with_meter(FixedMeter())
    play(play_deployment(tmp_path, settings(rounds=2, energy={"source": "measured"})))
    results, ledger = read(tmp_path)
    sources = {(row["cause"], row["source"]) for row in ledger}
    assert sources == {
        ("training", "measured"),
        ("exchange", "measured"),
        ("upload", "modelled"),
        ("link", "modelled"),
    }
    assert results["energy_by_cause_mj"]["training"] == pytest.approx(6 * JOULES / 1e6)
    assert results["energy_by_cause_mj"]["exchange"] == pytest.approx(6 * JOULES / 1e6)
    assert results["caught"] == [], "no edge is taken for a liar"
    for shown in show(tmp_path):
        assert "Energy, training measured<" in shown
        assert "The measured energy counts." in shown


def test_what_could_not_be_measured_is_charged_as_modelled_and_said(play, tmp_path, with_meter):
    with_meter(FixedMeter(fails=4))
    play(play_deployment(tmp_path, settings(rounds=4, energy={"source": "measured"})))
    results, ledger = read(tmp_path)
    training = [row for row in ledger if row["cause"] == "training"]
    missing = [row for row in training if row["source"] == "modelled"]
    assert 0 < len(missing) < len(training)
    assert all(row["measured_joules"] is None for row in missing)
    assert any("Trainings that were not measured are charged as modelled" in note for note in results["notes"])
    for shown in show(tmp_path):
        assert "Energy, training measured where possible<" in shown


def test_where_no_meter_could_be_read_nothing_is_called_measured(play, tmp_path, with_meter):
    with_meter(FixedMeter(fails=1))
    play(play_deployment(tmp_path, settings(rounds=2, energy={"source": "measured"})))
    results, ledger = read(tmp_path)
    assert {row["source"] for row in ledger} == {"modelled"}
    assert results["measured_energy"] == {}
    for shown in show(tmp_path):
        assert "Energy, modelled<" in shown
        assert "no meter was read: all of it is modelled." in shown


def test_an_edge_that_cannot_measure_refuses_a_run_that_wants_it(monkeypatch):
    config = settings(energy={"source": "measured"})
    monkeypatch.setattr(edge_setup, "choose_meter", lambda order, options: edge_setup_choice())
    with pytest.raises(EnergyMeterError, match=r"No energy can be measured here\. rapl: There is none\."):
        edge_setup.find_meter(config, None)
    assert edge_setup.find_meter(settings(), None) is None


def test_an_estimate_is_no_measurement_of_an_edge():
    options = MeterOptions(watts_per_core=5.0)
    with pytest.raises(ConfigError, match="cannot be measured by an estimate"):
        edge_setup.find_meter(settings(), Metering(("estimate",), options, idle_seconds=0.01))
    outcome = pb.Outcome(metered=[pb.Metered(cause="training", meter="estimate", joules=1.0, uncertainty=0.1)])
    assert _read_metered(outcome) == {}, "whatever another program reports"


def test_an_edge_does_not_look_for_the_joules_of_its_processor_in_a_gpu():
    assert Metering().order == ("rapl", "hwmon")
    with pytest.raises(ConfigError, match="nvml measures GPUs, but this work is done by the processor"):
        _read_metering("nvml,rapl", "")


def edge_setup_choice():
    from hatdfed.meters.choose import Choice

    return Choice(None, {"rapl": "There is none."})


def test_a_simulation_has_nothing_to_measure():
    with pytest.raises(ConfigError, match="in a simulation there are no machines to measure"):
        run(settings(energy={"source": "measured"}))


@pytest.mark.parametrize(
    ("machines", "sentence"),
    [
        ({}, "names no profile"),
        ({"profiles": ["raspberry-pi-4"]}, "training was not measured in profile 'raspberry-pi-4'"),
    ],
)
def test_calibrated_energy_needs_profiles_that_were_measured(machines, sentence):
    with pytest.raises(ConfigError, match=sentence):
        resolve({"energy": {"source": "calibrated"}, "machines": machines})


def test_calibrated_joules_are_marked(play):
    measured = {"value": 2.0, "how": "measured"}
    profile = {"name": "here", "idle_watts": 1, "training_watts": measured, "sample_seconds": measured}
    profile |= {"upload_mbit_per_second": 1, "uplink_mbit_per_second": 1, "latency_seconds": 0.1}
    config = settings(rounds=1, energy={"source": "calibrated"}, machines={"profiles": [profile]})
    result = run(config)
    assert {row["source"] for row in result.ledger if row["cause"] == "training"} == {"calibrated"}
    assert {row["source"] for row in result.ledger if row["cause"] != "training"} == {"modelled"}
    assert result.summary["energy_source"] == "calibrated"


@pytest.mark.parametrize(
    "reading",
    [
        {"cause": "training", "meter": "rapl", "joules": -1.0},
        {"cause": "training", "meter": "rapl", "joules": float("nan")},
        {"cause": "training", "meter": "rapl", "joules": 1e12},
        {"cause": "training", "meter": "<script>", "joules": 1.0},
        {"cause": "link", "meter": "rapl", "joules": 1.0},
        {"cause": "training", "meter": "rapl", "joules": 1.0, "uncertainty": float("inf")},
    ],
)
def test_readings_that_can_be_none_are_left_out(reading):
    assert _read_metered(pb.Outcome(metered=[pb.Metered(**reading)])) == {}


def test_a_row_keeps_both_figures():
    rows = [EnergyRow(0, Cause.TRAINING, 1, 1, 0.0, 2.0), EnergyRow(0, Cause.LINK, 1, 0, 8.0, 3.0)]
    metered = {Cause.TRAINING: Metered(5.0, 0.1, "rapl")}
    for counts in (False, True):
        training, link = add_measured(rows, metered, t=0, server=1, counts=counts)
        assert (training.modelled_joules, training.measured_joules, training.meter) == (2.0, 5.0, "rapl")
        assert training.joules == (5.0 if counts else 2.0)
        assert training.source is (Source.MEASURED if counts else Source.MODELLED)
        assert link == rows[1]


def test_a_meter_that_fails_leaves_a_gap_and_goes_on():
    meter = RoundMeter(FixedMeter(fails=2))
    meter.begin(Cause.TRAINING)
    meter.begin(Cause.EXCHANGE)
    assert [each.cause for each in meter.take()] == ["training"]
    meter.begin(Cause.TRAINING)
    assert [each.joules for each in meter.take()] == [JOULES]
    assert RoundMeter(None).take() == []
