"""Lists of what there is, folders of every kind shown, and wrong names answered at once."""

import dataclasses
import importlib
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from torch import nn
from typer.testing import CliRunner

import hatdfed
from hatdfed.cli.app import app
from hatdfed.core.policies import POLICIES
from hatdfed.core.policies.base import Stateless
from hatdfed.core.training import TRAINING
from hatdfed.data.partitioners import PARTITIONERS
from hatdfed.errors import ConfigError, RunFolderError
from hatdfed.server.aggregation import AGGREGATORS
from hatdfed.server.losses import LOSSES
from hatdfed.server.networks import NETWORKS
from hatdfed.server.tasks import TASKS
from hatdfed.setup.component_names import FILLED, NEED_TORCH, TASK_METRICS, list_own_settings

SMALL = {
    "dataset": "synthetic",
    "dataset_options": {"train": 300, "validation": 60, "test": 30},
    "network": "linear",
    "servers": 3,
    "rounds": 2,
    "validation_images": 50,
}


def invoke(*arguments):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared") / "all"
    hatdfed.compare(["rnd", "full"], seeds=[0, 3], out=folder, **SMALL)
    return folder


@pytest.mark.parametrize(
    ("verb", "expected"), [("networks", "mlp"), ("policies", "link-bandit"), ("settings", "learner.momentum")]
)
def test_everything_that_can_be_named_is_listed(verb, expected):
    rows = json.loads(invoke(verb, "--json").stdout)
    assert expected in [row["name"] for row in rows]
    assert all(row.get("summary") or row.get("meaning") for row in rows)
    assert expected in invoke(verb).stdout


def test_a_thing_without_docstring_is_listed_without_that_of_its_base_class(monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Mine(Stateless):
        def propose(self, state, context, rng): ...

    class Told(Mine):
        """Draws nothing.

        Never.
        """

    class MyNetwork(nn.Module): ...

    monkeypatch.setattr(POLICIES, "_loaded", {"mine": Mine, "told": Told})
    monkeypatch.setattr(NETWORKS, "_loaded", {"my-network": MyNetwork})
    listed = [row for verb in ("policies", "networks") for row in json.loads(invoke(verb, "--json").stdout)]
    summaries = {row["name"]: row["summary"] for row in listed}
    assert [summaries[name] for name in ("mine", "told", "my-network")] == ["", "Draws nothing.", ""]


def test_one_setting_or_one_section_is_shown_by_its_name():
    section = json.loads(invoke("settings", "learner", "--json").stdout)
    assert {row["name"].partition(".")[0] for row in section} == {"learner"}
    (one,) = json.loads(invoke("settings", "rounds", "--json").stdout)
    assert one["default"] == hatdfed.Config().rounds
    with pytest.raises(ConfigError, match=r"no setting 'roundz'\. Did you mean rounds\?"):
        invoke("settings", "roundz")


def test_settings_of_a_component_name_who_has_them():
    listed = {entry["name"]: entry for entry in json.loads(invoke("settings", "policy", "--json").stdout)}
    assert "balanced-links" in listed["policy.name"]["meaning"]
    assert listed["policy.thrift"]["owners"] == ["balanced-links", "known-groups", "priced-links", "trusted-links"]
    row = next(line for line in invoke("settings", "aggregator").stdout.splitlines() if "aggregator.bar" in line)
    assert "harmless-mean" in row
    assert "null" not in row


def test_a_comparison_is_shown_from_its_folder(compared):
    document = json.loads(invoke("show", str(compared), "--json").stdout)
    assert [row["method"] for row in document["methods"]] == ["rnd", "full"]
    assert [row["seeds"] for row in document["methods"]] == [[0, 3], [0, 3]]
    assert "mean ± sd over 2 seeds" in invoke("show", str(compared)).stdout


def test_a_folder_of_several_comparisons_is_told_so(compared):
    for call in (lambda: invoke("show", str(compared.parent)), lambda: hatdfed.load(compared.parent)):
        with pytest.raises(RunFolderError, match=rf"holds several runs, comparisons or sweeps\. .*{compared.name}"):
            call()


def test_a_gpu_is_called_cuda():
    with pytest.raises(ConfigError, match=r"Did you mean cuda\?"):
        hatdfed.run("rnd", device="gpu")


def test_a_comparison_that_was_stopped_shows_how_far_it_is(compared, tmp_path):
    (tmp_path / "rnd-seed0").symlink_to(compared / "rnd-seed0")
    assert "rnd-seed0: 2 of 2 rounds" in invoke("show", str(tmp_path)).stdout
    assert json.loads(invoke("show", str(tmp_path), "--json").stdout)["finished"] is False


def test_a_sweep_is_shown_from_its_folder(tmp_path):
    plan = {"base": {**SMALL, "method": "rnd"}, "grid": {"rounds": [1, 2]}, "seeds": 2}
    result = hatdfed.sweep(plan, out=tmp_path / "s", jobs=1)
    document = json.loads(invoke("show", str(tmp_path / "s"), "--json").stdout)
    assert document["rows"] == json.loads(json.dumps(result.rows))
    shown = invoke("show", str(tmp_path / "s")).stdout
    assert "sweep s, mean ± sd over 2 seeds" in " ".join(shown.split())


def test_a_search_names_the_files_that_it_has_written(tmp_path):
    search = {"parameters": {"learner.momentum": {"low": 0.0, "high": 0.5}}, "sampler": "random", "trials": 2}
    (tmp_path / "s.yaml").write_text(json.dumps({"base": {**SMALL, "method": "rnd"}, "search": search, "seeds": 1}))
    shown = invoke("sweep", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "s"), "--jobs", "1").stdout
    told = next(line for line in shown.splitlines() if line.startswith("Runs, "))
    assert told.startswith("Runs, summary.json, summary.csv, summary.tex and pareto.png: ")
    assert not (tmp_path / "s" / "importance.png").exists(), "too few trials for importance"


def test_a_folder_that_holds_nothing_is_told_so(tmp_path):
    with pytest.raises(RunFolderError, match=r"neither a run .* nor a comparison .* nor a sweep"):
        invoke("show", str(tmp_path))


def test_a_file_is_no_folder_of_results(tmp_path):
    (tmp_path / "s.yaml").touch()
    for look in (lambda: invoke("show", str(tmp_path / "s.yaml")), lambda: hatdfed.load(tmp_path / "s.yaml")):
        with pytest.raises(RunFolderError, match=r"There is no folder .*s\.yaml\. Check the path\."):
            look()


def test_a_comparison_takes_a_list_of_seeds_and_methods_in_several_words(tmp_path):
    (tmp_path / "small.yaml").write_text(json.dumps(SMALL))
    for methods in (["rnd", "full"], ["rnd full"], ["rnd, full"]):
        words = ["--methods", *methods, "--seeds", "1,4", "--jobs", "1", "--json", "--out", str(tmp_path / "c")]
        rows = json.loads(invoke("compare", str(tmp_path / "small.yaml"), *words).stdout)["methods"]
        assert [(row["method"], row["seeds"]) for row in rows] == [("rnd", [1, 4]), ("full", [1, 4])]


@pytest.mark.parametrize("seeds", ["0", "-1", "two", "1;2", ",", "1.5"])
def test_other_seeds_are_refused_in_one_sentence(seeds):
    with pytest.raises(ConfigError, match=r"--seeds is .*, but must be a number of seeds from 1, or a list"):
        invoke("compare", "--methods", "rnd", f"--seeds={seeds}")


def test_completion_is_offered():
    shown = invoke("--help").stdout
    assert "--install-completion" in shown
    assert "--show-completion" in shown


WITHOUT_TORCH = """
import sys
sys.argv = ["hatdfed", *{arguments!r}]
from hatdfed.cli.app import main
try:
    main()
except SystemExit as end:
    print("code", end.code, "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["run", "--method", "hat-dfd"], "Did you mean hat-dfed?"),
        (["run", "--set", "leaner.momentum=0.5"], "Did you mean learner?"),
        (["run", "--dataset", "digts"], "Did you mean digits?"),
        (["run", "--rouds", "3"], "--rounds"),
        (["compare", "--methods", "rnd,ful"], "Did you mean full?"),
        (["compare", "--seeds", "x"], "--seeds is 'x'"),
        (["sweep", "no-such.yaml"], "no-such.yaml"),
        (["settings", "leaner"], "Did you mean learner"),
        (["run", "rnd"], "For the method of this name: --method rnd."),
        (["run", "--set", "network=small-cn"], "Did you mean small-cnn?"),
        (["run", "--set", "policy.name=rnadom-links"], "Did you mean random-links?"),
        (["run", "--set", "aggregator.name=unifrm"], "Did you mean uniform?"),
        (["run", "--set", "loss.name=cros-entropy"], "Did you mean cross-entropy?"),
        (["run", "--set", "training.name=evry"], "Did you mean every?"),
        (["run", "--set", "codec=int3"], "Did you mean int"),
        (["run", "--set", "metrics=[macro_f]"], "Did you mean macro_f1?"),
        (["run", "--set", "split=irichlet"], "Did you mean dirichlet?"),
        (["run", "--device", "cudaa"], "Did you mean cuda?"),
        (["run", "--fleet", "stackd"], "Did you mean stacked?"),
        (["compare", "--device", "cudaa"], "Did you mean cuda?"),
        (["compare", "--set", "network=small-cn"], "Did you mean small-cnn?"),
        (["run", "--set", "policy.learnin_rate=1"], "Did you mean learning_rate?"),
        (["run", "--set", "training.evry=2"], "training 'always' has no setting 'evry'. It has none."),
        (["run", "--set", "aggregator.loss_oder=2"], "Did you mean loss_order?"),
        (["run", "--set", "loss.strenth=2"], "loss 'cross-entropy' has no setting 'strenth'. It has none."),
        (["run", "--set", "split_options.amout=2"], "has no setting 'amout'."),
        (
            ["compare", "--methods", "hat-dfed", "--set", "policy.learnin_rate=1"],
            "With method hat-dfed, policy 'link-bandit' has no setting 'learnin_rate'. Did you mean learning_rate?",
        ),
        (["compare", "--reference", "rdn"], "Did you mean rnd?"),
        (["run", "--resume", "no-such"], "no-such is not a run folder"),
        (["export", "no-such", "--out", "m.pt"], "There is no folder no-such."),
        (["export", ".", "--out", "m.pt"], ". holds no model: neither an edge's states (round-*.safetensors) nor"),
        (["edge", "--coordinator", "127.0.0.1:1", "--insecure", "--name", "e_l1"], "A node's name is 'e_l1', but"),
        (["report", "no-such"], "There is no folder no-such."),
    ],
)
def test_a_typo_is_answered_without_loading_torch(arguments, answer):
    script = WITHOUT_TORCH.format(arguments=arguments)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert answer in done.stderr.replace("\n", " ")
    assert done.stdout.strip() == "code 2 False"


CALL_WITHOUT_TORCH = """
import sys
import hatdfed
try:
    {call}
except hatdfed.errors.ConfigError as error:
    print(error, "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ('hatdfed.run("rndd")', "Did you mean rnd?"),
        ('hatdfed.run("rnd", network="small-cn")', "Did you mean small-cnn?"),
        ('hatdfed.run("rnd", device="cudaa")', "Did you mean cuda?"),
        ('hatdfed.run("rnd", rounds="x")', "rounds is 'x'"),
        ('hatdfed.compare(["rnd", "ful"])', "Did you mean full?"),
        ('hatdfed.compare("ful")', "Did you mean full?"),
        ('hatdfed.compare(["rnd"], reference="full")', "is not among the methods"),
        ('hatdfed.compare(["rnd"], fleet="stackd")', "Did you mean stacked?"),
        ('hatdfed.sweep({"grid": {"method": ["rnd", "ful"]}})', "Did you mean full?"),
        ('hatdfed.sweep({"base": {"network": "small-cn"}, "seeds": 2})', "Did you mean small-cnn?"),
    ],
)
def test_a_typo_in_a_call_is_answered_without_loading_torch(call, answer):
    script = CALL_WITHOUT_TORCH.format(call=call)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert answer in done.stdout, done.stderr
    assert done.stdout.strip().endswith(" False")


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("learning_rate", "Did you mean learner.learning_rate?"),
        ("optimizer", "Did you mean learner.optimiser?"),
        ("learner.optimizer", "Did you mean learner.optimiser?"),
        ("learner.momentm", "Did you mean learner.momentum?"),
        ("lr", "Did you mean learner.learning_rate?"),
        ("epochs", "Did you mean local_passes?"),
        ("nothing_like_it", "`hatdfed settings` lists all of them."),
    ],
)
def test_the_whole_name_of_the_setting_that_was_meant_is_suggested(name, answer):
    for arguments in (["run", "--set", f"{name}=1"], ["settings", name]):
        with pytest.raises(ConfigError, match=re.escape(answer)):
            invoke(*arguments)


@pytest.mark.parametrize(
    ("assignment", "wanted"),
    [("rounds=x", "a whole number"), ("rounds=2.5", "a whole number"), ("learner.momentum=x", "a number")],
)
def test_what_is_no_number_is_refused_in_plain_words(assignment, wanted):
    with pytest.raises(ConfigError, match=rf"but must be {wanted}\.$"):
        invoke("run", "--set", assignment)


def test_a_misspelt_choice_is_answered_with_the_one_that_was_meant():
    with pytest.raises(ConfigError, match=r"learner\.optimiser is 'adammm', but must be .* Did you mean adam\?$"):
        invoke("run", "--set", "learner.optimiser=adammm")


def test_a_number_of_numpy_is_shown_as_a_number():
    with pytest.raises(ConfigError, match=r"energy\.link_joules\.0\.0 is nan, but"):
        hatdfed.resolve({"energy": {"link_joules": [[np.float64("nan")] * 2] * 2}})


def test_none_is_no_data_set_and_data_given_before_are_not_suggested():
    hatdfed.resolve({"dataset": (np.ones((60, 3), np.float32), np.arange(60) % 3)})
    with pytest.raises(ConfigError, match=r"dataset is None, but must be the name of a data set, a file, or data"):
        hatdfed.resolve({"dataset": None})
    with pytest.raises(ConfigError, match=r"no data set called 'zzz'\. Known: cifar-10, ") as refused:
        hatdfed.resolve({"dataset": "zzz"})
    assert "arrays-" not in str(refused.value)


@pytest.mark.parametrize(
    ("sweep", "answer"),
    [
        ({"grid": {"method": ["rnd", "ful"]}}, "Did you mean full?"),
        ({"base": {"network": "small-cn"}, "seeds": 2}, "Did you mean small-cnn?"),
        ({"grid": {"policy.name": ["ring", "rign"]}}, "Did you mean ring?"),
        ({"search": {"parameters": {"codec": ["float32", "flot16"]}}}, "Did you mean float16?"),
    ],
)
def test_a_typo_in_a_sweep_file_is_answered_without_loading_torch(tmp_path, sweep, answer):
    (tmp_path / "s.yaml").write_text(json.dumps(sweep))
    script = WITHOUT_TORCH.format(arguments=["sweep", str(tmp_path / "s.yaml")])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert answer in done.stderr.replace("\n", " ")
    assert done.stdout.strip() == "code 2 False"


@pytest.mark.parametrize(
    ("key", "registry"),
    [
        ("policy", POLICIES),
        ("training", TRAINING),
        ("aggregator", AGGREGATORS),
        ("loss", LOSSES),
        ("split", PARTITIONERS),
    ],
)
def test_own_settings_that_are_known_without_torch_are_the_fields_of_the_components(key, registry):
    for name, kind in registry.built_in.items():
        fields = {field.name for field in dataclasses.fields(kind)}
        assert set(list_own_settings(key, name)) == fields - set(FILLED[key]), name


def test_names_that_are_known_without_torch_are_those_of_the_registries():
    for known in NEED_TORCH:
        registry = getattr(importlib.import_module(known.module), known.name)
        assert known.built_in == tuple(registry.built_in)
        assert known.group == registry.group
        assert not known.settings.keys() - set(known.built_in)
    assert set(TASK_METRICS) == {name for task in TASKS.built_in.values() for name in task.metrics}
