"""The share of a machine's processor time that this process has used: what its energy is divided by."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from hatdfed.errors import EnergyMeterError

_BUSY_FIELDS = (0, 1, 2, 5, 6)  # of /proc/stat: user, nice, system, irq, softirq
STAT = Path("/proc/stat")


class CpuSeconds(NamedTuple):
    """Processor time up to now."""

    own: float  # of this process, all threads
    busy: float  # of the machine

    def find_share(self, before: CpuSeconds) -> float:
        """The share of this process in what the machine has done since."""
        own, busy = self.own - before.own, self.busy - before.busy
        return min(1.0, own / busy) if busy > 0 else 1.0


def read_cpu_seconds(stat: Path = STAT) -> CpuSeconds:
    """Processor time of this process and of the machine."""
    try:
        fields = stat.read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        busy = sum(int(fields[place]) for place in _BUSY_FIELDS) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError) as error:
        raise EnergyMeterError(f"The processor time of the machine cannot be read from {stat}: {error}.") from None
    return CpuSeconds(time.process_time(), busy)
