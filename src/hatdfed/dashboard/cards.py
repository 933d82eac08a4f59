"""One run on one card: what it is, how far it is, what it reached and spent."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hatdfed.core.energy.ledger import Cause
from hatdfed.errors import HatdfedError
from hatdfed.runs.records.cleaning import number, text, whole
from hatdfed.runs.records.reading import reading
from hatdfed.runs.records.small_files import read_document, read_settings
from hatdfed.runs.round_row import JOULES
from hatdfed.runs.summary import JOULES_PER_MJ

RUNNING, DONE, STALE = "running", "done", "stale"
_SHORTEST_WAIT = 20.0  # seconds without a new round, after which a run counts as stale
_FIRST_ROUND_WAIT = 120.0  # data may have to be fetched first
_ROUNDS_TO_WAIT = 5  # or so many times what a round took so far


class Card(NamedTuple):
    """What the list shows of a run; percent and joules."""

    id: str
    name: str  # where it lies, under the folder of runs
    method: str
    dataset: str
    seed: int | None
    servers: int | None
    rounds: int | None  # that it was started for
    played: int
    accuracy: float | None  # mean over servers
    accuracy_of: str  # test, after the last round; validation, until then
    spread: float | None  # standard deviation over servers
    joules: float | None
    link_joules: float | None
    is_finished: bool
    written: float  # when, seconds since 1970
    patience: float  # seconds after which silence means that it has stopped
    trouble: str | None = None  # a sentence, where something cannot be read

    def state(self, now: float | None = None) -> str:
        """running, done or stale."""
        if self.is_finished:
            return DONE
        quiet = (time.time() if now is None else now) - self.written
        return RUNNING if quiet < self.patience and self.trouble is None else STALE


def accuracy_name(card: Card) -> str:
    """What its accuracy was measured on."""
    return "Test accuracy" if card.accuracy_of == "test" else "Validation accuracy"


def make_card(folder: Path, run_id: str, name: str, written: float) -> Card:
    """The card of one run folder; what is broken becomes its `trouble`."""
    card = Card(run_id, name, "–", "–", *(None,) * 3, 0, None, "validation", *(None,) * 3, False, written, 0.0)
    try:
        settings, results = _documents(folder)
        card = _named(card, settings)
        if number(results.get("avg_accuracy")) is not None:
            card = _with_results(card, results)
        if not card.is_finished:
            card = _with_progress(card, folder)
    except HatdfedError as error:
        return card._replace(trouble=str(error))
    except OSError:
        return card._replace(trouble="A file of this run vanished while it was read.")
    return card


def _documents(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and results. The results repeat the settings, which are in a format that is read faster."""
    results = read_document(folder, "results.json")
    settings = results.get("config")
    if isinstance(settings, dict) and not _is_newer(folder / "config.yaml", folder / "results.json"):
        return settings, results
    return read_settings(folder), results


def _is_newer(one: Path, other: Path) -> bool:
    return one.stat().st_mtime_ns > other.stat().st_mtime_ns


def _named(card: Card, settings: Mapping[str, Any]) -> Card:
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
        accuracy_of="test",
        spread=number(results.get("std_accuracy")),
        joules=None if total is None else total * JOULES_PER_MJ,
        link_joules=None if link is None else link * JOULES_PER_MJ,
        is_finished=played >= (card.rounds or 0),  # it may have been given more rounds since
    )


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
        patience=max(_SHORTEST_WAIT, _ROUNDS_TO_WAIT * a_round) if played else _FIRST_ROUND_WAIT,
    )
