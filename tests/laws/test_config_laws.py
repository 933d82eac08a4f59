"""Settings: a resolved config says everything, and survives YAML."""

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hatdfed.data.datasets import DATASETS
from hatdfed.errors import ConfigError
from hatdfed.runs.calls import run
from hatdfed.setup.config import Config
from hatdfed.setup.layers import merge_layers, read_config, resolve, validate
from hatdfed.setup.methods import METHODS
from hatdfed.setup.notes import collect_notes
from hatdfed.setup.plain_yaml import parse_assignment

layers = st.fixed_dictionaries(
    {},
    optional={
        "method": st.sampled_from(sorted(METHODS)),
        "dataset": st.sampled_from(sorted(DATASETS)),
        "seed": st.integers(0, 2**31),
        "servers": st.integers(2, 60),
        "rounds": st.integers(1, 500),
        "link_share": st.floats(0.01, 1),
        "gain_share": st.floats(0, 1),
        "label_concentration": st.floats(0.01, 100),
        "policy": st.just({"name": "link-bandit", "learning_rate": 0.05}),
        "energy": st.fixed_dictionaries({}, optional={"model_bits": st.one_of(st.just("actual"), st.floats(1, 1e9))}),
    },
)


@given(layers)
def test_a_resolved_config_survives_yaml_and_resolves_to_itself(layer):
    config = resolve(layer)
    again = yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json")))
    assert validate(again) == config
    assert resolve(again) == config


@given(layers)
def test_what_the_user_says_wins(layer):
    config = resolve(layer)
    for key in ("seed", "servers", "rounds", "link_share", "gain_share"):
        if key in layer:
            assert getattr(config, key) == layer[key]


def test_a_method_comes_before_the_user_and_after_the_data_set():
    assert resolve({"method": "rnd"}).link_share == 0.4
    assert resolve({"method": "rnd", "link_share": 0.2}).link_share == 0.2
    assert resolve({"dataset": "fashion-mnist"}).rounds == 200
    assert resolve({"dataset": "digits"}).rounds == 40
    assert resolve({"dataset": "fashion-mnist", "method": "hat-dfed-released"}).samples_per_round == 250


def test_another_policy_brings_its_own_settings():
    config = resolve({"method": "hat-dfed-released", "policy": {"name": "ring"}})
    assert config.policy.settings == {}
    config = resolve({"method": "hat-dfed-released", "policy": {"learning_rate": 0.5}})
    assert config.policy.settings["capping"] == "clip"
    assert config.policy.settings["learning_rate"] == 0.5


def test_names_of_the_literature_are_understood():
    assert resolve({"num_servers": 7}).servers == 7


@pytest.mark.parametrize("change", [{"method": "rnd"}, {"dataset": "cifar-10"}])
def test_a_complete_config_cannot_be_relabelled(change):
    complete = resolve({"method": "hat-dfed"}).model_dump()
    with pytest.raises(ConfigError, match="complete and made for"):
        merge_layers(complete, change)
    assert merge_layers(complete, {"method": "hat-dfed", "rounds": 7})["rounds"] == 7


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"link_shar": 0.3}, "no setting 'link_shar'. Did you mean link_share"),
        (
            {"utility": {"normalization": "minmax"}},
            "no setting 'utility.normalization'. Did you mean utility.normalisation",
        ),
        ({"method": "hat-dfd"}, "Did you mean hat-dfed"),
        ({"dataset": "digit"}, "Did you mean digits"),
        ({"link_share": 0}, "link_share is 0"),
        ({"link_share": 2}, "link_share is 2"),
        ({"servers": 1}, "servers is 1"),
        ({"rounds": 0}, "rounds is 0"),
        ({"rounds": "many"}, "rounds is 'many'"),
        ({"gain_share": -0.1}, "gain_share is -0.1"),
        ({"label_concentration": 0}, "label_concentration is 0"),
        ({"energy": {"link_kbit_per_joule": [50, 20]}}, "must not exceed"),
        (
            {"energy": {"link_kbit_per_joule": [50]}},
            "energy.link_kbit_per_joule is [50], but must have at least 2 values.",
        ),
        ({"energy": {"link_kbit_per_joule": [1, 2, 3]}}, "is [1, 2, 3], but must have at most 2 values."),
        (
            {"energy": {"link_kbit_per_joule": [1, float("nan")]}},
            "energy.link_kbit_per_joule.1 is nan, but must be a finite number.",
        ),
        ({"policy": {"name": None}}, "policy.name is None"),
        ({"servers": 1}, "one server has nobody to exchange models with."),
        ({"servers": 10**30}, "It must be between 2 and 1,000,000"),
        ({"local_passes": 10**9}, "local_passes is 1000000000, but must be less than or equal to 1000."),
        ({"devices": 10**12}, "devices is 1000000000000, but must be less than or equal to 1000000."),
        ({"horizon": 10**12}, "horizon is 1000000000000, but must be less than or equal to 1000000000."),
        ({"policy": "ring"}, "policy is 'ring', wanted a section"),
        ({"learner": {"optimiser": "lbfgs"}}, "learner.optimiser is 'lbfgs'"),
    ],
)
def test_a_bad_setting_gets_one_sentence(layer, message):
    with pytest.raises(ConfigError) as caught:
        resolve(layer)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["servers", "link_share"])
def test_a_hint_is_about_the_bound_only(key):
    with pytest.raises(ConfigError, match=r"is 'two', but must be a (whole )?number\.$"):
        resolve({key: "two"})


def test_a_config_that_cannot_be_used_is_named(tmp_path):
    file = tmp_path / "config.yaml"
    settings = resolve({}).model_dump(mode="json")
    file.write_text(yaml.safe_dump(settings))
    assert read_config(file) == resolve({})
    file.write_text(yaml.safe_dump({**settings, "future_key": 1}))
    with pytest.raises(ConfigError, match=r"config\.yaml cannot be used: There is no setting 'future_key'"):
        read_config(file)


def test_what_is_missing_is_named():
    with pytest.raises(ConfigError, match=r"^policy\.name is missing\.$"):
        validate({"policy": {}})


def test_set_reads_yaml_values_and_dotted_keys():
    assert parse_assignment("policy.learning_rate=0.02") == {"policy": {"learning_rate": 0.02}}
    assert parse_assignment("common_init=true") == {"common_init": True}
    assert merge_layers({"policy": {"name": "x", "a": 1}}, {"policy": {"a": 2}}) == {"policy": {"name": "x", "a": 2}}
    with pytest.raises(ConfigError, match="key=value"):
        parse_assignment("rounds")


def test_a_fractional_budget_and_a_leak_are_told():
    assert any("7 are drawn" in note or "8 are drawn" in note for note in collect_notes(resolve({"link_share": 0.37})))
    assert any("test set" in note for note in collect_notes(resolve({"method": "hat-dfed-released"})))
    assert collect_notes(resolve({})) == []


def test_every_setting_is_documented_or_speaks_for_itself():
    assert all(field.annotation is not None for field in Config.model_fields.values())


@pytest.mark.parametrize(("dataset", "bits"), [("fashion-mnist", 47_200_000), ("cifar-10", 135_200_000)])
def test_the_papers_model_bits_are_for_the_papers_networks(dataset, bits):
    for network in ("paper-cnn", "paper-cnn-relu"):
        config = resolve({"dataset": dataset, "network": network})
        assert config.energy.model_bits == bits
        assert not [note for note in collect_notes(config) if "network" in note]
    assert resolve({"dataset": dataset}).energy.model_bits == bits
    assert resolve({"dataset": dataset, "network": "linear"}).energy.model_bits == "actual"
    assert resolve({"dataset": dataset, "network": "of-a-plug-in"}).energy.model_bits == "actual"
    assert resolve({"dataset": dataset, "network": "linear", "energy": {"model_bits": 1e6}}).energy.model_bits == 1e6
    assert resolve({"dataset": dataset, "network": "linear", "energy": {"model_bits": bits}}).energy.model_bits == bits


def test_a_network_that_the_price_list_is_not_for_is_noted():
    own = {"dataset": "fashion-mnist", "network": "linear"}
    (note,) = [note for note in collect_notes(resolve(own)) if "network" in note]
    assert "17.33" in note
    assert "8.67" in note
    assert "paper-cnn" in note
    prices = {"weak_joules_per_sample": 0.2, "strong_joules_per_sample": 0.1}
    assert not [note for note in collect_notes(resolve({**own, "energy": prices})) if "network" in note]
    (note,) = [
        note
        for note in collect_notes(resolve({**own, "energy": {**prices, "model_bits": 47_200_000}}))
        if "network" in note
    ]
    assert "energy.model_bits" in note


def test_training_prices_of_other_data_sets_are_for_their_network_too():
    def noted(more):
        return [note for note in collect_notes(resolve({"dataset": "digits", **more})) if "network" in note]

    assert noted({}) == []
    (note,) = noted({"network": "linear"})
    assert note.startswith(
        "Prices of network small-cnn are charged for network linear: energy.weak_joules_per_sample 0.5"
    )
    assert "machines.profiles" in note
    assert noted({"network": "linear", "machines": {"profiles": ["raspberry-pi-4"]}}) == []
    assert noted({"network": "linear", "energy": {"training_joules": [1.0] * 5}}) == []


def test_training_prices_of_own_data_are_for_no_network(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", x=rng.random((60, 8), dtype=np.float32), y=np.arange(60) % 3)
    own = {"dataset": str(tmp_path / "own.npz"), "network": "linear"}
    (note,) = [note for note in collect_notes(resolve(own)) if "network" in note]
    assert note.startswith("Default prices, of no network, are charged for network linear: energy.weak")
    prices = {"weak_joules_per_sample": 0.2, "strong_joules_per_sample": 0.1}
    assert not [note for note in collect_notes(resolve({**own, "energy": prices})) if "network" in note]


def test_a_complete_config_keeps_the_price_it_was_played_with():
    played = resolve({"dataset": "fashion-mnist"}).model_dump() | {"network": "linear"}
    assert resolve(played).energy.model_bits == 47_200_000
    assert validate(played).energy.model_bits == 47_200_000


@pytest.mark.parametrize("key", ["model_bits", "weak_joules_per_sample", "strong_joules_per_sample"])
@pytest.mark.parametrize("price", [1e308, 1e20, float("inf"), float("nan")])
def test_prices_that_no_sum_could_hold_are_refused(key, price):
    with pytest.raises(ConfigError, match=rf"energy\.{key} is .*, but must be "):
        resolve({"energy": {key: price}})


def test_the_largest_prices_give_sums_that_are_numbers():
    largest = {"model_bits": 1e15, "weak_joules_per_sample": 1e12, "strong_joules_per_sample": 1e12}
    slow = {"device_kbit_per_joule": 1e-6, "link_kbit_per_joule": [1e-6, 1e-6]}
    few = {"dataset": "synthetic", "network": "linear", "servers": 3, "rounds": 2}
    summary = run({**few, "method": "hat-dfed", "energy": {**largest, **slow}}).summary
    assert 0 < summary["total_energy_mj"] < 1e30
