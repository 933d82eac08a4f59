"""What each training policy decides."""

import numpy as np
import pytest

from hatdfed.core.training.always import Always, ByPrice
from hatdfed.core.training.base import TrainingOutcome
from hatdfed.core.training.every import Every
from hatdfed.core.training.marginal_gain import Gains, MarginalGain
from hatdfed.core.training.skip_train import SkipTrain
from hatdfed.core.training.taper import Taper
from hatdfed.errors import ConfigError
from hatdfed.randomness import stream
from hatdfed.testing import outcome_for, training_context

N = 6


def played(policy, rounds=50, num_servers=N):
    """[rounds, N] passes and whether devices were asked."""
    state, passes, asks = policy.init(num_servers), [], []
    for t in range(rounds):
        context = training_context(num_servers, t=t, horizon=rounds)
        effort = policy.propose(state, context, stream(0, "training", t))
        state = policy.update(state, outcome_for(effort, context, stream(1, "round", t)), context)
        passes.append(effort.passes)
        asks.append(effort.asks)
    return np.array(passes), np.array(asks)


def test_always_means_the_settings_passes_and_new_data():
    passes, asks = played(Always())
    assert (passes == 2).all()
    assert asks.all()


@pytest.mark.parametrize(("first", "last"), [(2.0, 0.6), (0.6, 2.0), (3.0, 0.0), (0.0, 1.0)])
def test_passes_taper_along_a_straight_line(first, last):
    passes, asks = played(Taper(first, last), rounds=40)
    assert (passes == passes[:, :1]).all()  # the same for all servers
    assert (asks == (passes > 0)).all()
    line = first + (last - first) * (np.arange(40) + 0.5) / 40
    assert (np.abs(np.cumsum(passes[:, 0]) - np.cumsum(line)) <= 1).all()
    assert passes.max() <= Taper(first, last).find_most_passes(2)


@pytest.mark.parametrize(("first", "last"), [(-1.0, 1.0), (0.0, 0.0), (float("nan"), 1.0)])
def test_impossible_numbers_of_passes_are_refused(first, last):
    with pytest.raises(ConfigError, match=r"training.first is .* passes are numbers from 0 to 1000"):
        Taper(first, last)


@pytest.mark.parametrize(("cheap", "dear"), [(1, 2), (0, 0), (2, -1), (10**9, 1)])
def test_impossible_numbers_of_passes_by_price_are_refused(cheap, dear):
    with pytest.raises(ConfigError, match=r"training.cheap is .* which make 1 to 1000"):
        ByPrice(cheap=cheap, dear=dear)


def test_dear_machines_make_fewer_passes():
    passes, asks = played(ByPrice(cheap=3, dear=0), rounds=2)
    is_dear = training_context(N).training_joules == 30.0
    assert is_dear.any()
    assert (passes == np.where(is_dear, 0, 3)).all()
    assert (asks == ~is_dear).all()


def test_every_mth_round_trains_everybody_or_a_share():
    together, asks = played(Every(rounds=3))
    assert together[:, 0].tolist() == [2, 0, 0] * 16 + [2, 0]
    assert (together == together[:, :1]).all()
    assert (asks == (together > 0)).all()
    in_turn, _ = played(Every(rounds=3, staggered=True))
    assert ((in_turn > 0).sum(axis=1) == 2).all()
    assert ((in_turn > 0).sum(axis=0) >= 16).all()


def test_devices_are_asked_in_some_of_a_servers_training_rounds_only():
    for staggered in (False, True):
        passes, asks = played(Every(rounds=2, ask_every=3, staggered=staggered))
        assert not (asks & (passes == 0)).any()
        for server in range(N):
            assert asks[passes[:, server] > 0, server][:6].tolist() == [True, False, False] * 2


def test_a_cycle_of_skip_train_has_training_rounds_first():
    passes, asks = played(SkipTrain(train_rounds=2, sync_rounds=3), rounds=10)
    assert [bool(row.all()) for row in passes] == [True, True, False, False, False] * 2
    assert (asks == (passes > 0)).all()


def test_a_budget_of_a_run_without_end_is_spread_at_once():
    policy = SkipTrain(train_rounds=2, sync_rounds=3, budget_rounds=8)
    context = training_context(N)._replace(t=1, horizon=10**9)
    assert (policy.find_probability(policy.init(N), context) == 8 / (4 * 10**8 - 1)).all()


@pytest.mark.parametrize("budget", [0, 7, 25, 100])
def test_a_budget_of_rounds_is_never_exceeded_and_lasts_to_the_end(budget):
    passes, _ = played(SkipTrain(train_rounds=1, sync_rounds=1, budget_rounds=budget), rounds=60, num_servers=40)
    trained = (passes > 0).sum(axis=0)
    assert trained.max() == min(budget, 30)
    assert trained.min() == min(budget, 30), "the probability reaches 1 when the rounds left are as many as its budget"
    if 0 < budget < 30:
        assert (passes[30:] > 0).any()


def test_servers_get_budgets_of_a_list_in_turn():
    passes, _ = played(SkipTrain(sync_rounds=0, budget_rounds=(5, 20)), rounds=60)
    assert (passes > 0).sum(axis=0).tolist() == [5, 20, 5, 20, 5, 20]


def test_a_budget_that_is_not_spread_is_spent_first():
    greedy, _ = played(SkipTrain(sync_rounds=0, budget_rounds=(5, 20, 100), spread=False), rounds=60)
    assert ((greedy > 0).argmin(axis=0) == [5, 20, 0] * 2).all()
    assert (greedy > 0).sum(axis=0).tolist() == [5, 20, 60] * 2
    in_cycles, _ = played(SkipTrain(train_rounds=2, sync_rounds=1, budget_rounds=3, spread=False), rounds=9)
    assert (in_cycles[:, 0] > 0).tolist() == [True, True, False, True] + [False] * 5


@pytest.mark.parametrize("budget", [-1, (3, -1)])
def test_a_budget_below_0_is_refused(budget):
    with pytest.raises(ConfigError, match="A budget for training must be at least 0"):
        SkipTrain(budget_rounds=budget)


def test_an_empty_list_of_budgets_is_refused():
    with pytest.raises(ConfigError, match=r"training.budget_rounds is an empty list"):
        SkipTrain(budget_rounds=())


def test_a_budget_of_joules_gives_dear_machines_fewer_rounds():
    policy = SkipTrain(sync_rounds=0, budget_joules=300.0)
    passes, _ = played(policy, rounds=60)
    rounds = (passes > 0).sum(axis=0)
    assert rounds.tolist() == [300 // joules for joules in training_context(N).training_joules]


def test_marginal_gain_saves_the_share_it_is_told_to():
    for saved in (0.2, 0.5):
        passes, _ = played(MarginalGain(saved=saved, warm_up=0.0), rounds=200, num_servers=20)
        assert np.mean(passes > 0) == pytest.approx(1 - saved, abs=0.03)
    assert (played(MarginalGain(warm_up=0.1))[0][:5] > 0).all()


def test_those_train_more_whose_training_brings_more_for_a_joule():
    policy, context = MarginalGain(least=0.1), training_context(N, t=20)
    many = np.full(N, 50.0)
    gain = np.array([0.0, 0.0, 0.01, 0.01, 0.02, 0.02])
    joules = np.array([10.0, 20.0] * 3)
    known = Gains(trained=gain, rested=np.zeros(N), joules=joules, num_trained=many, num_rested=many)
    probability = policy.find_probability(known, context)
    assert probability.mean() == pytest.approx(0.6)
    assert (probability[::2] >= probability[1::2]).all(), "the cheaper of two equals"
    assert probability[5] > probability[3] > probability[1] >= 0.1
    merging_is_enough = known._replace(rested=gain)
    even = policy.find_probability(merging_is_enough, context)
    assert even[0] == pytest.approx(even[4]), "what merging alone brings is no reason to train"


def test_a_gain_that_falls_makes_a_server_rest_more():
    policy, context = MarginalGain(), training_context(2, t=20)
    state = policy.init(2)
    before = np.full(2, 0.5)
    for t in range(60):
        trains = t % 2 == 0
        effort = Every(rounds=2).propose(None, context._replace(t=t), stream(0))
        gain = np.array([0.02, 0.02 if t < 20 else 0.0]) * trains
        state = policy.update(state, TrainingOutcome(effort, before + gain, before, 10.0 * effort.passes), context)
        if t == 19:
            first = policy.find_probability(state, context)
    last = policy.find_probability(state, context)
    assert first[1] == pytest.approx(first[0])
    assert last[1] < first[1] < last[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ByPrice(cheap=1, dear=2),
        lambda: Every(rounds=0),
        lambda: Every(ask_every=0),
        lambda: SkipTrain(train_rounds=0),
        lambda: SkipTrain(sync_rounds=-1),
        lambda: SkipTrain(budget_rounds=1, budget_joules=1.0),
        lambda: SkipTrain(budget_joules=-1.0),
        lambda: MarginalGain(saved=1.0),
        lambda: MarginalGain(saved=0.5, least=0.6),
        lambda: MarginalGain(memory=1.0),
    ],
)
def test_settings_that_make_no_sense_are_refused(make):
    with pytest.raises(ConfigError, match=r"training|budget"):
        make()
