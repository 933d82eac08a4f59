"""Energy counters of Intel and AMD processors (RAPL), as Linux shows them under /sys/class/powercap.

Packages and their memory are added up. Parts of a package (core, uncore) are inside it, `psys` contains everything,
and zones of `intel-rapl-mmio` are the same packages once more: none of them is counted. Counters are those of the
machine. Of what is above its idle power, a process is charged its share of the processor time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hatdfed.errors import EnergyMeterError
from hatdfed.meters.base import RAPL
from hatdfed.meters.cpu_share import STAT
from hatdfed.meters.gauges import Counter, CounterGauge
from hatdfed.meters.polling import PolledWindow, start_shared

POWERCAP = Path("/sys/class/powercap")
REFRESH_SECONDS = 0.001
POLL_SECONDS = 1.0  # the shortest counters wrap around after about a minute
_MICRO = 1e-6
_REMEDY = (
    "Let your group read it, with a udev rule such as "
    'SUBSYSTEM=="powercap", RUN+="/bin/chgrp -R power /sys%p", RUN+="/bin/chmod -R g+r /sys%p".'
)


@dataclass(frozen=True)
class RaplMeter:
    """All packages of this machine and their memory."""

    zones: tuple[Path, ...]
    idle_watts: float = 0.0
    stat: Path = STAT
    source: str = RAPL

    @property
    def domains(self) -> tuple[str, ...]:
        """Names of the zones; two packages have different ones."""
        return tuple(_name_domain(zone) for zone in self.zones)

    def start(self) -> PolledWindow:
        """Open a window."""
        gauge = CounterGauge(RAPL, [_make_counter(zone) for zone in self.zones], REFRESH_SECONDS)
        return start_shared(gauge, idle_watts=self.idle_watts, stat=self.stat, seconds=POLL_SECONDS)

    def with_idle(self, watts: float) -> RaplMeter:
        """Subtract the power of the idle machine."""
        return replace(self, idle_watts=watts)


def open_rapl(powercap: Path = POWERCAP, stat: Path = STAT) -> RaplMeter:
    """Find the zones and read each once; raises `EnergyMeterError` where there are none or one cannot be read."""
    if not powercap.is_dir():
        raise EnergyMeterError(f"There is no {powercap}: virtual machines and other processors have no such counters.")
    zones = tuple(zone for zone in sorted(powercap.glob("intel-rapl:*")) if _is_counted(zone))
    if not any(_name_domain(zone).startswith("package") for zone in zones):
        raise EnergyMeterError(f"{powercap} has no processor package.")
    for zone in zones:
        _make_counter(zone).read()
    return RaplMeter(zones, stat=stat)


def _is_counted(zone: Path) -> bool:
    return _read(zone / "name").startswith(("package", "dram"))


def _make_counter(zone: Path) -> Counter:
    read = partial(_read_joules, zone / "energy_uj")
    return Counter(_name_domain(zone), read, wraps_at=_read_joules(zone / "max_energy_range_uj"))


def _name_domain(zone: Path) -> str:
    """The zone's own name, and for memory also that of its package: intel-rapl:0:2 belongs to intel-rapl:0."""
    name, package = _read(zone / "name"), zone.name.split(":")[1]
    return name if name.startswith("package") else f"{name}-{package}"


def _read_joules(path: Path) -> float:
    text = _read(path)
    try:
        return _MICRO * int(text)
    except ValueError:
        raise EnergyMeterError(f"{path} says {text!r}, which is not a number.") from None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except PermissionError:
        raise EnergyMeterError(f"{path} may not be read by this user. {_REMEDY}") from None
    except FileNotFoundError:
        raise EnergyMeterError(f"{path} is not there any more.") from None
    except (OSError, ValueError) as error:
        raise EnergyMeterError(f"{path} cannot be read: {error}.") from None
