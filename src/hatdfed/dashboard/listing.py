"""The list of runs as a reader asked for it: filtered and sorted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from hatdfed.dashboard.cards import Card

_KEYS: dict[str, Callable[[Card], Any]] = {
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


class Wish(NamedTuple):
    """What a reader asked for; whatever is unknown means everything, the newest first."""

    method: str = ""
    dataset: str = ""
    state: str = ""
    sort: str = "written"
    order: str = "down"

    def cleaned(self) -> Wish:
        """With a column and an order that exist."""
        return self._replace(
            sort=self.sort if self.sort in _KEYS else "written", order="up" if self.order == "up" else "down"
        )


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


def listed(cards: Iterable[Card], wish: Wish) -> list[Card]:
    """The runs that were asked for, in that order; what is not known comes last either way."""
    wanted = [
        card
        for card in cards
        if (not wish.method or card.method == wish.method)
        and (not wish.dataset or card.dataset == wish.dataset)
        and (not wish.state or card.state() == wish.state)
    ]
    key = _KEYS[wish.sort]
    known = sorted((card for card in wanted if key(card) is not None), key=key, reverse=wish.order == "down")
    return known + [card for card in wanted if key(card) is None]


def choices(cards: Sequence[Card]) -> dict[str, list[str]]:
    """What the list can be filtered by."""
    return {
        "method": sorted({card.method for card in cards}),
        "dataset": sorted({card.dataset for card in cards}),
        "state": sorted({card.state() for card in cards}),
    }
