"""Which runs there are: a card for each, read again only where a file has changed, filtered and sorted for the list."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hatdfed.core.energy.energy_model import Cause
from hatdfed.errors import HatdfedError
from hatdfed.runs.records.cleaning import number, text, whole
from hatdfed.runs.records.reading import reading
from hatdfed.runs.records.search import run_folders
from hatdfed.runs.records.small_files import read_document, read_settings
from hatdfed.runs.round_row import JOULES
from hatdfed.runs.summary import JOULES_PER_MJ, measured_on

RUNNING, DONE, STOPPED, STALE = "running", "done", "stopped", "stale"
_MIN_PATIENCE = 20.0  # seconds without a new round, after which a run counts as stale
_FIRST_ROUND_PATIENCE = 120.0  # data may have to be fetched first
_PATIENCE_ROUNDS = 5  # or so many times what a round took so far


class Card(NamedTuple):
    """What the list shows of a run; accuracies in percent, energy in joules."""

    id: str
    name: str  # its path below the folder of runs
    method: str
    dataset: str
    seed: int | None
    servers: int | None
    rounds: int | None  # that it was started for
    played: int
    accuracy: float | None  # mean over servers
    accuracy_of: str  # "test" after the last round, "validation" until then and where there are no test data
    spread: float | None  # standard deviation over servers
    joules: float | None
    link_joules: float | None
    is_finished: bool
    written: float  # time of the last change, seconds since 1970
    patience: float  # seconds without a change after which it counts as stale
    trouble: str | None = None  # a sentence, if something cannot be read
    stopped_by: str | None = None  # the callback that ended it before its last round

    def state(self, now: float | None = None) -> str:
        """Return "running", "done", "stopped" (by a callback) or "stale"."""
        if self.is_finished:
            return DONE if self.stopped_by is None else STOPPED
        quiet = (time.time() if now is None else now) - self.written
        return RUNNING if quiet < self.patience and self.trouble is None else STALE


def name_accuracy(card: Card) -> str:
    """Return the label of a card's accuracy, which says what it was measured on."""
    return "Test accuracy" if card.accuracy_of == "test" else "Validation accuracy"


def make_card(folder: Path, run_id: str, name: str, written: float) -> Card:
    """Make the card of a run folder; what cannot be read is described in its `trouble`."""
    card = Card(run_id, name, "–", "–", *(None,) * 3, 0, None, "validation", *(None,) * 3, False, written, 0.0)
    try:
        settings, results = _read_documents(folder)
        card = _with_settings(card, settings)
        if number(results.get("avg_accuracy")) is not None:
            card = _with_end(_with_results(card, results), results, folder)
        if not card.is_finished:
            card = _with_progress(card, folder)
    except HatdfedError as error:
        return card._replace(trouble=str(error))
    except OSError:
        return card._replace(trouble="A file of this run vanished while it was read.")
    return card


def _read_documents(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read settings and results; the results repeat the settings as JSON, which is read faster than YAML."""
    results = read_document(folder, "results.json")
    settings = results.get("config")
    if isinstance(settings, dict) and not _is_newer(folder / "config.yaml", folder / "results.json"):
        return settings, results
    return read_settings(folder), results


def _is_newer(one: Path, other: Path) -> bool:
    return one.stat().st_mtime_ns > other.stat().st_mtime_ns


def _with_settings(card: Card, settings: Mapping[str, Any]) -> Card:
    return card._replace(
        method=text(settings.get("method"), 60),
        dataset=text(settings.get("dataset"), 60),
        seed=whole(settings.get("seed")),
        servers=whole(settings.get("servers")),
        rounds=whole(settings.get("rounds")),
    )


def _with_results(card: Card, results: Mapping[str, Any]) -> Card:
    played = whole(results.get("rounds")) or 0
    total, link = (number(results.get(f"{name}_energy_mj")) for name in ("total", "link"))
    return card._replace(
        played=played,
        accuracy=number(results.get("avg_accuracy")),
        accuracy_of=measured_on(results),
        spread=number(results.get("std_accuracy")),
        joules=None if total is None else total * JOULES_PER_MJ,
        link_joules=None if link is None else link * JOULES_PER_MJ,
        is_finished=played >= (card.rounds or 0),  # the number of rounds may have been raised since
    )


def _with_end(card: Card, results: Mapping[str, Any], folder: Path) -> Card:
    """The card of a run that a callback has ended, unless it was gone on with: that writes its settings again."""
    if card.is_finished or not isinstance(results.get("stopped_by"), str):
        return card
    if _is_newer(folder / "config.yaml", folder / "results.json"):
        return card
    return card._replace(is_finished=True, stopped_by=text(results["stopped_by"], 60))


def _with_progress(card: Card, folder: Path) -> Card:
    with reading(folder / "run.sqlite") as reader:
        progress = reader.progress()
    played = whole(progress["rounds"]) or 0
    spent = {cause: number(progress[name]) or 0.0 for cause, name in JOULES.items()}
    a_round = (number(progress["seconds"]) or 0.0) / played if played else 0.0
    return card._replace(
        played=played,
        accuracy=number(progress["avg_accuracy"]),
        accuracy_of="validation",
        spread=None,
        joules=number(sum(spent.values())),
        link_joules=spent[Cause.LINK],
        patience=max(_MIN_PATIENCE, _PATIENCE_ROUNDS * a_round) if played else _FIRST_ROUND_PATIENCE,
    )


MAX_RUNS = 5000
_WATCHED = ("config.yaml", "results.json", "run.sqlite", "run.sqlite-wal")
_FRESH_SECONDS = 0.5  # one scan of the disk serves all browsers that ask within this time
_REST_FACTOR = 5  # times as long as the last scan took: with thousands of runs the disk is not scanned all the time

Stamp = tuple[tuple[int, int] | None, ...]  # time and size of each watched file


class _CatalogueEntry(NamedTuple):
    path: Path
    stamp: Stamp
    card: Card


class Catalogue:
    """The runs under one folder, each with an identifier; no path ever comes from a request."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._entries: dict[str, _CatalogueEntry] = {}  # what the last scan found
        self._next_scan_at = 0.0
        self._lock = threading.Lock()

    def cards(self) -> list[Card]:
        """Return the cards of all runs, the last one written first."""
        entries = self._refresh()
        return sorted((entry.card for entry in entries.values()), key=lambda card: -card.written)

    def find(self, run_id: str) -> tuple[Path, Card] | None:
        """Return the folder and the card of a run, or None if there is no such run."""
        entry = self._refresh().get(run_id)
        return None if entry is None else (entry.path, entry.card)

    def is_full(self) -> bool:
        """Return whether there may be more runs than are listed."""
        return len(self._entries) >= MAX_RUNS

    def _refresh(self) -> dict[str, _CatalogueEntry]:
        with self._lock:
            began = time.monotonic()
            if began >= self._next_scan_at:
                self._entries = self._scan()
                ended = time.monotonic()
                self._next_scan_at = ended + max(_FRESH_SECONDS, _REST_FACTOR * (ended - began))
            return self._entries

    def _scan(self) -> dict[str, _CatalogueEntry]:
        found: dict[str, _CatalogueEntry] = {}
        for path in run_folders(self.root, most=MAX_RUNS):
            name = os.path.relpath(path, self.root)
            run_id = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
            stamp = _read_stamp(path)
            before = self._entries.get(run_id)
            if before is not None and before.stamp == stamp:
                found[run_id] = before
            elif stamp[0] is not None:  # else it was removed meanwhile
                shown = text(path.name if name == "." else name)
                found[run_id] = _CatalogueEntry(path, stamp, make_card(path, run_id, shown, _last_written(stamp)))
        return found


def _read_stamp(folder: Path) -> Stamp:
    prefix = str(folder)  # hundreds of paths in a scan are cheaper as strings
    return tuple(_read_time_and_size(f"{prefix}/{name}") for name in _WATCHED)


def _read_time_and_size(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _last_written(stamp: Stamp) -> float:
    return max(part[0] for part in stamp if part is not None) / 1e9


_SORT_KEYS: dict[str, Callable[[Card], Any]] = {
    "name": lambda card: card.name,
    "method": lambda card: card.method,
    "dataset": lambda card: card.dataset,
    "seed": lambda card: card.seed,
    "state": lambda card: card.state(),
    "rounds": lambda card: card.played,
    "accuracy": lambda card: card.accuracy,
    "energy": lambda card: card.joules,
    "links": lambda card: card.link_joules,
    "written": lambda card: card.written,
}


GROUPS: dict[str, tuple[str, Callable[[Card], str]]] = {
    "dataset": ("Data set", lambda card: card.dataset),
    "method": ("Method", lambda card: card.method),
    "sweep": ("Folder", lambda card: os.path.dirname(card.name) or "single runs"),  # noqa: PTH120
}


class RunGroup(NamedTuple):
    """Runs under one heading of the list; a list that is not grouped is one group without a name."""

    name: str
    cards: list[Card]


class ListQuery(NamedTuple):
    """Which runs to list, in which order; by default all of them, the newest first."""

    method: str = ""
    dataset: str = ""
    state: str = ""
    sort: str = "written"
    order: str = "down"
    search: str = ""  # words that all occur in a run's name, method, data set or seed
    group: str = ""

    def normalise(self) -> ListQuery:
        """Replace an unknown column, order or group by the default."""
        sort = self.sort if self.sort in _SORT_KEYS else "written"
        group = self.group if self.group in GROUPS else ""
        order = "up" if self.order == "up" else "down"
        return self._replace(sort=sort, order=order, group=group, search=self.search.strip())

    def sorts_a_figure(self) -> bool:
        """Return whether the order compares results, which only runs of one data set share."""
        return self.sort in ("accuracy", "energy", "links")


class Heading(NamedTuple):
    """A column of the list."""

    key: str
    label: str
    kind: str  # text or number
    hint: str = ""


HEADINGS = (
    Heading("name", "Run", "text"),
    Heading("method", "Method", "text"),
    Heading("dataset", "Data set", "text"),
    Heading("seed", "Seed", "number"),
    Heading("state", "State", "text"),
    Heading("rounds", "Rounds", "number"),
    Heading(
        "accuracy",
        "Accuracy",
        "number",
        "Mean over servers: on test data once a run is done, on validation data before",
    ),
    Heading("energy", "Energy", "number", "All joules of the run"),
    Heading("links", "On links", "number", "Joules spent on sending models between servers"),
    Heading("written", "Changed", "number"),
)


def select_cards(cards: Iterable[Card], query: ListQuery) -> list[Card]:
    """Filter and sort cards; those without a value in the column come last in either order."""
    wanted = [
        card
        for card in cards
        if (not query.method or card.method == query.method)
        and (not query.dataset or card.dataset == query.dataset)
        and (not query.state or card.state() == query.state)
        and _has_words(card, query.search)
    ]
    key = _SORT_KEYS[query.sort]
    known = sorted((card for card in wanted if key(card) is not None), key=key, reverse=query.order == "down")
    return known + [card for card in wanted if key(card) is None]


def _has_words(card: Card, search: str) -> bool:
    where = f"{card.name} {card.method} {card.dataset} seed{card.seed}".lower()
    return all(word in where for word in search.lower().split())


def group_cards(cards: Sequence[Card], query: ListQuery) -> list[RunGroup]:
    """Group cards in their order; where figures are sorted, runs of different data sets never share a group."""
    several = query.sorts_a_figure() and len({card.dataset for card in cards}) > 1
    keys = [GROUPS[query.group]] if query.group else []
    if several and query.group != "dataset":
        keys = [GROUPS["dataset"], *keys]
    if not keys:
        return [RunGroup("", list(cards))] if cards else []
    found: dict[str, list[Card]] = {}
    for card in cards:
        found.setdefault(", ".join(key(card) for _, key in keys), []).append(card)
    return [RunGroup(name, found[name]) for name in sorted(found)]


def list_filter_values(cards: Sequence[Card]) -> dict[str, list[str]]:
    """Return the values by which the list can be filtered."""
    return {
        "method": sorted({card.method for card in cards}),
        "dataset": sorted({card.dataset for card in cards}),
        "state": sorted({card.state() for card in cards}),
    }
