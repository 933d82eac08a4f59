"""On a GPU the form of a lifted network is chosen by time; here the times are made up, or those of a CPU."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from hatdfed.fleets.stacked import choose_model as choosing
from hatdfed.fleets.stacked import cuda_graphs
from hatdfed.fleets.stacked.cuda_graphs import CudaGraphs
from hatdfed.fleets.stacked.lifted import LiftedModel, Lifting
from hatdfed.fleets.stacked.model import BytesPerSample, ModelRows
from hatdfed.fleets.stacked.step_timer import Load, StepTimer
from hatdfed.fleets.stacked.timed_choice import TimedChoice, Timing, find_fastest
from hatdfed.fleets.stacked.trial import Memory, Trial
from hatdfed.server.learner import Learner
from hatdfed.server.networks import NETWORKS
from hatdfed.server.optimisers import Adam
from hatdfed.server.work import Batch, WorkPlan

CPU = torch.device("cpu")
POOL = Batch(torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 10)
SAMPLE = BytesPerSample(100, 1000, 100, 100)
LENET = partial(NETWORKS["lenet-group-norm"], (1, 8, 8), 10)


class Machine:
    """A device on which every form takes so many seconds for a server, and time passes only by measuring."""

    def __init__(self, looped=0.01, **seconds):
        self.seconds = {"looped": looped, **{name.replace("_with_", "+"): value for name, value in seconds.items()}}
        self.now, self.asked = 0.0, []

    def measure(self, lifting, servers):
        name = "looped" if lifting is None else lifting.name
        self.asked.append((name, servers))
        seconds = self.seconds.get(name, 0.02)
        if isinstance(seconds, Exception):
            raise seconds
        self.now += 4 * servers * seconds
        return Timing(servers * seconds, len(name))

    def choose(self, servers=64, *, convolves=False):
        return find_fastest(self.measure, servers, convolves=convolves, clock=lambda: self.now)


def test_graphs_are_taken_where_they_are_faster():
    chosen = Machine(lifted=0.001, lifted_with_graphs=0.0005).choose()
    assert chosen == TimedChoice(
        Lifting(graphs=True), 13, "a step of 64 servers took lifted+graphs 32 ms, lifted 64 ms, looped 640 ms"
    )


def test_graphs_that_gain_next_to_nothing_are_left():
    assert Machine(lifted=0.001, lifted_with_graphs=0.00097).choose().lifting == Lifting()


def test_a_network_that_is_faster_looped_over_is_looped_over():
    chosen = Machine(lifted=0.02, lifted_with_graphs=0.02).choose()
    assert chosen.lifting is None
    assert chosen.reason == "a step of 8 servers took looped 80 ms, lifted 160 ms, lifted+graphs 160 ms"


def test_the_loop_is_timed_with_few_servers():
    machine = Machine(lifted=0.001, lifted_with_graphs=0.001)
    machine.choose(50)
    assert machine.asked[:4] == [("lifted", servers) for servers in (8, 16, 32, 50)]
    assert machine.asked[4:] == [("looped", 2), ("lifted+graphs", 50)]


def test_a_single_server_is_timed_as_it_is():
    machine = Machine(lifted=0.001)
    machine.choose(1)
    assert set(machine.asked) == {("lifted", 1), ("looped", 1), ("lifted+graphs", 1)}


def test_steps_that_keep_the_device_busy_are_timed_with_few_servers():
    machine = Machine(looped=0.02, lifted=0.01, lifted_with_graphs=0.011)
    machine.choose(64)
    assert machine.asked[:3] == [("lifted", 8), ("lifted", 16), ("looped", 2)]


def test_forms_of_convolutions_are_tried_until_one_is_clearly_ahead():
    slow = Machine(lifted=0.005, lifted_with_graphs=0.005, lifted_with_each_with_graphs=0.002)
    assert slow.choose(convolves=True).lifting == Lifting("each", graphs=True)
    assert ("lifted+unfolded+graphs", 32) in slow.asked
    fast = Machine(lifted=0.0005, lifted_with_graphs=0.0004)
    assert fast.choose(convolves=True).lifting == Lifting(graphs=True)
    assert fast.asked[-1] == ("lifted+graphs", 64)
    half = Machine(lifted=0.005, lifted_with_graphs=0.005, lifted_with_channels_last_with_graphs=0.0005)
    assert half.choose(convolves=True).lifting == Lifting("channels_last", graphs=True)
    assert half.asked[-1] == ("lifted+channels_last+graphs", 32)


def test_the_time_for_all_of_it_is_bounded():
    machine = Machine(looped=1.0, lifted=0.2, lifted_with_graphs=0.01)
    assert machine.choose().lifting == Lifting()
    assert machine.asked == [("lifted", 8), ("looped", 2)]


def test_what_fails_is_left_out():
    machine = Machine(lifted=0.001, lifted_with_graphs=RuntimeError("not permitted when stream is capturing"))
    chosen = machine.choose()
    assert chosen.lifting == Lifting()
    assert "graphs" not in chosen.reason
    chosen = Machine(lifted=RuntimeError("out of memory\nmore")).choose()
    assert chosen == TimedChoice(None, 0, "it fails on this device when it is lifted (out of memory)")


def test_steps_are_timed_and_leave_the_learner_alone():
    learner = Learner(LENET, Adam())
    before = learner.init(0)
    timer = StepTimer(learner, POOL, CPU, Load(3, 7), SAMPLE, pads=True, channels_last=True)
    assert timer.most_servers() == 3
    for lifting in (None, Lifting(), Lifting("each", graphs=True)):
        assert timer.measure(lifting, 2).seconds > 0
    assert torch.equal(learner.init(0), before)
    assert torch.is_grad_enabled()


def test_a_graph_that_cannot_be_captured_is_no_form(monkeypatch):
    monkeypatch.setattr(LiftedModel, "graph_failure", "operation not permitted")
    timer = StepTimer(Learner(LENET, Adam()), POOL, CPU, Load(2, 4), SAMPLE, pads=True, channels_last=False)
    with pytest.raises(RuntimeError, match="not permitted"):
        timer.measure(Lifting(graphs=True), 2)


@pytest.mark.parametrize(
    ("found", "kernels", "training"),
    [
        (TimedChoice(Lifting(graphs=True), 5000, "timed"), "lifted", 5000),
        (TimedChoice(None, 0, "timed"), "looped", 1000),
    ],
)
def test_the_reason_has_the_times_and_the_choice_is_made_once(monkeypatch, found, kernels, training):
    asked = []
    monkeypatch.setattr(choosing, "find_fastest", lambda *_, convolves: asked.append(convolves) or found)
    monkeypatch.setattr(choosing, "_choices", {})
    learner, memory = Learner(LENET, Adam()), Memory(SAMPLE, 10.0, True)
    for _ in range(2):
        model = choosing._choose_by_time(learner, POOL, CPU, Load(), memory, Trial(True, True, "it can be lifted"))
    assert asked == [True]
    assert model.kernels == kernels
    assert model.reason == ("it can be lifted; timed" if kernels == "lifted" else "timed")
    assert model.bytes_per_sample.training == training
    if kernels == "lifted":
        assert model.lifting == Lifting(graphs=True)


class Replayed:
    """Stands for a captured graph: it reads from places of its own, and writes its results where they were before."""

    def __init__(self, compute, inputs, pool):
        self.compute, self.inputs = compute, [tensor.clone() for tensor in inputs]
        self.outputs = [tensor.detach().clone() for tensor in compute(*self.inputs)]

    def __call__(self, inputs):
        for place, tensor in zip(self.inputs, inputs, strict=True):
            place.copy_(tensor)
        for place, tensor in zip(self.outputs, self.compute(*self.inputs), strict=True):
            place.copy_(tensor.detach())
        return self.outputs


def dropping():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Dropout(0.3), nn.Tanh(), nn.Linear(20, 10))


@pytest.mark.parametrize("make", [LENET, dropping, partial(NETWORKS["vit-tiny"], (1, 8, 8), 10)])
def test_replayed_steps_and_evaluations_are_those_without_graphs(monkeypatch, make):
    monkeypatch.setattr(cuda_graphs, "_CapturedCall", Replayed)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    learner = Learner(make, Adam())
    start = torch.stack([learner.init(seed) for seed in range(3)])
    batches = [tuple(np.arange(5) + 4 * server + step for step in range(2)) for server in range(3)]
    found = []
    for graphs in (None, CudaGraphs()):
        model = LiftedModel(learner, CPU, SAMPLE, "", pads=True)
        model._graphs = graphs
        moments = (torch.zeros(3, learner.num_trainable) for _ in range(2))
        rows = ModelRows(start.clone(), *moments, np.zeros(3, np.int64))
        for turn in range(3):
            plans = [WorkPlan(each, 10, 0, each[0][:1], 7 * turn + server) for server, each in enumerate(batches)]
            losses = model.fit(rows, model.samples(POOL), plans, np.ones(3), torch.zeros(3, 10))
            answers = model.logits(rows.params, POOL.x[None])
        found.append((rows.params, rows.first, losses, answers))
    assert graphs.num_captured >= 2
    for with_graphs, without in zip(*reversed(found), strict=True):
        assert torch.equal(with_graphs, without)
