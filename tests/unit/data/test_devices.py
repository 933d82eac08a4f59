import numpy as np
import pytest
import torch

from hatdfed.core.effort import ServerEffort
from hatdfed.data.devices import LocalWork, SimulatedDevices
from hatdfed.server.work import Batch

POOL = Batch(torch.arange(800.0).view(800, 1, 1, 1), torch.arange(800))
VALIDATION = Batch(torch.zeros(5, 1, 1, 1), torch.zeros(5, dtype=torch.long))


def devices(server=0, seed=0, **settings):
    return SimulatedDevices(POOL, np.arange(800), VALIDATION, 800, LocalWork(**settings), seed, server)


def trained_on(work):
    return [set(batch.y.tolist()) for batch in work.batches]


def test_each_device_that_connects_brings_its_part():
    for t in range(30):
        work = devices().work(t)
        assert work.num_samples == 2 * work.devices_online
        assert len(set().union(*trained_on(work))) == work.num_samples


def test_devices_connect_with_their_probability():
    online = [devices(online_probability=0.3).work(t).devices_online for t in range(400)]
    assert abs(np.mean(online) - 9) < 4 * np.sqrt(30 * 0.21 / 400)


def test_every_pass_sees_the_rounds_data_once():
    work = devices(online_probability=1.0, local_passes=3, batch_size=25).work(0)
    assert [len(batch.y) for batch in work.batches] == [25, 25, 10] * 3
    passes = [set().union(*trained_on(work)[i : i + 3]) for i in (0, 3, 6)]
    assert passes[0] == passes[1] == passes[2]
    assert len(passes[0]) == 60
    assert trained_on(work)[0] != trained_on(work)[3]


def test_a_server_whose_devices_are_all_offline_trains_on_nothing_and_still_has_a_probe():
    work = devices(online_probability=0.0).work(4)
    assert not work.batches
    assert work.num_samples == work.devices_online == 0
    assert len(work.probe.y) == 16


def test_the_probe_is_part_of_the_rounds_data():
    work = devices().work(1)
    assert len(work.probe.y) == 16
    assert set(work.probe.y.tolist()) <= set().union(*trained_on(work))
    small = devices(online_probability=0.1).work(1)
    assert len(small.probe.y) == min(16, small.num_samples)


def test_a_topped_up_probe_is_always_full():
    work = devices(online_probability=0.1, probe_size=50, probe_top_up=True).work(1)
    assert len(set(work.probe.y.tolist())) == 50


def test_a_round_can_be_asked_for_again_and_in_any_order():
    late, early = devices().work(7), devices().work(2)
    again = devices().work(7)
    assert torch.equal(late.batches[0].x, again.batches[0].x)
    assert not torch.equal(late.batches[0].x[:5], early.batches[0].x[:5])


@pytest.mark.parametrize("other", [devices(server=1), devices(seed=1)])
def test_servers_and_seeds_differ(other):
    assert trained_on(devices().work(0)) != trained_on(other.work(0))


def test_dropout_differs_between_rounds_servers_and_seeds():
    seeds = {devices(server=i, seed=s).work(t).seed for i in (0, 1) for s in (0, 1) for t in (0, 1)}
    assert len(seeds) == 8


def test_a_held_out_probe_has_images_that_are_not_trained_on():
    work = LocalWork(holds_out_probe=True, probe_size=20)
    source = SimulatedDevices(POOL, np.arange(700), VALIDATION, 800, work, 0, 0, held_out=np.arange(700, 800))
    for t in range(20):
        probe = set(source.work(t).probe.y.tolist())
        assert len(probe) == 20
        assert min(probe) >= 700
        assert max(set().union(*trained_on(source.work(t)))) < 700


def test_from_the_release_on_held_out_images_are_trained_on_too():
    work = LocalWork(holds_out_probe=True, probe_size=20, release_at=10, online_probability=1.0)
    source = SimulatedDevices(POOL, np.arange(700), VALIDATION, 800, work, 0, 0, held_out=np.arange(700, 800))
    seen = [set().union(*trained_on(source.work(t))) for t in range(40)]
    assert max(set().union(*seen[:10])) < 700
    assert len(set().union(*seen[10:]) & set(range(700, 800))) > 80
    assert {len(each) for each in seen} == {60}
    assert all(min(source.work(t).probe.y.tolist()) >= 700 for t in range(40)), "the probe stays the same"
    assert int(source.label_counts_at(9).sum()) == 700
    assert int(source.label_counts_at(10).sum()) == 800
    assert source.label_counts_at(10) is source.label_counts_at(39)


def test_an_effort_says_how_many_passes_are_made_and_whether_devices_are_asked():
    source = devices(local_passes=2)
    usual, thrice = source.work(3), source.work(3, ServerEffort(3, asks=True))
    assert trained_on(thrice)[: len(usual.batches)] == trained_on(usual)
    assert len(thrice.batches) == 3 * len(usual.batches) // 2
    assert torch.equal(thrice.probe.y, usual.probe.y)
    resting = source.work(3, ServerEffort(0, asks=True))
    assert not resting.batches
    assert (resting.num_samples, resting.devices_online) == (0, usual.devices_online)
    assert resting.volume == usual.volume == usual.num_samples, "a model is worth no less after a round of rest"
    idle = source.work(3, ServerEffort(2, asks=False))
    assert not idle.batches
    assert (idle.num_samples, idle.devices_online, idle.volume) == (0, 0, usual.volume)
    assert len(idle.probe.y) == 16, "as if no device had connected"
