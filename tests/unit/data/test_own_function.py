import sys

import numpy as np
import pytest
import torch
from tests.unit.data.own_files import SHAPE, contents, open_source, picture, trained

from hatdfed.core.effort import ServerEffort
from hatdfed.data.own.source import SlowMachine
from hatdfed.errors import ConfigError, DataError
from hatdfed.server.work import Batch, Work

MODULE = """
import numpy as np

asked = []

def pictures(numbers):
    numbers = list(numbers)
    x = [np.random.default_rng(n).integers(0, 256, (1, 8, 8), dtype=np.uint8) for n in numbers]
    return np.array(x).reshape(-1, 1, 8, 8), np.array([n % 3 for n in numbers], dtype=np.int64)

def camera(t):
    asked.append(t)
    return pictures(range(20)) if t == -1 else pictures(range(100 * t, 100 * t + 5)) if t % 2 else None

def stumbling(t):
    if t == 1:
        raise RuntimeError("no light")
    if t == 2:
        return np.zeros((3, 4, 4)), np.zeros(3, dtype=int)
    return pictures(range(20)) if t == -1 else None

def broken(t):
    raise RuntimeError("no light")

def odd(t):
    return 7

def many(t, u):
    return None

def failing():
    raise RuntimeError("no light")

number = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "own_camera.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_camera", None)


@pytest.mark.usefixtures("module")
def test_a_function_of_the_round_brings_new_images():
    source = open_source("own_camera:camera", fresh_only=True)
    rounds = [source.work(t) for t in range(4)]
    assert [work.devices_online for work in rounds] == [1, 1, 0, 1]
    assert source.work(3) is rounds[3]
    assert sys.modules["own_camera"].asked == [-1, 0, 1, 2, 3]
    held_out = set(contents(source.validation))
    new = {picture(number).tobytes() for number in range(300, 305)}
    assert new - held_out <= trained(rounds[3])


@pytest.mark.usefixtures("module")
def test_a_function_that_fails_in_a_round_brings_nothing_and_is_told_once():
    warned = []
    source = open_source("own_camera:stumbling", warned=warned)
    assert [source.work(t).devices_online for t in range(4)] == [1, 0, 0, 0]
    assert source.work(1).num_samples == 12
    assert len(warned) == 1
    assert "own_camera:stumbling failed for round 1 (RuntimeError: no light). Fix it. The round goes on" in warned[0]


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("broken", r"own_camera:broken failed for round -1 \(RuntimeError: no light\). Fix it"),
        ("odd", r"own_camera:odd failed for round -1 \(TypeError"),
        ("failing", r"own_camera:failing failed \(RuntimeError: no light\). Fix it"),
    ],
)
def test_a_function_that_fails_at_the_start_is_refused(name, sentence):
    with pytest.raises(DataError, match=sentence):
        open_source(f"own_camera:{name}")


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ("own_camera:many", r"own_camera:many takes \(t, u\), but must be function\(t\) or function\(\)"),
        ("own_camera:number", r"own_camera:number is 3, but must be a function: function\(t\) or function\(\)"),
        ("own_camera:missing", "own_camera:missing is None, but must be a function"),
        ("no_such_module:f", r"cannot be imported \(ModuleNotFoundError: .* Install its package in this environment"),
    ],
)
def test_names_of_no_function_are_refused(where, sentence):
    with pytest.raises(ConfigError, match=sentence):
        open_source(where)


def test_nothing_is_imported_for_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "own.npz", x=np.stack([picture(n) for n in range(20)]), y=np.zeros(20, dtype=int))
    before = set(sys.modules)
    open_source("own.npz").work(0)
    assert "own" not in set(sys.modules) - before


def batch(count=2, shape=SHAPE):
    return Batch(torch.zeros(count, *shape), torch.zeros(count, dtype=torch.long))


class Source:
    def __init__(self, validation=None, work=None):
        self.validation = batch(4) if validation is None else validation
        self.made = Work((batch(), batch()), 2, 1, batch(1), self.validation, seed=0) if work is None else work

    def work(self, t):
        return self.made


def given(monkeypatch, source):
    from tests.unit.data import own_files

    monkeypatch.setattr(own_files, "source", lambda: source, raising=False)
    return "tests.unit.data.own_files:source"


def test_a_source_of_ones_own_claims_no_more_than_others_accept(monkeypatch):
    source = Source()
    source.made = source.made._replace(num_samples=10**6, devices_online=10**6)
    work = open_source(given(monkeypatch, source)).work(5)
    assert (work.num_samples, work.devices_online) == (12, 30)
    assert work.batches is source.made.batches


def test_a_source_of_ones_own_is_used_as_it_is(monkeypatch):
    source = Source()
    where = given(monkeypatch, source)
    assert open_source(where).work(5) is source.made
    assert open_source(where).validation is source.validation
    slow = open_source(where, work_share=0.5)
    assert isinstance(slow, SlowMachine)
    assert len(slow.work(0).batches) == 1
    assert slow.validation is source.validation


def test_something_else_than_a_source_is_refused(monkeypatch):
    with pytest.raises(
        ConfigError, match=r"returned \(1, 2\), but must return an object with validation and work\(t\)"
    ):
        open_source(given(monkeypatch, (1, 2)))


@pytest.mark.parametrize(
    ("validation", "sentence"),
    [
        ((1, 2), "returned tuple for validation, but must return a Batch of samples of 1×8×8 with a target each"),
        (batch(2, (1, 4, 4)), r"returned a Batch of shape \[2, 1, 4, 4\] for validation"),
        (batch(0), "has no image in its validation. At least one is needed"),
    ],
)
def test_validation_that_does_not_fit_is_refused(monkeypatch, validation, sentence):
    with pytest.raises(DataError, match=sentence):
        open_source(given(monkeypatch, Source(validation=validation)))


def test_work_that_does_not_fit_is_refused(monkeypatch):
    with pytest.raises(DataError, match="returned int for round 3, but must return a hatdfed Work"):
        open_source(given(monkeypatch, Source(work=7))).work(3)
    wrong = Work((batch(2, (1, 4, 4)),), 2, 1, batch(), batch(), seed=0)
    with pytest.raises(DataError, match=r"shape \[2, 1, 4, 4\] for round 3, .* samples of 1×8×8"):
        open_source(given(monkeypatch, Source(work=wrong))).work(3)


def test_a_source_of_ones_own_trains_nothing_while_its_server_rests(monkeypatch):
    source = Source()
    opened = open_source(given(monkeypatch, source))
    resting = opened.work(5, ServerEffort(0, asks=False))
    assert (len(resting.batches), resting.num_samples, resting.devices_online, resting.volume) == (0, 0, 0, 2)
    assert opened.work(5, ServerEffort(7, asks=True)) is source.made
