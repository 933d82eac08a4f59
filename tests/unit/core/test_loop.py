"""The main loop: plan, play, learn, tell, for any number of runs side by side."""

from typing import NamedTuple

from hatdfed.core import loop
from hatdfed.core.fleet import SeparateFleets
from hatdfed.core.loop import RunInPlay


class State(NamedTuple):
    t: int


class Written:
    """Coordinator, fleet and sink of one run, which write down what they are asked."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def plan(self, state):
        self.log.append((self.name, "plan", state.t))
        return state.t

    def run_round(self, plan):
        self.log.append((self.name, "play", plan))
        return plan

    def learn(self, state, plan, report):
        assert state.t == plan == report
        self.log.append((self.name, "learn", plan))
        return State(plan + 1), f"record {plan}"

    def keep(self, state, record):
        self.log.append((self.name, record, state.t))

    def close(self):
        self.log.append((self.name, "close"))


def play(**rounds):
    log = []
    runs = {name: Written(name, log) for name in rounds}
    in_play = [RunInPlay(run, State(0), rounds[name], [run.keep]) for name, run in runs.items()]
    return loop.run(in_play, SeparateFleets(*runs.values())), log


def test_a_round_is_planned_played_learned_from_and_told():
    states, log = play(a=2)
    one = [("a", "plan", 0), ("a", "play", 0), ("a", "learn", 0), ("a", "record 0", 1)]
    two = [("a", "plan", 1), ("a", "play", 1), ("a", "learn", 1), ("a", "record 1", 2)]
    assert log == one + two
    assert states == [State(2)]


def test_runs_side_by_side_play_what_each_plays_alone_and_drop_out_when_they_are_done():
    states, log = play(a=3, b=1, c=0)
    assert states == [State(3), State(1), State(0)]
    for name, rounds in (("a", 3), ("b", 1), ("c", 0)):
        assert [entry for entry in log if entry[0] == name] == play(**{name: rounds})[1]
    assert log.index(("b", "learn", 0)) < log.index(("a", "plan", 1))


def test_a_run_goes_on_from_the_state_that_it_is_given():
    log = []
    run = Written("a", log)
    assert loop.run([RunInPlay(run, State(4), 5)], SeparateFleets(run)) == [State(5)]
    assert log == [("a", "plan", 4), ("a", "play", 4), ("a", "learn", 4)]


def test_closing_separate_fleets_closes_each():
    log = []
    SeparateFleets(Written("a", log), Written("b", log)).close()
    assert log == [("a", "close"), ("b", "close")]
