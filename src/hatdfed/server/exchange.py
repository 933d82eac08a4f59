"""Exchange of models: packs offers into bytes and unpacks bytes into an inbox.

Shared by every fleet that sends messages, in one process or between machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.errors import WireError
from hatdfed.server.aggregation import Inbox
from hatdfed.server.codecs.base import Codec
from hatdfed.server.message import Buffer, Message, compute_overhead, pack_parts, unpack
from hatdfed.server.program import Offer, ServerState


class Received(NamedTuple):
    """A received model that passed all checks."""

    model: Tensor  # [P]
    num_samples: int
    mass: float


Mailbox = Mapping[int, Received]  # by sender


class MessageContext(NamedTuple):
    """Run and codec, on which sender and receiver of a message must agree."""

    run: str
    codec: str


def pack_offer(offer: Offer, context: MessageContext, *, t: int, sender: int) -> bytes:
    """Pack the message of `sender` to its receivers."""
    return b"".join(pack_offer_parts(offer, context, t=t, sender=sender))


def pack_offer_parts(offer: Offer, context: MessageContext, *, t: int, sender: int) -> list[Buffer]:
    """Pack the message in parts, of which the tensors are views of the offer's."""
    payload = {name: tensor.numpy() for name, tensor in offer.payload.items()}
    return pack_parts(Message(context.run, t, sender, offer.num_samples, offer.mass, context.codec, payload))


def accept(data: Buffer, context: MessageContext, *, t: int, sender: int, codec: Codec, num_params: int) -> Received:
    """Unpack and check a received message; raises `WireError` if it is refused.

    The model may be a view of `data` if that is a `bytearray`.
    """
    message = unpack(data, max_bytes=4 * num_params + compute_overhead())
    if (message.run, message.t, message.sender, message.codec) != (context.run, t, sender, context.codec):
        raise WireError("foreign", "A message belongs to another run, round, sender or codec.")
    payload = {name: torch.from_numpy(array) for name, array in message.payload.items()}
    return Received(codec.decode(payload, num_params), message.num_samples, message.mass)


def make_inbox(
    server: ServerState,
    own: Offer,
    mailbox: Mailbox,
    mixing: NDArray[np.float64] | None,
    i: int,
    *,
    models: Tensor | None = None,
) -> Inbox:
    """Make the inbox of server i: its own model in slot 0 with the mass it kept, then the received ones by sender.

    `models` holds the same models, for callers that have them in one tensor already.
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
