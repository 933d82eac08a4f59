"""Profiles of machines: their figures, where they come from, and what they do to prices and times."""

import numpy as np
import pytest
import yaml
from tests.small_runs import config
from torch import nn

import hatdfed
from hatdfed.data.datasets import load_dataset
from hatdfed.errors import ConfigError
from hatdfed.setup.build.machines import find_profiles
from hatdfed.setup.build.program import make_actors
from hatdfed.setup.layers import resolve
from hatdfed.setup.machine_profiles import MachineProfile, shipped_profiles
from hatdfed.setup.run_identity import same_run, same_world

OWN = {
    "name": "own", "idle_watts": 1, "training_watts": 5, "training_gflops": 2, "upload_mbit_per_second": 8,
    "uplink_mbit_per_second": 4, "latency_seconds": 0.1,
}  # fmt: skip
WITHOUT_SPEED = {key: value for key, value in OWN.items() if key != "training_gflops"}
FIGURES = [key for key in MachineProfile.model_fields if key not in ("name", "machine", "sample_seconds")]


def make(**settings):
    dataset = load_dataset("synthetic", options={"train": 300, "validation": 60, "test": 30})
    return make_actors(config(**settings), dataset)[0]


def test_all_machines_that_are_promised_are_there():
    wanted = {"raspberry-pi-4", "raspberry-pi-5", "jetson-nano", "jetson-orin", "phone", "intel-nuc", "server-gpu"}
    assert set(shipped_profiles()) == wanted


@pytest.mark.parametrize("profile", shipped_profiles().values(), ids=lambda profile: profile.name)
def test_every_figure_says_how_it_is_known_and_from_where(profile):
    for key in FIGURES:
        figure = getattr(profile, key)
        assert figure.how in ("measured", "data sheet", "derived")
        assert len(figure.source) > 20
    assert profile.idle_watts.value < profile.training_watts.value


def test_profiles_are_dealt_in_turn_or_at_random():
    names = ["phone", "intel-nuc"]
    in_turn = find_profiles(config(machines={"profiles": names}), 5)
    assert [each.name for each in in_turn] == ["phone", "intel-nuc", "phone", "intel-nuc", "phone"]
    dealt = config(machines={"profiles": names, "assignment": "random"})
    at_random = [each.name for each in find_profiles(dealt, 40)]
    assert set(at_random) == set(names)
    assert at_random[:10] == [each.name for each in find_profiles(dealt, 10)]  # nobody's changes when servers join


def test_joules_and_seconds_of_training_follow_the_work_of_the_network():
    machines = {"profiles": [OWN]}
    linear, deep = (make(machines=machines, network=name) for name in ("linear", "small-cnn"))
    assert (deep.prices.compute_joules > 5 * linear.prices.compute_joules).all()
    ratio = deep.clock.machines.sample_seconds / linear.clock.machines.sample_seconds
    np.testing.assert_allclose(ratio, deep.prices.compute_joules / linear.prices.compute_joules)


def test_the_price_of_a_sample_is_watts_times_seconds_of_all_passes():
    coordinator = make(machines={"profiles": [OWN]}, local_passes=3)
    flops = 2 * (coordinator.prices.model_bits / 32 - 10)  # of a linear network without its ten biases
    assert coordinator.clock.machines.sample_seconds == pytest.approx(np.full(3, 3 * flops / 2e9))
    assert coordinator.prices.compute_joules == pytest.approx(np.full(3, 3 * 5 * 3 * flops / 2e9))
    assert (coordinator.clock.machines.uplink_bits_per_second == 4e6).all()


def test_the_price_of_a_sample_and_pass_is_that_of_one_pass():
    settings = {"machines": {"profiles": [OWN]}, "local_passes": 3}
    one, all_three = (make(**settings, energy={"training_per": per}).prices for per in ("pass", "sample"))
    np.testing.assert_allclose(all_three.compute_joules, 3 * one.compute_joules)
    assert one.training(0, 0, 10).joules == pytest.approx(all_three.training(0, 0, 10).joules)


def test_a_machine_may_be_measured_instead():
    measured = {**OWN, "sample_seconds": 0.25}
    coordinator = make(machines={"profiles": [measured]})
    assert (coordinator.clock.machines.sample_seconds == 0.25).all()


def test_without_profiles_prices_are_those_of_the_paper():
    coordinator = make()
    energy = config().energy
    assert set(coordinator.prices.compute_joules) <= {energy.weak_joules_per_sample, energy.strong_joules_per_sample}
    is_weak = coordinator.prices.compute_joules == energy.weak_joules_per_sample
    np.testing.assert_array_equal(coordinator.clock.machines.sample_seconds, np.where(is_weak, 0.05, 0.025))


def test_a_profile_of_ones_own_is_read_from_a_file_and_kept_in_the_settings(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump(OWN))
    settings = config(machines={"profiles": [str(file), "phone"]})
    assert settings.machines.profiles[0] == MachineProfile.model_validate(OWN)
    file.unlink()
    again = resolve(settings.model_dump(mode="json"))
    assert same_run(settings, again)
    assert not same_world(settings, config(machines={"profiles": [{**OWN, "training_watts": 6}, "phone"]}))


@pytest.mark.parametrize(
    ("profiles", "sentence"),
    [
        (["phne"], "Did you mean phone?"),
        (["nowhere.yaml"], "nowhere.yaml cannot be read"),
        ([{**OWN, "training_watts": -5}], "training_watts"),
        ([WITHOUT_SPEED], "have training_gflops or sample_seconds"),
    ],
)
def test_a_profile_that_cannot_be_used_is_refused_in_a_sentence(profiles, sentence):
    with pytest.raises(ConfigError, match=sentence.replace("?", r"\?")):
        config(machines={"profiles": profiles})


def test_a_file_with_a_bad_profile_is_named(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("name: bad\n")
    with pytest.raises(ConfigError, match=r"bad.yaml cannot be used: idle_watts is missing"):
        config(machines={"profiles": [str(file)]})


class Scaled(nn.Module):
    """Nothing that torch counts."""

    def __init__(self, sample_shape, num_outputs):
        super().__init__()
        self.first = nn.Parameter(nn.Linear(1, num_outputs).weight.detach().clone()[:, 0])

    def forward(self, x):
        return x.flatten(1).mean(dim=1, keepdim=True) * self.first


def test_a_network_that_cannot_be_counted_is_told_about():
    from hatdfed.server.networks import NETWORKS

    NETWORKS.add("scaled", Scaled)
    result = hatdfed.run(config(network="scaled", machines={"profiles": ["phone"]}))
    assert any("cannot be counted" in note for note in result.summary["notes"])
    result = hatdfed.run(config(machines={"profiles": ["phone"]}))
    assert not any("cannot be counted" in note for note in result.summary["notes"])
