"""Any module that is written for one server, as one tensor program for S of them (`torch.vmap`).

Batches of different sizes are padded and masked where the module treats every sample by itself. Where it does not, as
batch norm does, servers with batches of the same size are lifted together, so that nothing sees padding.
`hatdfed.fleets.stacked.trial` finds out which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from hatdfed.fleets.kernels.round_steps import RoundSteps
from hatdfed.fleets.stacked.convolutions import Form, choose_form
from hatdfed.fleets.stacked.cuda_graphs import CudaGraphs
from hatdfed.fleets.stacked.looped import LoopedModel
from hatdfed.fleets.stacked.model import BytesPerSample, ModelRows, PaddedBatches, ReadyModels, Samples
from hatdfed.server.dropout import find_dropouts
from hatdfed.server.learner import Learner
from hatdfed.server.work import WorkPlan

_JUDGED_SHARE = 32  # of the memory of a GPU, for what one evaluation keeps
_JUDGED_BYTES = 1 << 26  # elsewhere


class Lifting(NamedTuple):
    """How a lifted module is computed; the results differ by rounding errors only."""

    convolutions: Form = "grouped"
    graphs: bool = False  # steps of the same shape as one CUDA graph
    compiled: bool = False  # by `torch.compile`
    tuned: bool = False  # cuDNN times its algorithms for each shape of a convolution and takes the fastest

    @property
    def name(self) -> str:
        """Such as `lifted+each+graphs`; `lifted` alone is the default."""
        form = () if self.convolutions == "grouped" else (self.convolutions,)
        return "+".join(("lifted", *form, *(word for word in ("graphs", "compiled", "tuned") if getattr(self, word))))


class LiftedModel(LoopedModel):
    """Trains and evaluates S models of a module that `torch.vmap` can lift (`StackedModel`)."""

    kernels = "lifted"

    def __init__(
        self,
        learner: Learner,
        device: torch.device,
        sample: BytesPerSample,
        reason: str,
        *,
        pads: bool,
        lifting: Lifting = Lifting(),  # noqa: B008 (a frozen value)
    ) -> None:
        """`pads` says that the module treats every sample by itself, so that batches may be padded."""
        super().__init__(learner, device, sample, reason)
        self.lifting, self._pads = lifting, pads
        # Copies, which may remember what they like of a lifted call; nothing of it reaches the learner.
        self._train_module = self.learner.copy_module(self.learner.train_module)
        self._eval_module = self.learner.copy_module(self.learner.module)
        self._dropouts = find_dropouts(self._train_module)
        for module in (self._train_module, self._eval_module):
            choose_form(module, lifting.convolutions)
        self._lifted_loss = torch.vmap(self._loss)
        self._lifted_evaluation = torch.vmap(self._evaluate)
        self._lifted_evaluation_of_shared = torch.vmap(self._evaluate, in_dims=(0, None))
        if lifting.compiled:
            self._lifted_loss = torch.compile(self._lifted_loss)
            # Only validation has the same shapes in every round, and only there have all servers the same samples.
            self._lifted_evaluation_of_shared = torch.compile(self._lifted_evaluation_of_shared)
        self._graphs = CudaGraphs() if lifting.graphs and device.type == "cuda" else None

    @property
    def graph_failure(self) -> str | None:
        """Why a step could not be made a CUDA graph, if that was tried."""
        return None if self._graphs is None else self._graphs.failure

    def fit(
        self,
        models: ModelRows,
        pool: Samples,
        plans: Sequence[WorkPlan],
        scale: NDArray[np.float64],
        offsets: Tensor,
    ) -> Tensor:  # -> [S]
        """All steps of a round, in place."""
        todo = PaddedBatches.of(plans, self._device)
        seeds = torch.tensor([plan.seed for plan in plans], dtype=torch.int64).to(self._device, non_blocking=True)
        steps = RoundSteps(self.learner.optimiser, models, todo.sizes, scale)
        losses = models.params.new_zeros(len(plans))  # [S] summed over steps
        with self._operations():
            for step, index in enumerate(todo.indices):
                counts = todo.counts[step]
                for dropout in self._dropouts:
                    dropout.step = step
                gradients = self._empty_gradients(models.params)
                for rows, width in self._groups(todo.sizes[step], index.shape[1]):
                    chosen = index[rows, :width]
                    batch = _Batch(pool.x[chosen], pool.y[chosen], counts[rows], offsets[rows], seeds[rows])
                    if self._graphs is not None and self._pads:
                        losses += self._replay_gradients(self._graphs, models.params, batch, gradients)
                    else:
                        losses[rows] += self._add_gradients(models.params, rows, batch, gradients)
                steps.take(step, gradients, (counts > 0).float())
        np.add(models.steps, todo.num_steps, out=models.steps)
        return todo.average(losses)

    def ready(self, params: Tensor) -> ReadyModels:  # [S, M]
        """The models as they are; the many samples of an evaluation keep a CPU busy with one model at a time."""
        return super().ready(params) if self._device.type == "cpu" else LiftedModels(self, params)

    @torch.no_grad()
    def logits(self, params: Tensor, x: Tensor) -> Tensor:  # [S, M], [S or 1, B, …] -> [S, B, …]
        """What the models answer, as many samples at once as memory is for."""
        at_once = max(1, self._judged_bytes() // max(1, self.bytes_per_sample.asked * len(params)))
        with self._operations():
            return torch.cat([self._answer(params, part) for part in torch.split(x, at_once, dim=1)], dim=1)

    def views(self, params: Tensor) -> dict[str, Tensor]:  # [S, M] -> [S, *shape] each
        """The tensors of the models by name, in the places where they lie."""
        return {
            name: params[:, start : start + shape.numel()].view(len(params), *shape)
            for name, (start, shape) in self.learner.layout.items()
        }

    def _groups(self, sizes: NDArray[np.int64], width: int) -> Iterator[tuple[slice | Tensor, int]]:
        """Rows that are lifted together, and how wide their batches are."""
        if self._pads:
            yield slice(None), width
            return
        for size in np.unique(sizes[sizes > 0]):
            rows = np.flatnonzero(sizes == size)
            whole = len(rows) == len(sizes)
            yield slice(None) if whole else torch.from_numpy(rows).to(self._device, non_blocking=True), int(size)

    def _empty_gradients(self, params: Tensor) -> dict[int, Tensor]:
        places = [self.learner.layout[name] for name in self.learner.moved]
        return {start: params.new_zeros(len(params), *shape) for start, shape in places}

    def _answer(self, params: Tensor, x: Tensor) -> Tensor:  # [S, M], [S or 1, B, …] -> [S, B, …]
        """Outputs for samples that are asked at once."""

        def compute(params: Tensor, x: Tensor) -> list[Tensor]:
            if len(x) == 1 and len(params) > 1:
                return [self._lifted_evaluation_of_shared(self.views(params), x[0])]
            return [self._lifted_evaluation(self.views(params), x)]

        if self._graphs is None:
            return compute(params, x)[0]
        return self._graphs.call("evaluation", compute, (params, x))[0].clone()

    def _replay_gradients(
        self, graphs: CudaGraphs, params: Tensor, batch: _Batch, gradients: dict[int, Tensor]
    ) -> Tensor:
        """`_add_gradients` of all servers as a CUDA graph, where these shapes have come before."""

        def compute(params: Tensor, *batch: Tensor) -> list[Tensor]:
            made = self._empty_gradients(params)
            losses = self._add_gradients(params, slice(None), _Batch(*batch), made)
            return [losses, params, *made.values()]

        step = tuple(dropout.step for dropout in self._dropouts)
        losses, after, *made = graphs.call(("gradients", step), compute, (params, *batch))
        if after is not params:
            params[:, self.learner.num_trainable :] = after[:, self.learner.num_trainable :]
        gradients.update(zip(gradients, made, strict=True))
        return losses

    def _add_gradients(
        self, params: Tensor, rows: slice | Tensor, batch: _Batch, gradients: Mapping[int, Tensor]
    ) -> Tensor:
        """Put the gradients of some servers in their places; their buffers are those after the step. Returns losses."""
        layout, mine = self.learner.layout, params[rows]
        tensors = self.views(mine)
        leaves = {name: tensors[name].detach().requires_grad_() for name in self.learner.moved}
        # Copies without gaps: batch norm writes into its statistics, and what vmap writes into gapped ones is lost.
        buffers = {
            name: tensors[name].clone(memory_format=torch.contiguous_format)
            for name, (start, _) in layout.items()
            if start >= self.learner.num_trainable
        }
        losses = self._lifted_loss({**tensors, **buffers, **leaves}, *batch)
        found = torch.autograd.grad(losses.sum(), list(leaves.values()), materialize_grads=True)
        for name, gradient in zip(leaves, found, strict=True):
            gradients[layout[name][0]][rows] = gradient
        with torch.no_grad():  # a padded server without a batch has seen nothing
            for name, after in buffers.items():
                start, shape = layout[name]
                place = slice(start, start + shape.numel())
                written = after.reshape(len(after), -1)
                params[rows, place] = torch.where(batch.counts[:, None] > 0, written, mine[:, place])
        return losses.detach()

    def _loss(
        self, tensors: Mapping[str, Tensor], x: Tensor, y: Tensor, count: Tensor, offset: Tensor, seed: Tensor
    ) -> Tensor:
        """The mean loss of one server's batch, of which `count` samples are there."""
        for dropout in self._dropouts:
            dropout.seed = seed
        outputs = functional_call(self._train_module, self.learner.complete(tensors), (x,), tie_weights=False)
        losses = self.learner.task.losses(outputs, y, offset)
        is_there = torch.arange(len(x), device=x.device) < count
        return torch.where(is_there, losses, 0.0).sum() / count.clamp(min=1)

    def _evaluate(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        outputs: Tensor = functional_call(self._eval_module, self.learner.complete(tensors), (x,), tie_weights=False)
        return outputs

    @contextmanager
    def _operations(self) -> Iterator[None]:
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = before or self.lifting.tuned
        try:
            with liftable_operations():
                yield
        finally:
            torch.backends.cudnn.benchmark = before

    def _judged_bytes(self) -> int:
        if self._device.type != "cuda":
            return _JUDGED_BYTES
        return torch.cuda.get_device_properties(self._device).total_memory // _JUDGED_SHARE


class LiftedModels(NamedTuple):
    """S models, evaluated at once."""

    model: LiftedModel
    params: Tensor  # [S, M]

    def rows(self, servers: slice | Tensor) -> LiftedModels:
        """Some of the models."""
        return self._replace(params=self.params[servers])

    def logits(self, x: Tensor, *, exact: bool = True) -> Tensor:
        """[S or 1, B, …] -> [S, B, …]."""
        return self.model.logits(self.params, x)


class _Batch(NamedTuple):
    """What S servers train on in one step."""

    x: Tensor  # [S, B, …]
    y: Tensor  # [S, B, …]
    counts: Tensor  # [S] how many of the B are there
    offsets: Tensor  # [S, classes]
    seeds: Tensor  # [S]


@contextmanager
def liftable_operations() -> Iterator[None]:
    """Attention from products and softmax, the form that can be lifted and trained on every device.

    Torch's fused attention for CPUs and that of its encoders have no rule for vmap. Those for CUDA have one for the way
    forward, but leave out what the way back needs unless a tensor requires a gradient, which none does inside vmap.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, before)
        yield
