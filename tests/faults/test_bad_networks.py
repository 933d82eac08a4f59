"""Real connections through bad networks: rows N5, N6, S3, X1 of the fault matrix, on loopback, checked by history."""

import asyncio
import contextlib
import time

import pytest
from tests.deploy.deployment import Deployment, settings
from tests.deploy.processes import free_port
from tests.faults.proxy import DOWN, UP, FaultProxy

from hatdfed.deploy import history
from hatdfed.deploy.coordinator.settings import DeploySettings
from hatdfed.testing.promises import assert_promises

BRIEF = DeploySettings(beat_seconds=0.2, away_seconds=3.0, idle_seconds=1.0, round_seconds=12.0)
SECOND_OF_WORK = 3.0  # slack of the checker, on a busy machine


class ProxiedDeployment(Deployment):
    """Three edges, each of which the others dial through a proxy of its own."""

    async def __aenter__(self):
        await super().__aenter__()
        self._stack = contextlib.AsyncExitStack()
        self.proxies = []
        self.front = await self._stack.enter_async_context(FaultProxy(self.port))
        return self

    async def __aexit__(self, *error):
        await super().__aexit__(*error)
        await self._stack.aclose()

    async def start_proxied_edges(self, count, *, through_front=False):
        if through_front:
            self.port = self.front.port
        for number in range(count):
            port = free_port()
            proxy = await self._stack.enter_async_context(FaultProxy(port, seed=number))
            self.proxies.append(proxy)
            listen, advertise = f"127.0.0.1:{port}", f"127.0.0.1:{proxy.port}"
            edge = self.start_edge(f"edge-{number}", listen=listen, advertise=advertise)
            await self.until(lambda edge=edge: edge._handler is not None)


async def play_through(folder, faults, *, secure, rounds=3, through_front=False):
    """A run of three edges whose connections have these faults; what it brought, and how long its rounds took."""
    events = []
    config = settings("full", rounds=rounds, codec="float32")
    with history.recorded(events.append):
        async with ProxiedDeployment(folder, config, BRIEF, secure=secure) as deployment:
            for name, value in faults.items() if through_front else ():
                setattr(deployment.front.faults, name, value)
            starting = asyncio.ensure_future(deployment.start_proxied_edges(3, through_front=through_front))
            await asyncio.sleep(0)
            while not starting.done():
                for proxy in deployment.proxies:
                    for name, value in faults.items():
                        setattr(proxy.faults, name, value)
                await asyncio.sleep(0.01)
            summary = await asyncio.wait_for(deployment.run, 90)
            links = deployment.process.folder.read().records("links")
            refused = deployment.status["refused"]
    assert_promises(events, slack=SECOND_OF_WORK)
    return summary, links, refused, events


def count_sends(events, t=0):
    return sum(event["what"] == "send" and event["round"] == t for event in events)


@pytest.mark.processes
def test_n5_delays_of_200_ms_delay_the_run_and_nobody_is_suspected(play, tmp_path, one_thread, eager):
    faults = {"delay": 0.2, "jitter": 0.05}
    summary, links, _, events = play(play_through(tmp_path, faults, secure=True, rounds=1, through_front=True))
    assert summary["rounds"] == 1
    assert all(link["delivered"] for link in links)
    assert [event["reported"] for event in events if event["what"] == "close"] == [[0, 1, 2]]


@pytest.mark.parametrize("secure", [True, False])
def test_n6_a_connection_that_is_reset_in_the_middle_of_a_model_is_made_again(
    play, tmp_path, one_thread, eager, secure
):
    faults = {"reset_at": 20_000, "resets": 1}
    _, links, _, events = play(play_through(tmp_path, faults, secure=secure, rounds=2))
    assert all(link["delivered"] for link in links)
    assert count_sends(events) > 6, "the models that were cut off were sent again"


def test_x1_a_flipped_bit_is_refused_and_the_model_is_sent_once_more(play, tmp_path, one_thread, eager):
    faults = {"flip_at": 20_000, "flips": 1}
    _, links, refused, events = play(play_through(tmp_path, faults, secure=False, rounds=2))
    assert refused.get("damaged"), "plain text has no other protection than the digest"
    assert all(link["delivered"] for link in links)
    assert count_sends(events) > 6, "each damaged model was sent again"


def test_a_flipped_bit_ends_an_encrypted_connection_and_the_model_is_sent_once_more(play, tmp_path, one_thread, eager):
    faults = {"flip_at": 20_000, "flips": 1}
    _, links, refused, _ = play(play_through(tmp_path, faults, secure=True, rounds=2))
    assert not refused.get("damaged")
    assert all(link["delivered"] for link in links)


async def stall_one(folder, **faults):
    """In the second round nobody can finish a transfer to edge-2."""
    events = []
    config = settings("full", rounds=2, codec="float32")
    with history.recorded(events.append):
        async with ProxiedDeployment(folder, config, BRIEF.model_copy(update={"round_seconds": 5.0})) as deployment:
            await deployment.start_proxied_edges(3)
            await deployment.until(lambda: deployment.process.progress.played >= 1)
            for name, value in faults.items():
                setattr(deployment.proxies[2].faults, name, value)
            began = time.monotonic()
            await asyncio.wait_for(deployment.run, 90)
            seconds = time.monotonic() - began
            links = deployment.process.folder.read().records("links")
    assert_promises(events, slack=SECOND_OF_WORK)
    return seconds, links


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param({"bytes_per_second": 1.0}, id="drip", marks=pytest.mark.processes),
        pytest.param({"blocked": {UP, DOWN}}, id="half-open"),
        pytest.param({"blocked": {DOWN}}, id="one-way", marks=pytest.mark.processes),
    ],
)
def test_s3_a_peer_that_stalls_costs_its_links_and_not_the_rounds(play, tmp_path, one_thread, eager, faults):
    seconds, links = play(stall_one(tmp_path, **faults))
    assert seconds < 10
    between_others = [link for link in links if 2 not in (link["receiver"], link["sender"])]
    assert all(link["delivered"] for link in between_others)
