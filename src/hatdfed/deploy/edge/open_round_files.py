"""What an edge has done in the round that it plays, on disk: so that a kill costs neither training nor transfers.

    open-round/round.json             which round of which run it is
    open-round/trained.safetensors    the state after training
    open-round/received-3             the message of server 3, as it arrived
    open-round/sent.json              what was sent to whom

The folder belongs to one round and is emptied with the next. Files are not flushed to the disk one by one: all of them
survive the death of the process, and after a power cut a damaged one is noticed by its digest and not used.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError

from hatdfed.deploy.edge.store import SavedState, pack_state, read_state
from hatdfed.deploy.edge.transfers import SendRecord
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.server.message import Buffer
from hatdfed.server.program import ServerState

_log = logging.getLogger("hatdfed.deploy.edge")
_ROUND = "round.json"
_TRAINED = "trained.safetensors"
_SENT = "sent.json"
_RECEIVED = "received-"


@dataclass(frozen=True)
class KeptRound:
    """What was found of a round that this edge had begun before it was started again."""

    is_resumed: bool = False
    trained: ServerState | None = None
    sent: dict[int, SendRecord] = field(default_factory=dict)
    received: dict[int, Path] = field(default_factory=dict)  # files with messages, by sender


@dataclass(frozen=True)
class OpenRoundFiles:
    """The folder of the round in play."""

    folder: Path

    def begin(self, run: str, t: int) -> KeptRound:
        """Return what is kept of this round; what is left of any other one is deleted."""
        if not self._is_of(run, t):
            self.clear()
            self._write(_ROUND, [json.dumps([run, t]).encode()])
            return KeptRound()
        received = {int(path.name.removeprefix(_RECEIVED)): path for path in self.folder.glob(f"{_RECEIVED}*[0-9]")}
        _log.info("goes on with round %d, which it had begun", t)
        return KeptRound(True, self._read_trained(run, t), self._read_sent(), received)

    def clear(self) -> None:
        """Delete everything: the round is committed, or another one begins."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def keep_trained(self, run: str, t: int, server: ServerState) -> None:
        """Keep the state after training."""
        self._write(_TRAINED, pack_state(SavedState(run, t, server, b"")))

    def keep_received(self, sender: int, message: Buffer) -> None:
        """Keep a message that has passed all checks."""
        self._write(f"{_RECEIVED}{sender}", [message])

    def keep_sent(self, records: Mapping[int, SendRecord]) -> None:
        """Keep what was sent so far."""
        text = json.dumps([[record.sent.SerializeToString().hex(), record.reached] for record in records.values()])
        self._write(_SENT, [text.encode()])

    def _is_of(self, run: str, t: int) -> bool:
        try:
            return bool(json.loads((self.folder / _ROUND).read_bytes()) == [run, t])
        except (OSError, ValueError):
            return False

    def _read_trained(self, run: str, t: int) -> ServerState | None:
        path = self.folder / _TRAINED
        if not path.exists():
            return None
        try:
            state = read_state(path)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            _log.warning("%s cannot be read (%s); the round is trained again", path, error)
            return None
        return state.server if (state.run, state.round) == (run, t) else None

    def _read_sent(self) -> dict[int, SendRecord]:
        try:
            rows = json.loads((self.folder / _SENT).read_bytes())
            records = [SendRecord(pb.Sent.FromString(bytes.fromhex(sent)), int(reached)) for sent, reached in rows]
        except (OSError, ValueError, TypeError) as error:
            _log.debug("what was sent in this round is not known: %s", error)
            return {}
        return {record.sent.receiver: record for record in records}

    def _write(self, name: str, parts: Sequence[Buffer]) -> None:
        """Replace a file in one step; where that is not possible, the edge plays on without it."""
        partial = self.folder / f".{name}.partial"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with partial.open("wb") as file:
                file.writelines(parts)
            partial.replace(self.folder / name)
        except OSError as error:
            _log.warning("%s cannot be kept for a restart (%s)", self.folder / name, error.strerror)
