"""The regret bounds that belong to `hat-dfed` at a point: the printed one, and the one that holds (docs/theory.md)."""

from __future__ import annotations

from hatdfed.core.coordinator import links_in_budget
from hatdfed.core.policies.link_bandit import theorem_learning_rate
from hatdfed.core.regret import printed_bound, standard_bound
from hatdfed.setup.methods import method_named
from hatdfed_paper.plans import Settings


def own_learning_rate() -> float | None:
    """η of the method's recipe; None: the theorem's."""
    rate: float | None = method_named("hat-dfed").settings["policy"].get("learning_rate")
    return rate


def holding_bound(settings: Settings, played: int, horizon: int) -> float:
    """After so many rounds, with the η that is set for `horizon` of them."""
    servers, own = settings["servers"], own_learning_rate()
    rate = theorem_learning_rate(servers, horizon) if own is None else own
    links, drawn = servers * (servers - 1), links_in_budget(settings["link_share"], servers)
    return standard_bound(links, drawn, played, rate)


def bound_as_printed(settings: Settings, horizon: int) -> float | None:
    """Eq. (25), if η is the one that it is about."""
    return printed_bound(settings["servers"], horizon) if own_learning_rate() is None else None
