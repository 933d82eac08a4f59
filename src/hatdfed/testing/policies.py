"""What every topology policy must satisfy. numpy only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hatdfed.core.links import BoolMatrix, FloatMatrix, LinkTable, all_links
from hatdfed.core.policies.base import AnyPolicy, Feedback, PolicyContext
from hatdfed.core.round import LinkDraw, RoundReport, ServerReport
from hatdfed.errors import ConfigError
from hatdfed.jsonable import from_jsonable, to_jsonable
from hatdfed.randomness import stream


def policy_context(
    num_servers: int,
    *,
    t: int = 0,
    budget: int | None = None,
    horizon: int = 50,
    active: NDArray[np.bool_] | None = None,
    reachable: BoolMatrix | None = None,
    prices: FloatMatrix | None = None,
) -> PolicyContext:
    """Make a plausible context: 30 % of the links, random prices, all servers present.

    `reachable` and `prices` are matrices, row receives. As in a run, the budget never exceeds the possible links.
    """
    links = LinkTable.all_of(num_servers)
    drawn = stream(0, "prices", num_servers).uniform(1, 3, (num_servers, num_servers))
    context = PolicyContext(
        t=t,
        horizon=horizon,
        budget=max(1, round(0.3 * len(links))) if budget is None else budget,
        links=links,
        prices=links.from_dense(drawn if prices is None else prices),
        active=np.ones(num_servers, dtype=bool) if active is None else active,
        reachable=links.from_dense(all_links(num_servers) if reachable is None else reachable),
    )
    return context._replace(budget=min(context.budget, int(context.possible.sum())))


def feedback_for(draw: LinkDraw, rng: np.random.Generator, *, missing: Sequence[int] = ()) -> Feedback:
    """Make plausible feedback: all drawn links delivered, random scores; `missing` servers sent no report."""

    def report(i: int) -> ServerReport | None:
        if i in missing:
            return None
        senders = np.array([i, *draw.topology.senders(i)])
        scores = {"loss": rng.uniform(0.1, 3, len(senders)), "similarity": rng.uniform(-1, 1, len(senders))}
        importance = np.full(len(senders), 1 / len(senders))
        return ServerReport(float(rng.random()), 30, senders, importance, energy=(), scores=scores)

    reports = RoundReport(tuple(report(i) for i in range(draw.topology.num_servers)))
    return Feedback(reports, rng.random(len(draw.links)))


class TopologyPolicyLaws:
    """Tests that every policy must pass."""

    sizes: Sequence[int] = (2, 3, 4, 5, 6, 7, 10, 18, 20, 54)
    impossible_sizes: Sequence[int] = ()

    def policy(self) -> AnyPolicy:
        """Return a new instance of the policy under test."""
        raise NotImplementedError

    def _possible_sizes(self) -> list[int]:
        return [size for size in self.sizes if size not in self.impossible_sizes]

    def _play(self, num_servers: int, rounds: int) -> tuple[AnyPolicy, Any, LinkDraw]:
        policy = self.policy()
        state = policy.init(num_servers)
        for t in range(rounds):
            context = policy_context(num_servers, t=t)
            draw = policy.propose(state, context, stream(1, "topology", t))
            feedback = feedback_for(draw, stream(2, "round", t))
            state = policy.update(state, draw, feedback, context)
        return policy, state, draw

    def test_draws_only_possible_links_with_their_probabilities(self) -> None:
        for size in self._possible_sizes():
            for rounds in (1, 4):
                _, _, draw = self._play(size, rounds)
                assert draw.topology.num_servers == size
                assert (draw.propensity[draw.drawn] > 0).all()
                assert (draw.propensity <= 1 + 1e-9).all()
                assert not draw.propensity.flags.writeable

    def test_a_policy_that_uses_the_budget_draws_exactly_that(self) -> None:
        for size in self._possible_sizes():
            policy, state, _ = self._play(size, 2)
            if not policy.uses_budget:
                continue
            for budget in {1, size, size * (size - 1) // 2, size * (size - 1)} & set(range(size * (size - 1) + 1)):
                draw = policy.propose(state, policy_context(size, t=2, budget=budget), stream(3, "budget"))
                assert draw.topology.num_links == budget
                assert abs(draw.propensity.sum() - budget) < 1e-6

    def test_the_same_state_and_generator_give_the_same_draw(self) -> None:
        for size in self._possible_sizes():
            policy, state, _ = self._play(size, 3)
            one, two = (policy.propose(state, policy_context(size, t=3), stream(4, "again")) for _ in range(2))
            assert one.topology == two.topology

    def test_updating_leaves_state_draw_and_feedback_alone(self) -> None:
        policy, state, draw = self._play(self._possible_sizes()[-1], 2)
        context = policy_context(draw.topology.num_servers, t=2)
        feedback = feedback_for(draw, stream(5, "round"))
        before = json.dumps([to_jsonable(state), to_jsonable(feedback.utility), to_jsonable(draw.propensity)])
        policy.update(state, draw, feedback, context)
        assert json.dumps([to_jsonable(state), to_jsonable(feedback.utility), to_jsonable(draw.propensity)]) == before

    def test_state_survives_json(self) -> None:
        for size in self._possible_sizes():
            policy, state, _ = self._play(size, 3)
            again = from_jsonable(json.loads(json.dumps(to_jsonable(state))), policy.init(size))
            context = policy_context(size, t=3)
            one, two = (policy.propose(s, context, stream(6, "json")) for s in (state, again))
            assert one.topology == two.topology

    def test_absent_servers_and_dead_links_are_never_drawn(self) -> None:
        size = max(self._possible_sizes())
        policy, state, _ = self._play(size, 2)
        active = np.ones(size, dtype=bool)
        active[[1, 3]] = False
        reachable = all_links(size)
        reachable[0, 2] = False
        for t in range(6):
            context = policy_context(size, t=t, budget=size, active=active, reachable=reachable)
            drawn = policy.propose(state, context, stream(7, "mask", t)).drawn
            assert not (drawn & ~context.possible).any()

    def test_with_servers_away_every_budget_that_is_possible_is_drawn(self) -> None:
        for size in self._possible_sizes():
            policy, state, _ = self._play(size, 2)
            for here in {2, size // 2, size - 1} - {0, 1}:
                for budget in (1, here, size * (size - 1)):
                    context = policy_context(size, t=2, budget=budget, active=np.arange(size) < here)
                    draw = policy.propose(state, context, stream(11, "away", here))
                    assert not (draw.drawn & ~context.possible).any()
                    assert draw.topology.num_links == context.budget or not policy.uses_budget

    def test_a_round_without_some_reports_is_survived(self) -> None:
        size = self._possible_sizes()[-1]
        policy, state, draw = self._play(size, 2)
        feedback = feedback_for(draw, stream(8, "round"), missing=(0, size - 1))
        after = policy.update(state, draw, feedback, policy_context(size, t=2))
        assert policy.propose(after, policy_context(size, t=3), stream(8, "next")).topology.num_servers == size

    def test_servers_may_join(self) -> None:
        small, large = self._possible_sizes()[-2:]
        policy, state, _ = self._play(small, 3)
        grown = policy.grow(state, large)
        assert policy.propose(grown, policy_context(large, t=3), stream(9, "grow")).topology.num_servers == large

    def test_mixing_weights_are_shares_on_links_and_oneself(self) -> None:
        for size in self._possible_sizes():
            policy, state, draw = self._play(size, 3)
            reachable = stream(10, "dead links", size).random((size, size)) < 0.8
            patchy = policy_context(size, t=3, budget=1, reachable=reachable & all_links(size))
            for one in (draw, policy.propose(state, patchy, stream(10, "patchy"))):
                assert (one.mixing is not None) == policy.plans_mixing
                if one.mixing is not None:
                    assert one.mixing.shape == (len(one.links),)
                    assert (one.mixing >= -1e-12).all()
                    assert (one.links.by_receiver(one.mixing).sum(axis=1) <= 1 + 1e-12).all()
                    assert not one.mixing[~one.drawn].any()

    def test_impossible_sizes_are_refused_with_a_sentence(self) -> None:
        for size in self.impossible_sizes:
            with pytest.raises(ConfigError):
                self._play(size, 1)
