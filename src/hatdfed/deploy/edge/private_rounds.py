"""Counts the rounds in which an edge trained privately: the basis of its ε.

A round is counted on disk before it is trained. So a round that a crash repeats, with new noise, counts twice: the
first model may have been sent already.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from hatdfed.errors import RunFolderError
from hatdfed.runs.records.checkpoint import write_atomically

FILE = "private-rounds.json"


@dataclass(frozen=True)
class PrivateRounds:
    """The counts in an edge's store, by run."""

    folder: Path

    def read(self, run: str) -> int:
        """Return the number of rounds of a run; 0 if it has none."""
        return self._read_all().get(run, 0)

    def add(self, run: str) -> None:
        """Count one more round; it is on disk when this returns."""
        counts = self._read_all()
        counts[run] = counts.get(run, 0) + 1
        write_atomically(self.folder / FILE, json.dumps(counts).encode())

    def _read_all(self) -> dict[str, int]:
        path = self.folder / FILE
        try:
            counts = json.loads(path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise _make_error(path, str(error)) from None
        if not isinstance(counts, dict) or not all(type(count) is int and count >= 0 for count in counts.values()):
            raise _make_error(path, "it holds no counts")
        return counts


def _make_error(path: Path, reason: str) -> RunFolderError:
    return RunFolderError(
        f"{path} cannot be read ({reason:.200}), so nobody knows what this edge has given away. Put a good copy back; "
        "without it, its images need another --store, and ε counts from zero."
    )
