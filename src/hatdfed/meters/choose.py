"""Which meter is used: the first of a declared order that works here; every other says why it does not."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hatdfed.errors import ConfigError, EnergyMeterError, require_one_of
from hatdfed.meters.base import ESTIMATE, EXTERNAL, HWMON, NVML, RAPL, SOURCES, Meter, Reading
from hatdfed.meters.estimate import PowerEstimate
from hatdfed.meters.external import ExternalMeter, Unit, open_external
from hatdfed.meters.hwmon import open_hwmon
from hatdfed.meters.nvml import open_nvml
from hatdfed.meters.rapl import open_rapl

DEFAULT_ORDER = (NVML, RAPL, HWMON)  # an estimate is used only by whoever names it
PROCESSOR_ORDER = (RAPL, HWMON)  # for work on the processor
GPU_ORDER = (NVML, HWMON)  # for work on a GPU

Opener = Callable[[], Meter]


class MeterOptions(NamedTuple):
    """What some meters have to be told."""

    gpus: tuple[int, ...] | None = None  # None: those that this process may use
    rails: tuple[str, ...] | None = None  # None: the one that feeds the whole board
    external: str = ""  # a command or an address
    external_unit: Unit = "watts"
    external_field: str = ""
    watts_per_core: float | None = None  # of an estimate


class Metering(NamedTuple):
    """How energy is measured during a run."""

    order: tuple[str, ...] = PROCESSOR_ORDER  # edges train on it
    options: MeterOptions = MeterOptions()
    idle_seconds: float = 10.0  # before the first round, to know what the idle machine takes


class Choice(NamedTuple):
    """The meter that works here, if any, and why those before it do not."""

    meter: Meter | None
    refused: dict[str, str]  # a sentence for each source


def make_openers(options: MeterOptions) -> dict[str, Opener]:
    """How each kind of meter is opened."""
    return {
        NVML: lambda: open_nvml(options.gpus),
        RAPL: open_rapl,
        HWMON: lambda: open_hwmon(options.rails),
        EXTERNAL: lambda: _open_external(options),
        ESTIMATE: lambda: _make_estimate(options),
    }


def choose_meter(
    order: Sequence[str] = DEFAULT_ORDER,
    options: MeterOptions | None = None,
    openers: Mapping[str, Opener] | None = None,
) -> Choice:
    """The first meter of `order` that works."""
    for source in order:
        require_one_of("the source of energy readings", source, SOURCES)
    known, refused = openers or make_openers(options or MeterOptions()), dict[str, str]()
    for source in order:
        try:
            return Choice(known[source](), refused)
        except EnergyMeterError as error:
            refused[source] = str(error)
    return Choice(None, refused)


def find_order(device: str) -> tuple[str, ...]:
    """The meters to try for work on `device`, cpu or cuda."""
    return PROCESSOR_ORDER if device == "cpu" else GPU_ORDER


def refuse_other_device(order: Sequence[str], device: str) -> None:
    """Refuse a meter that does not see the work: it would give next to no joules for it."""
    if device == "cpu" and NVML in order:
        raise ConfigError("The meter nvml measures GPUs, but this work is done by the processor. Leave nvml out.")
    if device != "cpu" and RAPL in order:
        raise ConfigError("The meter rapl measures the processor, but this work is done by a GPU. Leave rapl out.")


def require_meter(choice: Choice) -> Meter:
    """The meter, or one sentence with every reason why there is none."""
    if choice.meter is None:
        reasons = " ".join(f"{source}: {reason}" for source, reason in choice.refused.items())
        raise EnergyMeterError(f"No energy can be measured here. {reasons}")
    return choice.meter


def measure_idle(meter: Meter, seconds: float, sleep: Callable[[float], None] = time.sleep) -> Reading:
    """Measure the machine while this process does nothing; nothing else may run meanwhile."""
    window = meter.with_idle(0.0).start()
    sleep(seconds)
    return window.stop()


def _open_external(options: MeterOptions) -> Meter:
    if not options.external:
        raise EnergyMeterError("No external meter was named: give a command, or an address that begins with http.")
    return open_external(ExternalMeter(options.external, options.external_unit, options.external_field))


def _make_estimate(options: MeterOptions) -> Meter:
    if options.watts_per_core is None:
        raise EnergyMeterError("An estimate needs the watts of a core that computes.")
    if not options.watts_per_core > 0:
        raise ConfigError(f"The watts of a core are {options.watts_per_core}, but must be above 0.")
    return PowerEstimate(options.watts_per_core)
