"""--tensorboard and --mlflow: runs in other people's tools, while they are played or when they end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hatdfed.core.round import RoundRecord
    from hatdfed.report.sinks import Publisher
    from hatdfed.runs.recorder import OnRound, RunResult
    from hatdfed.setup.config import Config
    from hatdfed.sweeps.compare import OnRun


class Asked(NamedTuple):
    """What the user asked for."""

    tensorboard: bool = False
    mlflow: bool = False
    mlflow_uri: str | None = None

    def publishers(self, folder: Path, *, live: bool = False) -> list[Publisher]:
        """For finished runs in `folder`; events that are written live need no publisher."""
        from hatdfed.report.sinks import publishers

        store = self.mlflow_uri or ("" if self.mlflow else None)
        return publishers(folder, tensorboard=self.tensorboard and not live, mlflow=store)


@contextmanager
def shown_live(asked: Asked, folder: Path, on_round: OnRound) -> Iterator[OnRound]:
    """Rounds of a run, for TensorBoard too if that was asked for; what was played before is shown from its records."""
    if not asked.tensorboard:
        yield on_round
        return
    from hatdfed.report.sinks.figures import final_figures, steps
    from hatdfed.report.sinks.tensorboard import LiveEvents
    from hatdfed.runs.records.folder import RunFolder

    run = RunFolder(folder)
    events = LiveEvents(folder / "tensorboard", steps(run.read_rounds()))

    def both(config: Config, record: RoundRecord) -> None:
        on_round(config, record)
        events.on_round(config, record)

    try:
        yield both
        events.end(final_figures(run.read_results() or {}))
    finally:
        events.close()


def shown_at_end(publishers: list[Publisher], on_run: OnRun) -> OnRun:
    """Runs of a comparison, published as they end."""

    def both(result: RunResult, done: int, total: int) -> None:
        on_run(result, done, total)
        if result.folder is not None:
            for publish in publishers:
                publish(result.folder.name, result.folder)

    return both
