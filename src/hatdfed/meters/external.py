"""A meter outside the machine, such as a smart plug or a power distribution unit: read by a command or over HTTP.

What is read is one number, watts or joules so far. A meter that speaks MQTT is read by a command that waits for one
message, such as `mosquitto_sub -C 1 -t plug/power`. The whole machine is measured; what is above its idle power is
charged by the share of the processor time.
"""

from __future__ import annotations

import json
import math
import shlex
import subprocess
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hatdfed.errors import EnergyMeterError
from hatdfed.meters.base import EXTERNAL
from hatdfed.meters.cpu_share import STAT
from hatdfed.meters.gauges import MOST_MACHINE_WATTS, Counter, CounterGauge, Gauge, PowerGauge, Sensor
from hatdfed.meters.polling import PolledWindow, start_shared

Unit = Literal["watts", "joules"]
ACCURACY = 0.02  # of consumer meters
PATIENCE_SECONDS = 5.0
_MOST_BYTES = 65_536


@dataclass(frozen=True)
class ExternalMeter:
    """A command or an address that gives a number."""

    where: str  # a command line, or an address that begins with http:// or https://
    unit: Unit = "watts"
    field: str = ""  # path of the number in a JSON answer, such as "power.total"; empty: the answer is the number
    poll_seconds: float = 1.0
    idle_watts: float = 0.0
    stat: Path = STAT
    source: str = EXTERNAL

    @property
    def domains(self) -> tuple[str, ...]:
        """The whole machine; addresses and commands may contain secrets, and are not named."""
        return ("machine",)

    def start(self) -> PolledWindow:
        """Open a window."""
        return start_shared(self._make_gauge(), idle_watts=self.idle_watts, stat=self.stat, seconds=self.poll_seconds)

    def with_idle(self, watts: float) -> ExternalMeter:
        """Subtract the power of the idle machine."""
        return replace(self, idle_watts=watts)

    def _make_gauge(self) -> Gauge:
        if self.unit == "watts":
            return PowerGauge(EXTERNAL, [Sensor("machine", self.read, MOST_MACHINE_WATTS)], ACCURACY)
        return CounterGauge(EXTERNAL, [Counter("machine", self.read, most_watts=MOST_MACHINE_WATTS)], self.poll_seconds)

    def read(self) -> float:
        """Ask the meter once."""
        answer = _fetch(self.where) if _is_address(self.where) else _execute(self.where)
        value = _find_number(answer, self.field)
        if value is None:
            place = f" at {self.field!r}" if self.field else ""
            raise EnergyMeterError(f"The external meter answered {answer[:60]!r}, which has no number{place}.")
        return value


def open_external(meter: ExternalMeter) -> ExternalMeter:
    """Ask it once; raises `EnergyMeterError` if it does not answer with a number."""
    meter.read()
    return meter


def _is_address(where: str) -> bool:
    return where.startswith(("http://", "https://"))


def _execute(command: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 (the user's own command)
            shlex.split(command), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise EnergyMeterError(f"The command of the external meter failed: {type(error).__name__}.") from None
    return done.stdout.strip()


def _fetch(address: str) -> str:
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 (http or https)
            text: str = answer.read(_MOST_BYTES).decode()
    except (OSError, ValueError) as error:
        raise EnergyMeterError(f"The external meter does not answer: {type(error).__name__}.") from None
    return text.strip()


def _find_number(answer: str, field: str) -> float | None:
    try:
        found: Any = json.loads(answer)
        for part in field.split(".") if field else ():
            found = found[int(part)] if isinstance(found, list) else found[part]
        value = float(found)
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    return value if math.isfinite(value) else None
