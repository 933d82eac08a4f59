"""The routes for people: lists and tables are rendered here, charts are drawn in the browser from the data of `api`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import HTMLResponse

from hatdfed.dashboard.catalogue import (
    GROUPS,
    HEADINGS,
    Card,
    ListQuery,
    group_cards,
    list_filter_values,
    name_accuracy,
    select_cards,
)
from hatdfed.dashboard.comparison import MAX_COMPARED, make_front_title, select_comparable
from hatdfed.dashboard.run_views import list_metrics
from hatdfed.dashboard.site import Site
from hatdfed.errors import HatdfedError
from hatdfed.report.findings import GROUPS_EXPLAINED
from hatdfed.runs.measured_energy import name_energy
from hatdfed.runs.records.cleaning import flat_settings, number, texts
from hatdfed.runs.records.small_files import read_document, read_settings
from hatdfed.runs.round_row import columns_in

MAX_CHOSEN = 500  # identifiers in one address
_LONGEST_SEARCH = 200
RunIds = Annotated[list[str], Query(default_factory=list, max_length=MAX_CHOSEN)]


def page_routes(site: Site) -> APIRouter:
    """Make the routes of the pages."""
    routes = APIRouter(default_response_class=HTMLResponse)

    @routes.get("/")
    def runs(
        method: str = "",
        dataset: str = "",
        state: str = "",
        sort: str = "written",
        order: str = "down",
        search: str = "",
        group: str = "",
        part: str = "",
    ) -> HTMLResponse:
        query = ListQuery(method, dataset, state, sort, order, search[:_LONGEST_SEARCH], group).normalise()
        cards = site.catalogue.cards()
        selected = select_cards(cards, query)
        content = {"query": query, "groups": group_cards(selected, query), "total": len(cards)}
        content |= {"shown": len(selected), "grouping": GROUPS}
        if part == "rows":  # for a page that is open already
            return site.render_page("rows.html", content)
        more = {"root": str(site.catalogue.root), "is_full": site.catalogue.is_full(), "headings": HEADINGS}
        more |= {"choices": list_filter_values(cards), "most": MAX_COMPARED, "section": "runs"}
        return site.render_page("runs.html", content | more)

    @routes.get("/runs/{run_id}")
    def run(run_id: str) -> HTMLResponse:
        folder, card = site.find_run(run_id)
        content: dict[str, Any] = {"settings": [], "environment": [], "results": {}, "notes": [], "own_metrics": []}
        content["energy_source"] = "modelled"
        try:
            results = read_document(folder, "results.json")
            measured = results.get("measured_energy")
            content = {
                "settings": (settings := flat_settings(read_settings(folder))),
                "energy_source": name_energy(
                    dict(settings).get("energy.source", "modelled"), measured if isinstance(measured, Mapping) else None
                ),
                "environment": flat_settings(read_document(folder, "environment.json")),
                "results": {name: number(value) for name, value in results.items()},
                "notes": texts(results.get("notes"), 500),
                "own_metrics": list_metrics(folder),
            }
        except (HatdfedError, OSError) as error:
            card = card._replace(trouble=card.trouble or str(error))
        content |= {"card": card, "accuracy_name": name_accuracy(card), "metrics": columns_in("own"), "section": "runs"}
        content["groups_explained"] = GROUPS_EXPLAINED
        return site.render_page("run.html", content)

    @routes.get("/compare")
    def compare(run: RunIds, against: str = "") -> HTMLResponse:
        chosen = select_comparable(find_runs(site, run, against), against)
        query_string = "&".join(f"run={run_id}" for run_id in chosen.folders)
        content = {"chosen": chosen, "front_title": make_front_title, "query_string": query_string}
        return site.render_page("compare.html", content | {"section": "compare"})

    @routes.get("/deployment")
    async def deployment() -> HTMLResponse:
        address = None if site.deployment is None else site.deployment.address
        content = {"address": address, "metrics": columns_in("own"), "section": "deployment"}
        return site.render_page("deployment.html", content)

    return routes


def find_runs(site: Site, run_ids: list[str], against: str) -> list[tuple[Path, Card]]:
    """Find the chosen runs, `against` first, then by folder as in a report; without duplicates and unknown ones."""
    found = [entry for run_id in dict.fromkeys(run_ids) if (entry := site.catalogue.find(run_id)) is not None]
    return sorted(found, key=lambda entry: (entry[1].id != against, entry[0]))
