"""The routes for data: JSON, CSV and events. All of them only read."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import fastapi
from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from hatdfed.dashboard.catalogue import Card, name_accuracy
from hatdfed.dashboard.comparison import make_comparison_view, select_comparable
from hatdfed.dashboard.pages import RunIds, find_runs
from hatdfed.dashboard.run_views import read_round, read_run_series
from hatdfed.dashboard.site import Site
from hatdfed.dashboard.trust_view import read_trust_view
from hatdfed.report.formatting import count, joules, percent
from hatdfed.runs.records.cleaning import text
from hatdfed.runs.records.reading import reading
from hatdfed.runs.records.schema import LEDGER

MAX_SERVERS = 100_000
_LINES_AT_A_TIME = 2000  # of a ledger that is being downloaded
Round = Annotated[int, fastapi.Path(ge=0, lt=10**9)]


def api_routes(site: Site) -> APIRouter:
    """Make the routes for the scripts of the pages, which other programs may use as well."""
    routes = APIRouter(prefix="/api")

    @routes.get("/runs")
    def runs() -> JSONResponse:
        cards = site.catalogue.cards()
        return JSONResponse([{**card._asdict(), "state": card.state()} for card in cards])

    @routes.get("/runs/events")
    async def runs_events(request: Request) -> Response:
        return site.streams.open(request, lambda: run_in_threadpool(_make_list_stamp, site))

    @routes.get("/runs/{run_id}/series")
    def series(run_id: str) -> JSONResponse:
        folder, card = site.find_run(run_id)
        content = read_run_series(folder, _clamp_servers(card.servers))
        return JSONResponse({**content, "state": card.state(), "figures": _format_figures(card, content["rounds"])})

    @routes.get("/runs/{run_id}/rounds/{t}")
    def one_round(run_id: str, t: Round) -> JSONResponse:
        folder, card = site.find_run(run_id)
        view = read_round(folder, t, _clamp_servers(card.servers))
        if view is None:
            raise HTTPException(404, f"Round {t} does not exist yet.")
        return JSONResponse(view)

    @routes.get("/runs/{run_id}/trust")
    def trust(run_id: str) -> JSONResponse:
        folder, _ = site.find_run(run_id)
        return JSONResponse(read_trust_view(folder))

    @routes.get("/runs/{run_id}/events")
    async def run_events(run_id: str, request: Request) -> Response:
        await run_in_threadpool(site.find_run, run_id)
        return site.streams.open(request, lambda: run_in_threadpool(_make_run_stamp, site, run_id))

    @routes.get("/runs/{run_id}/ledger.csv")
    def ledger(run_id: str) -> Response:
        folder, _ = site.find_run(run_id)
        with reading(folder / "run.sqlite") as reader:  # fails now, if it cannot be read, and not during the download
            reader.progress()
        headers = {"Content-Disposition": f'attachment; filename="ledger-{run_id}.csv"'}
        return StreamingResponse(_stream_csv(folder), media_type="text/csv; charset=utf-8", headers=headers)

    @routes.get("/compare")
    def compare(run: RunIds, against: str = "") -> JSONResponse:
        return JSONResponse(make_comparison_view(select_comparable(find_runs(site, run, against), against)))

    @routes.get("/deployment")
    async def deployment() -> JSONResponse:
        return JSONResponse(await _read_status(site))

    @routes.get("/deployment/events")
    async def deployment_events(request: Request) -> Response:
        return site.streams.open(request, lambda: _read_status(site))

    return routes


async def _read_status(site: Site) -> dict[str, Any]:
    if site.deployment is None:
        return {"trouble": "No coordinator was named when the dashboard was started."}
    return await site.deployment.read_status()


def _format_figures(card: Card, rounds: int) -> dict[str, str]:
    """Format the figures at the head of a run's page as its template does, by the ids of their elements."""
    return {
        "accuracy-of": name_accuracy(card),
        "accuracy": percent(card.accuracy),
        "energy": joules(card.joules),
        "link-energy": joules(card.link_joules),
        "played": count(rounds),
    }


def _clamp_servers(servers: int | None) -> int:
    return max(0, min(servers or 0, MAX_SERVERS))


def _make_list_stamp(site: Site) -> dict[str, Any]:
    """Make a value that changes whenever the list would look different."""
    seen = [(card.id, card.played, card.state(), card.accuracy) for card in site.catalogue.cards()]
    return {"stamp": hashlib.sha256(repr(seen).encode()).hexdigest()[:16], "total": len(seen)}


def _make_run_stamp(site: Site, run_id: str) -> dict[str, Any] | None:
    found = site.catalogue.find(run_id)
    return None if found is None else {"rounds": found[1].played, "state": found[1].state()}


def _stream_csv(folder: Path) -> Iterator[str]:
    """Yield the ledger some lines at a time; in between the database is closed, however slow the download.

    A reader that stays inside a transaction would keep the run that is being played from trimming its write-ahead log.
    """
    yield _format_csv([list(LEDGER.columns)])
    after = 0
    while True:
        with reading(folder / "run.sqlite") as reader:
            lines = reader.ledger_lines(after, _LINES_AT_A_TIME)
        if not lines:
            return
        after = lines[-1][0]
        yield _format_csv([[_escape_cell(value) for value in line[1:]] for line in lines])


def _escape_cell(value: Any) -> Any:
    """Leave numbers as they are, and quote texts that a spreadsheet would take for a formula."""
    if value is None or isinstance(value, int | float):
        return value
    shown = text(value)
    return f"'{shown}" if shown[:1] in "=+-@" else shown


def _format_csv(lines: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()
