"""A coordinator from start to end: folder, journal, services, the main loop, results. Numpy is all it computes with."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc

from hatdfed.core.availability import Presence
from hatdfed.core.fleet import SeparateFleets
from hatdfed.core.loop import RunInPlay, run
from hatdfed.core.round import RoundRecord
from hatdfed.deploy.coordinator.durable import DurableCoordinator
from hatdfed.deploy.coordinator.edge_hub import EdgeHub
from hatdfed.deploy.coordinator.journal import Journal
from hatdfed.deploy.coordinator.metrics import serve_metrics
from hatdfed.deploy.coordinator.order_queues import END
from hatdfed.deploy.coordinator.remote_fleet import RemoteFleet
from hatdfed.deploy.coordinator.services import CoordinationService, Door, OperationService
from hatdfed.deploy.coordinator.settings import DeploySettings
from hatdfed.deploy.coordinator.status import Progress, status_of
from hatdfed.deploy.coordinator.trouble import named_trouble
from hatdfed.deploy.identity.identity_store import IdentityStore
from hatdfed.deploy.identity.join_server import JoinServer
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import add_CoordinationServicer_to_server, add_OperationServicer_to_server
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.errors import ConfigError, HatdfedError, RunFolderError
from hatdfed.runs.recorder import Recorder, open_records
from hatdfed.runs.records.folder import RunFolder
from hatdfed.setup.config import Config
from hatdfed.setup.run_identity import continued, is_resume_digest, resume_difference, resume_digest

_log = logging.getLogger("hatdfed.deploy.coordinator")
_FINAL_SECONDS = 60.0
T = TypeVar("T")


class StopAskedError(Exception):
    """Somebody wants the coordinator to end; the run can go on later."""


@dataclass(frozen=True)
class Hosting:
    """Where and as whom the coordinator runs."""

    folder: Path  # run folder and journal
    listen: str  # host:port
    ends: Endpoints
    office: IdentityStore | None = None  # renews certificates and knows who is locked out; None: plain text
    desk: tuple[str, int] | None = None  # host and port where new edges join; None: nowhere
    metrics: tuple[str, int] | None = None  # host and port for Prometheus


class CoordinatorProcess:
    """One coordinator; `serve` plays the run."""

    def __init__(self, config: Config, settings: DeploySettings, hosting: Hosting) -> None:
        self.folder = _run_folder(hosting.folder, config)
        there = _settings_there(self.folder)
        config = config if there is None else continued(there, config)
        self._config = config
        self._settings = settings
        self._hosting = hosting
        self._journal = Journal(hosting.folder / "journal.sqlite")
        try:
            run_id, epoch = _opened(self._journal, config, there)
            self.folder.write_config(config)  # the number of rounds may be another than at the start before
        except BaseException:
            self._journal.close()
            raise
        self.station = EdgeHub(self._journal, settings, config.servers, epoch, self._journal.next_round())
        self.progress = Progress(run_id, config.rounds)
        self.port = self.desk_port = self.metrics_port = 0  # once it listens
        self._desk: JoinServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def status(self) -> dict[str, Any]:
        """Where the run stands."""
        status = status_of(self.station, self.progress)
        if self._desk is not None:
            at_desk = Counter({f"desk-{word}": count for word, count in self._desk.refusals.items()})
            status["refused"] = dict(Counter(status["refused"]) + at_desk)
        return status

    async def serve(self) -> dict[str, Any] | None:
        """Take calls and play all rounds; the summary, or None if it was stopped before."""
        self._loop = asyncio.get_running_loop()
        try:
            server = await self._open()
        except BaseException:
            self._journal.close()
            raise
        try:
            async with self._around():
                with named_trouble():
                    summary = await asyncio.to_thread(self._play)
            await self.station.dismiss()
            return summary
        except StopAskedError:
            self.progress.state = "stopped"
            _log.info("stopped before round %d; start the coordinator again to go on", self.station.next_round)
            await self.station.dismiss()
            return None
        finally:  # after an error the edges are not sent home: they wait for the next start
            self._hang_up()
            await server.stop(grace=1.0)
            self._journal.close()

    def _hang_up(self) -> None:
        """Lines that are still watched end in good order: gRPC writes a traceback for each that it has to cut."""
        for member in self.station.membership.members:
            self.station.tell(member.index, END)

    async def _open(self) -> grpc.aio.Server:
        """Take calls."""
        server = self._hosting.ends.server()
        office = self._hosting.office
        door = Door(self._hosting.ends, None if office is None else office.denied)
        text = json.dumps(self._config.model_dump(mode="json"))
        service = CoordinationService(self.station, door, self.progress.run, text, office)
        add_CoordinationServicer_to_server(service, server)
        add_OperationServicer_to_server(OperationService(self.station, door, self.status), server)
        self.port = self._hosting.ends.listen(server, self._hosting.listen)
        await server.start()
        _log.info("run %s, start %d, listens at port %d", self.progress.run, self.station.epoch, self.port)
        return server

    @asynccontextmanager
    async def _around(self) -> AsyncIterator[None]:
        """The front desk, the coordinator's own certificate and the metrics, while the run is played."""
        async with AsyncExitStack() as stack:
            if self._hosting.office is not None:
                refreshing = asyncio.ensure_future(_keep_fresh(self._hosting.office))
                stack.callback(refreshing.cancel)
                if self._hosting.desk is not None:
                    host, port = self._hosting.desk
                    desk = await stack.enter_async_context(JoinServer(self._hosting.office, host=host, port=port))
                    self._desk, self.desk_port = desk, desk.port
                    _log.info("new edges join at port %d", desk.port)
            if self._hosting.metrics is not None:
                metrics = serve_metrics(self.status, *self._hosting.metrics)
                self.metrics_port = await stack.enter_async_context(metrics)
                _log.info("metrics at port %d", self.metrics_port)
            yield

    def _play(self) -> dict[str, Any]:
        """The whole run, in a thread of its own: the services go on meanwhile."""
        with closing(open_records(self.folder, self._journal.next_round())) as database:
            self.progress.take_over(database.records("rounds"), database.records("links"))
            self._assembled()
            manifest = self.station.manifest
            if manifest is None:
                raise RuntimeError("servers are ready without having said what their models are")
            config, durable = self._config, DurableCoordinator(self._config, manifest, self._journal, self._assembled)
            fleet = RemoteFleet(
                self.station,
                manifest,
                lambda servers: durable.for_servers(servers).prices,
                self._wait_for,
                final_seconds=max(_FINAL_SECONDS, self._settings.round_seconds),
            )
            watchers = [lambda record, seconds: self._watch(record, seconds, seconds - fleet.round_seconds)]
            recorder = Recorder(
                config, fleet, self.folder, database, store=durable, watchers=watchers, notes=self._notes
            )
            state = recorder.begin(durable, durable.restored())
            self.progress.state = "running" if state.t < config.rounds else "finishing"
            run([RunInPlay(durable, state, config.rounds, [recorder.keep])], SeparateFleets(fleet))
            summary = recorder.summary()
            self.progress.state = "done"
            return summary

    def _watch(self, record: RoundRecord, seconds: float, own_seconds: float) -> None:
        """Count the round and say so in the log; `own_seconds` of it nobody waited for the edges."""
        self.progress.coordinator_seconds = own_seconds
        self.progress.count(record, seconds)
        if record.t + 1 >= self._config.rounds:
            self.progress.state = "finishing"
        accuracy = self.progress.figures["avg_accuracy"]
        _log.info(
            "round %d: %s accuracy, %d of %d servers, %d links, %.1f s",
            record.t,
            "unknown" if accuracy is None else f"{accuracy:.1f} %",
            int(record.report.reported.sum()),
            len(record.report.servers),
            record.draw.topology.num_links,
            seconds,
        )

    def _notes(self) -> list[str]:
        lost = self.progress.undelivered
        return [f"{lost} models did not arrive."] if lost else []

    @property
    def _min_servers(self) -> int:
        return min(self._settings.min_servers or self._config.servers, self._config.servers)

    def _assembled(self) -> Presence:
        return self._wait_for(self.station.assembled(self._min_servers))

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """What the event loop brings, or `StopAskedError`."""
        if self._loop is None:
            raise RuntimeError("the coordinator does not serve")
        return asyncio.run_coroutine_threadsafe(self._unless_stopped(work), self._loop).result()

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self.station.stop_asked.wait())
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            stop.cancel()
            return task.result()
        task.cancel()
        raise StopAskedError


async def _keep_fresh(office: IdentityStore) -> None:
    """The coordinator signs its own certificate anew, long before it ends."""
    while True:
        try:
            await asyncio.to_thread(office.refresh)
        except HatdfedError as error:
            _log.error("the coordinator's certificate could not be renewed yet: %s", error)
        await asyncio.sleep(min(600.0, office.lifetime.total_seconds() / 10))


def _run_folder(path: Path, config: Config) -> RunFolder:
    """A new folder, or the one that an earlier start has made."""
    if (path / "journal.sqlite").exists():
        return RunFolder(path)
    return RunFolder.create(path, config)


def _settings_there(folder: RunFolder) -> Config | None:
    """The settings of the start before; None where they cannot be read, and the journal alone knows its run."""
    try:
        return folder.config()
    except ConfigError:
        return None


def _opened(journal: Journal, config: Config, there: Config | None) -> tuple[str, int]:
    """The run's name and which start of it this is; other settings than those of the first start are refused."""
    known = journal.fact("settings")
    difference = None if there is None else resume_difference(there, config)
    if difference is not None or not (known is None or is_resume_digest(known, config)):
        what = "holds a run with other settings" if difference is None else f"holds a run that {difference}"
        raise RunFolderError(f"{journal.path.parent} {what}. Give back the old settings, or choose another --state.")
    if config.rounds < (played := journal.next_round()):
        raise RunFolderError(
            f"{journal.path.parent} has {played} rounds already, but rounds is {config.rounds}. Set rounds to {played} "
            "to end here or to more to go on, or choose another --state."
        )
    run_id = journal.fact("run") or secrets.token_hex(8)
    epoch = (journal.fact("epoch") or 0) + 1
    for name, value in (("settings", known or resume_digest(config)), ("run", run_id), ("epoch", epoch)):
        journal.state_fact(name, value)
    return run_id, epoch
