"""A deployment in one thread and in virtual time: the real coordinator and the real edges on a simulated network."""

import asyncio
import contextlib
import functools
import logging
import random
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from tests.schedules.learner import make_inline_executor, make_tiny_setup
from tests.schedules.network import PROCESS, Crash, Network, Process, SimulatedEndpoints, Weather
from tests.schedules.virtual_loop import VirtualLoop

from hatdfed.core.fleet import SeparateFleets
from hatdfed.core.loop import RunInPlay, run
from hatdfed.deploy import failpoints, history
from hatdfed.deploy.coordinator.durable import DurableCoordinator
from hatdfed.deploy.coordinator.edge_hub import EdgeHub
from hatdfed.deploy.coordinator.journal import Journal
from hatdfed.deploy.coordinator.quorum import QuorumWait
from hatdfed.deploy.coordinator.remote_fleet import RemoteFleet
from hatdfed.deploy.coordinator.services import AccessControl, CoordinationService
from hatdfed.deploy.coordinator.settings import DeploySettings
from hatdfed.deploy.edge.edge import Edge, EdgeOptions, RefusedError
from hatdfed.deploy.edge.store import EdgeStore
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import add_CoordinationServicer_to_server
from hatdfed.errors import HatdfedError, RunFolderError
from hatdfed.setup.layers import resolve

ADDRESS = "10.0.0.1:7443"
RUN = "simulated"
SETTINGS = DeploySettings(beat_seconds=3.0, away_seconds=10.0, idle_seconds=4.0, round_seconds=30.0)
SCRATCH = Path("/dev/shm") if Path("/dev/shm").is_dir() else None  # noqa: S108 (in memory: schedules write a lot)


@functools.cache
def make_config(method, servers, rounds):
    """The settings of a run; data and network are those of `make_tiny_setup`."""
    few = {"train": 300, "validation": 60, "test": 60}
    fixed = {"dataset": "synthetic", "dataset_options": few, "validation_images": 40, "images_per_server": 80}
    return resolve(
        {"method": method, "network": "small-cnn", "codec": "float32", "servers": servers, "rounds": rounds, **fixed}
    )


class NotFinishedError(AssertionError):
    """A run did not end although all faults were over."""


@dataclass
class Inputs:
    """What the coordinator learned and drew from, to be drawn from again without any fault."""

    first: object = None
    presence: dict = None
    reports: dict = None
    plans: dict = None


class FaultyStore(EdgeStore):
    """An edge's disk that can be full."""

    full = frozenset()  # folders

    def save(self, state):
        if self.folder in FaultyStore.full:
            raise RunFolderError("no space left on device")
        super().save(state)


class Simulation:
    """One deployment; faults are methods that a schedule calls at its times."""

    def __init__(self, *, servers=3, rounds=3, method="hat-dfed", min_servers=None, seed=0, weather=None, limit=300.0):
        self.rng = random.Random(seed)  # noqa: S311
        self.loop = VirtualLoop(self.rng)
        self.network = Network(self.loop, self.rng, weather or Weather())
        self.config = make_config(method, servers, rounds)
        self.min_servers = min_servers or servers
        self.folder = Path(tempfile.mkdtemp(prefix="schedule-", dir=SCRATCH))
        self.events = []
        self.inputs = Inputs(presence={}, reports={}, plans={})
        self.edges = {}  # by name: its process, as long as it lives
        self.hub = None
        self.indices = {}  # by name, as the coordinator gives them
        self.armed = {}  # by process name: the failpoint at which it dies, how often it is passed, how long it is down
        self.full_until = 0.0  # the coordinator's disk
        self.names = [f"edge-{number}" for number in range(servers)]
        self._limit = self.loop.time() + limit
        self._coordinator = None
        self._crashed = None
        self._has_results = False
        self._running = {}  # edges by name
        self._down_seconds = 1.0
        self._reached = Counter()
        self._seed = seed

    # Faults.

    def kill_edge(self, name, seconds, *, wipe=False):
        if (process := self.edges.pop(name, None)) is None:
            return
        self.network.kill(process)
        self.loop.call_later(0.5, functools.partial(self._wipe, name) if wipe else _do_nothing)
        self.loop.call_later(max(seconds, 1.0), self.start_edge, name)

    def _wipe(self, name):
        shutil.rmtree(self.folder / name, ignore_errors=True)
        if name in self.indices:
            history.note("wipe", self.indices[name])

    def start_edge(self, name):
        if name in self.edges or not name:
            return
        process = self.edges[name] = Process(name)
        process.context.run(self.loop.create_task, self._serve_edge(process))

    def kill_coordinator(self, seconds):
        self._down_seconds = seconds
        if self._crashed is not None and not self._crashed.done():
            self._crashed.set_result(None)

    def fill_disk(self, name, seconds):
        if name == "coordinator":
            self.full_until = self.loop.time() + seconds
            return
        FaultyStore.full |= {self.folder / name}
        self.loop.call_later(seconds, self._free_disk, name)

    def _free_disk(self, name):
        FaultyStore.full -= {self.folder / name}

    def arm(self, name, point, times, seconds):
        self.armed[name] = point, times, seconds
        self._reached[name] = 0

    def cut(self, pairs, seconds):
        self.network.cut(pairs)
        self.loop.call_later(seconds, self.network.heal, pairs)

    def slow_down(self, seconds):
        self.loop.slowness = 10.0
        self.loop.call_later(seconds, setattr, self.loop, "slowness", 1.0)

    # The run.

    def play(self, schedule=()):
        """Play the whole run with faults, each a time and what to call then; returns the history."""
        for seconds, fault in schedule:
            self.loop.call_later(seconds, fault)
        for number, name in enumerate(self.names):
            self.loop.call_later(0.05 * number, self.start_edge, name)
        random.seed(self._seed)
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch("time.monotonic", self.loop.time))
            stack.enter_context(mock.patch("hatdfed.deploy.edge.edge.diagnose_connection", _diagnose_nothing))
            stack.enter_context(mock.patch("hatdfed.deploy.edge.round_runner.ThreadPoolExecutor", make_inline_executor))
            stack.enter_context(history.recorded(self.events.append))
            stack.enter_context(failpoints.watched(self._reach))
            stack.enter_context(_quiet_logs())
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            stack.callback(self._close)
            asyncio.set_event_loop(self.loop)
            while not self._play_one_start():
                self._run(asyncio.sleep(self._down_seconds))
        return self.events

    def _play_one_start(self):
        """Start the coordinator; returns whether the run is done, or it was killed."""
        process = self._coordinator = Process("coordinator")
        self._crashed = self.loop.create_future()
        entered = PROCESS.set(process)
        try:
            self._serve_coordinator(process)
        except Crash:
            return self._has_results
        except (RunFolderError, HatdfedError) as error:
            history.note("alarm", "supervisor", sentence=str(error))
            return False
        finally:
            self.hub = None
            PROCESS.reset(entered)
            self.network.kill(process)
            self._run(asyncio.sleep(0.001))  # so that its tasks end
        return True

    def _serve_coordinator(self, process):
        self._down_seconds = 1.0
        with contextlib.closing(FaultyJournal(self.folder / "journal.sqlite", self)) as journal:
            epoch = (journal.read_fact("epoch") or 0) + 1
            journal.write_fact("epoch", epoch)
            config = self.config
            settings = SETTINGS.model_copy(update={"min_servers": self.min_servers})
            self.hub = hub = EdgeHub(journal, settings, config.servers, epoch, journal.read_next_round())
            self._quorum_wait = QuorumWait(hub)
            endpoints = SimulatedEndpoints(self.network, process)
            server = endpoints.make_server()
            service = CoordinationService(hub, AccessControl(endpoints), RUN, config, None)
            add_CoordinationServicer_to_server(service, server)
            endpoints.listen(server, ADDRESS)
            server.is_started = True
            self._play_rounds(hub, journal)
            self._wait_for(hub.dismiss())

    def _play_rounds(self, hub, journal):
        """As `CoordinatorProcess` does, with the inputs noted and without records."""
        self._wait_for_servers()
        manifest, config = hub.manifest, self.config
        durable = NotedCoordinator(config, manifest, journal, self._wait_for_servers)
        durable.inputs = self.inputs
        fleet = RemoteFleet(hub, manifest, durable.for_servers, self._wait_for, final_seconds=30.0)
        self.durable = durable
        state = durable.restore()
        if state is None:
            state = durable.start(fleet.validation_accuracy())
            self.inputs.first = state
            durable.write(state)
        sinks = [lambda state, record: durable.write(state)]
        run([RunInPlay(durable, state, config.rounds, sinks)], SeparateFleets(fleet))
        fleet.final_accuracy()
        self._has_results = True  # a coordinator that is started again has nothing left to do

    def _wait_for_servers(self):
        return self._wait_for(self._quorum_wait.wait())

    def _wait_for(self, work):
        result = self._run(self._unless_crashed(work))
        self._sample()
        return result

    def _sample(self):
        """Note what could grow without bounds."""
        for index, queue in self.hub._queues._queues.items():
            history.note("sample", index, quantity="waiting orders", value=queue.qsize(), bound=1000)
        for name, edge in self._running.items():
            if name in self.edges and (handler := edge._handler) is not None:
                mailbox = handler.mailbox
                held, expected = len(mailbox.received), len(mailbox.order.senders) if mailbox.order else 0
                history.note("sample", mailbox.index, quantity="models", value=held, bound=expected)
                files = len(list((self.folder / name).glob("*")))
                history.note("sample", mailbox.index, quantity="files", value=files, bound=4)

    def _run(self, work):
        """Let virtual time pass until some work is done; raises `NotFinishedError` if the run takes too long."""
        if self.loop.time() > self._limit:
            work.close()
            waits_for = self.hub.waits_for if self.hub is not None else "the coordinator"
            raise NotFinishedError(f"the run waits for {waits_for} although all faults are over.")
        return self.loop.run_until_complete(work)

    async def _unless_crashed(self, work):
        task = asyncio.ensure_future(work)
        left = max(0.0, self._limit - self.loop.time())
        try:
            await asyncio.wait({task, self._crashed}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # with all tasks of the process
            raise Crash from None
        finally:
            self.indices |= {member.name: member.index for member in self.hub.membership.members}
            if not task.done():
                task.cancel()
            elif not task.cancelled():
                task.exception()  # has been seen
        if self._crashed.done():
            raise Crash
        if task.done():
            return task.result()
        raise NotFinishedError(f"the run waits for {self.hub.waits_for} although all faults are over.")

    async def _serve_edge(self, process):
        """An edge and its supervisor, which starts it again whenever it ends before the run."""
        name = process.name
        address = f"10.0.1.{int(name.rpartition('-')[2]) + 1}:7001"
        endpoints = SimulatedEndpoints(self.network, process)
        edge = Edge(
            EdgeOptions(ADDRESS, address, patience=1e9), endpoints, FaultyStore(self.folder / name), make_tiny_setup
        )
        edge._process = f"{name}-{self.loop.time()}"
        self._running[name] = edge
        try:
            await edge.serve()
        except (RefusedError, RunFolderError) as error:
            history.note("alarm", name, sentence=str(error))
            if process.is_alive:
                self.kill_edge(name, 1.0)
        except Crash:
            return

    def _reach(self, point):
        """Kill the process that has reached the failpoint at which it is to die."""
        process = PROCESS.get()
        if process is None or not process.is_alive:
            return
        wanted, times, seconds = self.armed.get(process.name, ("", 0, 0.0))
        if wanted != point:
            return
        self._reached[process.name] += 1
        if self._reached[process.name] < times:
            return
        del self.armed[process.name]
        if process.name == "coordinator":
            self.kill_coordinator(seconds)
            self.network.kill(process)
        else:
            self.kill_edge(process.name, seconds)
        raise Crash

    def _close(self):
        for process in list(self.edges.values()):
            self.network.kill(process)
        self.edges = {}
        for _ in range(5):
            self.loop.run_until_complete(asyncio.sleep(0))
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        for _ in range(5):
            self.loop.run_until_complete(asyncio.sleep(0))
        FaultyStore.full = frozenset()
        asyncio.set_event_loop(None)
        self.loop.close()

    # What an undisturbed run would have drawn.

    def replay(self):
        """Draw all topologies again from the same presence and reports, with nothing but the state in memory."""
        links, state, known = [], self.inputs.first, self.durable
        for t in sorted(self.inputs.plans):
            plan, report = self.inputs.plans[t], self.inputs.reports[t]
            servers = len(plan.presence.active)
            if servers != len(state.accuracy):
                return links  # servers joined: which accuracies they had then is not known here
            coordinator = known.for_servers(servers)
            again = coordinator.plan(state, plan.presence)
            links.append(again.draw.topology.pairs.tolist())
            state, _ = coordinator.learn(state, again, report)
        return links


class NotedCoordinator(DurableCoordinator):
    """A coordinator that notes what it learns from."""

    def learn(self, state, plan, report):
        self.inputs.plans[plan.t], self.inputs.reports[plan.t] = plan, report
        return super().learn(state, plan, report)


class FaultyJournal(Journal):
    """A journal whose disk can be full."""

    def __init__(self, path, simulation):
        self._simulation = simulation
        super().__init__(path)

    def _write(self, statements):
        if self._simulation.loop.time() < self._simulation.full_until:
            raise RunFolderError("the journal cannot be used (database or disk is full)")
        super()._write(statements)


@contextlib.contextmanager
def _quiet_logs():
    logger = logging.getLogger("hatdfed")
    before, logger.disabled = logger.disabled, True
    names = ["hatdfed.deploy.coordinator", "hatdfed.deploy.edge"]
    loggers = [logging.getLogger(name) for name in names]
    for each in loggers:
        each.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
        for each in loggers:
            each.disabled = False


async def _diagnose_nothing(*_, **__):
    return None


def _do_nothing():
    pass
