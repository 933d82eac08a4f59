"""What docs/operations.md says about backups and a lost coordinator, done as it is typed there."""

import asyncio
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.deploy.deployment import Deployment, settings
from tests.deploy.gates import Gate
from tests.deploy.test_restored_run import check_whole
from typer.testing import CliRunner

from hatdfed.cli.app import app
from hatdfed.deploy.identity.identity_store import open_identity_store
from hatdfed.errors import RunFolderError

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
STARTS_A_SERVICE = ("hatdfed coordinator ", "systemctl ")


def blocks_of(section):
    """The commands of a section, block by block; services are started by the test itself."""
    (text,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    blocks = [block.strip().splitlines() for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL)]
    return [block for block in blocks if not block[0].strip().startswith(STARTS_A_SERVICE)]


def type_in(commands):
    """Do what an operator types, in the current folder; what was printed."""
    printed = ""
    for command in commands:
        words = shlex.split(command)
        if words[0] == "hatdfed":
            done = CliRunner().invoke(app, words[1:], catch_exceptions=False)
            assert done.exit_code == 0, done.output
            printed += done.output
        else:
            subprocess.run(words, check=True)
    return printed


def empty_journal(folder):
    (folder / "run" / "journal.sqlite").write_bytes(b"")


def lose_everything(folder):
    for name in ("run", "ca"):
        shutil.rmtree(folder / name)
        (folder / name).mkdir()  # what is left to be moved away


async def rehearse(folder, config, lose, recovery):
    gate = Gate(2, 4)
    async with Deployment(folder, config) as deployment:
        await deployment.start_edges(config.servers, make_setup=gate, keep=8)
        await deployment.until(lambda: gate.is_reached(2))
        printed = [type_in(block) for block in blocks_of("Backup")]
        gate.release(2)
        await deployment.until(lambda: gate.is_reached(4))
        await deployment.lose_coordinator()
        lose(folder)
        if lose is empty_journal:
            with pytest.raises(RunFolderError, match="emptied"):
                await deployment.start_coordinator(deployment.port)
        printed.append(type_in(recovery))
        deployment.identity_store = open_identity_store(folder / "ca", deployment.identity_store.lifetime)
        await deployment.start_coordinator(deployment.port)
        gate.open()
        await asyncio.wait_for(deployment.run, 30)
    return printed


@pytest.mark.parametrize(("lose", "block"), [(empty_journal, 0), (lose_everything, 1)])
def test_a_lost_coordinator_comes_back_by_the_commands_of_the_page(
    play, tmp_path, monkeypatch, one_thread, eager, lose, block
):
    monkeypatch.chdir(tmp_path)
    config = settings(rounds=6)
    recovery = blocks_of("The coordinator is lost")
    assert len(recovery) == 2
    printed = play(rehearse(tmp_path, config, lose, recovery[block]))
    check_whole(tmp_path, config)
    plain, with_authority, _, restored = printed
    assert "before round 2" in plain
    assert "Certificates are not in it" in plain
    assert "before round 2" in restored
    assert (tmp_path / "run-damaged").exists()
    assert (tmp_path / "run-check" / "journal.sqlite").exists()
    assert (tmp_path / "ca-damaged").exists() == (lose is lose_everything)
    assert "private key: whoever reads it can admit anybody" in with_authority
