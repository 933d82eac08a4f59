"""The exchange and the merge of a stacked fleet: who is in whose inbox, what is sent, what each model weighs.

Arrays instead of mailboxes, for all servers of all runs at once. A server's slot 0 is its own model, the slots behind
it are its senders in ascending order, as in `Inbox`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.core.links import Pairs
from hatdfed.core.refusals import NOT_FINITE, TOO_LARGE
from hatdfed.errors import WireError
from hatdfed.server.aggregation import Aggregator, Inbox, Merged, Probe, weighted
from hatdfed.server.codecs.base import Codec, ManyAtOnce, Memory, Payload, Plain, payload_bits
from hatdfed.server.guard import compute_norms, has_failed, is_usable
from hatdfed.server.merge_laws import describe_unliftable

Indices = NDArray[np.int64]

_CODED_AT_ONCE = 16  # models; meanwhile a codec takes several times their memory


class InboxTable(NamedTuple):
    """The round's inboxes; servers are numbered through all runs."""

    sender: Indices  # [S, D] whose model lies there; the server itself where nobody's does
    drawn: NDArray[np.bool_]  # [S, D] False: padding
    link_receiver: Indices  # [L]
    link_sender: Indices  # [L]
    link_slot: Indices  # [L] where the receiver keeps it
    num_lost: Indices | None = None  # [S] how many messages of each do not arrive; None: all arrive

    def without(self, lost: NDArray[np.bool_]) -> InboxTable:  # [L]
        """The same inboxes where some messages were lost."""
        drawn = self.drawn.copy()
        drawn[self.link_receiver[lost], self.link_slot[lost]] = False
        return self._replace(drawn=drawn, num_lost=np.bincount(self.link_sender[lost], minlength=len(self.sender)))

    @property
    def num_receivers(self) -> Indices:
        """[S] how many servers hear each."""
        return np.bincount(self.link_sender, minlength=len(self.sender))


def make_inboxes(num_servers: int, runs: Iterable[tuple[int, Pairs]]) -> InboxTable:
    """From every run's first server and its links, receivers in order, then senders."""
    pairs = [links + first for first, links in runs]
    return inboxes_of(num_servers, *np.concatenate([np.zeros((0, 2), dtype=np.int64), *pairs]).T)


def inboxes_of(num_servers: int, receiver: Indices, sender: Indices) -> InboxTable:
    """From both ends of every link, receivers in order; senders take their receiver's slots in the order given."""
    degree = np.bincount(receiver, minlength=num_servers)
    slot = 1 + np.arange(len(receiver)) - (np.cumsum(degree) - degree)[receiver]
    table = np.repeat(np.arange(num_servers)[:, None], 1 + int(degree.max(initial=0)), axis=1)
    drawn = np.arange(table.shape[1]) <= degree[:, None]
    table[receiver, slot] = sender
    return InboxTable(table, drawn, receiver, sender, slot)


class Sent(NamedTuple):
    """What receivers get to see of some servers' models."""

    models: Tensor  # [n, P]
    memories: list[Memory]
    compression: list[float]  # [n] share of a float32 model that each takes on the wire


def is_verbatim(codec: Codec) -> bool:
    """Whether receivers see the very numbers of the sender."""
    return codec == Plain(torch.float32)


def sent_models(codec: Codec, models: Tensor, memories: Sequence[Memory]) -> Sent:  # [n, P]
    """Every model through its codec and back, without the wire."""
    if isinstance(codec, ManyAtOnce):
        starts = range(0, len(models), _CODED_AT_ONCE)
        parts = [_encode(codec, models[at : at + _CODED_AT_ONCE], memories[at : at + _CODED_AT_ONCE]) for at in starts]
        return parts[0] if len(parts) == 1 else Sent(torch.cat([part.models for part in parts]), *_join(parts))
    encoded = [codec.encode(model, memory) for model, memory in zip(models, memories, strict=True)]
    decoded = [_decode(codec, payload, models.shape[1]).to(models.device) for payload, _ in encoded]
    compression = [payload_bits(payload) / (32 * models.shape[1]) for payload, _ in encoded]
    return Sent(torch.stack(decoded), [memory for _, memory in encoded], compression)


def _decode(codec: Codec, payload: Payload, num_params: int) -> Tensor:
    """What a receiver sees; where it would refuse the message, a model that is not finite, which is not merged."""
    try:
        return codec.decode(payload, num_params)
    except WireError:
        return torch.full((num_params,), torch.nan)


def _encode(codec: ManyAtOnce, models: Tensor, memories: Sequence[Memory]) -> Sent:
    payload, remembered = codec.encode(models, torch.stack(list(memories)))
    share = payload_bits(payload) / (32 * models.numel())
    return Sent(codec.restore(payload, models.shape[1]), list(remembered), [share] * len(models))


def _join(parts: Sequence[Sent]) -> tuple[list[Memory], list[float]]:
    return [each for part in parts for each in part.memories], [each for part in parts for each in part.compression]


class SentModels(NamedTuple):
    """What receivers see: the models of the servers, and behind them those of guests."""

    models: Tensor  # [rows, P]
    norms: Tensor  # [rows]
    label_shares: Tensor | None = None  # [rows, C] of the data of each, where some come from elsewhere


class StackedInbox(NamedTuple):
    """The inboxes of n servers, models by their place."""

    sender: Tensor  # [n, D] whose model lies in each slot
    num_samples: Tensor  # [n, D]
    mixing: Tensor  # [n, D] float64
    mass: Tensor  # [n, D] float64
    present: Tensor  # [n, D]

    def rows(self, servers: Tensor | slice) -> StackedInbox:
        """Those of some servers."""
        return StackedInbox(*(table[servers] for table in self))

    def inbox(self, models: Tensor) -> Inbox:
        """As an aggregator wants it."""
        return Inbox(models, self.num_samples, self.mixing, self.mass, self.present)


def holdings(
    on_device: Callable[[NDArray[Any]], Tensor],
    slots: InboxTable,
    samples: NDArray[np.int64],  # [S] that each model was trained on
    mixing: NDArray[np.float64],  # [S, D] by plan, or nan
    shares: NDArray[np.float64],  # [S] of push-sum mass, one for each receiver and one that stays
    receivers: NDArray[np.int64],  # [S] how many there are
    usable: Tensor,  # [S] whose model can be used
) -> StackedInbox:
    """The inboxes; a model that is not usable is refused, and push-sum mass that nobody took stays at home."""
    sender, share = on_device(slots.sender), on_device(shares)
    mass = share[sender]
    lost = 0 if slots.num_lost is None else on_device(slots.num_lost)
    mass[:, 0] = share + share * torch.where(usable, lost, on_device(receivers))
    present = on_device(slots.drawn) & usable[sender]
    present[:, 0] = True
    return StackedInbox(sender, on_device(samples)[sender], on_device(mixing), mass, present)


def count_refused(slots: InboxTable, servers: slice, present: NDArray[np.bool_], norms: Tensor) -> Counter[str]:
    """Count the models that these servers refused, by reason; `present` [S, D] and `norms` [S] are those of the round.

    The norms stay on the device unless a model was refused.
    """
    refused = slots.drawn[servers] & ~present[servers]
    if not refused.any():
        return Counter()
    is_finite = np.isfinite(norms.cpu().numpy())[slots.sender[servers][refused]]
    return +Counter({NOT_FINITE: int((~is_finite).sum()), TOO_LARGE: int(is_finite.sum())})


class Merge(NamedTuple):
    """What the merges of a round came to; the models themselves are with the servers."""

    weights: Tensor  # [S, D]
    mass: Tensor  # [S]
    scores: dict[str, Tensor]  # [S, D] each
    setbacks: Tensor  # [4, S] see `Rows.settle`


class Decision(NamedTuple):
    """What the aggregators made of the inboxes."""

    weights: Tensor  # [n, D]
    mass: Tensor  # [n]
    models: Tensor | None  # [n, P] where the rule is no average


def decide(
    aggregator: Aggregator, probe: Probe | None, held: StackedInbox, own: Tensor, sent: Tensor, servers: Indices
) -> Decision:  # inboxes [n, D] of `servers` [n], models [S, P]
    """Weights of every model in every inbox; an averaging rule need not see the models for that."""
    if aggregator.averages:
        weightless = torch.zeros((*held.sender.shape, 1), device=own.device)
        merged = _for_each_server(aggregator, probe, held.inbox(weightless))
        return Decision(merged.importance, merged.mass, None)
    results = []
    for row in range(len(held.sender)):
        alone = None if probe is None else probe.rows(row)
        here = StackedInbox(*(table[row] for table in held))
        models = torch.cat([own[int(servers[row])][None], sent[here.sender[1:]]])
        results.append(aggregator(alone, here.inbox(models)))
    weights, masses = (torch.stack([getattr(r, name) for r in results]) for name in ("importance", "mass"))
    return Decision(weights, masses, torch.stack([result.model for result in results]))


def keep_usable(
    decision: Decision,
    safe: Tensor,  # [n, D] what the guard falls back on
    held: StackedInbox,
    own_is_usable: Tensor,  # [n]
    largest_norm: Tensor,  # [n]
    own: Tensor,  # [S, P]
    sent: Tensor,  # [S, P]
    servers: Indices,  # [n]
) -> tuple[Decision, Tensor]:
    """The decision, with the guard's weights where its model would not be usable; also tells where that was so, [n]."""
    if decision.models is None:
        failed = has_failed(decision.weights, own_is_usable)
    else:
        failed = ~is_usable(compute_norms(decision.models), largest_norm)
    weights = torch.where(failed[:, None], safe, decision.weights)
    if decision.models is not None:
        for row in np.flatnonzero(failed.cpu().numpy()):
            here = StackedInbox(*(table[row] for table in held))
            models = torch.cat([own[int(servers[row])][None], sent[here.sender[1:]]])
            decision.models[row] = weighted(weights[row], here.inbox(models)).model
    return decision._replace(weights=weights), failed


def _for_each_server(aggregator: Aggregator, probe: Probe | None, inbox: Inbox) -> Merged:
    """The rule for one server, lifted to all of them."""
    if vars(type(aggregator)).get("takes_many", False):  # a subclass may have another rule
        return aggregator(probe, inbox)
    try:
        if probe is None:
            lifted: Merged = torch.vmap(lambda one: aggregator(None, one))(inbox)
        else:
            lifted = torch.vmap(aggregator, in_dims=(probe.for_each, 0))(probe, inbox)
    except RuntimeError as error:
        raise describe_unliftable(aggregator, error) from error
    return lifted
