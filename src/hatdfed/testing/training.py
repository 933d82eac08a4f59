"""What every training policy must satisfy. numpy only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.effort import Effort
from hatdfed.core.training.base import AnyTraining, TrainingContext, TrainingOutcome
from hatdfed.jsonable import from_jsonable, to_jsonable
from hatdfed.randomness import stream


def training_context(
    num_servers: int, *, t: int = 0, horizon: int = 50, passes: int = 2, active: NDArray[np.bool_] | None = None
) -> TrainingContext:
    """Make a plausible context: machines of two kinds, equal uploads, all servers present."""
    weak = stream(0, "machines", num_servers).random(num_servers) < 0.5
    return TrainingContext(
        t=t,
        horizon=horizon,
        passes=passes,
        active=np.ones(num_servers, dtype=bool) if active is None else active,
        training_joules=np.where(weak, 30.0, 15.0),
        upload_joules=np.full(num_servers, 12.0),
    )


def outcome_for(
    effort: Effort, context: TrainingContext, rng: np.random.Generator, *, missing: Sequence[int] = ()
) -> TrainingOutcome:
    """Make a plausible outcome: small gains, more for those who trained; `missing` servers sent no report."""
    before = rng.uniform(0.3, 0.9, context.num_servers)
    trained = effort.passes > 0
    accuracy = np.clip(before + 0.01 * trained + rng.normal(0, 0.01, context.num_servers), 0, 1)
    accuracy[list(missing)] = np.nan
    joules = trained * context.training_joules + effort.asks * context.upload_joules
    return TrainingOutcome(effort, accuracy, before, joules)


class TrainingPolicyLaws:
    """Tests that every training policy must pass."""

    sizes: Sequence[int] = (2, 3, 5, 10, 54)

    def policy(self) -> AnyTraining:
        """Return a new instance of the policy under test."""
        raise NotImplementedError

    def _play(self, num_servers: int, rounds: int) -> tuple[AnyTraining, Any, Effort]:
        policy = self.policy()
        state = policy.init(num_servers)
        for t in range(rounds):
            context = training_context(num_servers, t=t)
            effort = policy.propose(state, context, stream(1, "training", t))
            state = policy.update(state, outcome_for(effort, context, stream(2, "round", t)), context)
        return policy, state, effort

    def test_decides_for_every_server(self) -> None:
        for size in self.sizes:
            for rounds in range(1, 5):
                policy, _, effort = self._play(size, rounds)
                assert effort.passes.shape == effort.asks.shape == (size,)
                assert effort.passes.dtype.kind == "i"
                assert effort.asks.dtype == np.bool_
                assert (effort.passes >= 0).all()
                assert (effort.passes <= policy.find_most_passes(training_context(size).passes)).all()

    def test_somebody_trains_in_the_course_of_a_run(self) -> None:
        for size in self.sizes:
            policy, state, trained = self.policy(), self.policy().init(size), np.zeros(size, dtype=bool)
            for t in range(50):
                context = training_context(size, t=t)
                effort = policy.propose(state, context, stream(3, "training", t))
                trained |= effort.passes > 0
                state = policy.update(state, outcome_for(effort, context, stream(4, "round", t)), context)
            assert trained.any()

    def test_the_same_state_and_generator_give_the_same_decision(self) -> None:
        for size in self.sizes:
            policy, state, _ = self._play(size, 3)
            one, two = (policy.propose(state, training_context(size, t=3), stream(5, "again")) for _ in range(2))
            _assert_same(one, two)

    def test_updating_leaves_state_and_outcome_alone(self) -> None:
        policy, state, effort = self._play(self.sizes[-1], 2)
        context = training_context(self.sizes[-1], t=2)
        outcome = outcome_for(effort, context, stream(6, "round"))
        before = json.dumps([to_jsonable(state), to_jsonable(outcome)])
        policy.update(state, outcome, context)
        assert json.dumps([to_jsonable(state), to_jsonable(outcome)]) == before

    def test_state_survives_json(self) -> None:
        for size in self.sizes:
            policy, state, _ = self._play(size, 3)
            again = from_jsonable(json.loads(json.dumps(to_jsonable(state))), policy.init(size))
            context = training_context(size, t=3)
            _assert_same(*(policy.propose(each, context, stream(7, "json")) for each in (state, again)))

    def test_servers_that_are_away_or_do_not_report_are_survived(self) -> None:
        size = self.sizes[-1]
        policy, state, _ = self._play(size, 2)
        for active in (np.arange(size) > 1, np.zeros(size, dtype=bool)):
            context = training_context(size, t=2, active=active)
            effort = policy.propose(state, context, stream(8, "away")).rest(~active)
            after = policy.update(state, outcome_for(effort, context, stream(8, "round"), missing=(0, 2)), context)
            following = policy.propose(after, training_context(size, t=3), stream(8, "next"))
            assert len(following.passes) == size
            assert "NaN" not in json.dumps(to_jsonable(after))

    def test_servers_may_join(self) -> None:
        small, large = self.sizes[-2:]
        policy, state, _ = self._play(small, 3)
        grown = policy.grow(state, large)
        assert len(policy.propose(grown, training_context(large, t=3), stream(9, "grow")).passes) == large


def _assert_same(one: Effort, two: Effort) -> None:
    np.testing.assert_array_equal(one.passes, two.passes)
    np.testing.assert_array_equal(one.asks, two.asks)
