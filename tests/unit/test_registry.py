"""Plug points: what other packages add is found, listed, run, and refused in one sentence where it cannot work."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hatdfed.errors import ConfigError
from hatdfed.registry import Registry
from hatdfed.setup.methods import METHODS, method_named

GROUP = "hatdfed.things"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a package with entry points where Python looks for packages, as an installer would."""
    monkeypatch.syspath_prepend(tmp_path)

    def put(package, points, source, group=GROUP):
        module = package.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = "".join(f"{name} = {module}:{attribute}\n" for name, attribute in points.items())
        (info / "entry_points.txt").write_text(f"[{group}]\n{lines}")
        monkeypatch.delitem(sys.modules, module, raising=False)
        return module

    return put


def things():
    return Registry(GROUP, {"ours": 1, "ours too": 2}, wanted="a number", fits=lambda thing: isinstance(thing, int))


def test_without_plug_ins_it_is_what_comes_with_hatdfed():
    registry = things()
    assert dict(registry) == registry.built_in == {"ours": 1, "ours too": 2}
    assert len(registry) == 2
    assert "theirs" not in registry
    assert registry.get("theirs") is None


def test_an_unknown_name_is_told_what_it_may_have_meant():
    with pytest.raises(KeyError):
        things()["theirs"]
    with pytest.raises(ConfigError, match=r"no method called 'hat-dfd'\. Did you mean hat-dfed\?"):
        method_named("hat-dfd")


def test_a_package_adds_its_own_behind_ours(install):
    install("their-package", {"theirs": "THING"}, "THING = 10**9")
    registry = things()
    assert list(registry) == ["ours", "ours too", "theirs"]
    assert len(registry) == 3
    assert registry["theirs"] is registry["theirs"]
    assert "theirs" not in registry.built_in


def test_a_plug_in_of_the_wrong_kind_is_refused_by_its_package_name(install):
    install("their-package", {"theirs": "THING"}, "THING = 'a word'")
    with pytest.raises(ConfigError, match="from their-package, is 'a word', but must be a number"):
        things()["theirs"]
    with pytest.raises(ConfigError, match="must be a Method"):
        METHODS.add("not-a-method", {"policy": "ring"})


def test_names_are_listed_without_importing_anything(install):
    module = install("their-package", {"theirs": "THING"}, "THING = 3")
    registry = things()
    assert "theirs" in registry
    assert sorted(registry) == ["ours", "ours too", "theirs"]
    assert registry["ours"] == 1
    assert module not in sys.modules
    assert registry["theirs"] == 3
    assert module in sys.modules


def test_other_groups_are_left_alone(install):
    install("their-package", {"theirs": "THING"}, "THING = 3", group="hatdfed.others")
    assert "theirs" not in things()


def test_a_name_of_ours_cannot_be_taken(install):
    install("their-package", {"ours": "THING"}, "THING = 3")
    registry = things()
    with pytest.raises(ConfigError, match=r"'ours' in hatdfed\.things is taken twice, .* by their-package"):
        list(registry)
    assert registry["ours"] == 1


def test_two_packages_cannot_share_a_name(install):
    install("first-package", {"theirs": "THING"}, "THING = 3")
    install("other-package", {"theirs": "THING"}, "THING = 4")
    with pytest.raises(ConfigError, match=r"'theirs' .* is taken twice, the second time by (first|other)-package"):
        things()["theirs"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import a_module_that_is_not_there", "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
        ("OTHER = 3", "AttributeError"),
        ("THING = 1 / 0", "ZeroDivisionError: division by zero"),
        ("THING = (", "SyntaxError"),
    ],
)
def test_a_broken_plug_in_gets_one_sentence_that_names_its_package(install, source, reason):
    install("their-package", {"theirs": "THING"}, source)
    registry = things()
    with pytest.raises(ConfigError) as caught:
        registry["theirs"]
    sentence = str(caught.value)
    assert sentence.startswith("'theirs' of hatdfed.things cannot be loaded from their-package (")
    assert reason in sentence
    assert sentence.endswith("Fix or uninstall that package.")
    assert "\n" not in sentence
    assert registry["ours"] == 1
    assert "theirs" in registry


def test_a_script_adds_its_own_for_as_long_as_it_runs(install):
    install("their-package", {"theirs": "THING"}, "THING = 3")
    registry = things()
    registry.add("mine", 4)
    assert registry["mine"] == 4
    assert list(registry) == ["ours", "ours too", "theirs", "mine"]
    assert len(registry) == 4
    assert "mine" not in things()


def test_a_script_cannot_take_a_name(install):
    install("their-package", {"theirs": "THING"}, "THING = 3")
    registry = things()
    registry.add("mine", 4)
    for taken in ("ours", "theirs", "mine"):
        with pytest.raises(ConfigError, match=f"The name '{taken}' in {GROUP} is taken. Choose another one."):
            registry.add(taken, 5)
    registry.add("mine", 4)  # the same thing once more, as from a cell of a notebook
    assert dict(registry) == {"ours": 1, "ours too": 2, "theirs": 3, "mine": 4}


def test_a_policy_that_is_named_as_a_method_is_told_so():
    with pytest.raises(ConfigError, match=r"no method called 'ring'. It is a policy: --set policy.name=ring"):
        method_named("ring")


# The real thing: a wheel, pip, and the command line in a process of its own.

WHEEL = "their_package-1.0-py3-none-any.whl"
FILES = {
    "their_package/__init__.py": "",
    "their_package/coordinator.py": '''
from dataclasses import dataclass
import numpy as np
from hatdfed.setup.methods import Method
from hatdfed.core.policies.base import Stateless, certain

@dataclass(frozen=True)
class FirstLinks(Stateless):
    """The first links that there are."""

    skip: int = 0

    def propose(self, state, context, rng):
        drawn = np.zeros(len(context.links), dtype=bool)
        drawn[np.flatnonzero(context.possible)[self.skip :][: context.budget]] = True
        return certain(context.links, drawn)

METHOD = Method(
    "their-method",
    "The first links, merged their way",
    {
        "policy": {"name": "their-links", "skip": 1},
        "aggregator": {"name": "their-mean"},
        "network": "their-network",
        "link_share": 0.5,
    },
)
''',
    "their_package/servers.py": '''
from dataclasses import dataclass
from torch import nn
from hatdfed.server.aggregation import Uniform
from hatdfed.data.datasets import DatasetKind, synthetic

@dataclass(frozen=True)
class TheirMean(Uniform):
    """A plain mean."""

def their_network(shape, num_classes):
    channels, height, width = shape
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, num_classes))

def load(data_dir, progress=None, *, classes=3):
    return synthetic.load(data_dir, classes=classes, train=90, validation=30, test=30)

DATA = DatasetKind(
    name="their-data",
    summary="Their data",
    load=load,
    defaults={"images_per_server": 30, "validation_images": 30, "rounds": 2, "servers": 3},
    locate=lambda data_dir: "generated",
)
''',
    "their_package-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n",
    "their_package-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "their_package-1.0.dist-info/entry_points.txt": """
[hatdfed.policies]
their-links = their_package.coordinator:FirstLinks
[hatdfed.methods]
their-method = their_package.coordinator:METHOD
[hatdfed.aggregators]
their-mean = their_package.servers:TheirMean
[hatdfed.networks]
their-network = their_package.servers:their_network
[hatdfed.datasets]
their-data = their_package.servers:DATA
""",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder into which pip has installed a wheel made by hand: a zip with a list of what is in it."""
    pytest.importorskip("pip")
    folder = tmp_path_factory.mktemp("wheel")
    record = "".join(f"{name},{_digest(text)},{len(text.encode())}\n" for name, text in FILES.items())
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        for name, text in FILES.items():
            wheel.writestr(name, text)
        wheel.writestr("their_package-1.0.dist-info/RECORD", f"{record}their_package-1.0.dist-info/RECORD,,\n")
    offline = ["--no-deps", "--no-index", "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *offline, "--target", folder / "site", folder / WHEEL], check=True
    )
    return folder / "site"


def _digest(text):
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"


def hatdfed(*arguments, site, cwd):
    env = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    command = [Path(sys.executable).with_name("hatdfed"), *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)


def test_what_an_installed_package_adds_is_listed(site, tmp_path):
    assert "their-method" not in METHODS
    done = hatdfed("methods", "--json", site=site, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    listed = {row["name"]: row["summary"] for row in json.loads(done.stdout)}
    assert listed["their-method"] == "The first links, merged their way"
    assert "hat-dfed" in listed


ASKED = ("run", "--method", "their-method", "--dataset", "their-data", "--out", "run")
COMMANDS = (
    (*ASKED, "--json"),
    ("run", "--resume", "run", "--rounds", "3", "--json"),
    (*ASKED, "--set", "policy.skp=2"),
)
ONE_AFTER_ANOTHER = f"""
import sys
from hatdfed.cli.app import main
for words in {COMMANDS}:
    sys.argv = ["hatdfed", *words]
    try:
        main()
    except SystemExit as stop:
        print("\\0", stop.code or 0, "\\0", flush=True)
"""


@pytest.fixture(scope="module")
def told(site, tmp_path_factory):
    """What each command printed and its exit code, and all complaints: one process, which imports torch once."""
    cwd, env = tmp_path_factory.mktemp("runs"), {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", ONE_AFTER_ANOTHER]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    parts = done.stdout.split("\0")[:-1]
    assert len(parts) == 2 * len(COMMANDS), done.stderr
    return [(parts[at], int(parts[at + 1])) for at in range(0, len(parts), 2)], done.stderr


def test_what_an_installed_package_adds_is_run(told):
    ((printed, code), (again, code_again), _), complaints = told
    assert (code, code_again) == (0, 0), complaints
    result = json.loads(printed)
    assert result["config"]["policy"] == {"name": "their-links", "skip": 1}
    assert result["config"]["aggregator"]["name"] == "their-mean"
    assert (result["rounds"], result["links_per_round"]) == (2, 3)
    assert json.loads(again)["rounds"] == 3


def test_a_wrong_setting_of_theirs_gets_one_sentence(told):
    (*_, (_, code)), complaints = told
    assert code == 2
    assert "policy 'their-links' has no setting 'skp'. Did you mean skip?" in complaints
    assert "Traceback" not in complaints
