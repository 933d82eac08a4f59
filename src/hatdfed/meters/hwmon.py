"""Power sensors of the board (Linux hwmon), such as INA3221 and INA2xx on Jetson modules.

A sensor shows microwatts, or millivolts and milliamperes. It measures a rail of the whole board, so a process is
charged its share of the processor time of what is above the idle power. Which rails to add up is the user's choice
where a board has several: one of them usually contains the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hatdfed.errors import EnergyMeterError
from hatdfed.meters.base import HWMON
from hatdfed.meters.cpu_share import STAT
from hatdfed.meters.gauges import PowerGauge, Sensor
from hatdfed.meters.polling import PolledWindow, start_shared

FOLDER = Path("/sys/class/hwmon")
POLL_SECONDS = 0.05
ACCURACY = 0.02  # of INA3221 with a usual shunt, by its data sheet
WHOLE_BOARD = ("VDD_IN", "POM_5V_IN", "5V_IN")  # rails that Jetson modules are fed by
_MICRO, _MILLI = 1e-6, 1e-3


@dataclass(frozen=True)
class HwmonMeter:
    """Some rails of this board."""

    sensors: tuple[Sensor, ...]
    idle_watts: float = 0.0
    stat: Path = STAT
    source: str = HWMON

    @property
    def domains(self) -> tuple[str, ...]:
        """Names of the rails."""
        return tuple(sensor.name for sensor in self.sensors)

    def start(self) -> PolledWindow:
        """Open a window."""
        gauge = PowerGauge(HWMON, self.sensors, ACCURACY)
        return start_shared(gauge, idle_watts=self.idle_watts, stat=self.stat, seconds=POLL_SECONDS)

    def with_idle(self, watts: float) -> HwmonMeter:
        """Subtract the power of the idle board."""
        return replace(self, idle_watts=watts)


def open_hwmon(rails: Sequence[str] | None = None, folder: Path = FOLDER, stat: Path = STAT) -> HwmonMeter:
    """Find the sensors of these rails: by default the one rail that feeds the whole board."""
    found = {sensor.name: sensor for sensor in find_sensors(folder)}
    if not found:
        raise EnergyMeterError(f"There is no power sensor in {folder}.")
    names = list(rails) if rails else [name for name in WHOLE_BOARD if name in found][:1] or list(found)
    if not rails and len(names) > 1:
        raise EnergyMeterError(
            f"There are several power sensors here, name those to add up: {', '.join(sorted(found))}."
        )
    if missing := [name for name in names if name not in found]:
        raise EnergyMeterError(f"There is no power sensor {missing[0]!r}, only {', '.join(sorted(found))}.")
    sensors = tuple(found[name] for name in names)
    for sensor in sensors:
        sensor.read()
    return HwmonMeter(sensors, stat=stat)


def find_sensors(folder: Path = FOLDER) -> list[Sensor]:
    """All power sensors, with the names that the board gives them."""
    sensors = []
    for chip in sorted(folder.glob("hwmon*")) if folder.is_dir() else ():
        for power in sorted(chip.glob("power*_input")):
            label = _find_label(chip, power.name.replace("_input", "_label"), f"{_find_chip(chip)}-{power.name[5:-6]}")
            sensors.append(Sensor(label, partial(_read_number, power, _MICRO)))
        for current in sorted(chip.glob("curr*_input")):
            number = current.name[4:-6]
            if (volts := chip / f"in{number}_input").exists():
                label = _find_label(chip, f"in{number}_label", f"{_find_chip(chip)}-{number}")
                sensors.append(Sensor(label, partial(_read_product, volts, current)))
    return sensors


def _find_chip(chip: Path) -> str:
    return _find_label(chip, "name", chip.name)


def _find_label(chip: Path, file: str, otherwise: str) -> str:
    try:
        return (chip / file).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return otherwise


def _read_product(volts: Path, current: Path) -> float:
    return _read_number(volts, _MILLI) * _read_number(current, _MILLI)


def _read_number(path: Path, unit: float) -> float:
    try:
        return unit * int(path.read_text(encoding="ascii"))
    except PermissionError:
        raise EnergyMeterError(
            f"{path} may not be read by this user. Let your group read it with a udev rule."
        ) from None
    except (OSError, ValueError) as error:
        raise EnergyMeterError(f"The power sensor {path} cannot be read: {error}.") from None
