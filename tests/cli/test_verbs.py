"""Verbs that other packages add to `hatdfed`, and what it says where they are missing or broken."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
import typer

from hatdfed.cli import verbs
from hatdfed.cli.app import main

plugin = typer.Typer()


@plugin.command("hello")
def hello() -> None:
    """Say hello."""
    typer.echo("hello from a plugin")


@plugin.command("other")
def other() -> None:
    """Do something else."""


def greet(name: str) -> None:
    """Greet somebody."""
    typer.echo(f"good morning {name}")


@pytest.fixture
def hatdfed(monkeypatch, capfd):
    """Call `hatdfed …` with these verbs added; returns exit code, output and errors."""

    def call(*arguments, added=()):
        points = [EntryPoint(name, f"{__name__}:{value}", verbs.GROUP) for name, value in added]
        monkeypatch.setattr(verbs, "entry_points", lambda group: points)
        monkeypatch.setattr(sys, "argv", ["hatdfed", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        done = capfd.readouterr()
        return stop.value.code or 0, done.out, " ".join(done.err.split())

    return call


def test_an_added_application_and_an_added_function_are_verbs(hatdfed):
    added = [("plug", "plugin"), ("greet", "greet")]
    assert hatdfed("plug", "hello", added=added)[:2] == (0, "hello from a plugin\n")
    assert hatdfed("greet", "Ada", added=added)[:2] == (0, "good morning Ada\n")
    _, out, _ = hatdfed("--help", added=added)
    assert "Greet somebody." in out


def test_an_own_verb_wins_over_an_added_one(hatdfed):
    code, out, _ = hatdfed("methods", added=[("methods", "greet")])
    assert code == 0
    assert "hat-dfed" in out


def test_a_broken_verb_is_named_when_typed_and_does_not_break_the_others(hatdfed):
    added = [("broken", "nothing_of_that_name"), ("greet", "greet")]
    code, _, err = hatdfed("broken", added=added)
    assert code == 2
    assert "The verb 'broken' cannot be loaded" in err
    code, out, _ = hatdfed("--help", added=added)
    assert code == 0
    assert "greet" in out
    assert "broken" not in out


@pytest.mark.parametrize(("verb", "folder"), [("paper", "./paper"), ("bench", "./benchmarks")])
def test_a_verb_whose_package_is_missing_says_how_to_install_it(hatdfed, verb, folder):
    code, out, err = hatdfed(verb, "list")
    assert (code, out) == (2, "")
    assert f"pip install {folder}" in err
    assert err.count(". ") == 1  # what is missing, and the cure


def test_a_verb_that_nobody_has_is_no_command(hatdfed):
    code, _, err = hatdfed("rnu")
    assert code == 2
    assert err == "error: There is no command 'rnu'. Did you mean run?"


def test_every_own_verb_is_in_the_help(hatdfed):
    code, out, _ = hatdfed("--help")
    assert code == 0
    assert set(verbs.OWN_VERBS) <= set(out.split())


def test_only_the_typed_verb_is_imported():
    script = (
        "import sys\nfrom hatdfed.cli.app import main\nsys.argv = ['hatdfed', 'run', '--method', 'hat-dfd']\n"
        "try: main()\nfinally: print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "Did you mean hat-dfed?" in done.stderr
    loaded = set(done.stdout.split())
    assert "hatdfed.cli.run" in loaded
    assert not loaded & {"asyncio", "torch", "hatdfed.cli.compare", "hatdfed.cli.coordinator", "hatdfed.meters.base"}
