"""A checkpoint whose arrays do not fit the run is refused in one sentence."""

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from tests.small_runs import SMALL

from hatdfed.errors import RunFolderError
from hatdfed.runs.calls import resume, run
from hatdfed.setup.layers import resolve


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(resolve({**SMALL, "method": "rnd"}), out=folder)
    with safe_open(folder / "checkpoint.safetensors", framework="numpy") as file:
        return folder, {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


@pytest.mark.parametrize("name", ["0.params", "1.first", "2.second", "0.codec_memory", "1.scalars"])
@pytest.mark.parametrize("found", [None, np.zeros(()), np.zeros((1,)), np.zeros((2, 3)), np.zeros(1, dtype=bool)])
def test_an_array_that_does_not_fit_is_named(played, name, found):
    folder, arrays, metadata = played
    broken = {key: array for key, array in arrays.items() if key != name} | ({} if found is None else {name: found})
    save_file(broken, folder / "checkpoint.safetensors", metadata=metadata)
    with pytest.raises(RunFolderError, match=rf"does not fit this run \({name} is .*\)\. Start it again") as caught:
        resume(folder, {"rounds": 5})
    assert "\n" not in str(caught.value)


def test_the_right_arrays_go_on(played):
    folder, arrays, metadata = played
    save_file(arrays, folder / "checkpoint.safetensors", metadata=metadata)
    assert resume(folder, {"rounds": 5}).summary["rounds"] == 5
