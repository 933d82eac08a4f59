"""The pages: lists and tables come ready from here, pictures are drawn in the browser from what `api` says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import HTMLResponse

from hatdfed.dashboard.cards import Card, accuracy_name
from hatdfed.dashboard.comparing import MOST_COMPARED, choose, front_title
from hatdfed.dashboard.listing import HEADINGS, Wish, choices, listed
from hatdfed.dashboard.site import Site
from hatdfed.errors import HatdfedError
from hatdfed.runs.records.cleaning import flat_settings, number, texts
from hatdfed.runs.records.small_files import read_document, read_settings
from hatdfed.runs.round_row import columns_in

MOST_CHOSEN = 500  # identifiers in one address
Chosen = Annotated[list[str], Query(default_factory=list, max_length=MOST_CHOSEN)]


def page_routes(site: Site) -> APIRouter:
    """Addresses for people."""
    routes = APIRouter(default_response_class=HTMLResponse)

    @routes.get("/")
    def runs(
        method: str = "", dataset: str = "", state: str = "", sort: str = "written", order: str = "down", part: str = ""
    ) -> HTMLResponse:
        wish = Wish(method, dataset, state, sort, order).cleaned()
        cards = site.catalogue.cards()
        content = {"wish": wish, "cards": listed(cards, wish), "total": len(cards)}
        if part == "rows":  # for a page that is open already
            return site.page("rows.html", content)
        more = {"root": str(site.catalogue.root), "is_full": site.catalogue.is_full(), "headings": HEADINGS}
        more |= {"choices": choices(cards), "most": MOST_COMPARED, "place": "runs"}
        return site.page("runs.html", content | more)

    @routes.get("/runs/{run_id}")
    def run(run_id: str) -> HTMLResponse:
        folder, card = site.run(run_id)
        content: dict[str, Any] = {"settings": [], "environment": [], "results": {}, "notes": []}
        try:
            results = read_document(folder, "results.json")
            content = {
                "settings": flat_settings(read_settings(folder)),
                "environment": flat_settings(read_document(folder, "environment.json")),
                "results": {name: number(value) for name, value in results.items()},
                "notes": texts(results.get("notes"), 500),
            }
        except (HatdfedError, OSError) as error:
            card = card._replace(trouble=card.trouble or str(error))
        content |= {"card": card, "accuracy_name": accuracy_name(card), "metrics": columns_in("own"), "place": "runs"}
        return site.page("run.html", content)

    @routes.get("/compare")
    def compare(run: Chosen, against: str = "") -> HTMLResponse:
        chosen = choose(in_order(site, run, against))
        query = "&".join(f"run={run.name}" for row in chosen.rows for run in row.runs)
        content = {"chosen": chosen, "title": front_title(chosen.rows), "query": query, "place": "compare"}
        return site.page("compare.html", content)

    @routes.get("/deployment")
    async def deployment() -> HTMLResponse:
        address = None if site.deployment is None else site.deployment.address
        content = {"address": address, "metrics": columns_in("own"), "place": "deployment"}
        return site.page("deployment.html", content)

    return routes


def in_order(site: Site, run_ids: list[str], against: str) -> list[tuple[Path, Card]]:
    """The chosen runs once each, `against` first, then the oldest; identifiers that lead nowhere are left out."""
    found = [entry for run_id in dict.fromkeys(run_ids) if (entry := site.catalogue.find(run_id)) is not None]
    return sorted(found, key=lambda entry: (entry[1].id != against, entry[1].written))
