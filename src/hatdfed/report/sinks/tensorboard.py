"""Publishes runs to TensorBoard: event files by TensorBoard's own writer; needs neither TensorFlow nor torch."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatdfed.core.round import RoundRecord
from hatdfed.errors import MissingDependencyError, RunFolderError
from hatdfed.report.sinks.figures import Curves, figures_of_record, name_by_data, read_published_run
from hatdfed.runs.records.cleaning import flat_settings
from hatdfed.setup.config import Config


def require_tensorboard() -> None:
    """Raise an error that says what to install if TensorBoard is missing."""
    if find_spec("tensorboard") is None:
        raise MissingDependencyError(
            "--tensorboard needs TensorBoard, which is not installed: pip install 'hatdfed[tensorboard]'."
        )


class EventLog:
    """Event files of one run."""

    def __init__(self, folder: Path) -> None:
        require_tensorboard()
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = event_pb2.Event, summary_pb2
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._writer: Any = EventFileWriter(str(folder))
        except OSError as error:
            raise RunFolderError(f"Events cannot be written into {folder} ({error.strerror}).") from None

    def curves(self, step: int, figures: Curves) -> None:
        """Write one point of each curve."""
        values = [self._summary.Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
        self._write(step, values)

    def settings(self, settings: Sequence[tuple[str, str]]) -> None:
        """Write the settings as a table on the text page."""
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        rows = "\n".join(f"| {name} | {value} |" for name, value in settings)
        table = TensorProto(
            dtype=DT_STRING,
            string_val=[f"| setting | value |\n| --- | --- |\n{rows}".encode()],
            tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
        )
        plugin = self._summary.SummaryMetadata.PluginData(plugin_name="text")
        metadata = self._summary.SummaryMetadata(plugin_data=plugin)
        self._write(0, [self._summary.Summary.Value(tag="settings", tensor=table, metadata=metadata)])

    def close(self) -> None:
        """Flush and close the files."""
        self._writer.close()

    def _write(self, step: int, values: list[Any]) -> None:
        summary = self._summary.Summary(value=values)
        self._writer.add_event(self._event(step=step, wall_time=time.time(), summary=summary))


class TensorBoardFolder:
    """Publishes each finished run to a folder of its own, once."""

    def __init__(self, folder: Path) -> None:
        require_tensorboard()
        self._folder = folder

    def __call__(self, name: str, run: Path) -> None:
        """Write the events of a run, all or none."""
        place = self._folder / name
        if place.exists():
            return
        published = read_published_run(run)
        half = self._folder / f".{name}.part"
        shutil.rmtree(half, ignore_errors=True)
        log = EventLog(half)
        log.settings(published.settings)
        for step, figures in published.rounds:
            log.curves(step, figures)
        log.curves(published.rounds[-1][0] if published.rounds else 0, published.final)
        log.close()
        half.replace(place)


class LiveEvents:
    """Publishes one run while it is played; a resumed run is written again from its records."""

    def __init__(self, folder: Path, earlier: Sequence[tuple[int, Curves]] = ()) -> None:
        require_tensorboard()
        shutil.rmtree(folder, ignore_errors=True)
        self._folder, self._earlier = folder, earlier
        self._log: EventLog | None = None
        self._step = 0

    def on_round(self, config: Config, record: RoundRecord) -> None:
        """Write the values of a round."""
        if self._log is None:
            self._log = EventLog(self._folder)
            self._log.settings(flat_settings(config.model_dump(mode="json")))
            for step, figures in self._earlier:
                if step <= record.t:  # later ones are played again
                    self._log.curves(step, name_by_data(figures, leaks_test=config.leaks_test))
        self._step = record.t + 1
        self._log.curves(self._step, name_by_data(figures_of_record(record), leaks_test=config.leaks_test))

    def end(self, final: Curves) -> None:
        """Write the final figures after the last round."""
        if self._log is not None:
            self._log.curves(self._step, final)

    def close(self) -> None:
        """Close the files, also after an error."""
        if self._log is not None:
            self._log.close()
