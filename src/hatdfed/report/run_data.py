"""From a run's result to what the figures draw."""

from __future__ import annotations

from hatdfed.experiment import RunResult
from hatdfed.report import RunData


def run_data(result: RunResult) -> RunData:
    """One run, ready to be drawn."""
    config = result.config
    return RunData(
        label=config.method,
        title=f"{config.method} on {config.dataset}, {config.servers} servers, seed {config.seed}",
        num_servers=config.servers,
        rounds=result.rounds,
        servers=result.servers,
        links=result.links,
        summary=result.summary,
        link_joules=result.link_joules.tolist(),
    )
