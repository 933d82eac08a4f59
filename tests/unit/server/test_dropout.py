import torch
from torch import nn

from hatdfed.randomness import torch_seed
from hatdfed.server import dropout
from hatdfed.server.dropout import SeededDropout, make_keep_mask, replace_dropouts

SEEDS = torch.tensor([torch_seed(7, "dropout", t, 0) for t in range(40)])


def mask(seeds=SEEDS, step=0, layer=0, batch=30, units=100, probability=0.25):
    return make_keep_mask(seeds, step=step, layer=layer, batch=batch, units=units, probability=probability)


def test_units_are_dropped_with_their_probability_and_independently():
    kept = mask().double()
    assert abs(kept.mean() - 0.75) < 4 * (0.75 * 0.25 / kept.numel()) ** 0.5
    for axis in range(3):  # no server, sample or unit is favoured
        means = kept.mean(dim=[d for d in range(3) if d != axis])
        spread = (0.75 * 0.25 / (kept.numel() / len(means))) ** 0.5
        assert ((means - 0.75).abs() < 4.5 * spread).all()
    for other in (mask(step=1), mask(layer=1), mask(SEEDS + 1), mask().roll(1, 0), mask().roll(1, 2)):
        agree = (kept == other.double()).double().mean()
        assert abs(agree - (0.75**2 + 0.25**2)) < 0.01


def test_a_mask_depends_on_its_own_place_alone():
    whole = mask()
    assert torch.equal(mask(SEEDS[5:6])[0], whole[5])
    assert torch.equal(mask(batch=11), whole[:, :11])


def test_numpy_and_torch_agree_to_the_bit():
    low, high = SEEDS & 0xFFFFFFFF, (SEEDS >> 32) & 0xFFFFFFFF
    salt = (3 * dropout._LAYERS + 2 + 1) * 0x9E3779B1 & 0xFFFFFFFF
    places = torch.arange(7 * 9)
    hashed = dropout._hash_int64((places + dropout._hash_int64((low + salt) & 0xFFFFFFFF)[:, None]) & 0xFFFFFFFF)
    by_torch = dropout._hash_int64(hashed ^ high[:, None]) >= int(0.4 * 2**32)
    assert torch.equal(mask(step=3, layer=2, batch=7, units=9, probability=0.4), by_torch.view(-1, 7, 9))


def test_it_takes_the_place_of_plain_dropout_and_of_nothing_else():
    module = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.0), nn.Dropout(0.2)), nn.Dropout2d(0.1))
    replaced = replace_dropouts(module)
    assert [(layer.probability, layer.layer) for layer in replaced] == [(0.5, 0), (0.2, 1)]
    assert [type(layer) for layer in module.modules()].count(SeededDropout) == 2
    x = torch.ones(50, 40)
    replaced[0].seed, replaced[0].step = 12345, 6
    expected = make_keep_mask(torch.tensor([12345]), step=6, layer=0, batch=50, units=40, probability=0.5)[0]
    assert torch.equal(replaced[0](x), expected * 2.0)


def test_nested_dropouts_are_numbered_in_the_order_in_which_they_stand():
    shared = nn.Dropout(0.3)
    module = nn.Sequential(nn.Sequential(nn.Dropout(0.1), shared), nn.Dropout(0.2), shared)
    assert [layer.probability for layer in replace_dropouts(module)] == [0.1, 0.3, 0.2, 0.3]
    assert [layer.layer for layer in (*module[0], *module[1:])] == [0, 1, 2, 3]
