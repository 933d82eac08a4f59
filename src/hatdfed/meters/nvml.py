"""Energy counters of NVIDIA GPUs (NVML), since the driver was loaded; from Volta on, and no rights are needed.

A card is measured as a whole. Its counter is updated in steps, with which windows are aligned
(`hatdfed.meters.updates`). Where another process computes on it too, its energy cannot be divided, and the window
is refused.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

from hatdfed.errors import EnergyMeterError
from hatdfed.meters.base import NVML, Reading, Window, attribute
from hatdfed.meters.gauges import Counter
from hatdfed.meters.updates import REAL_TIME, Rhythms, Watch, start_aligned

POLL_SECONDS = 1.0
_MILLI = 1e-3


@dataclass(frozen=True)
class NvmlMeter:
    """Some GPUs of this machine."""

    nvml: Any  # the module pynvml, or what stands for it in a test
    gpus: tuple[int, ...]
    idle_watts: float = 0.0
    source: str = NVML
    watch: Watch = REAL_TIME
    rhythms: Rhythms = field(default_factory=dict, repr=False, compare=False)  # of the cards, once observed

    @property
    def domains(self) -> tuple[str, ...]:
        """The cards."""
        return tuple(f"gpu-{gpu}" for gpu in self.gpus)

    def start(self) -> Window:
        """Open a window when the counters are updated; raises `EnergyMeterError` if somebody else uses a card."""
        self._require_alone()
        counters = [Counter(name, self._make_read(gpu)) for name, gpu in zip(self.domains, self.gpus, strict=True)]
        return start_aligned(NVML, counters, self.rhythms, self._attribute, seconds=POLL_SECONDS, watch=self.watch)

    def with_idle(self, watts: float) -> NvmlMeter:
        """Subtract the power of the idle cards."""
        return replace(self, idle_watts=watts)

    def _attribute(self, gross: Reading) -> Reading:
        self._require_alone()
        return attribute(gross, self.idle_watts, 1.0)

    def _make_read(self, gpu: int) -> Any:
        return partial(_read_joules, self.nvml, gpu)

    def _require_alone(self) -> None:
        for gpu in self.gpus:
            others = [pid for pid in _find_processes(self.nvml, gpu) if pid != os.getpid()]
            if others:
                raise EnergyMeterError(
                    f"GPU {gpu} is shared with process {others[0]}, and its counter does not say who spent what. "
                    "Measure on a card of your own, and in a container with the host's process numbers (--pid=host)."
                )


def open_nvml(gpus: Sequence[int] | None = None, nvml: ModuleType | Any = None) -> NvmlMeter:
    """Find the GPUs that this process may use, or those that are asked for, and read each counter once."""
    nvml = nvml or import_nvml()
    try:
        nvml.nvmlInit()
        count = int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError as error:
        raise EnergyMeterError(f"There is no NVIDIA driver here: {error}.") from None
    if not count:
        raise EnergyMeterError("There is no NVIDIA GPU here.")
    chosen = tuple(_find_visible(nvml, count) if gpus is None else gpus)
    missing = [gpu for gpu in chosen if not 0 <= gpu < count]
    if missing or not chosen:
        raise EnergyMeterError(f"GPU {missing[0] if missing else 'none'} was asked for, but there are {count} here.")
    for gpu in chosen:
        _read_joules(nvml, gpu)
    return NvmlMeter(nvml, chosen)


def import_nvml() -> Any:
    """NVIDIA's library, if its package is installed."""
    try:
        return import_module("pynvml")
    except ImportError:
        raise EnergyMeterError("NVML needs a package: pip install 'hatdfed[energy]'.") from None


def _find_visible(nvml: Any, count: int) -> list[int]:
    """The cards that CUDA shows to this process: NVML numbers all of them, whatever CUDA_VISIBLE_DEVICES says."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return list(range(count))
    ids = {str(gpu): gpu for gpu in range(count)} | {_read_uuid(nvml, gpu): gpu for gpu in range(count)}
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    unknown = [name for name in names if name not in ids]
    if unknown:
        raise EnergyMeterError(f"CUDA_VISIBLE_DEVICES names {unknown[0]!r}, which is none of the {count} GPUs here.")
    return [ids[name] for name in names]


def _read_uuid(nvml: Any, gpu: int) -> str:
    uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(gpu))
    return uuid.decode() if isinstance(uuid, bytes) else str(uuid)


def _read_joules(nvml: Any, gpu: int) -> float:
    try:
        return _MILLI * float(nvml.nvmlDeviceGetTotalEnergyConsumption(nvml.nvmlDeviceGetHandleByIndex(gpu)))
    except nvml.NVMLError as error:
        raise EnergyMeterError(f"GPU {gpu} does not say how much energy it has used: {error}.") from None


def _find_processes(nvml: Any, gpu: int) -> list[int]:
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByIndex(gpu))
    except nvml.NVMLError as error:
        raise EnergyMeterError(f"GPU {gpu} does not say who computes on it: {error}.") from None
    return [int(process.pid) for process in running]
