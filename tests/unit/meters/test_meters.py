"""Every kind of meter on a machine that is made of files: right joules, or a sentence that says why not."""

import os
import sys

import pytest
from tests.unit.meters.fakes import FakeNvml, make_rail, make_stat, make_zone, set_joules

from hatdfed.errors import ConfigError, EnergyMeterError
from hatdfed.meters.base import Reading, attribute, metered
from hatdfed.meters.choose import MeterOptions, choose_meter, measure_idle, require_meter
from hatdfed.meters.cpu_share import CpuSeconds
from hatdfed.meters.estimate import PowerEstimate
from hatdfed.meters.external import ExternalMeter, open_external
from hatdfed.meters.hwmon import open_hwmon
from hatdfed.meters.nvml import open_nvml
from hatdfed.meters.rapl import open_rapl


@pytest.fixture(autouse=True)
def little_patience(monkeypatch):
    """Counters of these cards change only when a test says so: an update need not be waited for."""
    monkeypatch.setattr("hatdfed.meters.updates.PATIENCE_SECONDS", 0.05)


@pytest.fixture
def powercap(tmp_path):
    """Two packages with memory, and zones that contain others or are contained."""
    tree = tmp_path / "powercap"
    make_zone(tree, "intel-rapl:0", "package-0")
    make_zone(tree, "intel-rapl:0:0", "core")
    make_zone(tree, "intel-rapl:0:1", "dram", end=65_536.0)
    make_zone(tree, "intel-rapl:1", "package-1")
    make_zone(tree, "intel-rapl:2", "psys")
    make_zone(tree, "intel-rapl-mmio:0", "package-0")
    return tree


def open_fake_rapl(powercap, tmp_path):
    return open_rapl(powercap, make_stat(tmp_path))


def test_packages_and_memory_are_added_up_once(powercap, tmp_path):
    meter = open_fake_rapl(powercap, tmp_path)
    assert meter.domains == ("package-0", "dram-0", "package-1")
    window = meter.start()
    for zone, joules in [
        ("intel-rapl:0", 1.0),
        ("intel-rapl:0:0", 0.7),
        ("intel-rapl:0:1", 0.25),
        ("intel-rapl:1", 0.5),
    ]:
        set_joules(powercap / zone, 1000.0 + joules)
    for zone in ("intel-rapl:2", "intel-rapl-mmio:0"):
        set_joules(powercap / zone, 1009.0)
    reading = window.stop()
    assert reading.gross_joules == pytest.approx(1.75)
    assert (reading.source, reading.domains) == ("rapl", ("package-0", "dram-0", "package-1"))


def test_a_counter_that_wraps_during_a_window_is_read_right(powercap, tmp_path):
    set_joules(powercap / "intel-rapl:0", 262_143.5)
    window = open_fake_rapl(powercap, tmp_path).start()
    set_joules(powercap / "intel-rapl:0", 0.25)
    assert window.stop().gross_joules == pytest.approx(0.75)


def test_a_domain_that_vanishes_makes_the_window_invalid(powercap, tmp_path):
    window = open_fake_rapl(powercap, tmp_path).start()
    (powercap / "intel-rapl:1" / "energy_uj").unlink()
    with pytest.raises(EnergyMeterError, match=r"intel-rapl:1/energy_uj is not there any more"):
        window.stop()


def test_a_domain_that_vanishes_while_nobody_looks_is_remembered(powercap, tmp_path, monkeypatch):
    monkeypatch.setattr("hatdfed.meters.rapl.POLL_SECONDS", 0.001)
    window = open_fake_rapl(powercap, tmp_path).start()
    counter = powercap / "intel-rapl:1" / "energy_uj"
    text = counter.read_text()
    counter.unlink()
    window._thread.join(5)
    counter.write_text(text)
    with pytest.raises(EnergyMeterError, match="not there any more"):
        window.stop()


def test_a_counter_without_permission_names_the_remedy(powercap, tmp_path, monkeypatch):
    def refuse(path, **_):
        if path.name == "energy_uj":
            raise PermissionError
        return path.read_bytes().decode()

    monkeypatch.setattr("pathlib.Path.read_text", refuse)
    with pytest.raises(
        EnergyMeterError, match=r"may not be read by this user\. Let your group read it, with a udev rule"
    ):
        open_fake_rapl(powercap, tmp_path)


def test_a_counter_that_was_reset_is_refused(powercap, tmp_path):
    window = open_fake_rapl(powercap, tmp_path).start()
    set_joules(powercap / "intel-rapl:0", 0.0)
    with pytest.raises(EnergyMeterError, match="reset"):
        window.stop()


def test_a_counter_that_is_not_a_number_is_refused(powercap, tmp_path):
    (powercap / "intel-rapl:0" / "energy_uj").write_text("many")
    with pytest.raises(EnergyMeterError, match="says 'many', which is not a number"):
        open_fake_rapl(powercap, tmp_path)


def test_a_machine_without_counters_says_so(tmp_path):
    with pytest.raises(EnergyMeterError, match="virtual machines"):
        open_rapl(tmp_path / "nothing")
    make_zone(tmp_path / "powercap", "intel-rapl:0", "psys")
    with pytest.raises(EnergyMeterError, match="no processor package"):
        open_rapl(tmp_path / "powercap")


def test_idle_power_is_subtracted_before_the_rest_is_shared():
    gross = Reading(50.0, 1.0, 10.0, "rapl", ("package-0",), 50.0)
    reading = attribute(gross, idle_watts=2.0, share=0.5)
    assert (reading.joules, reading.uncertainty, reading.gross_joules) == (15.0, 0.5, 50.0)
    assert attribute(gross, idle_watts=9.0, share=1.0).joules == 0.0, "never below zero"


def test_the_share_of_a_process_is_that_of_the_processor_time():
    before = CpuSeconds(own=10.0, busy=100.0)
    assert CpuSeconds(12.0, 108.0).find_share(before) == 0.25
    assert CpuSeconds(12.0, 101.0).find_share(before) == 1.0, "clocks of different resolution"
    assert before.find_share(before) == 1.0


def test_a_counter_that_is_refreshed_rarely_may_go_up_at_once():
    nvml = FakeNvml(0)
    window = open_nvml(nvml=nvml).start()
    nvml.millijoules = [70_000]  # 700 W for the 0.1 s before
    assert window.stop().gross_joules == pytest.approx(70.0)


def test_two_gpus_are_added_up_and_one_can_be_chosen():
    nvml = FakeNvml(5_000, 7_000)
    for gpus, joules in [(None, 3.0), ([1], 1.0)]:
        meter = open_nvml(gpus, nvml)
        window = meter.start()
        nvml.millijoules = [each + step for each, step in zip(nvml.millijoules, (2000, 1000), strict=True)]
        reading = window.stop()
        assert reading.gross_joules == pytest.approx(joules)
        assert reading.domains == (("gpu-0", "gpu-1") if gpus is None else ("gpu-1",))


def test_only_visible_gpus_are_measured(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-0001")
    assert open_nvml(nvml=FakeNvml(1, 2)).domains == ("gpu-1",)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(EnergyMeterError, match="names '7', which is none of the 2 GPUs"):
        open_nvml(nvml=FakeNvml(1, 2))


def test_a_gpu_that_somebody_else_uses_is_refused():
    alone = FakeNvml(0, processes=[os.getpid()])
    window = open_nvml(nvml=alone).start()
    alone.processes.append(4242)
    with pytest.raises(EnergyMeterError, match="GPU 0 is shared with process 4242"):
        window.stop()
    with pytest.raises(EnergyMeterError, match="shared with process 4242"):
        open_nvml(nvml=alone).start()


def test_a_gpu_whose_driver_was_loaded_again_is_refused():
    nvml = FakeNvml(9_000)
    window = open_nvml(nvml=nvml).start()
    nvml.millijoules = [0]
    with pytest.raises(EnergyMeterError, match="gpu-0 went from 9 to 0 J"):
        window.stop()


def test_a_machine_without_gpus_or_with_an_old_one_says_so():
    with pytest.raises(EnergyMeterError, match="no NVIDIA GPU"):
        open_nvml(nvml=FakeNvml())
    with pytest.raises(EnergyMeterError, match="GPU 3 was asked for, but there are 1 here"):
        open_nvml([3], FakeNvml(0))
    old = FakeNvml(0)
    old.nvmlInit = lambda: None
    old.broken = "Not Supported"
    with pytest.raises(EnergyMeterError, match=r"GPU 0 does not say .*: Not Supported"):
        open_nvml(nvml=old)


def test_the_rail_that_feeds_the_board_is_measured(tmp_path):
    make_rail(tmp_path / "hwmon", "hwmon1", 1, "VDD_IN")
    make_rail(tmp_path / "hwmon", "hwmon1", 2, "VDD_CPU", milliamperes=200)
    meter = open_hwmon(folder=tmp_path / "hwmon", stat=make_stat(tmp_path))
    assert meter.domains == ("VDD_IN",)
    assert meter.sensors[0].read() == pytest.approx(5.0)
    window = meter.start()
    reading = window.stop()
    assert reading.gross_joules == pytest.approx(5.0 * reading.seconds)
    assert open_hwmon(["VDD_CPU"], tmp_path / "hwmon").sensors[0].read() == pytest.approx(1.0)


def test_rails_have_to_be_named_where_none_feeds_all(tmp_path):
    make_rail(tmp_path, "hwmon0", 1, "left")
    make_rail(tmp_path, "hwmon0", 2, "right")
    with pytest.raises(EnergyMeterError, match="several power sensors here, name those to add up: left, right"):
        open_hwmon(folder=tmp_path)
    assert open_hwmon(["left", "right"], tmp_path).domains == ("left", "right")
    with pytest.raises(EnergyMeterError, match="no power sensor 'top', only left, right"):
        open_hwmon(["top"], tmp_path)
    with pytest.raises(EnergyMeterError, match="no power sensor in"):
        open_hwmon(folder=tmp_path / "empty")


def test_a_sensor_in_microwatts_is_read(tmp_path):
    chip = tmp_path / "hwmon3"
    chip.mkdir()
    (chip / "name").write_text("ina219\n")
    (chip / "power1_input").write_text("2500000\n")
    meter = open_hwmon(folder=tmp_path)
    assert (meter.domains, meter.sensors[0].read()) == (("ina219-1",), 2.5)


def print_command(text):
    return f"{sys.executable} -c \"print('{text}')\""


def test_a_command_gives_watts_or_joules(tmp_path):
    assert open_external(ExternalMeter(print_command("12.5"))).read() == 12.5
    nested = ExternalMeter("cat " + str(tmp_path / "answer"), "joules", "meters.0.total")
    (tmp_path / "answer").write_text('{"meters": [{"total": 100}]}')
    window = open_external(nested).start()
    (tmp_path / "answer").write_text('{"meters": [{"total": 100.5}]}')
    reading = window.stop()
    assert (reading.gross_joules, reading.source, reading.domains) == (pytest.approx(0.5), "external", ("machine",))


@pytest.mark.parametrize("answer", ["off", "NaN", "[1]", "{}"])
def test_an_answer_without_a_number_is_refused(answer):
    with pytest.raises(EnergyMeterError, match="which has no number"):
        open_external(ExternalMeter(print_command(answer)))


@pytest.mark.parametrize("where", ["/nonexistent/meter", "false", "http://127.0.0.1:9/power"])
def test_a_meter_that_does_not_answer_is_refused_without_its_address(where):
    with pytest.raises(EnergyMeterError) as caught:
        open_external(ExternalMeter(where))
    assert where not in str(caught.value), "addresses and commands may contain secrets"


def test_an_estimate_never_calls_itself_measured():
    with metered(PowerEstimate(10.0)) as readings:
        sum(range(200_000))
    (reading,) = readings
    assert not reading.is_measured
    assert reading.joules > 0
    assert reading.uncertainty == 0.5 * reading.joules


def test_the_first_meter_that_works_is_chosen_and_the_others_say_why():
    def fail():
        raise EnergyMeterError("no driver.")

    openers = {"nvml": fail, "rapl": lambda: PowerEstimate(1.0), "hwmon": fail}
    choice = choose_meter(("nvml", "rapl", "hwmon"), openers=openers)
    assert choice.meter == PowerEstimate(1.0)
    assert choice.refused == {"nvml": "no driver."}
    nothing = choose_meter(("nvml", "hwmon"), openers=openers)
    with pytest.raises(
        EnergyMeterError, match=r"No energy can be measured here\. nvml: no driver\. hwmon: no driver\."
    ):
        require_meter(nothing)
    with pytest.raises(ConfigError, match="'watt'"):
        choose_meter(("watt",))


def test_an_estimate_is_used_only_by_whoever_names_it():
    assert "estimate" not in choose_meter(openers=dict.fromkeys(("nvml", "rapl", "hwmon"), _refuse)).refused
    assert choose_meter(("estimate",)).meter is None
    chosen = choose_meter(("estimate",), MeterOptions(watts_per_core=4.0)).meter
    assert chosen == PowerEstimate(4.0)


def _refuse():
    raise EnergyMeterError("no.")


def test_idle_power_is_measured_without_what_was_subtracted_before(powercap, tmp_path):
    meter = open_fake_rapl(powercap, tmp_path).with_idle(100.0)

    def pass_time(_):
        set_joules(powercap / "intel-rapl:0", 1000.5)

    assert measure_idle(meter, 1.0, pass_time).gross_joules == pytest.approx(0.5)


def test_what_breaks_off_has_no_reading():
    with pytest.raises(ZeroDivisionError), metered(PowerEstimate(1.0)) as readings:
        raise ZeroDivisionError
    assert readings == []
