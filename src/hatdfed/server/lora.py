"""Low-rank adapters (LoRA) for linear layers: W stays as it is, and W + (α/r)·B·A is computed.

E. J. Hu et al. LoRA: low-rank adaptation of large language models. ICLR 2022. The average of products B·A is not the
product of averages, so servers that train and average both factors do not average their models. With one A for all
servers, which is never trained, the average of B gives exactly the average of the products, for every way of merging
that is linear: Y. Sun et al. Improving LoRA in privacy-preserving federated learning. ICLR 2024. That is the default.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)
from torch import Tensor, nn

from hatdfed.errors import ConfigError


class LoraLinear(nn.Module):
    """A frozen linear layer and its adapter."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float, *, both_factors: bool) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.scale = alpha / rank
        self.down = nn.Parameter(torch.empty(rank, base.in_features), requires_grad=both_factors)  # A
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))  # B: at first the adapter changes nothing
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:  # [..., in] -> [..., out]
        """Apply the layer and add what its adapter says."""
        plain: Tensor = self.base(x)
        return plain + self.scale * F.linear(F.linear(x, self.down), self.up)


def lora(
    module: nn.Module,
    *,
    rank: int,
    alpha: float | None = None,
    targets: Sequence[str] = ("*",),
    trained: Sequence[str] = (),
    both_factors: bool = False,
) -> nn.Module:
    """Return a copy of `module` in which linear layers have adapters, and everything else is frozen.

    `targets` are shell-style patterns for the names of layers that get an adapter; `trained` are patterns for names of
    parameters that are trained and sent as a whole, such as those of a new output layer. `alpha` is `rank` by default.
    With `both_factors`, A is trained and sent, too: it must then begin alike on all servers (`common_init: true`).
    """
    if rank < 1:
        raise ConfigError(f"The rank of an adapter is {rank}, but must be at least 1.")
    adapted = copy.deepcopy(module)
    for name, parameter in adapted.named_parameters():
        parameter.requires_grad_(_is_named(name, trained))
    chosen = {
        name: layer
        for name, layer in adapted.named_modules()
        if type(layer) is nn.Linear and _is_named(name, targets) and not layer.weight.requires_grad
    }
    if not chosen:
        raise ConfigError(
            f"No linear layer of the network that is not trained as a whole matches {', '.join(targets)}, so it would "
            "have no adapter. Give other targets."
        )
    strength = float(rank if alpha is None else alpha)
    made = {id(layer): LoraLinear(layer, rank, strength, both_factors=both_factors) for layer in chosen.values()}
    for parent in list(adapted.modules()):
        for name, child in parent._modules.items():  # a layer may be in several places
            if id(child) in made:
                setattr(parent, name, made[id(child)])
    return made.get(id(adapted), adapted)


def _is_named(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
