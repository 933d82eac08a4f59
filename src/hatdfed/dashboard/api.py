"""Data for the pages: JSON, CSV and events. Every address is a question; none changes anything."""

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

from hatdfed.dashboard.cards import Card, accuracy_name
from hatdfed.dashboard.comparing import choose, comparison_view
from hatdfed.dashboard.pages import Chosen, in_order
from hatdfed.dashboard.run_views import round_view, run_series
from hatdfed.dashboard.site import Site
from hatdfed.report.words import count, joules, percent
from hatdfed.runs.records.cleaning import text
from hatdfed.runs.records.reading import reading
from hatdfed.runs.records.schema import LEDGER

MOST_SERVERS = 100_000
_LINES_AT_A_TIME = 2000  # of a ledger that is downloaded
Round = Annotated[int, fastapi.Path(ge=0, lt=10**9)]


def api_routes(site: Site) -> APIRouter:
    """Addresses for the scripts of the pages, and for anybody else's."""
    routes = APIRouter(prefix="/api")

    @routes.get("/runs")
    def runs() -> JSONResponse:
        cards = site.catalogue.cards()
        return JSONResponse([{**card._asdict(), "state": card.state()} for card in cards])

    @routes.get("/runs/events")
    async def runs_events(request: Request) -> Response:
        return site.streams.answer(request, lambda: run_in_threadpool(_list_stamp, site))

    @routes.get("/runs/{run_id}/series")
    def series(run_id: str) -> JSONResponse:
        folder, card = site.run(run_id)
        content = run_series(folder, _servers(card.servers))
        return JSONResponse({**content, "state": card.state(), "figures": _figures(card, content["rounds"])})

    @routes.get("/runs/{run_id}/rounds/{t}")
    def one_round(run_id: str, t: Round) -> JSONResponse:
        folder, card = site.run(run_id)
        view = round_view(folder, t, _servers(card.servers))
        if view is None:
            raise HTTPException(404, f"Round {t} was not played.")
        return JSONResponse(view)

    @routes.get("/runs/{run_id}/events")
    async def run_events(run_id: str, request: Request) -> Response:
        await run_in_threadpool(site.run, run_id)
        return site.streams.answer(request, lambda: run_in_threadpool(_run_stamp, site, run_id))

    @routes.get("/runs/{run_id}/ledger.csv")
    def ledger(run_id: str) -> Response:
        folder, _ = site.run(run_id)
        with reading(folder / "run.sqlite") as reader:  # what cannot be read is said before the first byte is sent
            reader.progress()
        headers = {"Content-Disposition": f'attachment; filename="ledger-{run_id}.csv"'}
        return StreamingResponse(_csv(folder), media_type="text/csv; charset=utf-8", headers=headers)

    @routes.get("/compare")
    def compare(run: Chosen, against: str = "") -> JSONResponse:
        return JSONResponse(comparison_view(choose(in_order(site, run, against))))

    @routes.get("/deployment")
    async def deployment() -> JSONResponse:
        return JSONResponse(await _status(site))

    @routes.get("/deployment/events")
    async def deployment_events(request: Request) -> Response:
        return site.streams.answer(request, lambda: _status(site))

    return routes


async def _status(site: Site) -> dict[str, Any]:
    if site.deployment is None:
        return {"trouble": "No coordinator was named when the dashboard was started."}
    return await site.deployment.view()


def _figures(card: Card, rounds: int) -> dict[str, str]:
    """The figures at the head of a run's page as it writes them itself, by the names of their elements."""
    return {
        "accuracy-of": accuracy_name(card),
        "accuracy": percent(card.accuracy),
        "energy": joules(card.joules),
        "link-energy": joules(card.link_joules),
        "played": count(rounds),
    }


def _servers(servers: int | None) -> int:
    return max(0, min(servers or 0, MOST_SERVERS))


def _list_stamp(site: Site) -> dict[str, Any]:
    """Something else whenever the list would look different."""
    seen = [(card.id, card.played, card.state(), card.accuracy) for card in site.catalogue.cards()]
    return {"stamp": hashlib.sha256(repr(seen).encode()).hexdigest()[:16], "total": len(seen)}


def _run_stamp(site: Site, run_id: str) -> dict[str, Any] | None:
    found = site.catalogue.find(run_id)
    return None if found is None else {"rounds": found[1].played, "state": found[1].state()}


def _csv(folder: Path) -> Iterator[str]:
    """The ledger, some lines at a time; in between nothing is held open, however slowly they are fetched.

    A reader that waits inside SQLite would keep the run that is played from trimming its log.
    """
    yield _written([list(LEDGER.columns)])
    after = 0
    while True:
        with reading(folder / "run.sqlite") as reader:
            lines = reader.ledger_lines(after, _LINES_AT_A_TIME)
        if not lines:
            return
        after = lines[-1][0]
        yield _written([[_cell(value) for value in line[1:]] for line in lines])


def _cell(value: Any) -> Any:
    """Numbers as they are; a text never looks like a formula to a spreadsheet."""
    if value is None or isinstance(value, int | float):
        return value
    shown = text(value)
    return f"'{shown}" if shown[:1] in "=+-@" else shown


def _written(lines: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()
