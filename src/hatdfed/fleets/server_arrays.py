"""One server's state as named arrays, for checkpoints and disks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.edge_server import ServerState
from hatdfed.fleets.base import Snapshot
from hatdfed.learning.optimisers import OptimiserState


def server_arrays(server: ServerState) -> dict[str, NDArray[Any]]:
    """Model, optimiser, codec memory and mass."""
    arrays = {
        "params": server.params.numpy(),
        "first": server.optimiser.first.numpy(),
        "second": server.optimiser.second.numpy(),
        "codec_memory": server.codec_memory.numpy(),
        "scalars": np.array([server.optimiser.step, server.mass]),
    }
    for what, known in (("known_by", server.known_by), ("known_of", server.known_of)):
        arrays |= {f"{what}.{peer}": model.numpy() for peer, model in known.items()}
    return arrays


def server_from(arrays: Snapshot) -> ServerState:
    """The server behind the arrays."""
    step, mass = arrays["scalars"]
    first, second = torch.tensor(arrays["first"]), torch.tensor(arrays["second"])
    return ServerState(
        params=torch.tensor(arrays["params"]),
        optimiser=OptimiserState(int(step), first, second),
        codec_memory=torch.tensor(arrays["codec_memory"]),
        mass=float(mass),
        known_by=_known(arrays, "known_by."),
        known_of=_known(arrays, "known_of."),
    )


def _known(arrays: Snapshot, prefix: str) -> dict[int, Tensor]:
    return {int(name[len(prefix) :]): torch.tensor(a) for name, a in arrays.items() if name.startswith(prefix)}
