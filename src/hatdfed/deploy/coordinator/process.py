"""The coordinator's process from start to end: folder, journal, services, the main loop, results. It needs no torch."""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc

from hatdfed.core.fleet import SeparateFleets
from hatdfed.core.loop import RunInPlay, run
from hatdfed.core.round import Presence, RoundRecord
from hatdfed.deploy.coordinator.durable import DurableCoordinator
from hatdfed.deploy.coordinator.edge_hub import END_OF_ORDERS, EdgeHub
from hatdfed.deploy.coordinator.journal import Journal
from hatdfed.deploy.coordinator.metrics import make_figures
from hatdfed.deploy.coordinator.quorum import QuorumWait
from hatdfed.deploy.coordinator.remote_fleet import RemoteFleet
from hatdfed.deploy.coordinator.services import AccessControl, CoordinationService, OperationService
from hatdfed.deploy.coordinator.settings import DeploySettings
from hatdfed.deploy.coordinator.state_folder import (
    JOURNAL,
    open_state_folder,
    refuse_newer_journal,
    refuse_older_journal,
)
from hatdfed.deploy.coordinator.status import DeploymentProgress, make_status
from hatdfed.deploy.identity.identity_store import IdentityStore
from hatdfed.deploy.identity.join_server import JoinServer
from hatdfed.deploy.monitoring.metrics import COORDINATOR_METRICS, PROCESS_METRICS, FiguresCollector
from hatdfed.deploy.monitoring.process_figures import ProcessFigures
from hatdfed.deploy.monitoring.server import serve_metrics
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import add_CoordinationServicer_to_server, add_OperationServicer_to_server
from hatdfed.deploy.transport.endpoints import COORDINATOR_BYTES, Endpoints
from hatdfed.errors import ConfigError, HatdfedError, RunFolderError, TroubleError
from hatdfed.runs.recorder import Recorder, open_records
from hatdfed.runs.records.folder import RunFolder
from hatdfed.setup.config import Config
from hatdfed.setup.run_identity import continued, is_resume_digest, resume_difference, resume_digest
from hatdfed.version import __version__

_log = logging.getLogger("hatdfed.deploy.coordinator")
_FINAL_SECONDS = 60.0
_RENEWAL_CHECK_SECONDS = 60.0
_STREAM_SECONDS = 60.0  # that an edge's stream of orders may outlive the age of its connection
_TRANSIENT = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_TRANSIENT_IN_SQLITE = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,  # too many open files
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
}
T = TypeVar("T")


class StopRequestedError(Exception):
    """The coordinator was asked to stop; the run can go on later."""


@dataclass(frozen=True)
class CoordinatorOptions:
    """Where the coordinator keeps its state and listens, and its identity."""

    folder: Path  # run folder and journal
    listen: str  # host:port
    endpoints: Endpoints
    identity_store: IdentityStore | None = None  # to renew certificates, with the deny list; None: plain text
    join_address: tuple[str, int] | None = None  # host and port of the join server; None: no new edges join
    metrics: tuple[str, int] | None = None  # host and port for Prometheus


class CoordinatorProcess:
    """One start of a coordinator; `serve` plays the run."""

    def __init__(self, config: Config, settings: DeploySettings, options: CoordinatorOptions) -> None:
        self.folder = open_state_folder(options.folder, config)
        earlier = _read_earlier_settings(self.folder)
        config = config if earlier is None else continued(earlier, config)
        self._config = config
        self._settings = settings
        self._options = options
        self._journal = Journal(options.folder / JOURNAL)
        try:
            refuse_newer_journal(self._journal)
            refuse_older_journal(self.folder, self._journal)
            run_id, epoch = _open_run(self._journal, config, earlier)
            self.folder.write_config(config)  # the number of rounds may have changed since the last start
            self.hub = EdgeHub(self._journal, settings, config.servers, epoch, self._journal.read_next_round())
            self._quorum_wait = QuorumWait(self.hub)
        except BaseException:
            self._journal.close()
            raise
        self.progress = DeploymentProgress(run_id, config.rounds, config.energy.source)
        self.port = self.join_port = self.metrics_port = 0  # once it listens
        self._join_server: JoinServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def status(self) -> dict[str, Any]:
        """Return the status of the run."""
        status = make_status(self.hub, self.progress)
        if self._join_server is not None:
            refused = Counter({f"desk-{word}": count for word, count in self._join_server.refusals.items()})
            status["refused"] = dict(Counter(status["refused"]) + refused)
        return status

    async def serve(self) -> dict[str, Any] | None:
        """Serve edges and play all rounds; returns the summary, or None if stopped before the end."""
        self._loop = asyncio.get_running_loop()
        try:
            server = await self._start_server()
        except BaseException:
            self._journal.close()
            raise
        try:
            async with self._run_side_services():
                with mark_transient_errors():
                    summary = await asyncio.to_thread(self._play)
            await self.hub.dismiss()
            return summary
        except StopRequestedError:
            self.progress.state = "stopped"
            _log.info("stopped before round %d; start the coordinator again to go on", self.hub.next_round)
            await self.hub.dismiss()
            return None
        finally:  # after an error the edges are not dismissed: they wait for the next start
            self._end_order_streams()
            await server.stop(grace=1.0)
            self._journal.close()

    def _end_order_streams(self) -> None:
        """End all streams of orders: gRPC logs a traceback for every stream that it has to break off."""
        for member in self.hub.membership.members:
            self.hub.send_order(member.index, END_OF_ORDERS)

    async def _start_server(self) -> grpc.aio.Server:
        server = self._options.endpoints.make_server(stream_seconds=_STREAM_SECONDS, message_bytes=COORDINATOR_BYTES)
        store = self._options.identity_store
        deny_list = None if store is None else store.deny_list
        access = AccessControl(self._options.endpoints, deny_list, self.hub.count_refusal)
        service = CoordinationService(self.hub, access, self.progress.run, self._config, store)
        add_CoordinationServicer_to_server(service, server)
        add_OperationServicer_to_server(OperationService(self.hub, access, self.status), server)
        self.port = self._options.endpoints.listen(server, self._options.listen)
        await server.start()
        _log.info("run %s, start %d, listens at port %d", self.progress.run, self.hub.epoch, self.port)
        _log.info("a round needs at least %d of %d servers", self.hub.quorum, self._config.servers)
        return server

    @asynccontextmanager
    async def _run_side_services(self) -> AsyncIterator[None]:
        """Run the join server, the renewal of the coordinator's certificate and the metrics while the run is played."""
        async with AsyncExitStack() as stack:
            if (store := self._options.identity_store) is not None:
                renewing = asyncio.ensure_future(_renew_own_certificate(store))
                stack.callback(renewing.cancel)
                if self._options.join_address is not None:
                    host, port = self._options.join_address
                    self._join_server = await stack.enter_async_context(JoinServer(store, host=host, port=port))
                    self.join_port = self._join_server.port
                    _log.info("new edges join at port %d", self.join_port)
            if self._options.metrics is not None:
                collectors = (
                    FiguresCollector(COORDINATOR_METRICS, lambda: make_figures(self.status())),
                    FiguresCollector(
                        PROCESS_METRICS, ProcessFigures(self._options.endpoints, self._options.folder).read
                    ),
                )
                self.metrics_port = await stack.enter_async_context(serve_metrics(*self._options.metrics, *collectors))
                _log.info("metrics at port %d", self.metrics_port)
            yield

    def _play(self) -> dict[str, Any]:
        """Play the whole run, in a thread of its own, while the event loop serves the edges."""
        with closing(open_records(self.folder, self._journal.read_next_round())) as database:
            self.progress.take_over(database.records("rounds"), database.records("links"))
            self._wait_for_servers()
            manifest = self.hub.manifest
            if manifest is None:
                raise RuntimeError("servers are ready without having described their models")
            config = self._config
            max_hops = 1 if self._settings.relay is None else 2
            durable = DurableCoordinator(config, manifest, self._journal, self._wait_for_servers, max_hops)
            fleet = RemoteFleet(
                self.hub,
                manifest,
                durable.for_servers,
                self._wait_for,
                final_seconds=max(_FINAL_SECONDS, self._settings.round_seconds),
                metrics=config.metrics,
            )
            watchers = [lambda record, seconds: self._watch(record, seconds, seconds - fleet.round_seconds)]
            recorder = Recorder(
                config, fleet, self.folder, database, store=durable, watchers=watchers, notes=self._notes
            )
            state = recorder.begin(durable, durable.restore())
            self.progress.note_caught(state.caught)
            self.progress.state = "running" if state.t < config.rounds else "finishing"
            run([RunInPlay(durable, state, config.rounds, [recorder.keep])], SeparateFleets(fleet))
            summary = recorder.summary()
            self.progress.state = "done"
            return summary

    def _watch(self, record: RoundRecord, seconds: float, own_seconds: float) -> None:
        """Count and log a round; `own_seconds` is the coordinator's own work, without waiting for edges."""
        self.progress.coordinator_seconds = own_seconds
        self.progress.count(record, seconds)
        if record.t + 1 >= self._config.rounds:
            self.progress.state = "finishing"
        for caught in record.caught:
            member = self.hub.membership.get(caught.server)
            name = f"server {caught.server}" if member is None else member.name
            _log.warning(
                "%s gets no links any more: its report of round %d is false. %s", name, caught.round, caught.reason
            )
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

    def _wait_for_servers(self) -> Presence:
        return self._wait_for(self._quorum_wait.wait())

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop from the main loop's thread; raises `StopRequestedError` if stopped."""
        if self._loop is None:
            raise RuntimeError("the coordinator is not serving")
        return asyncio.run_coroutine_threadsafe(self._unless_stopped(work), self._loop).result()

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self.hub.stop_requested.wait())
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            stop.cancel()
            return task.result()
        task.cancel()
        raise StopRequestedError


@contextmanager
def mark_transient_errors() -> Iterator[None]:
    """Turn errors that may be over at the next start into `TroubleError`, so that a supervisor starts it again.

    Those are a full disk or too few open files. Damage to files does not pass, and keeps its error.
    """
    try:
        yield
    except TroubleError:
        raise
    except RunFolderError as error:
        if _is_transient(error):
            raise TroubleError(str(error)) from None
        raise


def _is_transient(error: BaseException) -> bool:
    cause = error.__context__  # the error is raised where its cause was caught
    if isinstance(cause, sqlite3.Error):
        code = getattr(cause, "sqlite_errorcode", None)  # an extended code, with the kind in its last byte
        return code is not None and code & 0xFF in _TRANSIENT_IN_SQLITE
    return isinstance(cause, OSError) and cause.errno in _TRANSIENT


async def _renew_own_certificate(store: IdentityStore) -> None:
    """Renew the coordinator's certificate long before it expires, again and again; one from the future, soon."""
    while True:
        try:
            await asyncio.to_thread(store.refresh)
        except HatdfedError as error:
            _log.error("the coordinator's certificate could not be renewed yet: %s", error)
        await asyncio.sleep(min(_RENEWAL_CHECK_SECONDS, store.lifetime.total_seconds() / 10))


def _read_earlier_settings(folder: RunFolder) -> Config | None:
    """Read the settings of the last start; None if they cannot be read, so that only the journal knows its run."""
    try:
        return folder.config()
    except ConfigError:
        return None


def _open_run(journal: Journal, config: Config, earlier: Config | None) -> tuple[str, int]:
    """Return the run's name and the number of this start; settings of another run are refused."""
    known = journal.read_fact("settings")
    difference = None if earlier is None else resume_difference(earlier, config)
    if difference is not None or not (known is None or is_resume_digest(known, config)):
        what = "holds a run with other settings" if difference is None else f"holds a run that {difference}"
        raise RunFolderError(f"{journal.path.parent} {what}. Give back the old settings, or choose another --state.")
    if config.rounds < (played := journal.read_next_round()):
        raise RunFolderError(
            f"{journal.path.parent} has {played} rounds already, but rounds is {config.rounds}. Set rounds to {played} "
            "to end here or to more to go on, or choose another --state."
        )
    run_id = journal.read_fact("run") or secrets.token_hex(8)
    epoch = (journal.read_fact("epoch") or 0) + 1
    settings = known or resume_digest(config)
    journal.write_facts({"settings": settings, "version": __version__, "run": run_id, "epoch": epoch})
    return run_id, epoch
