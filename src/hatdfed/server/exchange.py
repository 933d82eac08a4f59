"""Exchange of models: packs offers into bytes and unpacks bytes into an inbox.

Shared by every fleet that sends messages, in one process or between machines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from hatdfed.core.refusals import NOT_FINITE, TOO_LARGE
from hatdfed.errors import WireError
from hatdfed.server.aggregation import Inbox
from hatdfed.server.codecs.base import Codec
from hatdfed.server.guard import compute_norms
from hatdfed.server.harm import SHARE_STEPS
from hatdfed.server.message import Buffer, Message, compute_overhead, pack_parts, unpack
from hatdfed.server.program import Offer


class Received(NamedTuple):
    """A received model that passed all checks."""

    model: Tensor  # [P]
    num_samples: int
    mass: float
    label_shares: Tensor | None = None  # [C] uint8 of the sender's data, if it told them


Mailbox = Mapping[int, Received]  # by sender


class Limits(NamedTuple):
    """Limits of a received message."""

    num_params: int  # exactly so many
    norm: float  # of its model
    num_samples: int = 2**31  # that the sender says to have trained on
    mass: float = math.inf  # of push-sum
    num_labels: int = 0  # whose shares it tells: exactly so many, or none


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
    shares = b"" if offer.label_shares is None else offer.label_shares.numpy().tobytes()
    return pack_parts(Message(context.run, t, sender, offer.num_samples, offer.mass, context.codec, payload, shares))


def accept(data: Buffer, context: MessageContext, *, t: int, sender: int, codec: Codec, limits: Limits) -> Received:
    """Unpack and check a received message; raises `WireError` if it is refused.

    The model may be a view of `data` if that is a `bytearray`.
    """
    overhead = compute_overhead(num_labels=limits.num_labels)
    message = unpack(data, max_bytes=4 * limits.num_params + overhead)
    if (message.run, message.t, message.sender, message.codec) != (context.run, t, sender, context.codec):
        raise WireError("foreign", "A message belongs to another run, round, sender or codec.")
    if message.num_samples > limits.num_samples or message.mass > limits.mass:
        raise WireError("bad-header", "A message claims more samples or more mass than its sender can have.")
    if len(message.label_shares) not in (0, limits.num_labels):
        raise WireError("bad-header", "A message tells the shares of other labels than the run has.")
    payload = {name: torch.from_numpy(array) for name, array in message.payload.items()}
    model = codec.decode(payload, limits.num_params)
    check_norm(model, limits.norm)
    shares = torch.tensor(list(message.label_shares), dtype=torch.uint8) if message.label_shares else None
    return Received(model, message.num_samples, message.mass, shares)


def check_norm(model: Tensor, largest: float) -> None:
    """Refuse a received model that is not usable; raises `WireError`."""
    norm = float(compute_norms(model))
    if not math.isfinite(norm):
        raise WireError(NOT_FINITE, "A received model has values that are no numbers, so it was refused.")
    if norm > largest:
        raise WireError(TOO_LARGE, f"A received model has a norm of {norm:.3g}, but {largest:.3g} is the limit.")


def make_inbox(
    models: Tensor,  # [D, P]
    mass: float,
    own: Offer,
    mailbox: Mailbox,
    mixing: Mapping[int, float] | None,
    i: int,
) -> Inbox:
    """Make the inbox of server i: its own model in slot 0 with the mass it kept, then the received ones by sender.

    `models` are these models, as they are sent. `mixing` has the weights of the round's plan by server, the own one
    included.
    """
    senders = sorted(mailbox)
    received = [mailbox[sender] for sender in senders]
    planned = [math.nan if mixing is None else mixing[server] for server in (i, *senders)]
    return Inbox(
        models=models,
        num_samples=torch.tensor([own.num_samples, *(mail.num_samples for mail in received)]),
        mixing=torch.tensor(planned, dtype=torch.float64),
        mass=torch.tensor([mass, *(mail.mass for mail in received)], dtype=torch.float64),
        present=torch.ones(1 + len(senders), dtype=torch.bool),
    )


def stack_label_shares(own: Offer, mailbox: Mailbox) -> Tensor | None:  # -> [D, C]
    """The label shares of the models in an inbox, in its order; all labels alike for a sender that did not tell.

    None where the server's own are not known: then nobody's are asked for.
    """
    if own.label_shares is None:
        return None
    unknown = torch.full_like(own.label_shares, SHARE_STEPS)
    received = [mailbox[sender].label_shares for sender in sorted(mailbox)]
    return torch.stack([own.label_shares, *(unknown if shares is None else shares for shares in received)])
