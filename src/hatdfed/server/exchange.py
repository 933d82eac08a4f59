"""One server's post: offers become bytes, bytes become an inbox, a verdict becomes a report.

Shared by every fleet that moves messages, in one process or between machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.core.energy.ledger import EnergyRow
from hatdfed.core.round import ServerReport
from hatdfed.errors import WireError
from hatdfed.server.aggregation import Inbox
from hatdfed.server.codecs import LinkCodec
from hatdfed.server.codecs.base import Codec
from hatdfed.server.message import Buffer, Message, message_overhead, pack_parts, unpack
from hatdfed.server.program import Offer, ServerState, Verdict
from hatdfed.server.work import Work


class Received(NamedTuple):
    """A model that a server accepted."""

    model: Tensor  # [P]
    num_samples: int
    mass: float


Mailbox = Mapping[int, Received]  # by sender


class Postmark(NamedTuple):
    """What sender and receiver must agree upon before a message counts."""

    run: str
    codec: str


def packed(offer: Offer, mark: Postmark, *, t: int, sender: int) -> bytes:
    """The bytes that go to every receiver of `sender`."""
    return b"".join(packed_parts(offer, mark, t=t, sender=sender))


def packed_parts(offer: Offer, mark: Postmark, *, t: int, sender: int) -> list[Buffer]:
    """The same in parts, of which the tensors are those of the offer itself."""
    payload = {name: tensor.numpy() for name, tensor in offer.payload.items()}
    return pack_parts(Message(mark.run, t, sender, offer.num_samples, offer.mass, mark.codec, payload))


def accept(
    data: Buffer,
    mark: Postmark,
    *,
    t: int,
    sender: int,
    codec: Codec,
    num_params: int,
    known: Tensor | None = None,
) -> Received:
    """What a receiver checks before it believes a message; raises `WireError` for what it refuses.

    `known` is what it has of the sender's model already, for codecs by link. The model may lie in `data`, if that is a
    `bytearray`.
    """
    message = unpack(data, max_bytes=4 * num_params + message_overhead())
    if (message.run, message.t, message.sender, message.codec) != (mark.run, t, sender, mark.codec):
        raise WireError("foreign", "A message belongs to another run, round, sender or codec.")
    payload = {name: torch.from_numpy(array) for name, array in message.payload.items()}
    if isinstance(codec, LinkCodec):
        model = codec.decode_from(payload, known, num_params)
    else:
        model = codec.decode(payload, num_params)
    return Received(model, message.num_samples, message.mass)


def inbox_of(
    server: ServerState,
    own: Offer,
    mailbox: Mailbox,
    mixing: NDArray[np.float64] | None,
    i: int,
    *,
    models: Tensor | None = None,
) -> Inbox:
    """Server i's own model in slot 0 with the mass it kept, then what came, by sender.

    `models` are just these, for whoever has them in one tensor already.
    """
    senders = sorted(mailbox)
    received = [mailbox[sender] for sender in senders]
    planned = [np.nan] * (1 + len(senders)) if mixing is None else mixing[[i, *senders]].tolist()
    return Inbox(
        models=torch.stack([server.params, *(mail.model for mail in received)]) if models is None else models,
        num_samples=torch.tensor([own.num_samples, *(mail.num_samples for mail in received)]),
        mixing=torch.tensor(planned, dtype=torch.float64),
        mass=torch.tensor([server.mass, *(mail.mass for mail in received)], dtype=torch.float64),
        present=torch.ones(1 + len(senders), dtype=torch.bool),
    )


def server_report(
    verdict: Verdict,
    work: Work,
    mailbox: Mailbox,
    energy: tuple[EnergyRow, ...],
    *,
    server: int,
    num_servers: int | None,
) -> ServerReport:
    """What the server tells the coordinator: a place for every server, or for those it heard if N is not given."""
    heard = np.array([server, *sorted(mailbox)])
    slots = np.arange(len(heard)) if num_servers is None else heard
    delivered = np.zeros(num_servers or len(heard), dtype=bool)
    delivered[slots[1:]] = True

    def row(values: Tensor) -> NDArray[np.float64]:
        spread = np.full(len(delivered), np.nan)
        spread[slots] = values.numpy()
        return spread

    return ServerReport(
        accuracy=verdict.accuracy,
        num_samples=work.num_samples,
        importance=row(verdict.importance),
        delivered=delivered,
        energy=energy,
        scores={name: row(score) for name, score in verdict.scores.items()},
        senders=heard if num_servers is None else None,
    )
