"""ε of every server after a private run, for its results."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hatdfed.core.privacy import compute_epsilon
from hatdfed.runs.records.cleaning import number
from hatdfed.setup.config import Config


def count_rounds_trained(rows: Iterable[Mapping[str, Any]], num_servers: int) -> list[int]:
    """Count the rounds in which each server trained, from the rows of all servers and rounds."""
    trained = Counter(row["server"] for row in rows if row["num_samples"])
    return [trained[server] for server in range(num_servers)]


def bound_epsilon(config: Config, rounds_trained: int | None) -> float | None:
    """ε of a server that trained in so many rounds; None where nothing bounds it, or the rounds are not known."""
    if rounds_trained is None:
        return None
    epsilon = compute_epsilon(config.local_passes * rounds_trained, config.privacy.noise, config.privacy.delta)
    return epsilon if math.isfinite(epsilon) else None


def describe_privacy(config: Config, rounds_trained: Sequence[int | None]) -> dict[str, Any]:
    """What a private run's results say: the settings, and ε of each server and of the one with the largest."""
    by_server = [bound_epsilon(config, rounds) for rounds in rounds_trained]
    known = [epsilon for epsilon in by_server if epsilon is not None]
    return {
        **config.privacy.model_dump(),
        "rounds_trained_by_server": list(rounds_trained),
        "epsilon_by_server": by_server,
        "epsilon": max(known) if known and len(known) == len(by_server) else None,
    }


def format_privacy(privacy: Mapping[str, Any]) -> str:
    """The same in a sentence."""
    epsilon, delta = number(privacy.get("epsilon")), number(privacy.get("delta"))
    if epsilon is None or delta is None:
        return "Privacy: no ε is known that holds for all servers."
    return f"Privacy: ε ≤ {epsilon:.3g} at δ = {delta:g} for one image of any server, as far as training goes."
