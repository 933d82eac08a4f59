"""The options --tensorboard and --mlflow: publish runs to other tools while they are played or when they end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hatdfed.core.round import RoundRecord
    from hatdfed.report.sinks import Publisher
    from hatdfed.runs.progress import OnRun
    from hatdfed.runs.recorder import OnRound
    from hatdfed.runs.result import RunResult
    from hatdfed.setup.config import Config


class SinkOptions(NamedTuple):
    """Which tools the user wants runs published to."""

    tensorboard: bool = False
    mlflow: bool = False
    mlflow_uri: str | None = None

    def publishers(self, folder: Path, *, live: bool = False) -> list[Publisher]:
        """Make the publishers for finished runs in `folder`; events that are written live need none."""
        from hatdfed.report.sinks import make_publishers

        store = self.mlflow_uri or ("" if self.mlflow else None)
        return make_publishers(folder, tensorboard=self.tensorboard and not live, mlflow=store)


@contextmanager
def publish_rounds(options: SinkOptions, folder: Path, on_round: OnRound) -> Iterator[OnRound]:
    """Also publish rounds to TensorBoard if the user wants that; earlier rounds are read from the run's records."""
    if not options.tensorboard:
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


def publish_runs(publishers: list[Publisher], on_run: OnRun) -> OnRun:
    """Also publish each run of a comparison when it ends."""

    def both(result: RunResult, done: int, total: int) -> None:
        on_run(result, done, total)
        if result.folder is not None:
            for publish in publishers:
                publish(result.folder.name, result.folder)

    return both
