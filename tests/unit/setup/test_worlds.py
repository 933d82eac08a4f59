"""Worlds: who holds which images, and how each server sees them."""

import numpy as np
import pytest
import torch

from hatdfed.core.link_loss import LinkLoss
from hatdfed.data.datasets import load_dataset
from hatdfed.data.datasets.base import Examples
from hatdfed.data.kinds import Kind, make_kinds
from hatdfed.data.partition import draw_label_skewed_shards, draw_validation_sample
from hatdfed.errors import ConfigError
from hatdfed.setup.build.world import make_pools, make_world, make_worlds
from hatdfed.setup.layers import config_members, resolve

DATASET = load_dataset("digits")
POOLS = make_pools(DATASET)
ROUNDS = 8


def settings(world=None, **more):
    fixed = {"dataset": "digits", "network": "linear", "servers": 6, "rounds": ROUNDS, "validation_images": 50}
    return resolve({"method": "rnd", **fixed, "images_per_server": 40, "world": world or {}, **more})


TWO_BY_LABELS = {"groups": 2, "differ": "labels"}
TWO_BY_INPUTS = {"groups": 2, "differ": "inputs"}
CHANGING = {**TWO_BY_LABELS, "changing": 0.5, "change_at": 0.5}
LABEL_SHIFT = make_kinds("labels", 2, 10, DATASET.train.x.shape)[1].label_shift


def shards_of(config):
    return draw_label_skewed_shards(
        DATASET.train.y, seed=config.seed, num_servers=config.servers,
        images_per_server=config.images_per_server, label_concentration=config.label_concentration,
    )  # fmt: skip


def validation_sample(config):
    chosen = draw_validation_sample(DATASET.validation.count, seed=config.seed, size=config.validation_images)
    return Examples(DATASET.validation.x[chosen], DATASET.validation.y[chosen])


def standardised(pixels):
    return (torch.tensor(np.ascontiguousarray(pixels)).float() / 255 - DATASET.mean[0]) / DATASET.std[0]


def owned(source, shard=None):
    """Images and labels of a server, in the order of its shard."""
    places = torch.from_numpy(source.shard if shard is None else shard)
    return source.pool.x[places], source.pool.y[places]


def trained_on(source, rounds=range(ROUNDS)):
    """All places in the pool that a server trains or probes on."""
    plans = [source.plan(t) for t in rounds]
    return {place for plan in plans for part in (*plan.batches, plan.probe) for place in part.tolist()}


def test_the_plain_world_is_the_data_set_and_its_label_skewed_shards():
    config = settings()
    world = make_world(config, DATASET)
    for source, shard in zip(world.sources, shards_of(config), strict=True):
        np.testing.assert_array_equal(source.shard, shard)
        assert source.change is None
        assert source.pool is world.sources[0].pool
    pool = world.sources[0].pool
    assert torch.equal(pool.x, POOLS.train.x)
    assert torch.equal(pool.y, POOLS.train.y)
    assert world.test.kind_of is None
    assert world.liars is None
    assert world.loss is None
    assert world.members.is_sound.all()


def test_in_the_plain_world_all_servers_share_one_validation_sample():
    config = settings()
    sources = make_world(config, DATASET).sources
    sample = validation_sample(config)
    assert all(source.validation_at(t) is sources[0].validation for source in sources for t in (0, ROUNDS))
    assert torch.equal(sources[0].validation.x, standardised(sample.x))
    assert sources[0].validation.y.tolist() == sample.y.tolist()


def test_what_a_group_is_called_does_not_change_whose_images_are_whose():
    config = settings(TWO_BY_LABELS)
    for source, shard in zip(make_world(config, DATASET).sources, shards_of(config), strict=True):
        assert torch.equal(owned(source)[0], POOLS.train.x[torch.from_numpy(shard)])


def test_where_labels_differ_those_of_the_second_group_are_shifted_everywhere_but_in_common_test_data():
    config = settings(TWO_BY_LABELS)
    world, group = make_world(config, DATASET), config_members(config).group
    assert set(group.tolist()) == {0, 1}
    assert LABEL_SHIFT
    for i, (source, shard) in enumerate(zip(world.sources, shards_of(config), strict=True)):
        shift = LABEL_SHIFT * int(group[i])
        assert owned(source)[1].tolist() == ((DATASET.train.y[shard] + shift) % 10).tolist()
        assert source.validation.y.tolist() == ((validation_sample(config).y + shift) % 10).tolist()
        assert world.test.own_data(i).y.tolist() == ((DATASET.test.y + shift) % 10).tolist()
        assert torch.equal(world.test.own_data(i).x, POOLS.test.x)
        counts = np.bincount((DATASET.train.y[shard] + shift) % 10, minlength=10)
        assert source.label_counts_at(0).tolist() == counts.tolist()
        np.testing.assert_allclose(world.test.label_shares[i], counts / counts.sum())
    assert torch.equal(world.test.data.y, POOLS.test.y)


def test_where_inputs_differ_the_images_of_the_second_group_are_upside_down():
    config = settings(TWO_BY_INPUTS)
    world, group = make_world(config, DATASET), config_members(config).group
    for i, (source, shard) in enumerate(zip(world.sources, shards_of(config), strict=True)):
        turn = (lambda pixels: pixels[..., ::-1, ::-1]) if group[i] else (lambda pixels: pixels)
        images, labels = owned(source)
        torch.testing.assert_close(images, standardised(turn(DATASET.train.x[shard])))
        assert labels.tolist() == DATASET.train.y[shard].tolist()
        torch.testing.assert_close(source.validation.x, standardised(turn(validation_sample(config).x)))
        torch.testing.assert_close(world.test.own_data(i).x, standardised(turn(DATASET.test.x)))
    assert torch.equal(world.test.data.x, POOLS.test.x)


def test_servers_of_one_group_share_what_they_are_measured_on():
    config = settings(TWO_BY_INPUTS)
    world, group = make_world(config, DATASET), config_members(config).group
    for i, source in enumerate(world.sources):
        for j, other in enumerate(world.sources):
            assert (source.validation.x is other.validation.x) == (group[i] == group[j])
    assert len(world.test.kinds) == 1


def test_those_who_change_have_other_labels_from_the_change_on_and_not_before():
    config = settings(CHANGING)
    world, members = make_world(config, DATASET), config_members(config)
    movers = np.flatnonzero(members.group != members.last_group)
    assert len(movers) == 3
    for i, source in enumerate(world.sources):
        assert (source.change is not None) == (i in movers)
    for i in movers:
        source, shard = world.sources[i], shards_of(config)[i]
        for t in range(ROUNDS):
            shift = LABEL_SHIFT * int(members.last_group[i] if t >= ROUNDS // 2 else members.group[i])
            counts = np.bincount((DATASET.train.y[shard] + shift) % 10, minlength=10)
            assert source.label_counts_at(t).tolist() == counts.tolist()
            assert source.work(t).label_counts.tolist() == counts.tolist()
            expected = (validation_sample(config).y + shift) % 10
            assert source.validation_at(t).y.tolist() == expected.tolist()
            assert source.work(t).validation is source.validation_at(t)
        shift = LABEL_SHIFT * int(members.last_group[i])
        assert world.test.own_data(i).y.tolist() == ((DATASET.test.y + shift) % 10).tolist()


def test_those_who_change_train_on_images_as_their_new_group_sees_them():
    config = settings({**TWO_BY_INPUTS, "changing": 1.0, "change_at": 0.5}, device_online_probability=1.0)
    source = make_world(config, DATASET).sources[0]
    before = {place: n for n, place in enumerate(source.shard.tolist())}
    after = {place: n for n, place in enumerate(source.change.shard.tolist())}
    assert not before.keys() & after.keys()
    assert trained_on(source, range(4)) <= before.keys()
    assert trained_on(source, range(4, ROUNDS)) <= after.keys()
    same = owned(source, source.change.shard)[0].flip(2, 3)
    torch.testing.assert_close(same, owned(source)[0])


def test_a_change_in_a_run_that_is_extended_stays_where_it_was():
    moved = [
        make_world(settings(CHANGING, rounds=rounds, horizon=ROUNDS), DATASET).sources
        for rounds in (ROUNDS, 2 * ROUNDS)
    ]
    times = [[source.change.t for source in sources if source.change] for sources in moved]
    assert times[0] == times[1] == [ROUNDS // 2] * 3


def test_a_change_after_the_last_round_is_none():
    config = settings({**CHANGING, "change_at": 1.0})
    world, members = make_world(config, DATASET), config_members(config)
    for i in range(config.servers):
        shift = LABEL_SHIFT * int(members.group[i])
        assert world.test.own_data(i).y.tolist() == ((DATASET.test.y + shift) % 10).tolist()


def test_with_feedback_from_their_own_images_servers_never_train_on_what_they_are_measured_on():
    config = settings(feedback="own", samples_per_round=30, device_online_probability=0.8)
    for source, shard in zip(make_world(config, DATASET).sources, shards_of(config), strict=True):
        assert len(source.validation.y) == 8
        kept_back = np.setdiff1d(shard, source.shard)
        assert len(kept_back) == 8
        assert not trained_on(source) & set(kept_back.tolist())
        assert len(trained_on(source)) == 32  # all others come in their turn
        held = {image.numpy().tobytes() for image in source.validation.x}
        assert held == {image.numpy().tobytes() for image in POOLS.train.x[torch.from_numpy(kept_back)]}


@pytest.mark.parametrize("held_out", [{"feedback": "own"}, {"probe_from": "held-out"}])
def test_a_server_that_would_have_nothing_left_to_train_on_is_refused(held_out):
    with pytest.raises(ConfigError, match=f"{next(iter(held_out))} holds out samples .* server 0 owns 1, which leaves"):
        make_world(settings(**held_out, images_per_server=1), DATASET)
    assert make_world(settings(**held_out, images_per_server=2), DATASET).sources


def test_own_feedback_is_seen_as_the_server_sees_its_data_before_and_after_a_change():
    config = settings({**CHANGING, "changing": 1.0}, feedback="own")
    world, members = make_world(config, DATASET), config_members(config)
    for i, (source, shard) in enumerate(zip(world.sources, shards_of(config), strict=True)):
        for t, group in ((0, members.group[i]), (ROUNDS // 2, members.last_group[i])):
            expected = (DATASET.train.y[shard[:8]] + LABEL_SHIFT * int(group)) % 10
            assert source.validation_at(t).y.tolist() == expected.tolist()


def test_a_held_out_probe_follows_a_change_and_is_never_trained_on():
    config = settings({**CHANGING, "changing": 1.0}, probe_from="held-out", probe_size=5)
    world, members = make_world(config, DATASET), config_members(config)
    for i, (source, shard) in enumerate(zip(world.sources, shards_of(config), strict=True)):
        for t, group in ((0, members.group[i]), (ROUNDS // 2, members.last_group[i])):
            expected = (DATASET.train.y[shard[:10]] + LABEL_SHIFT * int(group)) % 10
            work = source.plan(t)
            assert len(work.probe) == 5
            assert not set(work.probe.tolist()) & set(np.concatenate([[-1], *work.batches]).tolist())
            assert set(source.pool.y[torch.from_numpy(work.probe)].tolist()) <= set(expected.tolist())


@pytest.mark.parametrize("settled", [{"feedback": "own"}, {"probe_release": 1.0}, {"probe_from": "round"}])
def test_held_out_images_are_released_late_in_a_run_unless_servers_are_measured_on_them(settled):
    chosen = {"probe_from": "held-out", "probe_release": 0.75}
    last = ROUNDS * 3 // 4
    assert {each.settings.release_at for each in make_world(settings(**chosen), DATASET).sources} == {last}
    assert {each.settings.release_at for each in make_world(settings(**chosen | settled), DATASET).sources} == {None}
    longer = settings(**chosen, rounds=ROUNDS * 2, horizon=ROUNDS)
    assert {each.settings.release_at for each in make_world(longer, DATASET).sources} == {last}, "as when it began"


def test_unequal_amounts_are_images_owned_and_samples_in_a_round():
    config = settings({"amount_ratio": 9.0}, servers=12, samples_per_round=20)
    sources = make_world(config, DATASET).sources
    amounts = [len(source.shard) for source in sources]
    assert 40 / 3 - 0.5 <= min(amounts) < 20
    assert 90 < max(amounts) <= 120
    for source, amount in zip(sources, amounts, strict=True):
        assert source.settings.samples_per_round == max(1, round(20 * amount / 40))


def test_equal_amounts_are_the_samples_that_were_asked_for():
    assert {source.settings.samples_per_round for source in make_world(settings(), DATASET).sources} == {60}


def test_bad_labels_are_in_training_data_and_not_in_what_a_server_is_measured_on():
    config = settings({"bad_labels": 0.34, "bad_label_rate": 1.0})
    world, bad = make_world(config, DATASET), config_members(config).has_bad_labels
    assert bad.sum() == 2
    for i, (source, shard) in enumerate(zip(world.sources, shards_of(config), strict=True)):
        assert (owned(source)[1].tolist() != DATASET.train.y[shard].tolist()) == bad[i]
        assert torch.equal(owned(source)[0], POOLS.train.x[torch.from_numpy(shard)])
        assert source.validation.y.tolist() == validation_sample(config).y.tolist()
    assert world.test.kind_of is None


def test_broken_sensors_are_noise_in_training_data():
    config = settings({"broken_sensors": 0.34})
    world, broken = make_world(config, DATASET), config_members(config).has_broken_sensors
    for i, (source, shard) in enumerate(zip(world.sources, shards_of(config), strict=True)):
        images, labels = owned(source)
        assert torch.equal(images, POOLS.train.x[torch.from_numpy(shard)]) != broken[i]
        assert labels.tolist() == DATASET.train.y[shard].tolist()
        assert torch.equal(source.validation.x, standardised(validation_sample(config).x))


def test_liars_that_flip_labels_train_on_flipped_ones_and_no_other_liars_do():
    for attack in ("label-flip", "sign-flip"):
        config = settings({"liars": 0.34, "attack": attack})
        world = make_world(config, DATASET)
        assert world.liars.servers.tolist() == np.flatnonzero(config_members(config).is_liar).tolist()
        for i, (source, shard) in enumerate(zip(world.sources, shards_of(config), strict=True)):
            labels = DATASET.train.y[shard]
            flips = attack == "label-flip" and i in world.liars.servers
            assert owned(source)[1].tolist() == (9 - labels if flips else labels).tolist()


def test_a_world_with_lossy_links_says_so():
    assert make_world(settings({"link_loss": [0.1, 0.3]}), DATASET).loss == LinkLoss(0, 0.1, 0.3)


MIXED = (
    settings(CHANGING),
    settings({"bad_labels": 0.34}, seed=1),
    settings(),
    settings({**TWO_BY_INPUTS, "amount_ratio": 4.0}, seed=2, feedback="own"),
    settings(TWO_BY_LABELS, seed=1, servers=4),
)


def test_worlds_made_together_share_one_pool():
    pools = {id(source.pool) for world in make_worlds(MIXED, DATASET) for source in world.sources}
    assert len(pools) == 1


@pytest.mark.parametrize("number", range(len(MIXED)))
def test_worlds_made_together_are_the_worlds_made_alone(number):
    together, alone = make_worlds(MIXED, DATASET)[number], make_world(MIXED[number], DATASET)
    for one, other in zip(together.sources, alone.sources, strict=True):
        assert one.settings == other.settings
        for t in (0, ROUNDS - 1):
            mine, theirs = one.work(t), other.work(t)
            assert mine.num_samples == theirs.num_samples
            parts = [(mine.probe, theirs.probe), (mine.validation, theirs.validation)]
            for ours, same in [*parts, *zip(mine.batches, theirs.batches, strict=True)]:
                assert torch.equal(ours.x, same.x)
                assert torch.equal(ours.y, same.y)
            assert torch.equal(mine.label_counts, theirs.label_counts)
    np.testing.assert_array_equal(together.test.label_shares, alone.test.label_shares)
    for i in range(len(alone.sources)):
        assert torch.equal(together.test.own_data(i).x, alone.test.own_data(i).x)
        assert torch.equal(together.test.own_data(i).y, alone.test.own_data(i).y)


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ({"groups": 2}, r"world\.groups is 2, but nothing differs: set world\.differ to inputs or labels"),
        ({"changing": 0.5}, r"world\.changing is 0\.5, but there is one group"),
        ({"link_loss": [0.4, 0.1]}, r"world\.link_loss is \[0\.4, 0\.1\], but the first must not exceed the second"),
        ({"link_loss": [0.1]}, r"world\.link_loss"),
        ({"link_loss": [0.1, 1.1]}, r"world\.link_loss\.1 is 1\.1"),
        ({**TWO_BY_LABELS, "groups": 7}, r"world\.groups is 7, but there are 6 servers"),
        ({**TWO_BY_LABELS, "group_shares": [1]}, r"world\.group_shares has 1 numbers, but world\.groups is 2"),
        ({**TWO_BY_LABELS, "group_shares": [1, 0]}, r"world\.group_shares\.1 is 0, but must be greater than 0"),
        ({"liars": 0.5, "broken_sensors": 0.5}, r"name 6 of 6 servers\. Leave at least one"),
        ({"liars": 1.5}, r"world\.liars is 1\.5"),
        ({"attack": "shout"}, r"world\.attack is 'shout'"),
        ({"differ": "colour"}, r"world\.differ is 'colour'"),
        ({"amount_ratio": 0.5}, r"world\.amount_ratio is 0\.5, but must be greater than or equal to 1"),
        ({"price_drift": 0.5}, r"world\.price_drift is 0\.5, but must be greater than or equal to 1"),
        ({"group": 2}, r"There is no setting 'world\.group'"),
    ],
)
def test_worlds_that_cannot_be_are_refused_with_what_is_wrong(world, message):
    with pytest.raises(ConfigError, match=message):
        settings(world)


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ({"groups": 9, "differ": "inputs"}, r"world\.groups is 9, but there are at most 8 groups"),
        ({"groups": 11, "differ": "labels"}, r"world\.groups is 11, but there are at most 10 groups"),
    ],
)
def test_more_groups_than_the_data_allow_are_refused_when_the_world_is_made(world, message):
    with pytest.raises(ConfigError, match=message):
        make_world(settings(world, servers=12), DATASET)


def test_kinds_of_a_world_are_those_of_its_data_set():
    assert make_kinds("inputs", 2, 10, DATASET.train.x.shape)[1] == Kind(quarter_turns=2)
