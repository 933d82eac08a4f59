"""Any `nn.Module` as pure functions of one flat vector [M].

The vector holds the T trained parameters first, then the floating-point buffers: batch norm's running means and
variances are sent and averaged like parameters, its integer step counter is not. Personal tensors
(`hatdfed.server.parameter_roles`) are at both ends, so that the P numbers that are sent are one slice:

    personal parameters · shared parameters · shared buffers · personal buffers

Frozen tensors are not in the vector: they are those of the module, the same for all models.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from hatdfed.server.dropout import find_dropouts, replace_dropouts
from hatdfed.server.guard import largest_norm
from hatdfed.server.measured_metrics import NO_METRICS, Evaluation, MetricSet
from hatdfed.server.optimisers import Optimiser, OptimiserState
from hatdfed.server.parameter_roles import (
    ParameterRole,
    RolePatterns,
    SentPart,
    assign_roles,
    digest_tensors,
    freeze,
)
from hatdfed.server.private_steps import PrivateSteps, clip_and_sum
from hatdfed.server.tasks import Classification, Task, count_confusion
from hatdfed.server.work import Batch, Measured

# Input values of one forward pass, as many as in 100 images of 28×28: ten such passes are twice as fast as one over
# 1,000 images, whose buffers the allocator returns to the system and faults in again every time.
EVALUATION_NUMBERS = 100 * 28 * 28
_FROZEN_SEED = 0  # for frozen tensors that a network draws at random: they must be the same everywhere
_CHUNK = 1 << 14  # parameters that an optimiser updates at once: few enough for the cache and for reused memory


class Learner:
    """Initialises, trains and evaluates models of one architecture; it holds no model itself."""

    def __init__(
        self,
        make_module: Callable[[], nn.Module],
        optimiser: Optimiser,
        *,
        task: Task = Classification(),  # noqa: B008 (a frozen value)
        xavier: bool = True,
        private: PrivateSteps | None = None,
        roles: RolePatterns | None = None,
    ) -> None:
        """`roles` says which tensors are shared, personal or frozen where the network is not to decide that itself."""
        self.make_module = make_module
        self._xavier = xavier
        self.optimiser = optimiser
        self.task = task
        self.private = private  # None: gradients are neither clipped nor noisy
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(_FROZEN_SEED)
            module = make_module()
        self.roles = assign_roles(module, roles)
        self._train_module = module.train()
        self.frozen = freeze(module, self.roles)  # by name, for all models
        self._eval_module = self.copy_module(module).eval()
        self._dropouts = replace_dropouts(module)
        buffers = [(name, buffer) for name, buffer in module.named_buffers() if buffer.is_floating_point()]
        self._trainable = _Layout.of(self._of_role(module.named_parameters(), "personal", "shared"))
        self._buffers = _Layout.of(self._of_role(buffers, "shared", "personal"))
        self.sent = self._find_sent_part()
        self._slices = [self._find_slice(name) for name in self._trainable.names]
        self._cancelled = frozenset(find_cancelled_biases(module))
        # Names of the parameters that training changes.
        self.moved = tuple(name for name in self._trainable.names if name not in self._cancelled)
        self._counters = {name: b for name, b in module.named_buffers() if not b.is_floating_point()}
        tied = find_tied_parameters(module)
        self._tied = {name: owner for name, owner in tied.items() if self.roles[owner] != "frozen"}

    def on_device(self, device: torch.device) -> Learner:
        """Return a learner for models and data on `device`; one that is on the CPU stays there."""
        if device.type == "cpu":
            return self
        moved = copy.copy(self)
        moved.frozen = {name: _on_device(tensor, device) for name, tensor in self.frozen.items()}
        moved._eval_module = self.copy_module(self._eval_module, moved.frozen).to(device)
        moved._train_module = self.copy_module(self._train_module, moved.frozen).to(device)
        moved._dropouts = find_dropouts(moved._train_module)
        moved._counters = {name: counter.to(device) for name, counter in self._counters.items()}
        return moved

    def copy_module(self, module: nn.Module, frozen: Mapping[str, Tensor] | None = None) -> nn.Module:
        """Return a copy of one of the modules, with these frozen tensors, which are not copied once more."""
        chosen = self.frozen if frozen is None else frozen
        return copy.deepcopy(module, {id(tensor): chosen[name] for name, tensor in self.frozen.items()})

    @property
    def num_trainable(self) -> int:
        """T: number of parameters that the optimiser updates."""
        return sum(self._trainable.sizes)

    @property
    def num_params(self) -> int:
        """P: number of parameters that are sent."""
        return self.sent.size

    @property
    def num_kept(self) -> int:
        """M: number of parameters in a server's model, sent or personal; frozen ones are not counted."""
        return self.sent.length

    @property
    def num_total(self) -> int:
        """Number of all parameters of the network, frozen ones included."""
        return self.num_kept + sum(tensor.numel() for tensor in self.frozen.values())

    @cached_property
    def frozen_digest(self) -> str:
        """A digest of all frozen tensors, by which other ones are noticed; nothing where there are none."""
        return digest_tensors(self.frozen) if self.frozen else ""

    @property
    def module(self) -> nn.Module:
        """The module in evaluation mode; of the values of its own parameters only frozen ones are used."""
        return self._eval_module

    @property
    def train_module(self) -> nn.Module:
        """The module in training mode, with seeded dropouts; of its own values only frozen ones are used."""
        return self._train_module

    @property
    def layout(self) -> dict[str, tuple[int, torch.Size]]:
        """Offset in the flat vector and shape of each tensor."""
        names = (*self._trainable.names, *self._buffers.names)
        shapes = (*self._trainable.shapes, *self._buffers.shapes)
        starts = accumulate((shape.numel() for shape in shapes), initial=0)
        return {name: (start, shape) for name, start, shape in zip(names, starts, shapes, strict=False)}

    @property
    def sent_sizes(self) -> list[int]:
        """Sizes of the tensors that are sent, in their order."""
        return [shape.numel() for name, (_, shape) in self.layout.items() if self.roles[name] == "shared"]

    @cached_property
    def largest_norm(self) -> float:
        """The norm beyond which the sent part of no model is used (`hatdfed.server.guard`)."""
        return largest_norm(self.init_sent(0))

    @cached_property
    def largest_personal_norm(self) -> float:
        """The norm beyond which the personal part of no model is used."""
        fresh = self.init(0)
        return largest_norm(torch.cat([fresh[: self.sent.start], fresh[self.sent.stop :]]))

    @cached_property
    def compared(self) -> list[tuple[int, int]]:
        """The place of the tensors that training changes in the sent part: their similarity is measured."""
        places = [self._find_slice(name) for name in self.moved if self.roles[name] == "shared"]
        return [(start - self.sent.start, stop - self.sent.start) for start, stop in places]

    def init(self, seed: int) -> Tensor:  # -> [M]
        """Initialise a model: Xavier weights and zero biases, or the module's own initialisation."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            module = self.make_module()
            if self._xavier:
                _xavier_in_place(module)
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        names = (*self._trainable.names, *self._buffers.names)
        return torch.cat([tensors[name].detach().reshape(-1) for name in names])

    def init_sent(self, seed: int) -> Tensor:  # -> [P]
        """Initialise a model and return the part that is sent."""
        return self.sent.take(self.init(seed))

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
        on_loss: Callable[[Tensor], None] | None = None,
    ) -> tuple[Tensor, OptimiserState]:
        """Train with one optimiser step for each batch, Eq. (2).

        `seed` is for dropout and other random layers, `offset` is added to the logits of classes in the loss. With
        `spend` the moments in `state` are overwritten instead of copied, for callers that do not need them any more.
        `on_loss` is told the mean loss of every batch before its step, but not in private training: no noise hides it.
        """
        # One copy, updated in place from here on: a small machine has no memory for one copy a step.
        params = params.detach().clone()
        if not spend:
            state = OptimiserState(state.step, state.first.clone(), state.second.clone())
        trainable, buffers = self._parts(params)
        buffers = buffers.clone()  # batch norm writes its running statistics into it
        compute: Callable[..., Sequence[Tensor | None]] = partial(self._gradients, on_loss)
        if self.private is not None:
            compute = partial(self._private_gradients, self.private, self.private.source(seed))
        with _seeded(seed, params.device):
            for step, batch in enumerate(batches):
                for dropout in self._dropouts:
                    dropout.seed, dropout.step = seed, step
                self._step(trainable, partial(compute, trainable, buffers, batch, offset), state, step_scale)
                state = state._replace(step=state.step + 1)
        params[self.num_trainable :] = buffers
        return params, state

    @torch.no_grad()
    def logits(self, params: Tensor, x: Tensor) -> Tensor:  # [M], [n, …] -> [n, …]
        """Compute what the network gives out in evaluation mode: logits or, in a regression, values."""
        trainable, buffers = self._parts(params)
        parts = torch.split(x, max(1, EVALUATION_NUMBERS // x[0].numel()) if len(x) else 1)
        return torch.cat([self._call(self._eval_module, trainable, buffers, part) for part in parts])

    def losses(self, params: Tensor, batch: Batch) -> Tensor:  # -> [n]
        """Compute the task's loss of each sample."""
        return self.task.losses(self.logits(params, batch.x), batch.y)

    def accuracy(self, params: Tensor, batch: Batch) -> float:
        """Compute the mean score: of classes, the share of correctly classified samples."""
        return float(self.scores(params, batch).double().mean())

    def evaluate(self, params: Tensor, batch: Batch, metrics: MetricSet) -> Evaluation:
        """Compute the mean score, the mean loss and `metrics`, in one pass over the samples."""
        outputs = self.logits(params, batch.x)
        scores, losses = self.task.scores(outputs, batch.y), self.task.losses(outputs, batch.y)
        figures = metrics.measure(outputs, batch.y)
        return Evaluation(float(scores.double().mean()), float(losses.double().mean()), figures)

    def similarity(self, models: Tensor) -> Tensor:  # [D, P] -> [D]
        """Compute the cosine similarity of the first model to each, averaged over the parameter tensors sent."""
        parts = [models[:, start:stop] for start, stop in self.compared]
        return torch.stack([F.cosine_similarity(part[:1], part, dim=1) for part in parts]).mean(dim=0)

    def scores(self, params: Tensor, batch: Batch) -> Tensor:  # -> [n]
        """Compute the task's score of each sample."""
        return self.task.scores(self.logits(params, batch.x), batch.y)

    def measure(self, params: Tensor, batch: Batch, metrics: MetricSet = NO_METRICS) -> Measured:
        """Compute the score and the task's measures of each sample, and `metrics` of all."""
        outputs = self.logits(params, batch.x)
        task = self.task
        confusion = count_confusion(task.kind, outputs, batch.y)
        figures = metrics.measure(outputs, batch.y)
        return Measured(task.scores(outputs, batch.y), task.measure(outputs, batch.y), confusion, (figures,))

    def state_dict(self, params: Tensor) -> dict[str, Tensor]:
        """Return the whole model as a `state_dict` of its module, frozen tensors included, for export."""
        trainable, buffers = self._parts(params)
        views = {**self._trainable.views(trainable), **self._buffers.views(buffers)}
        saved = self._eval_module.state_dict().keys()
        views |= {name: tensor for name, tensor in self.frozen.items() if name in saved}
        return {name: view.clone() for name, view in views.items()}

    def _of_role(self, tensors: Iterable[tuple[str, Tensor]], *roles: ParameterRole) -> Iterable[tuple[str, Tensor]]:
        """Return the tensors of these roles, by role."""
        named = list(tensors)
        return [(name, tensor) for role in roles for name, tensor in named if self.roles[name] == role]

    def _find_sent_part(self) -> SentPart:
        personal = [name for name, role in self.roles.items() if role == "personal"]
        before, after = (
            sum(size for name, size in zip(part.names, part.sizes, strict=True) if name in personal)
            for part in (self._trainable, self._buffers)
        )
        length = sum(self._trainable.sizes) + sum(self._buffers.sizes)
        return SentPart(length, before, length - after)

    def _find_slice(self, name: str) -> tuple[int, int]:
        start, shape = self.layout[name]
        return start, start + shape.numel()

    def _step(
        self,
        trainable: Tensor,
        compute_gradients: Callable[[], Sequence[Tensor | None]],
        state: OptimiserState,
        step_scale: float,
    ) -> None:
        """Take one step in place; its gradients are freed before the next one."""
        for (start, stop), gradient in zip(self._slices, compute_gradients(), strict=True):
            if gradient is None:
                continue
            moments = OptimiserState(state.step, state.first[start:stop], state.second[start:stop])
            _step_in_place(self.optimiser, trainable[start:stop], gradient.view(-1), moments, step_scale)

    def _gradients(
        self,
        on_loss: Callable[[Tensor], None] | None,
        trainable: Tensor,
        buffers: Tensor,
        batch: Batch,
        offset: Tensor | None,
    ) -> list[Tensor | None]:
        """Compute the gradients of the loss, tensor by tensor: one flat vector would need a second copy.

        None for a bias that batch norm cancels, which no step moves.
        """
        leaves = {name: view.detach().requires_grad_() for name, view in self._trainable.views(trainable).items()}
        outputs = self._forward(self._train_module, leaves, buffers, batch.x)
        loss = self.task.losses(outputs, batch.y, offset).mean()
        if on_loss is not None:
            on_loss(loss.detach())
        gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        return [
            None if name in self._cancelled else gradient.contiguous()
            for name, gradient in zip(leaves, gradients, strict=True)
        ]

    def _private_gradients(
        self,
        private: PrivateSteps,
        noise: np.random.Generator,
        trainable: Tensor,
        buffers: Tensor,
        batch: Batch,
        offset: Tensor | None,
    ) -> list[Tensor]:
        """Compute the mean of the samples' clipped gradients with noise, tensor by tensor."""

        def compute_loss(tensors: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            outputs = self._forward(self._train_module, tensors, buffers, x[None])
            return self.task.losses(outputs, y[None], offset).mean()

        by_sample = vmap(grad(compute_loss), in_dims=(None, 0, 0), randomness="different")
        views = self._trainable.views(trainable)
        totals = {name: torch.zeros_like(view) for name, view in views.items()}
        at_once = private.count_at_once(self.num_trainable)
        for x, y in zip(torch.split(batch.x, at_once), torch.split(batch.y, at_once), strict=True):
            for name, part in clip_and_sum(by_sample(views, x, y), private.clip).items():
                totals[name] += part
        return [private.finish(total, len(batch.y), noise) for total in totals.values()]

    def _parts(self, params: Tensor) -> tuple[Tensor, Tensor]:
        return params[: self.num_trainable].detach(), params[self.num_trainable :].detach()

    def _call(self, module: nn.Module, trainable: Tensor, buffers: Tensor, x: Tensor) -> Tensor:
        return self._forward(module, self._trainable.views(trainable), buffers, x)

    def _forward(self, module: nn.Module, trainable: dict[str, Tensor], buffers: Tensor, x: Tensor) -> Tensor:
        outputs: Tensor = functional_call(
            module, self.complete({**trainable, **self._buffers.views(buffers)}), (x,), tie_weights=False
        )
        return outputs

    def complete(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Add what a call of the module needs besides its own tensors: tied parameters, and fresh step counters."""
        counters = {name: counter.clone() for name, counter in self._counters.items()}
        return {**tensors, **{name: tensors[owner] for name, owner in self._tied.items()}, **counters}


class _Layout(NamedTuple):
    """Names and shapes of the tensors in a flat vector."""

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
        """Return the named tensors as views of `flat`."""
        parts = flat.split_with_sizes(list(self.sizes))
        return {n: part.view(shape) for n, shape, part in zip(self.names, self.shapes, parts, strict=True)}


def _step_in_place(
    optimiser: Optimiser, params: Tensor, gradient: Tensor, state: OptimiserState, step_scale: float
) -> None:
    """Take one step in chunks that fit into the cache, so that the optimiser's intermediate results are small."""
    for start in range(0, len(params), _CHUNK):
        piece = slice(start, start + _CHUNK)
        moments = OptimiserState(state.step, state.first[piece], state.second[piece])
        moved, after = optimiser.step(params[piece], gradient[piece], moments)
        params[piece] = moved if step_scale == 1 else torch.lerp(params[piece], moved, step_scale)
        state.first[piece], state.second[piece] = after.first, after.second


def _on_device(frozen: Tensor, device: torch.device) -> Tensor:
    moved = frozen.detach().to(device)
    return nn.Parameter(moved, requires_grad=False) if isinstance(frozen, nn.Parameter) else moved


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Make torch's own generators start from `seed`, and leave them as they were."""
    devices = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed(seed)
        yield


def find_tied_parameters(module: nn.Module) -> dict[str, str]:
    """Find parameters that several layers share: each further name, and the one under which it is in the vector."""
    owners: dict[int, str] = {}
    tied = {}
    for prefix, layer in module.named_modules():  # a layer that is used twice comes once
        for name, parameter in layer._parameters.items():
            if parameter is not None:
                full = f"{prefix}.{name}" if prefix else name
                owner = owners.setdefault(id(parameter), full)
                if owner != full:
                    tied[full] = owner
    return tied


def find_cancelled_biases(module: nn.Module) -> list[str]:
    """Find biases directly before a batch norm, which subtracts them again, so that their gradient is zero.

    A computed gradient would be round-off error, which Adam scales up to steps of full length: noise that differs from
    machine to machine. So these biases are not trained.
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
    return [name for name, layer in places if name in known and used[id(layer)] == 1]  # unless also used elsewhere


def _xavier_in_place(module: nn.Module) -> None:
    """Initialise every matrix and kernel with Glorot and Bengio's uniform weights and its bias with zeros."""
    for layer in module.modules():
        weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
        if isinstance(weight, nn.Parameter) and weight.dim() > 1:
            nn.init.xavier_uniform_(weight)
            if isinstance(bias, nn.Parameter):
                nn.init.zeros_(bias)
