"""What differentially private training gives away about one record, at most: ε of every server, for results.

Every step of training releases the sum of clipped gradients with Gaussian noise of σ times the clipping norm, which is
1/(2σ²)-zCDP for every record in its batch; releases add up (M. Bun, T. Steinke. Concentrated differential privacy. TCC
2016). Batches of one pass share no record, so a record takes part in one release for each pass. That batches are drawn
at random makes them reveal less; this is not counted on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hatdfed.runs.records.cleaning import number
from hatdfed.setup.config import Config


def compute_epsilon(releases: int, noise: float, delta: float) -> float:
    """ε for `delta` after a record took part in so many releases; infinite without noise.

    >>> round(compute_epsilon(100, 5.0, 1e-5), 3)
    11.597
    """
    if releases == 0:
        return 0.0
    if noise == 0:
        return math.inf
    rho = releases / (2 * noise**2)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


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
    """Describe the privacy of a run in a sentence."""
    epsilon, delta = number(privacy.get("epsilon")), number(privacy.get("delta"))
    if epsilon is None or delta is None:
        return "Privacy: no ε is known that holds for all servers."
    return f"Privacy: ε ≤ {epsilon:.3g} at δ = {delta:g} for one image of any server, as far as training goes."
