"""Any `nn.Module` as pure functions of one flat vector [P].

The vector holds the T trainable parameters first, then the floating-point buffers: batch norm's running means and
variances travel and are averaged like parameters, its integer step counter does not.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from torch import Tensor, nn
from torch.func import functional_call

from hatdfed.server.dropout import with_seeded_dropout
from hatdfed.server.optimisers import Optimiser, OptimiserState
from hatdfed.server.work import Batch

# Numbers in a forward pass, as in 100 images of 28×28: ten such passes are twice as fast as one over 1,000, whose
# buffers the allocator returns to the system and faults in again every time.
EVALUATION_NUMBERS = 100 * 28 * 28
_PIECE = 1 << 14  # numbers that an optimiser moves at once: few enough for a cache, and for memory that is kept


class Learner:
    """Initialises, trains and judges models of one architecture; it holds no model itself."""

    def __init__(self, make_module: Callable[[], nn.Module], optimiser: Optimiser, *, xavier: bool = True) -> None:
        self._make_module = make_module
        self._xavier = xavier
        self.optimiser = optimiser
        with torch.random.fork_rng(devices=[]):
            module = make_module()
        self._eval_module = copy.deepcopy(module).eval()
        self._train_module = module.train()
        self._dropouts = with_seeded_dropout(module)
        buffers = [(name, buffer) for name, buffer in module.named_buffers() if buffer.is_floating_point()]
        self._trainable = _Layout.of(module.named_parameters())
        self._buffers = _Layout.of(buffers)
        self._places = [self._place(name) for name in self._trainable.names]
        self._cancelled = frozenset(cancelled_biases(module))
        self.moved = tuple(name for name in self._trainable.names if name not in self._cancelled)  # what training moves
        self._counters = {name: b for name, b in module.named_buffers() if not b.is_floating_point()}

    @property
    def num_trainable(self) -> int:
        """T, what the optimiser moves."""
        return sum(self._trainable.sizes)

    @property
    def num_params(self) -> int:
        """P, what travels."""
        return self.num_trainable + sum(self._buffers.sizes)

    @property
    def module(self) -> nn.Module:
        """The architecture, in evaluation mode; its own parameters mean nothing."""
        return self._eval_module

    @property
    def layout(self) -> dict[str, tuple[int, torch.Size]]:
        """Where each tensor starts in the flat vector, and its shape."""
        names = (*self._trainable.names, *self._buffers.names)
        shapes = (*self._trainable.shapes, *self._buffers.shapes)
        starts = accumulate((shape.numel() for shape in shapes), initial=0)
        return {name: (start, shape) for name, start, shape in zip(names, starts, shapes, strict=False)}

    def init(self, seed: int) -> Tensor:  # -> [P]
        """A fresh model: Xavier weights and zero biases, or the module's own initialisation."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            module = self._make_module()
            if self._xavier:
                _xavier_in_place(module)
        tensors = module.state_dict()
        return torch.cat([tensors[name].reshape(-1) for name in (*self._trainable.names, *self._buffers.names)])

    def fit(
        self,
        params: Tensor,
        state: OptimiserState,
        batches: Iterable[Batch],
        *,
        seed: int,
        step_scale: float = 1.0,
        offset: Tensor | None = None,
        spend: bool = False,
    ) -> tuple[Tensor, OptimiserState]:
        """One optimiser step for each batch, Eq. (2); `seed` is for dropout and the like, `offset` for the loss.

        With `spend` the moments in `state` are overwritten instead of copied, for whoever needs them no more.
        """
        # One copy, changed in place from here on: a small machine has no room for one a step.
        params = params.detach().clone()
        if not spend:
            state = OptimiserState(state.step, state.first.clone(), state.second.clone())
        trainable, buffers = self._parts(params)
        buffers = buffers.clone()  # batch norm writes its running statistics into it
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            for step, batch in enumerate(batches):
                for dropout in self._dropouts:
                    dropout.seed, dropout.step = seed, step
                self._step(trainable, buffers, batch, offset, state, step_scale)
                state = state._replace(step=state.step + 1)
        params[self.num_trainable :] = buffers
        return params, state

    @torch.no_grad()
    def logits(self, params: Tensor, x: Tensor) -> Tensor:  # [P], [n, …] -> [n, classes]
        """What the model answers, in evaluation mode."""
        trainable, buffers = self._parts(params)
        parts = torch.split(x, max(1, EVALUATION_NUMBERS // x[0].numel()) if len(x) else 1)
        return torch.cat([self._call(self._eval_module, trainable, buffers, part) for part in parts])

    def losses(self, params: Tensor, batch: Batch) -> Tensor:  # -> [n]
        """Cross-entropy of each sample on its own."""
        return F.cross_entropy(self.logits(params, batch.x), batch.y, reduction="none")

    def accuracy(self, params: Tensor, batch: Batch) -> float:
        """Share of samples answered rightly."""
        return float(self.correct(params, batch).double().mean())

    def similarity(self, models: Tensor) -> Tensor:  # [D, P] -> [D]
        """Cosine between the first model and each, parameter tensor by parameter tensor, then averaged."""
        places = [self._place(name) for name in self.moved]
        parts = [models[:, start:stop] for start, stop in places]
        return torch.stack([F.cosine_similarity(part[:1], part, dim=1) for part in parts]).mean(dim=0)

    def correct(self, params: Tensor, batch: Batch) -> Tensor:  # -> [n] bool
        """Which samples are answered rightly."""
        return self.logits(params, batch.x).argmax(dim=1) == batch.y

    def state_dict(self, params: Tensor) -> dict[str, Tensor]:
        """The model under the names of its module, for export."""
        trainable, buffers = self._parts(params)
        views = {**self._trainable.views(trainable), **self._buffers.views(buffers)}
        return {name: view.clone() for name, view in views.items()}

    def _place(self, name: str) -> tuple[int, int]:
        start, shape = self.layout[name]
        return start, start + shape.numel()

    def _step(
        self,
        trainable: Tensor,
        buffers: Tensor,
        batch: Batch,
        offset: Tensor | None,
        state: OptimiserState,
        step_scale: float,
    ) -> None:
        """One step, in place; the gradients are gone before the next begins."""
        gradients = self._gradients(trainable, buffers, batch, offset)
        for (start, stop), gradient in zip(self._places, gradients, strict=True):
            moments = OptimiserState(state.step, state.first[start:stop], state.second[start:stop])
            _step_in_place(self.optimiser, trainable[start:stop], gradient.view(-1), moments, step_scale)

    def _gradients(self, trainable: Tensor, buffers: Tensor, batch: Batch, offset: Tensor | None) -> list[Tensor]:
        """Of the loss, tensor by tensor: as one vector they would be there twice."""
        leaves = {name: view.detach().requires_grad_() for name, view in self._trainable.views(trainable).items()}
        logits = self._forward(self._train_module, leaves, buffers, batch.x)
        answers = logits if offset is None else logits + offset
        loss = F.cross_entropy(answers, batch.y)
        gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        return [
            torch.zeros_like(gradient) if name in self._cancelled else gradient.contiguous()
            for name, gradient in zip(leaves, gradients, strict=True)
        ]

    def _parts(self, params: Tensor) -> tuple[Tensor, Tensor]:
        return params[: self.num_trainable].detach(), params[self.num_trainable :].detach()

    def _call(self, module: nn.Module, trainable: Tensor, buffers: Tensor, x: Tensor) -> Tensor:
        return self._forward(module, self._trainable.views(trainable), buffers, x)

    def _forward(self, module: nn.Module, trainable: dict[str, Tensor], buffers: Tensor, x: Tensor) -> Tensor:
        counters = {name: counter.clone() for name, counter in self._counters.items()}
        tensors = {**trainable, **self._buffers.views(buffers), **counters}
        logits: Tensor = functional_call(module, tensors, (x,), tie_weights=False)
        return logits


class _Layout(NamedTuple):
    """Where each named tensor lies in a flat vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, Tensor]]) -> _Layout:
        named = list(tensors)
        return cls(
            tuple(name for name, _ in named),
            tuple(tensor.shape for _, tensor in named),
            tuple(tensor.numel() for _, tensor in named),
        )

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The named tensors as views: writing to one writes to `flat`."""
        parts = flat.split_with_sizes(list(self.sizes))
        return {n: part.view(shape) for n, shape, part in zip(self.names, self.shapes, parts, strict=True)}


def _step_in_place(
    optimiser: Optimiser, params: Tensor, gradient: Tensor, state: OptimiserState, step_scale: float
) -> None:
    """One step in pieces that fit into a cache, so that what the optimiser makes on the way is small."""
    for start in range(0, len(params), _PIECE):
        piece = slice(start, start + _PIECE)
        here = OptimiserState(state.step, state.first[piece], state.second[piece])
        moved, after = optimiser.step(params[piece], gradient[piece], here)
        params[piece] = moved if step_scale == 1 else torch.lerp(params[piece], moved, step_scale)
        state.first[piece], state.second[piece] = after.first, after.second


def cancelled_biases(module: nn.Module) -> list[str]:
    """Biases right in front of a batch norm that trains: it subtracts them again, so their gradient is zero.

    Computed, it would be round-off, which Adam blows up to steps of full length: noise that differs from machine to
    machine. So nobody computes it.
    """
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    places = [
        (f"{f'{prefix}.' if prefix else ''}{name}.bias", layer)
        for prefix, parent in module.named_modules()
        if type(parent) is nn.Sequential
        for (name, layer), (_, following) in pairwise(parent._modules.items())
        if isinstance(following, norms) and isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
    ]
    known = dict(module.named_parameters())
    used = Counter(id(layer) for parent in module.modules() for layer in parent._modules.values())
    return [name for name, layer in places if name in known and used[id(layer)] == 1]  # not one that serves elsewhere


def _xavier_in_place(module: nn.Module) -> None:
    """Glorot and Bengio's uniform weights for every matrix and kernel, zero for the biases that go with them."""
    for layer in module.modules():
        weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
        if isinstance(weight, nn.Parameter) and weight.dim() > 1:
            nn.init.xavier_uniform_(weight)
            if isinstance(bias, nn.Parameter):
                nn.init.zeros_(bias)
