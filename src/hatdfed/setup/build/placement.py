"""Where a run is computed: which fleet, on which device. On CPUs that changes round-off alone (GPUs: decision 0008)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from hatdfed.errors import ConfigError, require_one_of
from hatdfed.setup.component_names import DEVICES, FLEETS


@dataclass(frozen=True)
class Placement:
    """Fleet, device and shards, as the user asked for them or as they were chosen."""

    fleet: str = "auto"
    device: str = "auto"
    shards: int | None = None  # of a sharded fleet
    address: str | None = None  # of the Ray cluster that they are on; None: one of our own

    def __post_init__(self) -> None:
        require_one_of("--fleet", self.fleet, FLEETS)
        require_one_of("--device", self.device, DEVICES)
        if self.fleet == "sharded" and self.shards is None:
            raise ConfigError(
                "--fleet sharded needs --shards, the processes that share a run's servers, as `run` has it."
            )
        if self.fleet != "sharded" and (self.shards is not None or self.address is not None):
            raise ConfigError("--shards and --address are for --fleet sharded. Add it, or leave them out.")


def choose_placement(asked: Placement) -> Placement:
    """Replace `auto`: by the stacked fleet, which runs any network, and by the GPU where there is one."""
    device = "cpu" if asked.fleet == "sharded" and asked.device == "auto" else device_of(asked)
    if asked.fleet == "mailbox":
        if device == "cuda":
            raise ConfigError("The mailbox fleet runs on the CPU only. Use --fleet stacked, or --device cpu.")
        return Placement("mailbox", "cpu")
    return replace(asked, device=device) if asked.fleet == "sharded" else Placement("stacked", device)


def device_of(asked: Placement) -> str:
    """cpu or cuda: the GPU where there is one and nothing speaks against it."""
    has_cuda = torch.cuda.is_available()
    if asked.fleet == "sharded" and asked.device != "auto":
        return asked.device  # on other machines, perhaps
    if asked.device == "cuda" and not has_cuda:
        raise ConfigError("--device is cuda, but torch finds no CUDA device here. Use --device cpu.")
    if asked.device != "auto":
        return asked.device
    return "cuda" if has_cuda and asked.fleet != "mailbox" else "cpu"
