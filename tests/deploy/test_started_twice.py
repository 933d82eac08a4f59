"""One identity, two processes: the second is turned away with a sentence, a restart is let in."""

import asyncio

import pytest
from tests.deploy.deployment import Deployment, settings

from hatdfed.deploy.coordinator.edge_hub import EdgeHub
from hatdfed.deploy.coordinator.journal import Journal
from hatdfed.deploy.coordinator.membership import NameTakenError
from hatdfed.deploy.coordinator.settings import DeploySettings
from hatdfed.deploy.edge.edge import Edge, RefusedError
from hatdfed.deploy.edge.store import EdgeStore
from hatdfed.errors import RunFolderError


def test_a_store_is_one_edges(tmp_path):
    store = EdgeStore(tmp_path / "store")
    refused = pytest.raises(RunFolderError, match=r"An edge already runs on .*store \(process \d+\)")
    with store.lock(), refused, store.lock():
        pass
    with store.lock():
        assert store.load() is None


def test_a_new_store_without_states_goes_when_its_edge_ends(tmp_path):
    new, known = tmp_path / "new", tmp_path / "known"
    known.mkdir()
    for folder in (new, known):
        with EdgeStore(folder).lock():
            assert (folder / "edge.lock").exists()
    assert not new.exists()
    assert known.exists(), "a folder that was there before stays"
    with EdgeStore(new).lock():
        (new / "round-00000001.safetensors").touch()
    assert new.exists()


def test_a_store_that_cannot_be_locked_is_used_all_the_same(tmp_path, caplog):
    (tmp_path / "file").touch()
    with EdgeStore(tmp_path / "file" / "store").lock():
        pass
    assert "cannot be locked" in caplog.text


async def with_two_more(deployment):
    """Play it to its end; the status then."""
    for name in ("edge-1", "edge-2"):
        deployment.start_edge(name)
    await deployment.run
    return deployment.status


async def second_on_the_same_store(folder):
    async with Deployment(folder, settings("full"), secure=False) as deployment:
        await deployment.start_edges(1)
        first = deployment.tasks["edge-0"]
        deployment.start_edge("edge-0")
        with pytest.raises(RunFolderError, match="already runs"):
            await asyncio.wait_for(deployment.tasks["edge-0"], 5)
        deployment.tasks["edge-0"] = first
        return await with_two_more(deployment)


def test_a_second_edge_on_the_same_store_ends_before_it_joins(play, tmp_path, one_thread):
    status = play(second_on_the_same_store(tmp_path))
    assert status["undelivered"] == 0
    assert status["refused"] == {}


async def copied_to_another_machine(folder):
    """The same identity with another store, as on another machine."""
    async with Deployment(folder, settings("full")) as deployment:
        await deployment.start_edges(1)
        first = deployment.edges["edge-0"]
        copy = Edge(first._options, first._endpoints, EdgeStore(folder / "stores" / "copy"), first._make_setup)
        with pytest.raises(RefusedError, match="edge-0 already takes part as another process"):
            await asyncio.wait_for(copy.serve(), 10)
        return await with_two_more(deployment)


def test_an_identity_that_was_copied_is_refused_while_the_first_is_there(play, tmp_path, one_thread):
    status = play(copied_to_another_machine(tmp_path))
    assert status["undelivered"] == 0
    assert status["refused"] == {"started-twice": 1}


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("hatdfed.deploy.coordinator.edge_hub.time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def hub(tmp_path, clock):
    """With edge-0 connected as process "one"."""
    journal = Journal(tmp_path / "journal.sqlite")
    hub = EdgeHub(journal, DeploySettings(away_seconds=20.0), 2, epoch=1, next_round=0)
    hub.orders = hub.open_orders(hub.admit("edge-0", "here:1", "one"))
    yield hub
    journal.close()


def refusal(hub, process):
    with pytest.raises(NameTakenError) as caught:
        hub.admit("edge-0", "there:1", process)
    return caught.value


def test_a_copy_is_refused_for_good_once_the_first_has_given_a_sign_of_life(hub, clock):
    assert not refusal(hub, "two").is_sure
    assert not hub.refused_calls
    clock[0] += 5
    hub.mark_seen(hub.membership.find("edge-0"))
    error = refusal(hub, "two")
    assert error.is_sure
    assert "edge-0 already takes part as another process" in str(error)
    assert hub.refused_calls == {"started-twice": 1}
    assert hub.membership.find("edge-0").address == "here:1"
    assert hub.admit("edge-0", "here:1", "one").process == "one", "the first may dial again at any time"


def test_a_restart_gets_in_at_once_when_the_line_was_cut(hub):
    hub.close_orders(hub.membership.find("edge-0"), hub.orders)
    assert hub.admit("edge-0", "there:1", "two").process == "two"


def test_a_restart_gets_in_after_the_away_time_when_the_line_was_not_cut(hub, clock):
    clock[0] += 19
    assert not refusal(hub, "two").is_sure
    clock[0] += 2
    assert hub.admit("edge-0", "there:1", "two").process == "two"


def test_an_edge_that_does_not_say_which_process_it_is_gets_in_as_before(hub):
    assert hub.admit("edge-0", "there:1").index == 0
