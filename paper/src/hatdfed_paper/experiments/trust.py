"""Whom to hear: `hat-dfed-trust` where servers mean different things, have bad data, change or lie; on fresh seeds.

Worlds are settings of the simulated edge (docs/worlds.md). Accuracy is that of servers with sound data, on test data as
each of them sees them. `oracle-groups` is told groups, bad data and liars, and bounds what can be learned. The design
was chosen on digits, Fashion-MNIST and CIFAR-10 with seeds 20 to 29, on validation data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from hatdfed.runs.statistics import PairedDifference
from hatdfed_paper.claims import Claims
from hatdfed_paper.differences import BySeed, mean_over_seeds
from hatdfed_paper.experiment import BEYOND, Experiment, Table
from hatdfed_paper.markdown import NOTHING, format_difference, table
from hatdfed_paper.plan import FULL, PLUS, Scale, Settings, point, settings_of_table_1
from hatdfed_paper.protocol import Protocol
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row, interval_or_none

TRUST, ORACLE, RIVAL, ALONE = "hat-dfed-trust", "oracle-groups", "dac", "local"
# What rivals are given of the recipe. Its pace and codec would change what their own choice of links is worth.
_PARTS: Mapping[str, Any] = {"loss": {"name": "label-prior"}, "learner": {"cool_down": 0.25}}
_FEWER_JOULES = 0.2  # at most this share of the rival's link energy
_MORE_JOULES = 1.2  # at most this share of that of hat-dfed-plus-0.1, where all servers agree
PLAIN, GROUPS, BAD, LIARS, CHANGE = "plain", "groups", "bad data", "liars", "change"
_MARGINS = {PLAIN: 0.0, GROUPS: 2.0, BAD: 1.0, LIARS: 3.0, CHANGE: 2.0}  # points that it may be below its reference
_ATTACKS = (
    "sign-flip", "scale", "noise", "constant", "stale", "alie", "ipm", "label-flip", "sleeper", "false-reports"
)  # fmt: skip

_MEANINGS: Mapping[str, Mapping[str, Any]] = {
    "two meanings": {"groups": 2},
    "two meanings 80/20": {"groups": 2, "group_shares": [0.8, 0.2]},
    "three meanings": {"groups": 3},
}


class World(NamedTuple):
    """One world, and which rule it is judged by."""

    kind: str
    settings: Mapping[str, Any]

    @property
    def methods(self) -> tuple[str, ...]:
        """Ours, the reference it is held against, and who else is shown."""
        if self.kind == PLAIN:
            return (TRUST, PLUS)
        return (TRUST, ORACLE, PLUS, RIVAL, ALONE) if self.kind in (GROUPS, CHANGE) else (TRUST, ORACLE, PLUS)

    @property
    def reference(self) -> str:
        """What it must not be below by more than its margin."""
        return PLUS if self.kind == PLAIN else ORACLE


def worlds(servers: int, dataset: str = "fashion-mnist") -> dict[str, World]:
    """Those of a fleet by name: fewer plain ones in the larger fleet, liars on one of the large data sets only."""
    is_small = servers <= _FLEETS[0]
    plain = settings_of_table_1() if is_small else [_PLAIN_AT_ITS_HARDEST]
    found = {f"plain, λ {s['label_concentration']:g}, ρ {s['device_online_probability']:g}": World(PLAIN, s)
             for s in plain}  # fmt: skip
    found["plain, λ 0.1, ρ 0.5"] = World(PLAIN, {"label_concentration": 0.1})
    for skew in (0.3, 0.1):
        for words, kind in _MEANINGS.items():
            found[f"{words}, λ {skew:g}"] = World(GROUPS, _differing(skew, kind))
    return found | _worlds_of_a_small_fleet(dataset) if is_small else found


def _worlds_of_a_small_fleet(dataset: str) -> dict[str, World]:
    found = {
        "a lone server, λ 0.3": World(GROUPS, _differing(0.3, {"groups": 2, "group_shares": [0.9, 0.1]})),
        "a change, λ 0.3": World(CHANGE, _differing(0.3, {"groups": 2, "changing": 0.3})),
    }
    for name in ("bad_labels", "broken_sensors"):
        found[f"{name.replace('_', ' ')} 30 %, λ 0.3"] = World(BAD, {"world": {name: 0.3}})
    if dataset != "cifar-10":
        for share, attack in product((0.2, 0.4), _ATTACKS):
            found[f"{attack}, {100 * share:.0f} %, λ 0.3"] = World(LIARS, {"world": {"liars": share, "attack": attack}})
    return found


def _differing(skew: float, kind: Mapping[str, Any]) -> dict[str, Any]:
    return {"label_concentration": skew, "world": {"differ": "labels", **kind}}


_FLEETS = (10, 30)
_PLAIN_AT_ITS_HARDEST: Settings = {"label_concentration": 0.3, "device_online_probability": 0.5}


def _fleets(scale: Scale) -> tuple[int, ...]:
    return _FLEETS if scale == FULL else _FLEETS[:1]


def place(dataset: str, servers: int, world: World, method: str) -> Settings:
    """The settings of a method in a world; the oracle hears no liar, so that one attack stands for all."""
    parts = _PARTS if method in (RIVAL, ALONE) else {}
    settings = dict(world.settings)
    if method == ORACLE and world.kind == LIARS:
        settings["world"] = {**settings["world"], "attack": _ATTACKS[0]}
    return point(dataset, method, **{"servers": servers, **settings, **parts})


def _points(dataset: str, scale: Scale) -> Iterator[Settings]:
    found: list[Settings] = []
    for servers in _fleets(scale):
        for world in worlds(servers, dataset).values():
            found += [place(dataset, servers, world, method) for method in world.methods]
    yield from (settings for n, settings in enumerate(found) if settings not in found[:n])


def _decisive(dataset: str, scale: Scale) -> Iterator[Settings]:
    for servers in _fleets(scale):
        for world in (each for each in worlds(servers, dataset).values() if each.kind == GROUPS):
            yield from (place(dataset, servers, world, method) for method in (TRUST, RIVAL))


def _rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """Every world: what it has more than its reference, the rival and a server alone, and what its links cost."""
    rows = []
    for dataset, servers in product(scale.datasets, _fleets(scale)):
        for name, world in worlds(servers, dataset).items():
            places = {method: place(dataset, servers, world, method) for method in world.methods}
            if all(results.at(each) for each in places.values()):
                row = {"dataset": dataset, "servers": servers, "world": name, "kind": world.kind}
                judged = _judge_world(results, world, places)
                holds = judged["holds"] if EXPERIMENT.is_complete(judged["seeds"], scale) else None
                rows.append({**row, **judged, "holds": holds})
    return [*rows, *_pooled(results, scale)] if rows else []


def _judge_world(results: Results, world: World, places: Mapping[str, Settings]) -> Row:
    accuracy = "avg_accuracy" if world.kind == PLAIN else "own_accuracy"  # the same where all servers see the same
    own = {each: results.figures(settings, accuracy) for each, settings in places.items()}
    minority = {each: results.figures(settings, "smallest_group_accuracy") for each, settings in places.items()}
    joules = {each: results.figures(settings, "link_energy_mj") for each, settings in places.items()}
    gained = _difference(own[TRUST], own[world.reference])
    least = _difference(minority[TRUST], minority[world.reference]) if minority[TRUST] else None
    rival = _difference(own[TRUST], own[RIVAL]) if RIVAL in places else None
    alone = _difference(minority[TRUST], minority[ALONE]) if ALONE in places else None
    share = _ratio(joules[TRUST], joules[RIVAL if RIVAL in places else PLUS])
    return {
        **{f"{each}_accuracy": _mean(found) for each, found in own.items()},
        "reference": world.reference, "points": interval_or_none(gained), "minority_points": interval_or_none(least),
        "rival_points": interval_or_none(rival), "alone_points": interval_or_none(alone), "link_share": share,
        "holds": judge(world, gained, least, rival, alone, share),
        "seeds": sorted(set.intersection(*(set(found) for found in own.values()))),
    }  # fmt: skip


def judge(
    world: World,
    gained: PairedDifference | None,
    minority: PairedDifference | None,
    rival: PairedDifference | None,
    alone: PairedDifference | None,
    link_share: float | None,
) -> bool | None:
    """Whether what the plan asks of a world holds; None where there are too few seeds for an interval."""
    if gained is None or gained.low is None or gained.high is None or link_share is None:
        return None
    if world.kind == PLAIN:
        return gained.high >= 0 and link_share <= _MORE_JOULES
    margin = -_MARGINS[world.kind]
    holds = gained.low > margin and (minority is None or minority.low is None or minority.low > margin)
    if rival is not None and rival.high is not None:
        holds = holds and rival.high >= 0 and link_share <= _FEWER_JOULES
    if alone is not None and alone.high is not None:
        holds = holds and alone.high >= 0
    return holds


def _pooled(results: Results, scale: Scale) -> list[Row]:
    """The one comparison of the plan: against the rival, mean over the worlds with groups and fleets, by data set."""
    rows: list[Row] = []
    for dataset in scale.datasets:
        leads = []
        for servers in _fleets(scale):
            for world in (each for each in worlds(servers, dataset).values() if each.kind == GROUPS):
                mine, theirs = (
                    results.figures(place(dataset, servers, world, method), "own_accuracy") for method in (TRUST, RIVAL)
                )
                leads.append({seed: mine[seed] - theirs[seed] for seed in mine.keys() & theirs.keys()})
        difference = mean_over_seeds(leads)
        if difference is not None:
            seeds = sorted(set.intersection(*(set(each) for each in leads)))
            row = {"dataset": dataset, "servers": 0, "world": "all with groups", "kind": "all", "reference": RIVAL}
            holds = None
            if difference.low is not None and EXPERIMENT.is_complete(seeds, scale):
                holds = difference.low > 0
            rows.append({**row, "points": interval_or_none(difference), "holds": holds, "seeds": seeds})
    return rows


def _difference(mine: BySeed, theirs: BySeed) -> PairedDifference | None:
    return mean_over_seeds([{seed: mine[seed] - theirs[seed] for seed in mine.keys() & theirs.keys()}])


def _ratio(mine: BySeed, theirs: BySeed) -> float | None:
    seeds = mine.keys() & theirs.keys()
    spent, reference = (sum(each[seed] for seed in seeds) for each in (mine, theirs))
    return spent / reference if reference else None


def _mean(found: BySeed) -> float | None:
    return round(sum(found.values()) / len(found), 2) if found else None


def _markdown(rows: Sequence[Row]) -> str:
    headings = ["data set", "N", "world", "accuracy %", "against", "points", "smallest group", "dac", "alone",
                "link energy", "holds", "seeds"]  # fmt: skip
    words = {True: "yes", False: "no", None: NOTHING}
    cells = [
        [
            row["dataset"], str(row["servers"] or "all"), row["world"],
            NOTHING if row.get(f"{TRUST}_accuracy") is None else f"{row[f'{TRUST}_accuracy']:.1f}", row["reference"],
            *(format_difference(row[key], 1) if row.get(key) else NOTHING
              for key in ("points", "minority_points", "rival_points", "alone_points")),
            NOTHING if row.get("link_share") is None else f"{row['link_share']:.2f}×", words[row["holds"]],
            str(len(row["seeds"])),
        ]
        for row in rows
    ]  # fmt: skip
    return table(headings, cells)


EXPERIMENT = Experiment(
    "trust",
    "Whom to hear: worlds in which servers differ, have bad data, change or lie",
    _points,
    BEYOND,
    fleet_seeds={servers: range(300, 310) for servers in _FLEETS},
    protocol=Protocol(
        comparison=f"{TRUST} against {RIVAL} with the recipe's loss and cool-down, where groups of servers mean "
        "different things by a label: own test accuracy, mean over worlds and fleets, seed by seed, on each data set",
        null="the difference is 0 points or less",
        rule="shown if the 95 % interval lies above 0 on both data sets. Secondary, world by world, without a "
        f"correction for their number: plain, not distinguishably below {PLUS} with at most {_MORE_JOULES:g} times its "
        f"link energy; groups and a change, the interval against {ORACLE} above -2 points on average and for the "
        f"smallest group, not distinguishably below {RIVAL} for at most {_FEWER_JOULES:g} of its link energy, "
        f"the smallest group not distinguishably below {ALONE}; bad data, above -1 point; liars, above -3 points.",
    ),
    known="none of these worlds on test data; plain worlds of table1 with five servers and other methods, on seeds 0–9",
    decisive=_decisive,
    tables=(Table("trust", _rows, _markdown),),
)
