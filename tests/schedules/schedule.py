"""Random schedules: a run, a network, and faults at certain times; all of it survives JSON.

python -m tests.schedules.schedule '{"seed": 7, ...}'    plays one schedule again and prints its history
"""

import json
import sys
from dataclasses import asdict, dataclass
from functools import partial

from hypothesis import strategies as st
from tests.schedules.network import Weather
from tests.schedules.simulation import NotFinishedError, Simulation

from hatdfed.deploy.failpoints import COORDINATOR_POINTS
from hatdfed.testing.promises import Violation, find_violations

EDGE_POINTS = ["trained", "before-push", "model-received", "before-edge-commit", "after-edge-commit"]
SLACK = 2.5  # seconds of virtual time
LATE = "edge-9"  # joins during the run


@dataclass(frozen=True)
class Fault:
    """What happens, when, to whom, and for how long; times are in tenths of a second."""

    kind: str
    at: int
    edge: int
    other: int
    lasts: int
    point: int

    def apply(self, simulation):
        """Arrange for it to happen."""
        simulation.loop.call_later(self.at / 10, self._act, simulation)

    def _act(self, simulation):
        names, seconds = simulation.names, self.lasts / 10
        edge, other = names[self.edge % len(names)], names[self.other % len(names)]
        match self.kind:
            case "kill edge":
                simulation.kill_edge(edge, seconds / 5)
            case "wipe edge":
                simulation.kill_edge(edge, seconds / 5, wipe=True)
            case "kill coordinator":
                simulation.kill_coordinator(seconds)
            case "edge failpoint":
                simulation.arm(edge, EDGE_POINTS[self.point % len(EDGE_POINTS)], 1 + self.other % 2, seconds / 5)
            case "coordinator failpoint":
                point = COORDINATOR_POINTS[self.point % len(COORDINATOR_POINTS)]
                simulation.arm("coordinator", point, 1 + self.other % 3, min(seconds, 5.0))
            case "isolate":
                everybody = [*names, "coordinator"]
                simulation.cut([pair for one in everybody for pair in ((edge, one), (one, edge))], seconds)
            case "cut":
                simulation.cut([(edge, other)], seconds)
            case "cut from coordinator":
                simulation.cut([(edge, "coordinator")], seconds)
            case "split":
                here, there = names[: 1 + self.edge % 2], names[1 + self.edge % 2 :]
                simulation.cut([(one, two) for one in here for two in there], seconds)
            case "fill disk":
                simulation.fill_disk("coordinator" if self.other % 3 == 0 else edge, seconds)
            case "slow down":
                simulation.slow_down(seconds)
            case "join late":
                simulation.start_edge(LATE)


KINDS = [
    "coordinator failpoint",
    "edge failpoint",
    "kill coordinator",
    "kill edge",
    "kill edge",
    "edge failpoint",
    "isolate",
    "cut",
    "cut from coordinator",
    "split",
    "wipe edge",
    "fill disk",
    "slow down",
    "join late",
]


@dataclass(frozen=True)
class Schedule:
    """One run and everything that happens to it."""

    seed: int
    servers: int
    rounds: int
    min_servers: int
    method: str
    delay: int  # milliseconds
    loss: int  # per mille
    repeat: int  # per cent
    damage: int  # per mille
    faults: tuple[Fault, ...]

    def to_json(self):
        return json.dumps(asdict(self))

    def make_simulation(self):
        weather = Weather(self.delay / 1000, self.loss / 1000, self.repeat / 100, self.damage / 1000)
        sizes = {"servers": self.servers, "rounds": self.rounds, "min_servers": min(self.min_servers, self.servers)}
        return Simulation(method=self.method, seed=self.seed, weather=weather, **sizes)

    def play(self):
        """Returns the history and the promises that it breaks."""
        simulation = self.make_simulation()
        for fault in self.faults:
            fault.apply(simulation)
        try:
            simulation.play()
        except NotFinishedError as error:
            return simulation.events, [Violation("P5", str(error))]
        found = find_violations(simulation.events, slack=SLACK, expected_links=simulation.replay())
        return simulation.events, [*found, *(Violation("P6", error) for error in simulation.network.errors)]


def from_json(text):
    data = json.loads(text)
    return Schedule(**{**data, "faults": tuple(Fault(**fault) for fault in data["faults"])})


_small = partial(st.integers, 0)


def make_schedules(kinds=tuple(KINDS)):
    """Schedules with faults of these kinds."""
    numbers = {"at": _small(45), "edge": _small(3), "other": _small(3), "lasts": _small(150), "point": _small(8)}
    faults = st.builds(Fault, st.sampled_from(kinds), **numbers)
    return st.builds(
        Schedule,
        seed=st.integers(0, 2**32 - 1),
        servers=st.sampled_from([3, 3, 3, 4]),
        rounds=st.sampled_from([3, 2, 4]),
        min_servers=st.integers(1, 4),
        method=st.sampled_from(["hat-dfed", "full"]),
        delay=st.sampled_from([2, 20, 200]),
        loss=st.sampled_from([0, 0, 10]),
        repeat=st.sampled_from([0, 10]),
        damage=st.sampled_from([0, 0, 30]),
        faults=st.lists(faults, min_size=1, max_size=4).map(tuple),
    )


def main():
    """Play one schedule again."""
    events, violations = from_json(sys.argv[1]).play()
    for event in events:
        print(json.dumps(event))  # noqa: T201
    for violation in violations:
        print(violation, file=sys.stderr)  # noqa: T201
    sys.exit(bool(violations))


if __name__ == "__main__":
    main()
