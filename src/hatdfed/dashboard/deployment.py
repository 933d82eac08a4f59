"""Reads the status of a deployment from its coordinator, and of one that is over from its run folder."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hatdfed.dashboard.catalogue import Card, Catalogue
from hatdfed.deploy.coordinator.journal import read_run_name
from hatdfed.deploy.coordinator.state_folder import JOURNAL
from hatdfed.errors import HatdfedError
from hatdfed.runs.measured_energy import name_energy
from hatdfed.runs.records.cleaning import number, text, whole
from hatdfed.runs.records.reading import reading
from hatdfed.runs.round_row import JOULES, columns_in

ReadStatus = Callable[[], Awaitable[dict[str, Any]]]
FindFinished = Callable[[str], dict[str, Any] | None]

_CALL_SECONDS = 4.0
_FRESH_SECONDS = 1.0  # however many browsers are open, the coordinator is asked once a second
_MAX_SERVERS = 2000
_MAX_REASONS = 50


class DeploymentMonitor:
    """Reads the status of one coordinator, at most once a second.

    A coordinator ends soon after its last round. Then `find_finished` says, by the name of the run, whether all rounds
    were played, also when nobody looked at that moment.
    """

    def __init__(self, address: str, read: ReadStatus, find_finished: FindFinished = lambda run: None) -> None:
        self.address = address
        self._read = read
        self._find_finished = find_finished
        self._read_at = -_FRESH_SECONDS
        self._status: dict[str, Any] = {}
        self._known: dict[str, Any] = {}  # the last status that the coordinator told
        self._lock = asyncio.Lock()

    async def read_status(self) -> dict[str, Any]:
        """Return the status, made safe to show, or under `trouble` a sentence why there is none."""
        async with self._lock:
            if time.monotonic() - self._read_at >= _FRESH_SECONDS:
                self._status = await self._read_now()
                self._read_at = time.monotonic()
            return self._status

    async def _read_now(self) -> dict[str, Any]:
        try:
            status = {"trouble": None, "address": self.address, **_clean(await self._read())}
            self._known = status
            return status
        except HatdfedError as error:
            if (finished := await asyncio.to_thread(self._find_end)) is not None:
                return finished
            return {"trouble": text(str(error), 500), "address": self.address}
        except OSError as error:  # of the certificates
            return {"trouble": f"The certificates cannot be read ({error.strerror}).", "address": self.address}

    def _find_end(self) -> dict[str, Any] | None:
        """Return the status of the run that was last seen if it is finished, else None."""
        if not self._known:
            return None
        over = self._known | {"state": "done", "servers": [_as_ended(server) for server in self._known["servers"]]}
        recorded = self._find_finished(self._known["run"])
        if recorded is not None:
            return over | recorded
        return over if _is_finished(self._known) else None


def make_finder(catalogue: Catalogue) -> FindFinished:
    """Make a function that reads the figures of a deployment's run, if it is in the catalogue and finished."""

    def find_finished(run: str) -> dict[str, Any] | None:
        for card in catalogue.cards():
            found = catalogue.find(card.id) if card.is_finished else None
            if found is not None and read_run_name(found[0] / JOURNAL) == run:
                with suppress(HatdfedError):  # records that cannot be read; the run's own page says why
                    return _read_figures(*found)
        return None

    return find_finished


def _read_figures(folder: Path, card: Card) -> dict[str, Any]:
    """Read what a coordinator tells after its last round, and where the run is shown."""
    with reading(folder / "run.sqlite") as reader:
        progress = reader.progress()
    return {
        "round": card.played,
        "rounds": card.played,
        "accuracy": number(progress["avg_accuracy"]),
        "links": whole(progress["links"]) or 0,
        "joules": sum(number(progress[name]) or 0.0 for name in JOULES.values()),
        "figures": {name: column.text(number(progress[name])) for name, column in columns_in("own").items()},
        "results": card.id,
    }


def make_status_reader(address: str, identity: Path | None, join_address: tuple[str, int] | None = None) -> ReadStatus:
    """Make a function that asks the coordinator at `address`, with the identity in a folder or in plain text.

    A viewer's identity is renewed at the join server, at `join_address`.
    """
    import grpc

    from hatdfed.deploy.identity.files import IdentityFolder
    from hatdfed.deploy.identity.names import COORDINATOR
    from hatdfed.deploy.identity.renewal import renew_if_due
    from hatdfed.deploy.protocol import hatdfed_pb2 as pb
    from hatdfed.deploy.protocol.hatdfed_pb2_grpc import OperationStub
    from hatdfed.deploy.transport.endpoints import Endpoints

    async def read_status() -> dict[str, Any]:
        # The folder is opened for every call: the coordinator renews its certificate, the dashboard only its own.
        folder = None if identity is None else IdentityFolder(identity)
        if folder is not None and join_address is not None:
            await renew_if_due(*join_address, folder)
        endpoints = Endpoints(folder)
        async with endpoints.open_channel(address, COORDINATOR) as channel:
            try:
                answer = await OperationStub(channel).Status(pb.Nothing(), timeout=_CALL_SECONDS)
                status = json.loads(answer.json)
            except grpc.aio.AioRpcError as error:
                raise HatdfedError(f"The coordinator at {address} does not answer: {error.details()}") from None
            except ValueError:
                raise HatdfedError(f"The coordinator at {address} answered something else than a status.") from None
        return status if isinstance(status, dict) else {}

    return read_status


def _clean(status: dict[str, Any]) -> dict[str, Any]:
    joules, refused, servers = status.get("joules"), status.get("refused"), status.get("servers")
    figures = status.get("figures")  # a coordinator of an older version has none
    return {
        "results": None,  # the run's page here, once it is over
        "run": text(status.get("run"), 80),
        "state": text(status.get("state"), 40),
        "round": whole(status.get("round")) or 0,
        "rounds": whole(status.get("rounds")) or 0,
        "accuracy": number(status.get("accuracy_percent")),
        "links": whole(status.get("links")) or 0,
        "undelivered": whole(status.get("undelivered")) or 0,
        "joules": sum(number(spent) or 0.0 for spent in joules.values()) if isinstance(joules, dict) else 0.0,
        "figures": {
            name: metric.text(number(figures.get(name)) if isinstance(figures, dict) else None)
            for name, metric in columns_in("own").items()
        },
        "energy_source": name_energy(text(source, 20), None) if (source := status.get("energy_source")) else "",
        "coordinator_seconds": number(status.get("coordinator_seconds")),
        "waits_for": text(status["waits_for"]) if status.get("waits_for") else "",
        "waits_seconds": number(status.get("waits_seconds")),
        "refused": _clean_counts(refused) if isinstance(refused, dict) else [],
        "servers": [_clean_server(server) for server in servers[:_MAX_SERVERS] if isinstance(server, dict)]
        if isinstance(servers, list)
        else [],
    }


def _is_finished(status: dict[str, Any]) -> bool:
    is_last = status["round"] >= status["rounds"] > 0
    return bool(status["state"] == "done" or (status["state"] == "finishing" and is_last))


def _as_ended(server: dict[str, Any]) -> dict[str, Any]:
    """A server of a run that is over: whether it is there is not known any more."""
    return server | {"here": "ended", "doing": "–", "round": None, "seen_seconds_ago": None}


def _clean_counts(refused: dict[str, Any]) -> list[dict[str, Any]]:
    found = sorted(((whole(count) or 0, text(reason, 60)) for reason, count in refused.items()), reverse=True)
    return [{"reason": reason, "count": count} for count, reason in found[:_MAX_REASONS]]


def _clean_server(server: dict[str, Any]) -> dict[str, Any]:
    here = "drained" if server.get("drained") else "here" if server.get("active") else "away"
    if server.get("quarantined") and here == "away":
        here = "quarantined"
    refused = server.get("refused")  # a coordinator of an older version does not say
    return {
        "index": whole(server.get("index")),
        "name": text(server.get("name"), 80),
        "address": text(server.get("address"), 80),
        "here": here,
        "doing": text(server.get("doing") or None, 60),
        "round": whole(server.get("round")),
        "refused": sum(whole(count) or 0 for count in refused.values()) if isinstance(refused, dict) else 0,
        "seen_seconds_ago": number(server.get("seen_seconds_ago")),
    }
