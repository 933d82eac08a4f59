"""A round that fails at an edge: training has overwritten the optimiser's moments, and the disk gives them back."""

import pytest
import torch
from tests.deploy.deployment import Deployment, settings


async def failed_round(folder, t):
    """The state of an edge before and after round t failed there, what its disk has then, and the run's summary."""
    async with Deployment(folder, settings("d-psgd")) as deployment:
        edge, *_ = await deployment.start_edges(1)
        runner, seen = edge._handler.runner, []
        exchange_models, recover = runner._exchange_models, runner._recover

        async def fail(order, until):
            if order.round != t or seen:
                return await exchange_models(order, until)
            raise OSError("as if")

        async def noted():
            spent = runner.server.optimiser.first.clone()
            await recover()
            step, first, _ = runner.server.optimiser
            seen.append((spent, runner.server.params, step, first.clone(), edge._store.load()))  # the next round spends

        runner._exchange_models, runner._recover = fail, noted
        for number in (1, 2):
            deployment.start_edge(f"edge-{number}")
        summary = await deployment.run
        return *seen[0], summary


@pytest.mark.parametrize("t", [0, 2])
def test_an_edge_whose_round_failed_is_as_it_was_before(play, tmp_path, one_thread, t):
    spent, params, step, first, kept, summary = play(failed_round(tmp_path, t))
    if t == 0:
        assert kept is None
        assert step == 0
        assert not first.any()
    else:
        assert kept.round == t
        assert torch.equal(params, kept.server.params)
        assert torch.equal(first, kept.server.optimiser.first)
        assert step == kept.server.optimiser.step > 0
    assert not torch.equal(spent, first)
    assert summary["rounds"] == 4
