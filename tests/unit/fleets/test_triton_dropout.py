"""The GPU's masks against the plain ones: on a GPU, or anywhere in Triton's interpreter (TRITON_INTERPRET=1)."""

import os

import pytest
import torch

from hatdfed.fleets.kernels.triton.dropout import dropout_factors
from hatdfed.fleets.kernels.triton.stage import triton_available
from hatdfed.randomness import torch_seed
from hatdfed.server.dropout import make_keep_mask

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")

pytestmark = [
    pytest.mark.skipif(
        not triton_available() or not (INTERPRETED or torch.cuda.is_available()),
        reason="needs the package triton, and an NVIDIA GPU or TRITON_INTERPRET=1",
    ),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter's: numpy's integers wrap around
]


@pytest.mark.parametrize("probability", [0.25, 0.1, 0.7])
@pytest.mark.parametrize("step", [0, 1, 5000])
def test_a_gpu_drops_the_same_units(probability, step):
    seeds = torch.tensor([0, 1, 2**63 - 1, *(torch_seed(7, "dropout", t) for t in range(3))])
    place = {"step": step, "layer": 3, "batch": 9, "units": 130}
    factors = dropout_factors(seeds.to(DEVICE), **place, probability=probability).cpu()
    kept = make_keep_mask(seeds, **place, probability=probability)
    assert torch.equal(factors, kept.to(torch.float32) / (1 - probability))
