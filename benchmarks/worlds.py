"""Whom to hear: methods in worlds in which servers differ, have bad data or lie. Exploratory.

    OMP_NUM_THREADS=1 python benchmarks/worlds.py groups [--dataset digits] [--seeds 20 21 22]
    OMP_NUM_THREADS=1 python benchmarks/worlds.py attacks
    OMP_NUM_THREADS=1 python benchmarks/worlds.py candidates
        print tables, write results/worlds-KIND-DATASET.json

All figures are of validation data after the last round, as each server sees them (docs/worlds.md); the test set is not
used. A cell that is in the file already is not played again. Methods share seeds, so they meet the same worlds.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hatdfed.runs.play import Job, play
from hatdfed.runs.records.folder import environment
from hatdfed.runs.result import RunResult
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.config import Config
from hatdfed.setup.layers import config_members, resolve

SERVERS, ROUNDS = 10, 200
RESULTS = Path(__file__).parent / "results"
Settings = Mapping[str, Any]

# What any method can take over from the recipe of hat-dfed-plus.
PARTS = {"loss": {"name": "label-prior"}, "learner": {"cool_down": 0.25}}
CHEAP_PARTS = {**PARTS, "codec": "int4", "schedule": {"every": 2, "finish_rounds": 2}}


def _labels(groups: int, skew: float, **more: Any) -> Settings:
    return {"label_concentration": skew, "world": {"groups": groups, "differ": "labels", **more}}


GROUP_WORLDS: dict[str, Settings] = {
    "plain, λ 0.3": {"label_concentration": 0.3},
    "plain, λ 0.1": {"label_concentration": 0.1},
    "two meanings, λ 0.3": _labels(2, 0.3),
    "two meanings, λ 0.1": _labels(2, 0.1),
    "two meanings 80/20, λ 0.3": _labels(2, 0.3, group_shares=[0.8, 0.2]),
    "two meanings 80/20, λ 0.1": _labels(2, 0.1, group_shares=[0.8, 0.2]),
    "three meanings, λ 0.3": _labels(3, 0.3),
    "three meanings, λ 0.1": _labels(3, 0.1),
    "a lone server, λ 0.3": _labels(2, 0.3, group_shares=[0.9, 0.1]),
    "upside down, λ 0.3": {"label_concentration": 0.3, "world": {"groups": 2, "differ": "inputs"}},
    "bad labels 30 %, λ 0.3": {"label_concentration": 0.3, "world": {"bad_labels": 0.3}},
    "broken sensors 30 %, λ 0.3": {"label_concentration": 0.3, "world": {"broken_sensors": 0.3}},
    "a change, λ 0.3": _labels(2, 0.3, changing=0.3),
}
GROUP_METHODS: dict[str, Settings] = {
    "local": {"method": "local"},
    "local with parts": {"method": "local", **PARTS},
    "hat-dfed-plus-0.1": {"method": "hat-dfed-plus-0.1"},
    "dac with parts": {"method": "dac", **PARTS},
    "pens with parts": {"method": "pens", **PARTS},
    "hat-dfed-trust": {"method": "hat-dfed-trust"},
    "oracle-groups": {"method": "oracle-groups"},
}
ATTACKS = (
    "none", "sign-flip", "scale", "noise", "constant", "stale", "alie", "ipm", "label-flip", "sleeper", "false-reports"
)  # fmt: skip
ATTACK_WORLDS: dict[str, Settings] = {
    f"{attack}, {share:.0%}": {
        "label_concentration": 0.3,
        "world": {"liars": share, "attack": attack} if attack != "none" else {},
    }
    for share in (0.2, 0.4)
    for attack in ATTACKS
    if attack != "none" or share == 0.2
}
# Rules that compare models need some of them: four links a server instead of two, in every second round.
_COMPARED = {"method": "hat-dfed-plus-0.1", "policy": {"degree": 4}}
DEFENCES: dict[str, Settings] = {
    "mean": {"method": "hat-dfed-plus-0.1"},
    "median": {**_COMPARED, "aggregator": {"name": "median"}},
    "trimmed-mean": {**_COMPARED, "aggregator": {"name": "trimmed-mean", "trim": 1}},
    "multi-krum": {**_COMPARED, "aggregator": {"name": "multi-krum", "liars": 1}},
    "clipped-gossip": {**_COMPARED, "aggregator": {"name": "clipped-gossip", "liars": 1}},
    "ubar": {**_COMPARED, "aggregator": {"name": "ubar"}},
    "hat-dfed-trust": {"method": "hat-dfed-trust"},
    "oracle-groups": {"method": "oracle-groups"},
}
CANDIDATE_WORLDS: dict[str, Settings] = {
    f"two meanings, 40 servers, λ {skew}": {"servers": 40, **_labels(2, skew)} for skew in (0.3, 0.1)
}
_FEW = {"candidates": 8}
CANDIDATE_METHODS: dict[str, Settings] = {
    "local with parts": {"method": "local", **PARTS},
    "hat-dfed-plus-0.1": {"method": "hat-dfed-plus-0.1", **_FEW},
    "hat-dfed-trust": {"method": "hat-dfed-trust", **_FEW},
    "oracle-groups": {"method": "oracle-groups", **_FEW},
}
KINDS = {
    "groups": (GROUP_WORLDS, GROUP_METHODS),
    "attacks": (ATTACK_WORLDS, DEFENCES),
    "candidates": (CANDIDATE_WORLDS, CANDIDATE_METHODS),
}


def main() -> None:
    """Play what is missing, one world after another, and keep everything after each."""
    options = _options()
    worlds, methods = KINDS[options.kind]
    if unknown := set(options.methods) - set(methods):
        raise SystemExit(f"unknown methods: {', '.join(sorted(unknown))}; this kind has {', '.join(methods)}")
    methods = {name: methods[name] for name in options.methods or methods}
    worlds = {name: settings for name, settings in worlds.items() if options.only in name}
    path = options.out or RESULTS / f"worlds-{options.kind}-{options.dataset}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = [row for row in rows if row["method"] not in options.again or options.only not in row["world"]]
    names = list(worlds)
    for begin in range(0, len(names), options.together):
        part = names[begin : begin + options.together]
        have = {(row["world"], row["method"], row["seed"]) for row in rows}
        todo = [cell for cell in itertools.product(part, methods, options.seeds) if cell not in have]
        configs = [_config(options, worlds[world], methods[method], seed) for world, method, seed in todo]
        results = _play(configs, options.data)
        rows += [
            {"world": world, "method": method, "seed": seed, **_figures(config, result)}
            for (world, method, seed), config, result in zip(todo, configs, results, strict=True)
        ]
        servers = {worlds[world].get("servers", SERVERS) for world in names}
        content = {"machine": environment(), "servers": max(servers), "rounds": ROUNDS, "rows": rows}
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        for world in part:
            _print_world(world, methods, rows)


def _config(options: argparse.Namespace, world: Settings, method: Settings, seed: int) -> Config:
    common = {"dataset": options.dataset, "servers": SERVERS, "rounds": ROUNDS, "seed": seed, "checkpoint_every": 0}
    return resolve({**common, **world, **method})


def _play(configs: list[Config], data: Path | None) -> list[RunResult]:
    jobs = [Job(config) for config in configs]
    return play(jobs, Placement(fleet="stacked"), data_dir=data) if jobs else []


def _figures(config: Config, result: RunResult) -> dict[str, Any]:
    """Validation accuracy of the sound servers and of the smallest group of them, in percent; joules of links."""
    members = config_members(config)
    last = [row for row in result.servers if row["t"] == config.rounds - 1]
    sound = members.is_sound
    accuracy = np.full(len(sound), np.nan)  # a server that was caught lying reports nothing
    accuracy[[row["server"] for row in last]] = [row["accuracy"] for row in last]
    sizes = np.bincount(members.last_group[sound], minlength=config.world.groups)
    smallest = sound & (members.last_group == int(np.argmin(np.where(sizes > 0, sizes, len(sound) + 1))))
    return {
        "accuracy": float(accuracy[sound].mean()),
        "smallest_group": float(accuracy[smallest].mean()),
        "worst": float(accuracy[sound].min()),
        "by_server": [None if np.isnan(each) else float(each) for each in accuracy],
        "curve": [row["avg_accuracy"] for row in result.rounds][::5],
        "link_joules": 1e6 * result.summary["link_energy_mj"],
    }


def _print_world(world: str, methods: Mapping[str, Settings], rows: list[dict[str, Any]]) -> None:
    print(world)
    for method in methods:
        found = [row for row in rows if row["world"] == world and row["method"] == method]
        means = [
            np.mean([row[name] for row in found]) for name in ("accuracy", "smallest_group", "worst", "link_joules")
        ]
        print("    {:20} {:5.1f}  smallest group {:5.1f}  worst {:5.1f}  {:7.0f} J".format(method, *means), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--seeds", type=int, nargs="+", default=[20, 21, 22])
    parser.add_argument("--data", type=Path, help="folder of the data set; the usual one if not given")
    parser.add_argument("--together", type=int, default=1, help="worlds in one stack; a GPU is full with about four")
    parser.add_argument("--only", default="", metavar="TEXT", help="worlds with this in their names")
    parser.add_argument("--methods", default=[], nargs="+", metavar="METHOD", help="these only; all if not given")
    parser.add_argument("--again", default=[], nargs="+", metavar="METHOD", help="methods to play anew")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
