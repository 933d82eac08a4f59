"""A training step of many servers with LeNet: convolutions as torch lifts them, and as matrix products.

    python benchmarks/stacked_convolution.py --device cuda --servers 256 [--out benchmarks/results/NAME.json]

Prints milliseconds of a step forward and back, the server-rounds per second that 20 such steps allow, and the memory.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hatdfed.fleets.stacked.convolution import use_products
from hatdfed.runs.records.folder import environment
from hatdfed.server.networks import NETWORKS

SHAPE, CLASSES, STEPS_PER_ROUND = (3, 32, 32), 10, 20


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--servers", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_float32_matmul_precision("high")  # as in training on a GPU
    plain = NETWORKS["lenet-group-norm"](SHAPE, CLASSES).to(asked.device)
    products = copy.deepcopy(plain)
    use_products(products)
    rows = []
    for name, module in (("lifted", plain), ("products", products)):
        row = {"convolutions": name, **_measure(module, asked.servers, asked.batch, asked.steps)}
        print("  ".join(f"{key} {value:.4g}" if isinstance(value, float) else str(value) for key, value in row.items()))
        rows.append(row)
    if asked.out is not None:
        content = {"machine": environment(), "servers": asked.servers, "batch": asked.batch, "rows": rows}
        asked.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _measure(module: nn.Module, servers: int, batch: int, steps: int) -> dict[str, Any]:
    device = next(module.parameters()).device
    tensors = {
        name: each.detach().expand(servers, *each.shape).clone().requires_grad_()
        for name, each in module.named_parameters()
    }
    x = torch.randn(servers, batch, *SHAPE, device=device)
    y = torch.randint(CLASSES, (servers, batch), device=device)
    for _ in range(2):
        _step(module, tensors, x, y)
    _wait(device)
    start = time.perf_counter()
    for _ in range(steps):
        _step(module, tensors, x, y)
    _wait(device)
    seconds = (time.perf_counter() - start) / steps
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
    return {
        "step_ms": 1e3 * seconds,
        "server_rounds_per_second": servers / (STEPS_PER_ROUND * seconds),
        "memory_gib": memory,
    }


def _step(module: nn.Module, tensors: dict[str, Tensor], x: Tensor, y: Tensor) -> None:
    losses = torch.vmap(partial(_loss, module))(tensors, x, y)
    torch.autograd.grad(losses.sum(), list(tensors.values()))


def _loss(module: nn.Module, tensors: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    loss: Tensor = nn.functional.cross_entropy(functional_call(module, tensors, (x,)), y)
    return loss


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
