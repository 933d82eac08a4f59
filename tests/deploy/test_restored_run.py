"""A coordinator that is lost and restored from a backup, while its edges have played on: they go back with it."""

import asyncio
import shutil
from contextlib import closing

import pytest
import torch
from tests.alone import play_undisturbed
from tests.deploy.deployment import QUICK, Deployment, settings
from tests.deploy.gates import Gate

from hatdfed.deploy.coordinator.backup import make_backup, restore_backup
from hatdfed.deploy.edge.order_handler import is_report_of
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.runs.records.folder import RunFolder


async def lost_and_restored(folder, config, *, keep, restart_edges=False):
    """A run that is backed up in round 3 and lost in round 6, while the edges train."""
    gate = Gate(3, 6)
    async with Deployment(folder, config, secure=False) as deployment:
        await deployment.start_edges(config.servers, make_setup=gate, keep=keep)
        await deployment.until(lambda: gate.is_reached(3))
        backup = make_backup(folder / "run", folder / "backup.tar")
        gate.release(3)
        await deployment.until(lambda: gate.is_reached(6))
        await deployment.lose_coordinator()
        shutil.rmtree(folder / "run")
        if restart_edges:
            gate.open()
            for name in list(deployment.tasks):
                await deployment.kill_edge(name)
        assert restore_backup(folder / "backup.tar", folder / "run") == backup
        await deployment.start_coordinator(deployment.port)
        gate.open()
        if restart_edges:
            await deployment.start_edges(config.servers, keep=keep)
        await asyncio.wait_for(deployment.run, 30)
        whys = await asyncio.wait_for(asyncio.gather(*deployment.tasks.values()), 20)
        assert set(whys) == {"the coordinator has ended"}
        handlers = sorted((edge._handler for edge in deployment.edges.values()), key=lambda each: each.mailbox.index)
        return backup, torch.stack([handler.runner.server.params for handler in handlers])


def check_whole(folder, config):
    """Every round was played by all, every link was used, and no round waited for its end; returns the links."""
    with closing(RunFolder(folder / "run").read()) as records:
        rounds, servers, links = (records.records(table) for table in ("rounds", "servers", "links"))
    assert [row["t"] for row in rounds] == list(range(config.rounds))
    assert len(servers) == config.rounds * config.servers
    assert all(row["delivered"] for row in links)
    assert max(row["seconds"] for row in rounds) < QUICK.round_seconds / 2
    return [[(row["receiver"], row["sender"]) for row in links if row["t"] == t] for t in range(config.rounds)]


@pytest.mark.parametrize("restart_edges", [False, True], ids=["running edges", "restarted edges"])
def test_edges_that_kept_the_state_of_then_give_the_run_that_nobody_disturbed(
    play, tmp_path, one_thread, eager, restart_edges, caplog
):
    config = settings("hat-dfed", rounds=8)
    backup, models = play(lost_and_restored(tmp_path, config, keep=9, restart_edges=restart_edges))
    expected, expected_models = play_undisturbed(config)
    assert backup.round == 3
    assert "goes back from round" in caplog.text
    assert "with the model that it had then" in caplog.text
    assert check_whole(tmp_path, config) == expected
    torch.testing.assert_close(models, expected_models, atol=1e-5, rtol=0)
    assert list((tmp_path / "stores" / "edge-0").glob("after-round-3-set-aside-*/*")), "nothing is deleted"


def test_edges_without_that_state_go_on_with_their_models(play, tmp_path, one_thread, eager, caplog):
    config = settings("hat-dfed", rounds=8)
    play(lost_and_restored(tmp_path, config, keep=2))
    assert "with its present model: no older one is kept" in caplog.text
    assert check_whole(tmp_path, config)[:4] == play_undisturbed(config)[0][:4]


def order(receivers=(), senders=()):
    return pb.RoundOrder(
        round=4,
        receivers=[pb.Neighbour(index=index) for index in receivers],
        senders=[pb.Neighbour(index=index) for index in senders],
    )


def test_a_report_is_sent_again_only_for_the_links_that_it_is_of():
    report = pb.Outcome(round=4, slots=[pb.Slot(server=0), pb.Slot(server=2)], sent=[pb.Sent(receiver=1)])
    assert is_report_of(report, order(receivers=[1], senders=[2]))
    assert is_report_of(report, order(receivers=[1, 2], senders=[1, 2])), "not all links need have worked"
    assert not is_report_of(report, order(receivers=[1], senders=[1]))
    assert not is_report_of(report, order(receivers=[2], senders=[2]))


async def ready_ahead(folder):
    async with Deployment(folder, settings(), secure=False) as deployment:
        deployment.start_edge("edge-0")
        await deployment.until(lambda: deployment.active == 1)
        member = deployment.process.hub.membership.find("edge-0")
        prepared = pb.Prepared(num_params=5, bits_per_sample=5, layout="ab", message_share=1, round=7)
        await deployment.kill_edge("edge-0")
        return deployment.process.hub.mark_ready(member, prepared)


def test_an_old_edge_that_cannot_go_back_is_told_why(play, tmp_path):
    sentence = play(ready_ahead(tmp_path))
    assert sentence.startswith("edge-0 has played rounds up to 6, but this run was restored from a backup and goes on")
