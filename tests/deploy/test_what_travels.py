"""Personal and frozen parameters in a deployment: they are on no message, and edges agree about them."""

from functools import partial

import pytest
import torch
from tests.alone import play_undisturbed
from tests.deploy.deployment import Deployment, settings
from tests.deploy.gates import Gate

from hatdfed.deploy.edge import round_mailbox
from hatdfed.deploy.edge import setup as edge_setup
from hatdfed.deploy.edge.edge import RefusedError
from hatdfed.deploy.edge.setup import make_edge_setup
from hatdfed.server.message import unpack
from hatdfed.server.program import EdgeProgram

PARAMETERS = {"personal": ["11.*", "*.running_*"], "frozen": ["0.*"]}


@pytest.fixture
def wire(monkeypatch):
    """All messages that edges receive, and the parts of models that are to stay at home."""
    messages, private = [], []
    accept, offer, unpack_model = round_mailbox.accept, EdgeProgram.offer, edge_setup.unpack_model

    def note_message(data, *arguments, **more):
        messages.append(bytes(data))
        return accept(data, *arguments, **more)

    def note_copy(data, *arguments):
        messages.append(bytes(data))
        return unpack_model(data, *arguments)

    def note_private(self, server, *arguments):
        sent = self.learner.sent
        private.extend([server.params[: sent.start].clone(), server.params[sent.stop :].clone()])
        return offer(self, server, *arguments)

    monkeypatch.setattr(round_mailbox, "accept", note_message)
    monkeypatch.setattr(edge_setup, "unpack_model", note_copy)
    monkeypatch.setattr(EdgeProgram, "offer", note_private)
    return messages, private


async def deployed(folder, config):
    async with Deployment(folder, config) as deployment:
        edges = await deployment.start_edges(config.servers)
        await deployment.run
        handlers = sorted((edge._handler for edge in edges), key=lambda handler: handler.mailbox.index)
        return torch.stack([handler.runner.server.params for handler in handlers]), handlers[0].setup.program.learner


@pytest.mark.parametrize("codec", ["float32", "int4"])
def test_a_deployment_ends_with_the_models_of_a_simulation_and_sends_only_shared_parts(
    play, tmp_path, one_thread, wire, codec
):
    config = settings(parameters=PARAMETERS, rounds=3, codec=codec)
    _, expected = play_undisturbed(config)
    models, learner = play(deployed(tmp_path, config))
    torch.testing.assert_close(models, expected, atol=1e-5, rtol=0)
    messages, private = wire
    assert messages
    for data in messages:
        assert len(data) < 4 * learner.num_params + 2048
        if codec == "float32":
            assert unpack(data).payload["model"].shape == (learner.num_params,)
        assert not any(part.numpy().tobytes() in data for part in private)
        assert not any(tensor.numpy().tobytes() in data for tensor in learner.frozen.values())


async def fourth(folder, config):
    gate = Gate(2)
    async with Deployment(folder, config) as deployment:
        await deployment.start_edges(1, make_setup=gate)
        for name in ("edge-1", "edge-2"):
            deployment.start_edge(name)
        await deployment.until(lambda: gate.is_reached(2))
        joined = deployment.start_edge("edge-3")
        await deployment.until(lambda: joined._handler is not None)
        setup = joined._handler.setup
        begun = joined._handler.runner.server.params.clone()
        donor = deployment.edges["edge-0"]._handler.runner.server.params.clone()
        gate.open()
        await deployment.run
        return setup, begun, donor


def test_a_server_that_joins_gets_the_shared_part_of_a_peers_model_and_keeps_its_own_head(
    play, tmp_path, one_thread, wire
):
    setup, begun, donor = play(fourth(tmp_path, settings(parameters=PARAMETERS, rounds=5)))
    fresh, sent = setup.program.start(setup.initial_seed).params, setup.program.learner.sent
    assert torch.equal(sent.take(begun), sent.take(donor))
    assert torch.equal(begun[: sent.start], fresh[: sent.start])
    assert not torch.equal(begun[: sent.start], donor[: sent.start])
    messages, private = wire
    assert not any(part.numpy().tobytes() in data for part in private for data in messages)


def with_other_backbone(config, index):
    """An edge whose frozen weights come from another file, so to speak."""
    setup = make_edge_setup(config, index)
    setup.program.learner.frozen["0.weight"].add_(1)
    return setup


async def one_of_another_kind(folder, config):
    async with Deployment(folder, config) as deployment:
        await deployment.start_edges(2)
        deployment.start_edge("edge-2", make_setup=with_other_backbone)
        await deployment.until(lambda: deployment.tasks["edge-2"].done())
        return deployment.tasks["edge-2"].exception()


def test_an_edge_with_other_frozen_weights_is_refused(play, tmp_path, one_thread):
    error = play(one_of_another_kind(tmp_path, settings(parameters=PARAMETERS)))
    assert isinstance(error, RefusedError)
    assert "brings another model" in str(error)


def test_edges_describe_roles_and_frozen_values_and_nothing_new_where_there_are_none():
    described = partial(make_edge_setup, index=0)
    plain = described(settings()).layout
    others = [
        described(settings(parameters=parameters)).layout
        for parameters in ({"personal": ["11.*"]}, {"frozen": ["11.*"]}, {"frozen": ["9.*"]})
    ]
    assert len({plain, *others}) == 4
    assert plain == "30b5d2ab465005b1"  # as edges of earlier versions say
