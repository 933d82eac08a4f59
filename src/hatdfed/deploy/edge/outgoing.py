"""A message on its way to one receiver: which bytes are sent, and how many of them for a second time."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

from hatdfed.deploy import history
from hatdfed.deploy.failpoints import failpoint
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.transport.frames import MAX_SENDS, PackedMessage, split_into_frames
from hatdfed.errors import WireError


@dataclass
class SendRecord:
    """What one receiver was sent in a round, over all transfers."""

    sent: pb.Sent
    reached: int = 0  # bytes of the message that were sent at least once


@dataclass(frozen=True)
class Outgoing:
    """A message for one receiver."""

    packed: PackedMessage
    header: pb.Parcel
    share: float = 0.0  # of a float32 model that the whole message takes
    record: SendRecord = field(default_factory=lambda: SendRecord(pb.Sent()))

    @property
    def sent(self) -> pb.Sent:
        """What is reported about this receiver."""
        return self.record.sent

    def find_offset(self, wanted: pb.Wanted) -> int:
        """Return from where on a receiver wants this message: 0 if it has begun with another one."""
        is_same = wanted.digest == self.header.digest and 0 <= wanted.offset <= self.packed.size
        return wanted.offset if is_same else 0

    def make_frames(self, offset: int) -> Generator[pb.Frame, None, None]:
        """Yield the frames from an offset on; each counts as sent when it is handed over."""
        if not self._may_send(self.packed.size - offset):
            raise self.make_spent_error()
        return self._make_frames(offset)

    def make_spent_error(self) -> WireError:
        """Make the error of a receiver that was sent all that it may be sent."""
        receiver, t = self.sent.receiver, self.header.round
        return WireError("spent", f"The model of round {t} was sent to server {receiver} too often.")

    def _may_send(self, num_bytes: int) -> bool:
        share = self.sent.share + self.share * num_bytes / self.packed.size
        return num_bytes == 0 or share <= MAX_SENDS * self.share * (1 + 1e-9)

    def _make_frames(self, offset: int) -> Generator[pb.Frame, None, None]:
        header = pb.Parcel()
        header.CopyFrom(self.header)
        header.offset, place = offset, offset
        about = {"round": header.round, "receiver": self.sent.receiver}
        if history.is_kept():
            digest = history.sent_digest(self.packed.parts[0])
            history.note("send", header.sender, **about, digest=digest)
        try:
            for frame in split_into_frames(header, self.packed.parts):
                # Several transfers at a time may have begun, which together are too much. Their end shows that.
                if not self._may_send(len(frame.chunk)):
                    return
                # It counts when it is handed over: a report may be due before it has arrived.
                self._count(place, len(frame.chunk))
                place += len(frame.chunk)
                if 2 * place >= self.packed.size:
                    failpoint("half-sent")
                yield frame
        finally:
            own = self.share * (place - offset) / self.packed.size
            history.note("sent", header.sender, **about, share=own)

    def _count(self, place: int, num_bytes: int) -> None:
        a_byte, record = self.share / self.packed.size, self.record
        self.sent.share += a_byte * num_bytes
        self.sent.again += a_byte * max(0, min(record.reached, place + num_bytes) - place)
        record.reached = max(record.reached, place + num_bytes)
