"""Links that learn whom to hear: servers are introduced to each other, and hear those whose models fit their data.

At first all servers exchange models, but a receiver only merges those that it can judge and that do no harm: their
weight in the plan is `DOUBTFUL`. Models then have a common origin, so that they can be compared and averaged. Once
servers know their own data they train alone for a while, and then comes an *introduction*: everybody hears everybody
once, and merges nothing. A receiver judges each model on its own data, on the labels that the sender has too
(`hatdfed.server.harm`), and reports how much harm the model would do. The coordinator turns these reports into verdicts
and finds the groups of servers that fit together. Good ones count less if the receiver knows far less of its own data
than most. From then on links are drawn inside groups, balanced and by price, and every model that is heard is judged
again. After a while all are introduced a second time: the models of groups show more than those of single servers.

A server that suddenly knows its own data much less than usual has other data now. It forgets whom it knew, and so do
the others; it is introduced again, and so is from time to time a server that fits nobody. Now and then a server judges
the model of one that it does not trust: it may have changed.

Where every server considers a few candidates only, it is introduced to these. Groups are found from all such verdicts,
so that a server also knows which of its later candidates belong to its group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.beliefs import NO_GROUP, Beliefs, Groups
from hatdfed.core.groups import find_groups
from hatdfed.core.links import BoolColumn, FloatColumn, LinkTable
from hatdfed.core.policies.base import Feedback, Policy, PolicyContext, certain, share_equally, silence
from hatdfed.core.policies.priced_links import APART, draw_inside, find_degree, scale_prices
from hatdfed.core.round import LinkDraw, RoundReport
from hatdfed.errors import ConfigError
from hatdfed.randomness import stream

DOUBTFUL = 0.001  # weight in a plan of a model from a server that nobody knows yet; one that is trusted has far more
LEAST_EVIDENCE = 3.0  # samples behind a verdict; with fewer nothing is said about a model
_FEW_SAMPLES = 5.0  # at so many a verdict counts half
_STANDING = 0.5  # of the median knowledge: from here on good verdicts of a server count in full
_UNWELCOME = -0.3  # mean verdict of its group on a server, below which it is left out
_READY_LATER = 0.4  # knowledge at which a single server is introduced to those who know each other
_CONFIDENT = 0.3  # usual knowledge from which a fall means something
_FALL = 0.5  # of the usual knowledge: with less, the data of a server have changed
_USUAL = 0.7  # weight of the usual knowledge against what a server knows now


class TrustState(NamedTuple):
    """What is known about links and servers."""

    verdict: FloatColumn  # [E] of the receiver about the sender, −1 to 1; 0 where nothing is known
    is_known: BoolColumn  # [E] whether there was evidence
    introductions: NDArray[np.int64]  # [N] how often a server was introduced since it began or its data changed
    knowledge: NDArray[np.float64]  # [N] of its own data, as last reported
    usual: NDArray[np.float64]  # [N] what it has come to know since the introduction, as a running mean from 0
    waited: NDArray[np.int64]  # [N] rounds that it was there for since its introduction, or since its knowledge fell
    group: Groups  # [N] that the verdicts show
    quiet: int  # rounds without links before the first introduction, so far; −1: models are still exchanged

    @property
    def is_introduced(self) -> NDArray[np.bool_]:  # -> [N]
        """Who was introduced."""
        return self.introductions > 0


@dataclass(frozen=True)
class TrustedLinks(Policy):
    """Balanced links by price among servers that trust each other."""

    name: ClassVar[str] = "trusted-links"

    thrift: float = 8.0  # how many e-folds the dearest link is behind the cheapest
    degree: int | None = None  # models that each server receives and sends; None: as for balanced-links
    bar: float = 0.5  # harm at which a verdict is neither good nor bad
    ready: float = 0.6  # mean knowledge at which servers stop exchanging models, to be introduced to each other
    latest: float = 0.1  # share of the run after which they do, whatever they know; 0: introduced in the first round
    quiet: int = 3  # rounds with links in which servers train alone before that, so that their models differ
    again: float = 0.2  # share of the run after which everybody is introduced a second time
    retry: float = (
        0.1  # share of the run after which who knows too little, or fits nobody, is introduced again; doubles
    )
    most: int = 20  # models that a server judges in an introduction
    memory: float = 0.8  # weight of the earlier verdict against a new one
    curiosity: float = 0.1  # chance of a server, in a round with links, to hear one that it does not trust

    uses_budget: ClassVar[bool] = False
    plans_mixing: ClassVar[bool] = True
    takes_candidates: ClassVar[bool] = True
    learns_in_silence: ClassVar[bool] = True
    needs_scores: ClassVar[frozenset[str]] = frozenset({"harm", "evidence", "knowledge"})

    def __post_init__(self) -> None:
        for name in ("ready", "latest", "again", "retry", "memory", "curiosity"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ConfigError(f"policy.{name} is {value}, but must lie between 0 and 1.")
        if not 0 <= self.thrift <= 100:
            raise ConfigError(f"policy.thrift is {self.thrift}, but must lie between 0 and 100; 0 ignores prices.")
        if self.degree is not None and self.degree < 1:
            raise ConfigError(f"policy.degree is {self.degree}, but must be at least 1.")
        if self.quiet < 0:
            raise ConfigError(f"policy.quiet is {self.quiet}, but must be at least 0.")
        if self.most < 1:
            raise ConfigError(f"policy.most is {self.most}, but must be at least 1.")
        if not 0 < self.bar <= 10:
            raise ConfigError(f"policy.bar is {self.bar}, but must be above 0 and at most 10.")

    def init(self, num_servers: int) -> TrustState:
        """Nobody knows anybody."""
        return self.init_for(LinkTable.all_of(num_servers))

    def init_for(self, links: LinkTable) -> TrustState:
        """The same, for these links only."""
        size = links.num_servers
        nothing = np.zeros(len(links))
        zeros, none = np.zeros(size), np.zeros(size, dtype=np.int64)
        return TrustState(
            nothing, nothing > 0, none, zeros, zeros, none, np.arange(size), -1 if self.latest else self.quiet
        )

    def grow(self, state: TrustState, num_servers: int) -> TrustState:
        """New servers are strangers, and will be introduced."""
        links, new = LinkTable.all_of(num_servers), num_servers - len(state.knowledge)
        return TrustState(
            links.grow(state.verdict),
            links.grow(state.is_known.astype(np.float64)) > 0,
            np.pad(state.introductions, (0, new)),
            np.pad(state.knowledge, (0, new)),
            np.pad(state.usual, (0, new)),
            np.pad(state.waited, (0, new)),
            np.append(state.group, num_servers + np.arange(new)),  # numbers that no group has
            state.quiet,
        )

    def preference(self, state: TrustState, context: PolicyContext) -> FloatColumn:
        """Cheap links to those whom one trusts."""
        return self._log_weights(find_trust(context.links, state.group), context)

    def swap_candidates(self, state: TrustState, carry: Callable[[FloatColumn], FloatColumn]) -> TrustState:
        """What is known about those that stay."""
        # New candidates get the mean of a server's old ones, so that random marks tell them from those that stay.
        marks = stream(0, "marks-of-links").random(len(state.verdict))
        known = np.isin(carry(np.where(state.is_known, marks, -1.0)), marks)
        return state._replace(verdict=np.where(known, carry(state.verdict), 0.0), is_known=known)

    def propose(self, state: TrustState, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """Links by price among those who trust each other, at first among all; besides, models that are only judged."""
        if self._is_open(state):
            everybody = np.zeros(context.links.num_servers, dtype=np.int64)
            drawn = self._draw_inside(everybody, find_trust(context.links, everybody), context, rng)
            return certain(context.links, drawn, DOUBTFUL * share_equally(context.links, drawn))
        settled, is_trusted = self._settled(state, context), find_trust(context.links, state.group)
        drawn = self._draw_inside(state.group, is_trusted, settled, rng)
        judged = self._introductions(state, context, rng) | self._look_around(is_trusted, settled, rng)
        if not (drawn | judged).any():
            return silence(context, plans_mixing=True)
        return _planned(context.links, drawn, judged)

    def finish(self, state: TrustState, context: PolicyContext) -> BoolColumn:
        """All links along which models fit."""
        return self._settled(state, context).possible & find_trust(context.links, state.group)

    def beliefs(self, before: TrustState, after: TrustState, context: PolicyContext) -> Beliefs:
        """Verdicts, the groups of those who were introduced, and what happened to servers."""
        links, groups = context.links, np.where(after.is_introduced, after.group, NO_GROUP)
        verdict = np.where(after.is_known, after.verdict, np.nan)
        return Beliefs(links, verdict, groups, describe_servers(after, groups), explain_changes(before, after))

    def update(self, state: TrustState, draw: LinkDraw, feedback: Feedback, context: PolicyContext) -> TrustState:
        """Judge anew whom was heard; forget those whose data have changed."""
        report, links = feedback.report, context.links
        knowledge = read_knowledge(report, state.knowledge)
        met = self._is_due(state, context) & report.reported & _has_link(draw)
        failed = self._have_data_changed(state, knowledge, context)
        praise = links.at_receivers(weigh_praise(knowledge, context.active))
        verdict, is_known = self._hear(state, report, praise, self._find_memory(state, links, met, context), links)
        forgotten = links.at_receivers(failed) | links.at_senders(failed)
        verdict, is_known = np.where(forgotten, 0.0, verdict), is_known & ~forgotten
        group = leave_out_harmful(links, find_groups(links, verdict, is_known), verdict, is_known)
        # Models that were trained apart cost a group a part of what it knew, so that a fall means nothing then.
        begins_anew = met | failed | find_new_groups(state.group, group)
        return TrustState(
            verdict,
            is_known,
            np.where(failed, 0, state.introductions + met),
            knowledge,
            np.where(begins_anew, 0.0, _USUAL * state.usual + (1 - _USUAL) * knowledge),
            np.where(met | failed, 0, state.waited + context.active),
            group,
            self._count_quiet_rounds(state, knowledge, context),
        )

    def _is_open(self, state: TrustState) -> bool:
        """Whether nobody has been introduced yet, and all exchange models."""
        return state.quiet < 0 and not state.is_introduced.any()

    def _count_quiet_rounds(self, state: TrustState, knowledge: NDArray[np.float64], context: PolicyContext) -> int:
        if not self._is_open(state):
            return state.quiet + (not state.is_introduced.any())
        know = knowledge[context.active].mean() if context.active.any() else 0.0
        return 0 if know >= self.ready or context.t + 1 >= self.latest * context.horizon else -1

    def _have_data_changed(
        self, state: TrustState, knowledge: NDArray[np.float64], context: PolicyContext
    ) -> NDArray[np.bool_]:  # -> [N]
        """Who suddenly knows much less than usual; nobody near the end, when there is no time for an introduction."""
        has_fallen = (knowledge < _FALL * state.usual) & (state.usual > _CONFIDENT)
        return state.is_introduced & has_fallen & (context.t < (1 - self.retry) * context.horizon)

    def _hear(
        self, state: TrustState, report: RoundReport, praise: FloatColumn, memory: FloatColumn, links: LinkTable
    ) -> tuple[FloatColumn, BoolColumn]:
        """Verdicts with those of this round, good ones weighed by `praise`, and whether there are any."""
        harm, evidence = report.scores("harm", links), report.scores("evidence", links)
        heard = np.isfinite(harm) & (np.nan_to_num(evidence) >= LEAST_EVIDENCE)
        samples = np.where(heard, evidence, 0.0)
        new = np.clip(1 - np.where(heard, harm, 0.0) / self.bar, -1, 1) * samples / (samples + _FEW_SAMPLES)
        new = np.where(new > 0, praise * new, new)
        return np.where(heard, memory * state.verdict + (1 - memory) * new, state.verdict), state.is_known | heard

    def _find_memory(
        self, state: TrustState, links: LinkTable, met: NDArray[np.bool_], context: PolicyContext
    ) -> FloatColumn:
        """Weight of the earlier verdicts: none of those before an introduction, but half in the second one of all."""
        second = met & self._is_second(state, context)
        is_new, is_second = (links.at_receivers(who) | links.at_senders(who) for who in (met & ~second, second))
        memory = np.where(is_new, 0.0, np.where(is_second, 0.5, self.memory))
        return np.where(state.is_known, memory, 0.0)

    def _introductions(self, state: TrustState, context: PolicyContext, rng: np.random.Generator) -> BoolColumn:
        """[E] links from and to those whose introduction is due; where a server would judge too many, some of them."""
        due = self._is_due(state, context)
        known = state.is_introduced | due
        links = context.links
        first = links.at_receivers(due) | links.at_senders(due)
        wanted = context.possible & first & links.at_receivers(known) & links.at_senders(known)
        if not wanted.any():
            return wanted
        order = links.by_receiver(np.where(wanted, rng.random(len(links)), 2.0))
        rank = order.argsort(axis=1).argsort(axis=1)
        return wanted & (rank < self.most).reshape(-1)

    def _is_second(self, state: TrustState, context: PolicyContext) -> NDArray[np.bool_]:  # -> [N]
        """Whose second introduction is due: that of most together, as groups' models show more than single servers'."""
        due: NDArray[np.bool_] = (state.introductions == 1) & (state.waited >= max(1.0, self.again * context.horizon))
        return due & (2 * np.count_nonzero(due & context.active) > np.count_nonzero(context.active))

    def _is_due(self, state: TrustState, context: PolicyContext) -> NDArray[np.bool_]:  # -> [N]
        """Who is introduced now: all together after the quiet rounds, later each when it knows enough.

        Everybody is introduced a second time. Who knows too little, or fits nobody, tries again after a while.
        """
        waiting = context.active & ~state.is_introduced
        if not state.is_introduced.any():
            return waiting & (state.quiet >= self.quiet)
        pause = self.retry * context.horizon * 2.0 ** np.maximum(state.introductions - 1, 0)
        tries_again = state.waited >= np.maximum(1.0, pause)
        alone = context.active & state.is_introduced & is_alone(state.group)
        second = context.active & self._is_second(state, context)
        is_ready = state.knowledge >= min(self.ready, _READY_LATER)
        return (waiting & (is_ready | tries_again)) | (alone & tries_again) | second

    def _settled(self, state: TrustState, context: PolicyContext) -> PolicyContext:
        """The same for those who have been introduced."""
        return context._replace(active=context.active & state.is_introduced)

    def _draw_inside(
        self, groups: Groups, is_trusted: BoolColumn, context: PolicyContext, rng: np.random.Generator
    ) -> BoolColumn:
        """Balanced links inside groups; without trust only where they could not be balanced, and then left out."""
        degree = find_degree(self.degree, context.links)
        return is_trusted & draw_inside(groups, self._log_weights(is_trusted, context), context, degree, rng)

    def _look_around(self, is_trusted: BoolColumn, context: PolicyContext, rng: np.random.Generator) -> BoolColumn:
        """At times, a link to somebody who is not trusted."""
        links = context.links
        is_curious = rng.random(links.num_servers) < self.curiosity
        open_links = links.by_receiver(context.possible & ~is_trusted & links.at_receivers(is_curious))
        rank = np.where(open_links, rng.random(open_links.shape), 2.0)
        chosen = np.zeros_like(open_links)
        np.put_along_axis(chosen, rank.argmin(axis=1)[:, None], True, axis=1)
        return (chosen & open_links).reshape(-1)

    def _log_weights(self, is_trusted: BoolColumn, context: PolicyContext) -> FloatColumn:
        return -self.thrift * scale_prices(context.prices, context.possible) - APART * ~is_trusted


def describe_servers(state: TrustState, groups: Groups) -> tuple[str, ...]:  # -> [N]
    """Whether each server waits for its introduction, is a member of a group, or alone."""
    alone = np.zeros_like(state.is_introduced)
    alone[state.is_introduced] = is_alone(groups[state.is_introduced])
    words = np.select([~state.is_introduced, alone], ["waiting", "alone"], "member")
    return tuple(words.tolist())


def explain_changes(before: TrustState, after: TrustState) -> tuple[str, ...]:  # -> [N]
    """What happened to each server: whether it was introduced, once more, or its data changed; empty where nothing."""
    was, now = before.is_introduced, after.is_introduced
    words = np.select(
        [now & ~was, now & (after.waited < before.waited), was & ~now],
        ["introduced", "introduced again", "data changed"],
        "",
    )
    return tuple(words.tolist())


def find_new_groups(before: Groups, after: Groups) -> NDArray[np.bool_]:  # [N] -> [N]
    """Who is together with others than before."""
    was, now, both = (_count_alike(each) for each in (before, after, np.stack([before, after], axis=1)))
    changed: NDArray[np.bool_] = (was != both) | (now != both)
    return changed


def _count_alike(rows: NDArray[np.int64]) -> NDArray[np.int64]:  # [N] or [N, 2] -> [N]
    """How many servers have the same number, or numbers, as each."""
    _, place, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    alike: NDArray[np.int64] = counts[place.reshape(-1)]
    return alike


def is_alone(groups: NDArray[np.int64]) -> NDArray[np.bool_]:  # [N] -> [N]
    """Who is the only member of its group."""
    alone: NDArray[np.bool_] = _count_alike(groups) == 1
    return alone


def find_trust(links: LinkTable, groups: Groups) -> BoolColumn:  # -> [E]
    """Whom each receiver trusts: those of its group."""
    trusted: BoolColumn = links.at_receivers(groups) == links.at_senders(groups)
    return trusted


def leave_out_harmful(
    links: LinkTable, group: Groups, verdict: FloatColumn, is_known: BoolColumn
) -> Groups:  # [N], [E], [E] -> [N]
    """The groups without the servers whose models do harm to most of their group, each of which is alone then.

    Such a server may speak well of the others, whose models are good, so that pairs with it fit on average. Those who
    have no labels in common with it cannot tell that its model does harm, and rely on those who have.
    """
    told = is_known & find_trust(links, group)
    sums, counts = (
        np.bincount(links.sender[told], weights=weights, minlength=len(group)) for weights in (verdict[told], None)
    )
    is_harmful = sums / (counts + 1) < _UNWELCOME  # a verdict that says nothing is added, so that a few count less
    _, first, place = np.unique(
        np.where(is_harmful, len(group) + np.arange(len(group)), group), return_index=True, return_inverse=True
    )
    return np.unique(first[place], return_inverse=True)[1].reshape(-1)  # numbered in the order of their first members


def _planned(links: LinkTable, drawn: BoolColumn, judged: BoolColumn) -> LinkDraw:
    """A draw of links whose models are merged, and of others whose models are judged only."""
    return certain(links, drawn | judged, share_equally(links, drawn))


def _has_link(draw: LinkDraw) -> NDArray[np.bool_]:  # -> [N]
    """Who hears or is heard; nobody does where a draw was too dear for a budget."""
    has = np.zeros(draw.topology.num_servers, dtype=bool)
    has[draw.topology.pairs] = True
    return has


def weigh_praise(knowledge: NDArray[np.float64], active: NDArray[np.bool_]) -> NDArray[np.float64]:  # [N], [N] -> [N]
    """How much the good verdicts of each server count, by what it knows of its own data compared with the others.

    To a server whose labels are wrong, whose own model knows next to nothing, no other model does harm.
    """
    enough = _STANDING * np.median(knowledge[active]) if active.any() else 0.0
    weights: NDArray[np.float64] = np.clip(knowledge / enough, 0.0, 1.0) if enough > 0 else np.ones_like(knowledge)
    return weights


def read_knowledge(report: RoundReport, before: NDArray[np.float64]) -> NDArray[np.float64]:  # -> [N]
    """What each server knows of its own data; as before where it does not say."""
    told = [None if each is None else each.scores.get("knowledge") for each in report.servers]
    values = np.array([np.nan if each is None or not len(each) else each[0] for each in told])
    return np.where(np.isfinite(values), values, before)
