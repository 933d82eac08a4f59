"""Things of a user's own: replaced when a cell runs again, refused by what they lack, known to other processes."""

import subprocess
import sys
import types

import pytest
from torch import nn

from hatdfed import registry
from hatdfed.core.policies import POLICIES
from hatdfed.errors import ConfigError
from hatdfed.registry import Registry, Source, import_named, list_sources
from hatdfed.server.aggregation import AGGREGATORS
from hatdfed.server.codecs import CODECS
from hatdfed.server.losses import LOSSES
from hatdfed.server.networks import NETWORKS
from hatdfed.server.tasks import TASKS

MODULE = """
from dataclasses import dataclass
import numpy as np
from hatdfed.core.policies import POLICIES
from hatdfed.core.policies.base import Stateless, certain

@dataclass(frozen=True)
class FirstLinks(Stateless):
    def propose(self, state, context, rng):
        drawn = np.zeros(len(context.links), dtype=bool)
        drawn[np.flatnonzero(context.possible)[: context.budget]] = True
        return certain(context.links, drawn)

POLICIES.add("first-links", FirstLinks)
"""
SCRIPT = """
import hatdfed, sys
import first_links_module
if __name__ == "__main__":
    found = hatdfed.compare(["rnd"], seeds=2, jobs=2, rounds=1, servers=3, dataset="synthetic", network="linear",
        dataset_options={"train": 300, "validation": 60, "test": 30}, validation_images=50,
        policy={"name": "first-links"}, fleet="stacked")
    print([run.summary["rounds"] for run in found.runs["rnd"]])
"""
SMALL = ["--servers", "3", "--rounds", "1", "--dataset", "synthetic", "--set", "network=linear"]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that adds a policy, where no process looks for modules by itself; forgotten afterwards."""
    monkeypatch.setattr(registry, "_sources", {})
    monkeypatch.setattr(POLICIES, "_loaded", dict(POLICIES._loaded))
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "first_links_module.py"
    path.write_text(MODULE)
    yield path
    sys.modules.pop("first_links_module", None)


@pytest.fixture(autouse=True)
def _forget_modules(monkeypatch):
    """Modules that only these tests have are not looked for by worker processes of others."""
    monkeypatch.setattr("hatdfed.registry._sources", {})


def things():
    return Registry("hatdfed.things", {"ours": 1}, wanted="anything", fits=lambda thing: True)


def in_notebook(source, **known):
    """Run a cell of a notebook: the main module of such a process has no file."""
    exec(source, {"__name__": "__main__", **known})  # noqa: S102


def test_a_cell_that_runs_again_replaces_what_it_added():
    found = things()
    for number in (1, 2):
        in_notebook(
            f"class Mine:\n    number = {number}\nfound.add('mine', Mine)\nfound.add('five', {number})", found=found
        )
    assert found["mine"].number == 2
    assert found["five"] == 2
    assert found.is_of_notebook("mine")
    with pytest.raises(ConfigError, match=r"'ours' in hatdfed\.things is taken"):
        in_notebook("found.add('ours', 3)", found=found)


def test_a_module_that_is_loaded_again_replaces_its_own_things_and_no_others():
    found, place = things(), {"__name__": "their_module", "__file__": "their_module.py", "found": None}
    for number in (1, 2):
        exec(f"class Mine:\n    number = {number}\nfound.add('mine', Mine)", {**place, "found": found})  # noqa: S102
    assert found["mine"].number == 2
    with pytest.raises(ConfigError, match=r"'mine' in hatdfed\.things is taken"):
        exec("class Other: pass\nfound.add('mine', Other)", {**place, "found": found})  # noqa: S102


@pytest.mark.parametrize(
    ("registry", "thing", "missing"),
    [
        (POLICIES, "class T(Policy):\n    def propose(self): ...", "no methods 'init', 'grow', 'update'"),
        (POLICIES, "class T(Stateless): pass", "no method 'propose'"),
        (AGGREGATORS, "class T(Rule): pass", "no method '__call__'"),
        (LOSSES, "class T:\n    def ofset(self): ...", "no method 'offset'"),
        (TASKS, "class T:\n    def losses(self): ...\n    def scores(self): ...", "no methods 'measure', 'summarise'"),
        (CODECS, "class T:\n    def init(self): ...\n    def encode(self): ...", "no method 'decode'"),
    ],
)
def test_a_thing_that_lacks_a_method_is_told_which_when_it_is_added(registry, thing, missing):
    from hatdfed.core.policies.base import Policy, Stateless
    from hatdfed.server.inbox import Rule

    scope = {"Policy": Policy, "Stateless": Stateless, "Rule": Rule, "__name__": "their_module"}
    exec(f"from dataclasses import dataclass\n@dataclass(frozen=True)\n{thing}", scope)  # noqa: S102
    given = scope["T"]() if registry is CODECS else scope["T"]
    with pytest.raises(ConfigError, match=f"'mine' of {registry.group}, from module .* has {missing}, but must be"):
        registry.add("mine", given)
    assert "mine" not in registry


def test_a_policy_without_decorator_is_told_so_with_the_methods_that_it_lacks():
    class Mine:
        def propose(self, state, context, rng): ...

    lacks = r"has no decorator @dataclass\(frozen=True\) and no methods 'init', 'grow', 'update' and no values"
    with pytest.raises(ConfigError, match=lacks):
        POLICIES.add("mine", Mine)


@pytest.mark.parametrize("name", [3, None, "", " "])
def test_a_name_is_text_that_is_not_empty(name):
    with pytest.raises(ConfigError, match=r"The name .* cannot be added to hatdfed\.things: a name is text"):
        things().add(name, 2)


def test_a_network_that_is_made_already_is_refused_in_one_line():
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(ConfigError, match=r"'mine' of hatdfed\.networks, .* is Sequential\(.*, but must be a class or"):
        NETWORKS.add("mine", made)


def test_a_file_is_imported_once_by_its_path_and_told_to_other_processes(module):
    import_named(str(module))
    import_named(str(module))
    assert "first-links" in POLICIES
    assert list_sources() == [Source("first_links_module", str(module))]
    assert isinstance(sys.modules["first_links_module"], types.ModuleType)


def test_a_file_finds_modules_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_the_file.py").write_text("ANSWER = 42")
    (tmp_path / "needs_a_neighbour.py").write_text("from beside_the_file import ANSWER")
    import_named(str(tmp_path / "needs_a_neighbour.py"))
    assert sys.modules.pop("needs_a_neighbour").ANSWER == 42
    del sys.modules["beside_the_file"]


def test_what_cannot_be_imported_gets_one_sentence(module, tmp_path):
    broken = tmp_path / "broken_module.py"
    broken.write_text("import nothing_like_it")
    for name in ("no_such_module", str(tmp_path / "no_such.py"), str(broken)):
        with pytest.raises(ConfigError, match=r"cannot be imported \(\w+Error: .*\)\. Name a module"):
            import_named(name)
    assert list_sources() == []


def test_every_command_knows_an_imported_module_wherever_it_is_named(module, tmp_path):
    run = ["run", *SMALL, "--set", "policy.name=first-links", "--out", "run", "--json"]
    done = hatdfed([*run, "--import", "first_links_module"], tmp_path)
    assert done.returncode == 0, done.stderr
    again = hatdfed(["--import", str(module), "policies", "--json"], tmp_path)
    assert '"first-links"' in again.stdout, again.stderr
    without = hatdfed(["run", "--resume", "run", "--rounds", "2"], tmp_path)
    assert without.returncode == 2
    assert "policy.name is 'first-links'" in without.stderr
    assert "--import MODULE" in without.stderr


def test_workers_import_what_a_script_has_imported(module, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[1, 1]", done.stderr


def test_workers_import_what_a_command_was_told_to_import(module, tmp_path):
    compare = ["compare", *SMALL, "--methods", "rnd", "--seeds", "2", "--jobs", "2", "--out", "all"]
    done = hatdfed([*compare, "--set", "policy.name=first-links", f"--import={module.name}"], tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_notebook_is_told_why_its_workers_do_not_know_its_things(module, tmp_path):
    cells = MODULE + SCRIPT.partition("import first_links_module")[2].replace('if __name__ == "__main__":', "if True:")
    done = subprocess.run(
        [sys.executable, "-"],
        input=f"import hatdfed\n{cells}",
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "was added in this notebook, which worker processes cannot read. Use one process (jobs=1)" in done.stderr


@pytest.mark.parametrize("line", ['POLICIES.add("first-links", FirstLinks)', "add_mine()"])
def test_a_script_is_told_that_workers_do_not_run_its_main_block(tmp_path, line):
    add = 'POLICIES.add("first-links", FirstLinks)\n'
    defined = MODULE.replace(add, f"def add_mine():\n    {add}")
    script = SCRIPT.replace("import first_links_module\n", "").replace("    found =", f"    {line}\n    found =")
    (tmp_path / "script.py").write_text(defined + script)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "'first-links' of hatdfed.policies was added in the block `if __name__ ==" in done.stderr
    assert "above that line or in a module of its own, or use one process (jobs=1)." in done.stderr
    (tmp_path / "script.py").write_text(MODULE + script.replace(line, "pass"))  # at module level it is known
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[1, 1]", done.stderr


def hatdfed(arguments, folder):
    command = [sys.executable, "-m", "hatdfed", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
