"""Attacks: each formula, and that nothing that was given is changed."""

import math
from statistics import NormalDist

import pytest
import torch

from hatdfed.errors import ConfigError
from hatdfed.server.attacks import (
    ATTACKS,
    Constant,
    FalseReports,
    InnerProduct,
    LabelFlip,
    LittleIsEnough,
    Noise,
    Scale,
    SignFlip,
    Sleeper,
    Stale,
)

OWN = torch.tensor([3.0, -4.0])
HONEST = torch.tensor([[1.0, 0.0], [3.0, 4.0], [5.0, 8.0]])
FIRST = torch.tensor([0.5, 0.25])


def craft(attack, *, own=OWN, honest=HONEST, t=0, rounds=10, seed=0):
    return attack.craft(own, honest, FIRST, t, rounds, seed)


def test_sign_flip_sends_the_negative():
    assert craft(SignFlip()).tolist() == [-3, 4]


def test_scale_multiplies():
    assert craft(Scale()).tolist() == [30, -40]
    assert craft(Scale(factor=-2)).tolist() == [-6, 8]


def test_constant_has_the_norm_of_the_own_model():
    sent = craft(Constant())
    assert sent[0] == sent[1] == pytest.approx(math.sqrt(12.5))
    assert float(sent.norm()) == pytest.approx(5)


def test_stale_sends_the_first_model():
    assert craft(Stale(), t=9).tolist() == FIRST.tolist()


def test_noise_is_as_large_as_the_model():
    own = 3 * torch.randn(20000, generator=torch.Generator().manual_seed(1))
    added = craft(Noise(), own=own) - own
    assert float(added.std()) == pytest.approx(3, rel=0.03)
    assert float(added.mean()) == pytest.approx(0, abs=0.1)
    torch.testing.assert_close(craft(Noise(strength=2), own=own) - own, 2 * added, rtol=1e-4, atol=1e-4)


def test_noise_depends_on_seed_and_round_only():
    own = torch.ones(50)
    again = craft(Noise(), own=own, seed=1, t=3)
    assert torch.equal(craft(Noise(), own=own, seed=1, t=3), again)
    assert not torch.equal(craft(Noise(), own=own, seed=1, t=4), again)
    assert not torch.equal(craft(Noise(), own=own, seed=2, t=3), again)


def test_a_little_is_some_standard_deviations_from_the_mean():
    deviation = math.sqrt(8 / 3)  # of 1, 3 and 5
    sent = craft(LittleIsEnough(deviations=1.5))
    torch.testing.assert_close(sent, torch.tensor([3 - 1.5 * deviation, 4 - 3 * deviation]))


@pytest.mark.parametrize(
    ("honest", "liars", "share"),
    [
        (38, 12, 24 / 38),  # n = 50: s = 26 − 12
        (16, 4, 9 / 16),  # n = 20: s = 11 − 4
        (4, 3, 3 / 4),  # n = 7: s = 4 − 3
    ],
)
def test_how_little_is_enough_follows_from_the_number_of_liars(honest, liars, share):
    models = torch.randn(honest, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sent = craft(LittleIsEnough(liars=liars), own=models[0], honest=models)
    expected = models.mean(dim=0) - NormalDist().inv_cdf(share) * models.std(dim=0, correction=0)
    torch.testing.assert_close(sent, expected)


@pytest.mark.parametrize(("honest", "liars"), [(4, 1), (3, 1), (1, 1), (1, 5)])
def test_where_even_a_little_is_too_much_the_mean_is_sent(honest, liars):
    models = HONEST.repeat(2, 1)[:honest]
    torch.testing.assert_close(craft(LittleIsEnough(liars=liars), honest=models), models.mean(dim=0))


def test_a_majority_of_liars_needs_no_more_than_one_supporter():
    models = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        craft(LittleIsEnough(liars=9), honest=models), craft(LittleIsEnough(liars=3), honest=models)
    )


def test_inner_product_manipulation_turns_the_mean_round():
    assert craft(InnerProduct()).tolist() == [-1.5, -2]
    assert craft(InnerProduct(strength=2)).tolist() == [-6, -8]


def test_a_sleeper_turns_after_two_fifths_of_the_rounds():
    signs = [float(craft(Sleeper(), t=t)[0]) for t in range(10)]
    assert signs == [3] * 4 + [-3] * 6


@pytest.mark.parametrize("attack", [LabelFlip(), FalseReports()], ids=repr)
def test_some_liars_send_their_own_model(attack):
    assert torch.equal(craft(attack), OWN)


def test_the_table_says_what_each_attack_does():
    assert [name for name, attack in ATTACKS.items() if attack.needs_others] == ["alie", "ipm"]
    assert [name for name, attack in ATTACKS.items() if attack.needs_first] == ["stale"]
    assert [name for name, attack in ATTACKS.items() if attack.falsifies] == ["false-reports"]
    assert [name for name, attack in ATTACKS.items() if attack.flips_labels] == ["label-flip"]


@pytest.mark.parametrize("name", ATTACKS)
def test_what_is_given_is_left_alone(name):
    given = [OWN.clone(), HONEST.clone(), FIRST.clone()]
    sent = ATTACKS[name]().craft(*given, 7, 10, 0)
    assert sent.shape == OWN.shape
    assert sent.dtype == OWN.dtype
    sent.fill_(99)
    for mine, before in zip(given, (OWN, HONEST, FIRST), strict=True):
        assert torch.equal(mine, before)


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if not attack.needs_others])
def test_who_needs_no_others_may_know_none(name):
    assert torch.isfinite(craft(ATTACKS[name](), honest=torch.empty(0, 2), t=7)).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Scale(math.inf), "attack.factor is inf, but must be a finite number."),
        (lambda: Noise(-1.0), "attack.strength is -1.0, but must be a number, at least 0."),
        (lambda: InnerProduct(0.0), "attack.strength is 0.0, but must be a number above 0."),
        (lambda: Sleeper(1.5), "attack.honest_share is 1.5, but must lie between 0 and 1."),
        (lambda: LittleIsEnough(liars=0), "attack.liars is 0, but must be at least 1."),
        (lambda: LittleIsEnough(deviations=math.nan), "attack.deviations is nan, but must be a finite number."),
    ],
)
def test_impossible_settings_are_refused_in_a_sentence(make, message):
    with pytest.raises(ConfigError) as refusal:
        make()
    assert str(refusal.value) == message
