"""A run does not depend on which others share its batch: to the last bit on a CPU, with every kind of kernel.

That is why a sweep that was killed, and whose runs go on in other batches, comes to the same table.
"""

import numpy as np
import pytest
from safetensors.numpy import load_file

from hatdfed.runs.play import Job, play
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.layers import resolve

CPU = Placement("stacked", "cpu")
SETTINGS = [
    {"method": "hat-dfed", "seed": 0},
    {"method": "full", "seed": 1, "device_online_probability": 0.9},
    {"method": "hat-dfed-plus", "seed": 2, "device_online_probability": 0.2},
    {"method": "sgp", "seed": 3},
]


def end(folder):
    return {
        name: value for name, value in load_file(folder / "checkpoint.safetensors").items() if value.dtype.kind == "f"
    }


@pytest.mark.parametrize("native", ["1", "0"])
def test_a_run_ends_with_the_same_bits_in_any_company(tmp_path, monkeypatch, native):
    monkeypatch.setenv("HATDFED_NATIVE", native)
    configs = [resolve({"dataset": "digits", "rounds": 4, "servers": 4, **settings}) for settings in SETTINGS]
    play([Job(config, tmp_path / f"together-{config.seed}") for config in configs], CPU)
    for config in configs:
        play([Job(config, tmp_path / f"alone-{config.seed}")], CPU)
        alone, together = (end(tmp_path / f"{how}-{config.seed}") for how in ("alone", "together"))
        assert alone.keys() == together.keys()
        assert alone, "nothing to compare"
        for name in alone:
            np.testing.assert_array_equal(alone[name], together[name], err_msg=f"{config.method} {name}")
