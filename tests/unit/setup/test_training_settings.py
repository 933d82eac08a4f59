"""Settings of training and uploads: what they build, and what is refused."""

import pytest
from tests.small_runs import SMALL, config

from hatdfed.core.training.every import Every
from hatdfed.errors import ConfigError
from hatdfed.runs.calls import run
from hatdfed.setup.build.coordinator import make_coordinator, make_prices
from hatdfed.setup.layers import resolve


def coordinator(**settings):
    chosen = config(**settings)
    return make_coordinator(chosen, make_prices(chosen, bits_per_sample=512, num_params=100))


def test_the_default_is_the_paper_and_decides_nothing():
    assert coordinator().training is None
    assert resolve({}).uploads.keep == "none"
    assert resolve({}).energy.training_per == "sample"


def test_a_policy_is_built_with_its_settings():
    assert coordinator(training={"name": "every", "rounds": 3}).training == Every(rounds=3)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"training": {"name": "evry"}}, "evry"),
        ({"training": {"name": "every", "round": 3}}, "has no setting 'round'"),
        ({"training": {"name": "every", "rounds": 2**63}}, f"training.rounds is {2**63}, but must lie within"),
        ({"training": {"name": "every", "ask_every": 2}}, "Set uploads.keep to samples"),
        ({"training": {"name": "by-price", "cheap": 5}, "privacy": {"clip": 1.0}}, "makes up to 5 passes"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(settings, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        coordinator(**settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", [{"keep": "all"}, {"keep": "samples", "memory_samples": 0}])
def test_uploads_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ConfigError, match="uploads"):
        resolve({"uploads": wrong})


def test_what_a_server_usually_spends_is_what_it_spends_on_average():
    settings = {**SMALL, "method": "local", "rounds": 40, "servers": 4, "energy": {"training_per": "pass"}}
    chosen = resolve(settings)
    boss = make_coordinator(chosen, make_prices(chosen, bits_per_sample=64 * 8, num_params=650))
    start = boss.start([0.0] * 4)
    context = boss.training_context(start, boss.context(start))
    spent = run(chosen).summary["energy_by_cause_mj"]
    assert 1e6 * spent["training"] == pytest.approx(40 * context.training_joules.sum(), rel=0.1)


def test_training_in_turn_and_kept_uploads_save_what_they_say():
    settings = {**SMALL, "rounds": 10, "method": "hat-dfed-plus", "energy": {"training_per": "pass"}}
    parts = {"uploads": {"keep": "samples"}, "training": {"name": "every", "staggered": True}}
    lean, plus = (run(**settings, **more).summary["energy_by_cause_mj"] for more in (parts, {}))
    assert lean["training"] == pytest.approx(plus["training"] / 2, rel=0.2)
    assert lean["upload"] < plus["upload"] / 2
    assert lean["link"] == pytest.approx(plus["link"])


def test_training_by_battery_needs_one():
    with pytest.raises(ConfigError, match="by-battery, but servers have no battery"):
        coordinator(training={"name": "by-battery"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"uploads": {"train_samples": 20}}, r"uploads\.train_samples is set, but servers keep nothing"),
        ({"uploads": {"memory_samples": 20}}, r"uploads\.memory_samples is set, but servers keep nothing"),
        (
            {"uploads": {"keep": "samples", "train_samples": 61}, "samples_per_round": 60},
            r"uploads\.train_samples is 61, but samples_per_round is 60",
        ),
        (
            {"uploads": {"keep": "samples", "train_samples": 20}, "privacy": {"clip": 1.0}},
            r"privacy\.clip is set, but ε is not computed for uploads\.train_samples",
        ),
    ],
)
def test_settings_of_uploads_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        resolve(settings)
