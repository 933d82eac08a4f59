"""Writes a round to the run's records, says so in the log, and measures the coordinator's own work on it."""

from __future__ import annotations

import logging
import time

from hatdfed.core.round import RoundRecord
from hatdfed.deploy.coordinator.status import Progress
from hatdfed.runs.records.database import RunDatabase

_log = logging.getLogger("hatdfed.deploy.coordinator")


class Keeper:
    """One for a run; its clock goes from round to round."""

    def __init__(self, database: RunDatabase, progress: Progress) -> None:
        self._database = database
        self._progress = progress
        self._began = self._since = time.perf_counter()
        self._own = 0.0

    def announced(self) -> None:
        """The plan is drawn and committed; now the servers work."""
        self._own = time.perf_counter() - self._since

    def closed(self) -> None:
        """All reports are there."""
        self._since = time.perf_counter()

    def keep(self, record: RoundRecord) -> None:
        """One more round on the disk."""
        seconds = time.perf_counter() - self._began
        self._database.write(record, seconds)
        self._database.flush()
        self._progress.coordinator_seconds = self._own + (time.perf_counter() - self._since)
        self._progress.count(record, seconds)
        self._say(record, seconds)
        self._began = self._since = time.perf_counter()

    def _say(self, record: RoundRecord, seconds: float) -> None:
        accuracy = self._progress.figures["avg_accuracy"]
        _log.info(
            "round %d: %s accuracy, %d of %d servers, %d links, %.1f s",
            record.t,
            "unknown" if accuracy is None else f"{accuracy:.1f} %",
            int(record.report.reported.sum()),
            len(record.report.servers),
            record.draw.topology.num_links,
            seconds,
        )
