"""Whether a report is possible: what a server can have seen, done and spent in a round.

A report is compared with the round's plan, the price list and the settings of the run. One that breaks a bound is
false, whatever the reason, and honest servers never send one. What is possible and false is not found here.

Numbers that are not finite say nothing about a model, and are left to those who read them: a model that has diverged
has such losses.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.energy.energy_model import Cause, EnergyPrices, EnergyRow, Source
from hatdfed.core.links import Indices
from hatdfed.core.round import RoundPlan, ServerReport, Values

Numbers = TypeVar("Numbers", float, Values)

MOST_HARM = 10.0  # of a model, in either direction (`hatdfed.server.harm`)
_ROUNDING = 1e-3  # of scores and weights, which are computed in float32
_PRICE_ROUNDING = 1e-6  # of joules, relative
_NOTHING = np.zeros(0)


class ReportLimits(NamedTuple):
    """What one server can have done in a round, by the settings of the run."""

    samples: int = 10**9  # that it trained on
    samples_of: tuple[int, ...] = ()  # the same by server, where they differ; `samples` for those beyond
    devices: int = 10**9  # that were online
    probe: int = 10**9  # own images that models are evaluated on
    sent_share: float = 16.0  # of a float32 model, sent to one receiver, retries included
    keeps_uploads: bool = False  # whether it may train on samples that devices sent in earlier rounds

    def most_samples(self, server: int) -> int:
        """How many samples a server can have trained on."""
        return self.samples_of[server] if server < len(self.samples_of) else self.samples

    def without(self, is_away: NDArray[np.bool_]) -> ReportLimits:  # [N]
        """The same in a round in which some servers have no devices."""
        if not is_away.any():
            return self
        samples = (0 if away else self.most_samples(server) for server, away in enumerate(is_away.tolist()))
        return self._replace(samples_of=tuple(samples))


@dataclass(frozen=True)
class _Claims:
    """What is checked, and against what."""

    reports: Mapping[int, ServerReport]  # by server
    plan: RoundPlan
    prices: EnergyPrices
    limits: ReportLimits

    @cached_property
    def rows(self) -> _Rows:
        """All rows of the reports' ledgers."""
        servers = [server for server, report in self.reports.items() for _ in report.energy]
        return _Rows.of(servers, list(chain.from_iterable(report.energy for report in self.reports.values())))

    @cached_property
    def judged(self) -> tuple[Indices, Indices]:
        """[H] who reports, and on whose model, of all that the reports are about."""
        senders = [report.senders for report in self.reports.values()]
        receiver = np.repeat(np.array(list(self.reports), dtype=np.int64), [len(each) for each in senders])
        return receiver, np.concatenate([np.zeros(0, dtype=np.int64), *senders])


class _Rows(NamedTuple):
    """Rows of ledgers, and columns of them."""

    server: Sequence[int]  # [R] whose ledger it is
    row: Sequence[EnergyRow]  # [R]
    cause: NDArray[np.object_]  # [R]
    bits: Values  # [R]

    @classmethod
    def of(cls, servers: Sequence[int], rows: Sequence[EnergyRow]) -> _Rows:
        causes = np.array([row.cause for row in rows], dtype=object)
        return cls(servers, rows, causes, np.array([row.bits for row in rows], dtype=np.float64))


def find_breaches(
    reports: Mapping[int, ServerReport], plan: RoundPlan, prices: EnergyPrices, limits: ReportLimits
) -> dict[int, str]:
    """Which of the reports, by server, cannot be true, and why, in a sentence."""
    claims = _Claims(reports, plan, prices, limits)
    found: dict[int, str] = {}
    for check in (_check_figures, _check_models, _check_scores, _check_rows, _check_bits, _check_joules):
        for server, reason in check(claims):
            found.setdefault(server, reason)
    return found


def recompute_energy(
    server: int, report: ServerReport, plan: RoundPlan, prices: EnergyPrices, limits: ReportLimits
) -> tuple[EnergyRow, ...]:
    """The rows of a report that is not used, at the prices of the list; those with impossible amounts are left out."""
    claims = _Claims({server: report}, plan, prices, limits)
    receivers = set(plan.draw.topology.receivers(server))
    wanted = {_place(row): row for row in report.energy if _is_expected(row, server, plan.t, receivers)}
    if not 0 <= report.num_samples <= _most_samples(claims, server):
        wanted.pop((Cause.TRAINING, server, server), None)
    rows = [row for row in wanted.values() if _describe_bits(claims, server, row) is None]
    joules = _price_rows(claims, _Rows.of([server] * len(rows), rows))
    return tuple(
        row if row.source is Source.MEASURED else row._replace(joules=float(each))
        for row, each in zip(rows, joules, strict=True)
    )


def _check_figures(claims: _Claims) -> Iterator[tuple[int, str]]:
    for server, report in claims.reports.items():
        if not 0 <= report.accuracy <= 1:
            yield server, f"It reported an accuracy of {report.accuracy:g}; accuracies lie between 0 and 1."
        most = _most_samples(claims, server)
        if not 0 <= report.num_samples <= most:
            yield server, f"It reported {report.num_samples:,} samples; it can have had at most {most:,}."


def _most_samples(claims: _Claims, server: int) -> int:
    """None if it was to rest."""
    effort = claims.plan.effort_of(server)
    return 0 if effort is not None and not effort.passes else claims.limits.most_samples(server)


def _check_models(claims: _Claims) -> Iterator[tuple[int, str]]:
    """Only models that were to be sent to the server, each once, with weights between 0 and 1."""
    receiver, sender = claims.judged
    size, pairs = claims.plan.draw.topology.num_servers, claims.plan.draw.topology.pairs
    keys = receiver * size + sender
    links = np.append(pairs @ np.array([size, 1]), -1)  # ascending, and one that nothing equals
    is_link = links[np.searchsorted(links[:-1], keys)] == keys
    is_known = (receiver == sender) | (is_link & (sender >= 0) & (sender < size))
    for server, other in zip(receiver[~is_known].tolist(), sender[~is_known].tolist(), strict=True):
        yield server, f"It reported on the model of server {other}, which was not to send it one in this round."
    models = np.sort(keys[is_known])
    for server in dict.fromkeys((models[1:][models[1:] == models[:-1]] // size).tolist()):
        yield server, "It reported on one model twice."
    weight = np.concatenate([_NOTHING, *(report.importance for report in claims.reports.values())])
    for place in np.flatnonzero((weight < -_ROUNDING) | (weight > 1 + _ROUNDING)).tolist():
        yield int(receiver[place]), f"It reported a weight of {weight[place]:g}; weights lie between 0 and 1."


def _check_scores(claims: _Claims) -> Iterator[tuple[int, str]]:
    """Scores within the ranges of their kinds; kinds that are not ours may have any values."""
    ranges = {
        "loss": (0.0, math.inf),
        "harm": (-MOST_HARM, MOST_HARM),
        "evidence": (0.0, float(claims.limits.probe)),
        "knowledge": (-math.inf, 1.0),
        "similarity": (-1.0, 1.0),
    }
    receiver, _ = claims.judged
    named = {name for report in claims.reports.values() for name in report.scores}
    for name, (least, most) in ranges.items():
        if name not in named:
            continue
        values = np.concatenate([_NOTHING, *(_scores(report, name) for report in claims.reports.values())])
        is_outside = (values < least - _ROUNDING) | (values > most + _ROUNDING * max(1.0, most))
        for place in np.flatnonzero(is_outside).tolist():
            bound = f"at least {least:g}" if values[place] < least else f"at most {most:g}"
            yield int(receiver[place]), f"It reported a score {name} of {values[place]:g}; it can be {bound}."


def _scores(report: ServerReport, name: str) -> Values:
    found = report.scores.get(name)
    return np.full(len(report.senders), np.nan) if found is None else found


def _check_rows(claims: _Claims) -> Iterator[tuple[int, str]]:
    """The ledger has one row for the uploads, one for the training, and one for each receiver of the plan."""
    upload, training, link, exchange = Cause.UPLOAD, Cause.TRAINING, Cause.LINK, Cause.EXCHANGE
    t, topology = claims.plan.t, claims.plan.draw.topology
    for server, report in claims.reports.items():
        receivers = topology.receivers(server)
        links = [(link, server, i) for i in receivers]
        expected = [(upload, None, server), (training, server, server), *links]
        told = [row[1:4] for row in report.energy if row.cause is not exchange]  # cause, sender and receiver
        if told != expected and Counter(told) != Counter(expected):  # mostly in this order, which is quick to see
            yield server, f"Its energy is not that of one upload, one training and {len(receivers)} links."
        elif any(row.t != t for row in report.energy):
            yield server, "It reported energy of another round."


def _place(row: EnergyRow) -> tuple[Cause, int | None, int]:
    return row.cause, row.sender, row.receiver


def _is_expected(row: EnergyRow, server: int, t: int, receivers: set[int]) -> bool:
    if row.t != t:
        return False
    if row.cause is Cause.LINK:
        return row.sender == server and row.receiver in receivers
    return row.receiver == server and row.sender == (None if row.cause is Cause.UPLOAD else server)


def _check_bits(claims: _Claims) -> Iterator[tuple[int, str]]:
    servers, rows, cause, bits = claims.rows
    is_plain = (cause == Cause.TRAINING) & (bits == 0)
    places = np.flatnonzero(cause == Cause.LINK)
    links = [rows[place] for place in places.tolist()]
    again, hops = np.array([row.bits_again for row in links]), np.array([row.hops for row in links])
    is_plain[places] = _are_link_bits_possible(claims, bits[places], again, hops)
    if claims.plan.effort is None and claims.prices.sample_upload_bits is None:
        uploads = cause == Cause.UPLOAD
        is_plain[uploads] = _are_devices_possible(claims, _count_devices(claims, bits[uploads]))
    for place in np.flatnonzero(~is_plain).tolist():
        if (reason := _describe_bits(claims, servers[place], rows[place])) is not None:
            yield servers[place], reason


def _are_link_bits_possible(claims: _Claims, bits: Numbers, again: Numbers, hops: Any) -> Any:
    """Whether a model can take so many bits, `again` of which were sent before; of one link, or of each of many."""
    most = (claims.prices.model_bits * claims.limits.sent_share + claims.prices.overhead_bits) * hops
    return ((hops == 1) | (hops == 2)) & (again >= 0) & (again <= bits) & (bits <= most)


def _count_devices(claims: _Claims, bits: Numbers) -> Numbers:
    """How many devices send so many bits, of one server, or of each of many."""
    per_device = claims.prices.device_upload_bits
    return bits / per_device if per_device else bits * 0.0


def _are_devices_possible(claims: _Claims, devices: Numbers) -> Any:
    """Whether so many can have been online: a whole number of them; of one server, or of each of many."""
    whole = np.rint(np.clip(devices, 0, claims.limits.devices))
    is_whole = np.abs(devices - whole) <= _PRICE_ROUNDING * np.maximum(1.0, np.abs(devices))
    return is_whole & (devices >= 0) & (devices <= claims.limits.devices * (1 + _PRICE_ROUNDING))


def _describe_bits(claims: _Claims, server: int, row: EnergyRow) -> str | None:
    """Why these bits cannot be, in a sentence; None if they can."""
    prices, limits = claims.prices, claims.limits
    if row.cause is Cause.LINK:
        is_possible = _are_link_bits_possible(claims, row.bits, row.bits_again, row.hops)
        return None if is_possible else f"It reported {row.bits:g} bits sent to server {row.receiver}."
    if row.cause in (Cause.TRAINING, Cause.EXCHANGE):
        return None if row.bits == 0 else f"It reported bits for its {row.cause}."
    effort = claims.plan.effort_of(server)
    if effort is not None and not effort.asks:
        return None if row.bits == 0 else "It reported uploads, but was to ask no device for data."
    if (per_sample := prices.sample_upload_bits) is not None:
        is_possible = _are_samples_possible(claims, server, row.bits / per_sample)
        return None if is_possible else f"It reported {row.bits:g} bits of uploads, which do not fit its samples."
    devices = _count_devices(claims, row.bits)
    if _are_devices_possible(claims, devices):
        return None
    return f"It reported {row.bits:g} bits of uploads, those of {devices:g} devices; it has {limits.devices:,}."


def _are_samples_possible(claims: _Claims, server: int, sent: float) -> bool:
    """Whether devices can have sent so many samples: those trained on, unless uploads are kept or the server rests."""
    effort = claims.plan.effort_of(server)
    if claims.limits.keeps_uploads or (effort is not None and not effort.passes):
        most = claims.limits.most_samples(server)
        return math.isfinite(sent) and 0 <= sent <= most * (1 + _PRICE_ROUNDING) and _is_near(sent, round(sent))
    return _is_near(sent, claims.reports[server].num_samples)


def _check_joules(claims: _Claims) -> Iterator[tuple[int, str]]:
    """Modelled joules are what the price list says of the claimed samples and bits; measured ones are not checked."""
    servers, rows = claims.rows.server, claims.rows.row
    told, priced = np.array([row.joules for row in rows]), _price_rows(claims, claims.rows)
    is_false = ~(np.abs(told - priced) <= _PRICE_ROUNDING * np.abs(priced))
    for place in np.flatnonzero(is_false).tolist():
        row = rows[place]
        if row.source is not Source.MEASURED:
            joules = f"{row.joules:.4g} J for {row.cause}; at the list's prices it is {priced[place]:.4g} J"
            yield servers[place], f"It reported {joules}."


def _price_rows(claims: _Claims, rows: _Rows) -> Values:  # -> [R]
    """What the rows of these servers cost by the price list; nan for links of a server that does not exist."""
    prices = claims.prices
    joules = rows.bits * prices.device_joules_per_bit
    joules[rows.cause == Cause.EXCHANGE] = 0.0  # which the price list does not know
    trains = np.flatnonzero(rows.cause == Cause.TRAINING)
    trained = [rows.server[place] for place in trains.tolist()]
    charged = [prices.count_charged(claims.reports[i].num_samples, claims.plan.effort_of(i)) for i in trained]
    joules[trains] = np.array(charged) * prices.compute_joules[trained]
    links = np.flatnonzero(rows.cause == Cause.LINK)
    sent = [rows.row[place] for place in links.tolist()]
    receiver = np.array([row.receiver for row in sent], dtype=np.int64)
    sender = np.array([-1 if row.sender is None else row.sender for row in sent], dtype=np.int64)
    joules[links] = _price_links(claims, receiver, sender, rows.bits[links])
    return joules


def _price_links(claims: _Claims, receiver: Indices, sender: Indices, bits: Values) -> Values:  # [L] each
    prices, size = claims.prices, claims.prices.num_servers
    exists = (receiver >= 0) & (receiver < size) & (sender >= 0) & (sender < size)
    joules = np.full(len(bits), np.nan)
    receiver, sender = receiver[exists], sender[exists]
    per_bit = prices.link_joules_per_bit[receiver, sender]
    factor = 1.0 if prices.drift is None else prices.drift.factor(claims.plan.t, receiver, sender)
    joules[exists] = bits[exists] * per_bit * factor
    return joules


def _is_near(value: float, expected: float) -> bool:
    return math.isclose(value, expected, rel_tol=_PRICE_ROUNDING, abs_tol=_PRICE_ROUNDING)
