"""When runs are the same, can be resumed, meet the same world or share a fleet; and that no setting is forgotten."""

import hashlib
import json

import pytest
from tests.small_runs import config

from hatdfed.data.datasets import load_dataset
from hatdfed.setup.build.coordinator import make_prices
from hatdfed.setup.build.program import initial_seed, make_learner
from hatdfed.setup.build.world import make_world
from hatdfed.setup.config import Config, EnergyConfig, LearnerConfig
from hatdfed.setup.layers import resolve
from hatdfed.setup.run_identity import (
    SETTINGS,
    Role,
    Setting,
    Since,
    continued,
    fleet_key,
    is_resume_digest,
    result_key,
    resume_difference,
    resume_digest,
    run_difference,
    run_key,
    same_run,
    same_world,
    setting_names,
    sources_key,
    world_key,
)

ROLES = {
    "RESULT": same_run,
    "RESUME": lambda one, other: resume_difference(one, other) is None,
    "WORLD": same_world,
    "FLEET": lambda one, other: fleet_key(one) == fleet_key(other),
    "SOURCES": lambda one, other: sources_key(one) == sources_key(other),
}
OTHER_VALUES = {
    "method": "full", "dataset": "synthetic", "split": "groups", "split_options": {"by": "server"},
    "feedback": "test", "first_gain_from": "zero",
    "network": "linear", "codec": "int8", "horizon": 3, "candidates": 2, "dataset_options": {"test": 3},
    "policy": {"name": "ring"}, "aggregator": {"name": "uniform"}, "loss": {"name": "label-prior"},
    "utility.normalisation": "softmax", "utility.gain": "released", "utility.thrift": "released",
    "schedule.budget_joules": 3.0, "learner.optimiser": "sgd",
    "learner.optimiser_settings": {"weight_decay": 0.1}, "learner.initialisation": "module",
    "energy.model_bits": 1e6, "energy.link_kbit_per_joule": (1.0, 2.0), "energy.training_per": "pass",
    "world.group_shares": (1.0, 2.0), "world.differ": "labels", "world.attack": "noise", "world.link_loss": (0.1, 0.2),
    "world.amount_ratio": 2.0, "world.price_drift": 2.0, "probe_from": "held-out",
    "parameters.shared": ("0.*",), "parameters.personal": ("0.*",), "parameters.frozen": ("0.*",),
    "task": "regression", "training": {"name": "every"}, "budget_joules": 3.0,
    "metrics": ("macro_f1",), "uploads.keep": "samples", "uploads.memory_samples": 7, "uploads.train_samples": 7,
    "supply.battery_joules": 9.0, "supply.harvest_trace": "a.csv", "supply.availability_trace": "a.csv",
    "time.upload_trace": "a.csv", "time.uplink_trace": "a.csv",
    "supply.carbon_trace": "a.csv", "supply.tariff_trace": "a.csv",
    "machines.profiles": ("phone",), "machines.assignment": "random",
    "time.deadline_seconds": 3.0, "energy.source": "measured",
    "energy.link_joules": ((0.0, 1.0), (2.0, 0.0)), "energy.training_joules": (1.0, 2.0),
}  # fmt: skip
BASE = config(method="hat-dfed", candidates=1, dataset="digits", network="small-cnn", dataset_options={})


def value_of(settings, name):
    for part in name.split("."):
        settings = getattr(settings, part)
    return settings


def to_plain(value):
    return list(value) if isinstance(value, tuple) else value


def changed(base, name):
    """The same settings but for one."""
    old = value_of(base, name)
    new = OTHER_VALUES.get(name, not old if isinstance(old, bool) else old + 1 if isinstance(old, int) else 0.875)
    section, _, last = name.rpartition(".")
    update = {last: new} if not section else {section: {**value_of(base, section).model_dump(), last: new}}
    after = Config.model_validate({**base.model_dump(), **update})
    assert value_of(after, name) != old
    return after


def test_every_setting_is_declared():
    assert set(SETTINGS) == set(setting_names()), "declare a new setting in setup/run_identity.py, with its roles"


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", SETTINGS)
def test_every_question_is_answered_by_the_settings_of_its_role(name, role):
    switch = SETTINGS[name].only_with
    is_off = switch is not None and to_plain(value_of(BASE, switch)) == SETTINGS[switch].neutral
    base = changed(BASE, switch) if is_off else BASE
    assert ROLES[role](base, changed(base, name)) is (Role[role] not in SETTINGS[name].roles)


@pytest.mark.parametrize("name", ["common_init", *(f"energy.{name}" for name in EnergyConfig.model_fields)])
def test_a_seed_at_other_prices_or_with_other_initial_models_is_another_world(name):
    assert not same_world(BASE, changed(BASE, name))
    assert world_key(BASE) != world_key(changed(BASE, name))


class Watched(Config):
    """Settings that remember which of them were read."""

    def __getattribute__(self, name):
        if name in Config.model_fields:
            READ.add(name)
        return super().__getattribute__(name)


READ = set()


def read_by(work):
    READ.clear()
    work(Watched.model_validate(config(label_groups=2).model_dump()))
    return set(READ)


def declared(role):
    return {name.partition(".")[0] for name, setting in SETTINGS.items() if role in setting.roles}


def test_a_world_is_made_from_settings_that_are_declared_to_make_it():
    dataset = load_dataset("synthetic", options={"train": 300, "validation": 60, "test": 30})
    read = read_by(lambda settings: make_world(settings, dataset))
    assert read == declared(Role.SOURCES)
    read = read_by(lambda settings: make_prices(settings, bits_per_sample=8, num_params=10))
    assert read - {"seed", "candidates", "uploads"} <= declared(Role.WORLD)  # a sample costs the same, kept or not
    read = read_by(lambda settings: make_learner(settings, dataset).init(initial_seed(settings, 0)))
    assert read - {"seed", "privacy"} <= declared(Role.WORLD)  # private training begins with the same models


def test_settings_in_a_section_are_told_apart_by_their_dotted_names():
    assert str(run_difference(BASE, changed(BASE, "learner.cool_down"))) == (
        "has learner.cool_down 0.0, but 0.875 was asked for"
    )


def test_a_setting_that_means_nothing_makes_no_other_run():
    one, other = (resolve({"candidates": None, "refresh_every": every}) for every in (10, 3))
    assert same_run(one, other)
    assert resume_digest(one) == resume_digest(other)
    assert not same_run(*(settings.model_copy(update={"candidates": 2}) for settings in (one, other)))


def test_a_run_may_be_given_more_rounds_and_keeps_its_horizon():
    begun = resolve({"rounds": 20})
    longer = continued(begun, resolve({"rounds": 30}))
    assert (longer.rounds, longer.horizon) == (30, 20)
    assert resume_difference(begun, resolve({"rounds": 30})) is None
    assert continued(longer, resolve({"rounds": 30})) == longer
    assert str(resume_difference(longer, resolve({"rounds": 30, "horizon": 30}))) == (
        "has horizon 20, but 30 was asked for"
    )
    assert not same_run(begun, longer)


def test_only_the_seed_tells_runs_of_a_row_apart():
    key = result_key(BASE, but=("seed",))
    assert key == result_key(changed(BASE, "seed"), but=("seed",))
    assert key != result_key(changed(BASE, "gain_share"), but=("seed",))


class LaterLearner(LearnerConfig):
    """A section with one setting more."""

    warm_up: float = 0.0


class Later(Config):
    """Settings of a later version: one more at the top, one more in a section."""

    patience: int = 7
    learner: LaterLearner = LaterLearner()


@pytest.fixture
def later(monkeypatch):
    roles = SETTINGS["method"].roles | Role.WORLD
    monkeypatch.setitem(SETTINGS, "patience", Setting(roles, 7, Since.V0_2))
    monkeypatch.setitem(SETTINGS, "learner.warm_up", Setting(roles, 0.0, Since.V0_2))
    return lambda **update: Later.model_validate({**BASE.model_dump(), **update})


def test_a_setting_that_is_added_leaves_all_runs_what_they_were_at_its_neutral_value(later):
    before = [name(BASE) for name in (run_key, resume_digest, result_key, world_key)]
    now = later()
    assert set(setting_names(Later)) == set(SETTINGS)
    assert [name(now) for name in (run_key, resume_digest, result_key, world_key)] == before
    assert is_resume_digest(as_0_1_0_journals_have_it(BASE), now)
    old = BASE.model_dump(mode="json")  # as a folder of a version before has it
    assert same_run(old, now)
    assert resume_difference(BASE, now) is None
    assert same_world(old, now)


@pytest.mark.parametrize("update", [{"patience": 8}, {"learner": {"warm_up": 0.5}}])
def test_and_makes_other_runs_at_any_other_value(later, update):
    now = later(**update)
    for name in (run_key, resume_digest, result_key, world_key):
        assert name(now) != name(later())
    assert not is_resume_digest(as_0_1_0_journals_have_it(BASE), now)
    assert not same_run(BASE.model_dump(mode="json"), now)
    assert resume_difference(BASE, now) is not None
    assert not same_world(BASE.model_dump(mode="json"), now)


def test_a_setting_that_is_added_and_not_declared_is_noticed():
    assert set(setting_names(Later)) - set(SETTINGS) == {"patience", "learner.warm_up"}


def as_0_1_0_journals_have_it(settings):
    new = {
        "privacy",
        "world",
        "probe_from",
        "probe_release",
        "task",
        "parameters",
        "uploads",
        "training",
        "budget_joules",
        "supply",
        "machines",
        "time",
        "split_options",
        "metrics",
    }
    never = dict.fromkeys({"rounds", "horizon", "checkpoint_every"} | new, True)
    prices = {"source", "training_per", "overhead_bits", "probe_joules", "merge_joules", "idle_watts"}
    prices |= {"link_joules", "training_joules"}
    steps = {"optimiser_settings"}
    left = settings.model_dump(mode="json", exclude={**never, "energy": prices, "learner": steps})
    return hashlib.sha256(json.dumps(left, sort_keys=True).encode()).hexdigest()[:16]


@pytest.mark.parametrize("candidates", [None, 2])
def test_journals_of_0_1_0_are_recognised(candidates):
    settings = resolve({"candidates": candidates, "servers": 7})
    assert is_resume_digest(as_0_1_0_journals_have_it(settings), settings)
    assert not is_resume_digest(as_0_1_0_journals_have_it(settings), changed(settings, "seed"))


def test_settings_that_are_none_are_no_trouble():
    strange = {"learner": 3, "energy": None, "seed": {}, "more": object()}
    assert same_world(strange, {})
    assert isinstance(result_key(strange), str)


def test_a_trace_is_known_by_its_contents_wherever_it_lies():
    here, there, other = (
        config(supply={"carbon_trace": f"/{place}/grid.csv#{digest}"})
        for place, digest in (("a", "0123456789abcdef"), ("b", "0123456789abcdef"), ("a", "fedcba9876543210"))
    )
    assert same_run(here, there)
    assert not same_run(here, other)
