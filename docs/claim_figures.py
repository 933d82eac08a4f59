"""Figures of the claims on the pages, computed anew from the raw runs: with numpy and SciPy, not with our statistics.

`claims.py` holds them against the sentences. What is computed twice, by other code, is wrong only if both are.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from hatdfed.setup.layers import resolve

ROOT = Path(__file__).resolve().parent.parent
FOUR, PLUS, OURS = ("rnd", "d-psgd", "dac", "sgp"), "hat-dfed-plus-0.1", "hat-dfed"
DATASETS = ("fashion-mnist", "cifar-10")
SETTINGS = ((0.3, 0.5), (0.3, 0.9), (0.7, 0.5), (0.7, 0.9))
BySeed = dict[int, float]
Figures = dict[str, str]
_PLACE = ("dataset", "method", "servers", "label_concentration", "device_online_probability", "seed")
_SHARES = {"link_share": 0.3, "gain_share": 0.6, "quality_share": 0.4}


def load(path: str) -> Any:
    """A committed file of results."""
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


@cache
def _runs(experiment: str) -> list[dict[str, Any]]:
    """Raw runs of an experiment, or all there are."""
    if experiment != "all":
        return list(load(f"paper/results/{experiment}.json")["runs"])
    names = sorted(path.stem for path in (ROOT / "paper/results").glob("*.json") if path.stem != "sessions")
    return [run for name in names for run in _runs(name)]


@cache
def _by_settings() -> dict[str, dict[int, dict[str, Any]]]:
    """The figures of all runs, by their settings and then by seed."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for run in _runs("all"):
        settings = {name: value for name, value in run["settings"].items() if name != "seed"}
        found.setdefault(_text(settings), {})[run["settings"]["seed"]] = run["figures"]
    return found


def _text(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


@cache
def _published() -> dict[str, Any]:
    return tomllib.loads((ROOT / "paper/src/hatdfed_paper/published.toml").read_text(encoding="utf-8"))


def _pick(figure: str, dataset: str, method: str, place: tuple[float, float], servers: int = 5, **more: Any) -> BySeed:
    """A figure by seed, of runs as the authors describe the method but for `more`."""
    shares = _SHARES if method.startswith("hat-dfed") else {}
    wanted = {"dataset": dataset, "method": method, "servers": servers, **shares, **more}
    wanted |= dict(zip(("label_concentration", "device_online_probability"), place, strict=True))
    return {seed: figures[figure] for seed, figures in _by_settings().get(_text(wanted), {}).items()}


def _pick_with_parts(experiment: str, dataset: str, method: str, place: tuple[float, float], servers: int) -> BySeed:
    """Accuracy by seed of a rival with the parts of the final recipe, whose finish has two rounds."""
    wanted = (dataset, method, servers, *place)
    return {
        run["settings"]["seed"]: run["figures"]["avg_accuracy"]
        for run in _runs(experiment)
        if tuple(run["settings"][name] for name in _PLACE[:-1]) == wanted
        and run["settings"].get("schedule", {}).get("finish_rounds") == 2
    }


# Statistics


def interval(values: Iterable[float]) -> tuple[float, float, float]:
    """Mean and Student's 95 % interval."""
    seen = np.array(list(values))
    low, high = stats.t.interval(0.95, len(seen) - 1, loc=seen.mean(), scale=stats.sem(seen))
    return float(seen.mean()), float(low), float(high)


def show(values: Iterable[float], unit: str = "") -> str:
    """As the pages write a difference."""
    mean, low, high = interval(values)
    return f"{mean:+.1f}{unit} ({low:+.1f} to {high:+.1f})"


def combine(sides: Sequence[BySeed], combined: Callable[..., float]) -> BySeed:
    """One figure for each seed that all sides have."""
    seeds = set.intersection(*map(set, sides))
    return {seed: combined(*(side[seed] for side in sides)) for seed in sorted(seeds)}


def _mean_over_places(places: Sequence[BySeed]) -> list[float]:
    return list(combine(places, lambda *values: float(np.mean(values))).values())


def _above_mean(mine: float, *rivals: float) -> float:
    return mine - float(np.mean(rivals))


def _saved(mine: float, *rivals: float) -> float:
    return float(np.mean([100 * (1 - mine / rival) for rival in rivals]))


def _apart(mine: float, other: float) -> float:
    return mine - other


# The paper


def _against(figure: str, rivals: Sequence[str], compare: Callable[..., float], places: Any = SETTINGS) -> list[float]:
    return _mean_over_places(
        [
            combine([_pick(figure, d, name, place) for name in (OURS, *rivals)], compare)
            for d in DATASETS
            for place in places
        ]
    )


def paper_headline() -> Figures:
    """What hat-dfed gains and saves against the four."""
    theirs = _published()["headline"]
    return {
        "gain": show(_against("avg_accuracy", FOUR, _above_mean), " points"),
        "total": show(_against("total_energy_mj", FOUR, _saved), " %"),
        "link": show(_against("link_energy_mj", FOUR, _saved), " %"),
        "gain_theirs": f"{theirs['avg_accuracy_gain_points']:+.1f}",
        "total_theirs": f"{theirs['total_energy_saving_percent']:+.1f}",
        "link_theirs": f"{theirs['link_energy_saving_percent']:+.1f}",
    }


def _judge(values: Iterable[float], size: float = 0.0) -> str:
    """The rule of paper/README.md."""
    _, low, high = interval(values)
    return "not" if low <= 0 else "reproduced" if high >= size else "partly"


def verdicts() -> list[str]:
    """On every claim of the paper, in no order."""
    return [*_verdicts_on_table_1(), *(verdict for d in DATASETS for verdict in _verdicts_on(d)), *_on_the_bandit()]


def _verdicts_on_table_1() -> Iterable[str]:
    said = _published()["headline"]
    for figure in ("avg", "best", "worst"):
        values = _against(f"{figure}_accuracy", FOUR, _above_mean)
        yield _judge(values, said[f"{figure}_accuracy_gain_points"])
    yield _judge(_against("avg_accuracy", FOUR, _above_mean, SETTINGS[:1]), said["accuracy_gain_at_lambda_03_rho_05"])
    for kind in ("total", "link"):
        yield _judge(_against(f"{kind}_energy_mj", FOUR, _saved), said[f"{kind}_energy_saving_percent"])
    for name in FOUR:
        yield _judge(_against("avg_accuracy", [name], _above_mean), said["accuracy_gain_over"][name])
        yield _judge(_against("total_energy_mj", [name], _saved), said["total_energy_saving_over_percent"][name])
    yield _judge(-value for value in _against("std_accuracy", FOUR, _above_mean))


def _verdicts_on(dataset: str) -> Iterable[str]:
    """RQ2 to RQ5 on one data set."""

    def ours(figure: str = "avg_accuracy", place: tuple[float, float] = SETTINGS[0], **more: Any) -> BySeed:
        return _pick(figure, dataset, OURS, place, **more)

    def differ(mine: BySeed, other: BySeed) -> list[float]:
        return list(combine([mine, other], _apart).values())

    sparse, middle, dense = (
        dict(enumerate(_mean_over_places([ours(place=place, link_share=share) for place in SETTINGS])))
        for share in (0.1, 0.3, 0.5)
    )
    yield _judge(differ(middle, sparse))
    yield _judge(1 - value for value in differ(dense, middle))  # "marginally": less than 1 point
    easy = SETTINGS[-1]
    drop = _published()["headline"]["scalability_accuracy_drop_points"][dataset]
    yield _judge(differ(ours(place=easy), ours(place=easy, servers=50)), drop)
    rows = [r for r in _published()["scalability"] if r["dataset"] == dataset and r["servers"] in (5, 50)]
    spread = {row["servers"]: row["var_accuracy"][0] for row in rows}
    apart = differ(ours("std_accuracy", easy, servers=50), ours("std_accuracy", easy))
    yield _judge(apart, spread[50] - spread[5])
    for name, best, others in (("gain_share", 0.6, (0.4, 0.5, 0.7, 0.8)), ("quality_share", 0.4, (0.2, 0.3, 0.5, 0.6))):
        ahead = [_judge(differ(ours(**{name: best}), ours(**{name: each}))) for each in others]
        yield "reproduced" if set(ahead) == {"reproduced"} else "not"
    dear = combine([ours("total_energy_mj", gain_share=0.8), ours("total_energy_mj")], lambda a, b: 100 * (a / b - 1))
    yield _judge(value - 5 for value in dear.values())  # "sharply": more than 5 %
    published = {r["method"]: r["avg_accuracy"][0] for r in _published()["ablation"] if r["dataset"] == dataset}
    for part in ("utc", "ima"):
        less = f"hat-dfed-without-{part}"
        gained = differ(ours(), _pick("avg_accuracy", dataset, less, SETTINGS[0]))
        yield _judge(gained, published[OURS] - published[less])


def _on_the_bandit() -> Iterable[str]:
    sizes = _published()["headline"]["ablation_without_utc_energy_saving_percent"]
    for kind, size in zip(("total", "link"), sizes, strict=True):
        values = _against(f"{kind}_energy_mj", ["hat-dfed-without-utc"], _saved, SETTINGS[:1])
        yield _judge(values, size)


def verdict_counts() -> Figures:
    """How many claims of the paper are reproduced."""
    found = verdicts()
    counts = {word: str(found.count(word)) for word in ("reproduced", "partly", "not")}
    return {"claims": str(len(found)), **counts, "most": "most" if 2 * found.count("not") > len(found) else "few"}


def against_random_links() -> Figures:
    """hat-dfed against the same number of random links."""
    return {
        dataset: show(
            combine(
                [_pick("avg_accuracy", dataset, name, SETTINGS[0]) for name in (OURS, "hat-dfed-without-utc")], _apart
            ).values(),
            " points",
        )
        for dataset in DATASETS
    }


def better_readings() -> Figures:
    """Readings D7 to D18 that are distinguishably more accurate on validation data."""
    known = {"dataset", "method", "servers", "label_concentration", "device_online_probability", "seed", *_SHARES}
    found = set()
    for dataset in DATASETS:
        base = _pick("validation_accuracy", dataset, OURS, SETTINGS[0])
        readings: dict[str, BySeed] = {}
        for run in _runs("readings"):
            settings = run["settings"]
            other = {name: value for name, value in settings.items() if name not in known}
            # D3 learns from the test set; D4 is about work, not about formulas.
            if (
                settings["dataset"] == dataset
                and other
                and not {"feedback", "local_passes", "samples_per_round"} & other.keys()
            ):
                readings.setdefault(json.dumps(other), {})[settings["seed"]] = run["figures"]["validation_accuracy"]
        for words, mine in readings.items():
            if _judge(combine([mine, base], _apart).values()) != "not":
                found.add(words)
    return {"better": ", ".join(sorted(found)) or "none"}


def best_round_gaps() -> Figures:
    """What the released code gains by reporting its best round on the test set."""
    gaps: dict[tuple[Any, ...], list[float]] = {}
    for run in _runs("released"):
        if run["settings"]["method"] == "hat-dfed-released" and run["figures"]["leaks_test"]:
            place = tuple(run["settings"][name] for name in _PLACE[:-1])
            gaps.setdefault(place, []).append(run["figures"]["best_round_accuracy"] - run["figures"]["avg_accuracy"])
    means = [float(np.mean(each)) for each in gaps.values()]
    (seeds,) = {len(each) for each in gaps.values()}
    return {"least": f"{min(means):.1f}", "most": f"{max(means):.1f}", "seeds": {5: "five"}[seeds]}


# hat-dfed-plus


def _places(servers: int) -> Sequence[tuple[float, float]]:
    return SETTINGS if servers == 5 else SETTINGS[:1]


def _sides(figure: str, dataset: str, servers: int, place: tuple[float, float]) -> list[BySeed]:
    return [_pick(figure, dataset, name, place, servers) for name in (PLUS, *FOUR)]


def as_they_are(dataset: str, servers: int) -> Figures:
    """The recipe against the four as their authors describe them."""
    points, best, worst, each = [], [], [], []
    for place in _places(servers):
        sides = _sides("avg_accuracy", dataset, servers, place)
        points.append(combine(sides, _above_mean))
        top = max(sides[1:], key=lambda side: float(np.mean(list(side.values()))))
        best.append(np.mean(list(combine([sides[0], top], _apart).values())) >= 0)
        last = float(np.mean(list(_pick("worst_accuracy", dataset, PLUS, place, servers).values())))
        tops = [np.mean(list(_pick("best_accuracy", dataset, name, place, servers).values())) for name in FOUR]
        worst.append(last >= max(tops))
        total = _sides("total_energy_mj", dataset, servers, place)
        each += [float(np.mean(list(combine([total[0], rival], _saved).values()))) for rival in total[1:]]
    saved = {
        kind: float(
            np.mean(
                _mean_over_places(
                    [combine(_sides(f"{kind}_energy_mj", dataset, servers, p), _saved) for p in _places(servers)]
                )
            )
        )
        for kind in ("total", "link")
    }
    return {
        "dataset": dataset, "servers": str(servers), "points": show(_mean_over_places(points)),
        "total": f"{saved['total']:.1f}", "rounded": f"{saved['total']:.0f}", "link": f"{saved['link']:.1f}",
        "least": f"{min(each):.1f}", "most": f"{max(each):.1f}", "settings": str(len(points)),
        "best": str(sum(best)), "worst": str(sum(worst)),
    }  # fmt: skip


def _rivals_with_parts(experiment: str, dataset: str, servers: int, place: tuple[float, float]) -> dict[str, BySeed]:
    return {name: _pick_with_parts(experiment, dataset, name, place, servers) for name in FOUR}


def _lead_over_best(experiment: str, dataset: str, servers: int, place: tuple[float, float]) -> tuple[str, BySeed]:
    rivals = _rivals_with_parts(experiment, dataset, servers, place)
    best = max(rivals, key=lambda name: float(np.mean(list(rivals[name].values()))))
    return best, combine([_pick("avg_accuracy", dataset, PLUS, place, servers), rivals[best]], _apart)


def _equal(servers: int) -> str:
    return "plus_equal" if servers == 5 else "plus_equal_large"


def on_equal_footing(dataset: str, servers: int) -> Figures:
    """The recipe against the four with its parts, in so few rounds that links cost no more."""
    means, leads = [], []
    for place in _places(servers):
        rivals = _rivals_with_parts(_equal(servers), dataset, servers, place)
        means.append(combine([_pick("avg_accuracy", dataset, PLUS, place, servers), *rivals.values()], _above_mean))
        leads.append(_lead_over_best(_equal(servers), dataset, servers, place)[1])
    middle = [interval(lead.values())[0] for lead in leads]
    best = f"{min(middle):+.1f} to {max(middle):+.1f}" if len(leads) > 1 else show(leads[0].values())
    words = f"{show(_mean_over_places(means))} points on {dataset}, {servers} servers ({best} against the best of them)"
    not_below = sum(interval(lead.values())[2] >= 0 for lead in leads)
    return {"words": words, "best": best, "not_below": str(not_below), "settings": str(len(leads))}


def on_equal_footing_everywhere() -> Figures:
    """The same in all places."""
    found = [on_equal_footing(dataset, servers) for dataset in DATASETS for servers in (5, 20, 50)]
    counts = {name: str(sum(int(each[name]) for each in found)) for name in ("not_below", "settings")}
    return {**counts, "words": "; ".join(each["words"] for each in found)}


def leads_over_best() -> Figures:
    """From the least to the greatest lead over the best of the four with equal parts."""
    leads = [
        interval(_lead_over_best(_equal(servers), dataset, servers, place)[1].values())[0]
        for dataset in DATASETS
        for servers in (5, 20, 50)
        for place in _places(servers)
    ]
    return {
        "least": f"{abs(round(min(leads), 1)):.1f}" if min(leads) > -0.05 else "below 0",
        "most": f"{max(leads):.1f}",
    }


def against_dense() -> Figures:
    """Against the best of the four that send whole models in every round."""
    parts = []
    for dataset in DATASETS:
        leads = [(place, *_lead_over_best("plus_dense", dataset, 5, place)) for place in SETTINGS]
        place, name, gap = min(leads, key=lambda lead: interval(lead[2].values())[0])
        where = f"`{name}`, λ {place[0]:g}, ρ {place[1]:g}"
        mean = show(_mean_over_places([lead for *_, lead in leads]))
        parts.append(f"{mean} points on {dataset}, 5 servers, at worst {show(gap.values())} ({where})")
    return {"words": "; ".join(parts)}


def more_accurate_as_they_are() -> Figures:
    """Methods as they are that are distinguishably above the recipe."""
    found = []
    for dataset in DATASETS:
        for servers in (5, 20, 50):
            for place in _places(servers):
                for name in (*FOUR, OURS):
                    pair = [_pick("avg_accuracy", dataset, each, place, servers) for each in (PLUS, name)]
                    if all(pair) and interval(combine(pair, _apart).values())[2] < 0:
                        found.append(f"`{name}` on {dataset}, {servers} servers")
    return {"found": "; ".join(found) or "none"}


# Measurements, and README's table


def groups_of_two_meanings() -> Figures:
    """Two groups of servers that mean different things by a label, on digits."""
    rows = load("benchmarks/results/worlds-groups-digits.json")["rows"]
    here = [row for row in rows if row["world"] == "two meanings, λ 0.3"]
    seen = {
        name: np.mean([row["accuracy"] for row in here if row["method"] == name]).item() for name in (PLUS, "local")
    }
    return {"plus": f"{seen[PLUS]:.1f}", "local": f"{seen['local']:.1f}"}


def first_commands() -> Figures:
    """What a newcomer's first commands took."""
    report = load("benchmarks/results/first-run-cpu.json")
    took = {each["typed"]: each["seconds"] for each in report["commands"]}
    return {
        "cores": str(report["machine"]["cores"]), "processor": report["machine"]["processor"],
        "run": f"{took['make run']:.0f}", "install": f"{report['installed_after_seconds']:.0f}",
        "gigabytes": f"{report['environment_megabytes'] / 1000:.1f}",
        "last": f"{took['hatdfed run --method hat-dfed']:.0f}",
        "cluster": "less than half a minute" if took["make cluster"] < 30 else f"{took['make cluster']:.0f} s",
    }  # fmt: skip


def largest_fleet() -> Figures:
    """How many servers have been simulated."""
    runs: Sequence[Mapping[str, Any]] = load("benchmarks/results/many_servers.json")["runs"]
    return {"servers": "thousands" if max(run["servers"] for run in runs) >= 2000 else "hundreds"}


def first_comparison() -> Figures:
    """The table of `make run`, in the README's form, and what it compares."""
    rows = load("docs/make_run/comparison.json")
    lines = [_row_of_first_comparison(row) for row in rows]
    (seeds,) = {tuple(row["seeds"]) for row in rows}
    config = resolve({"dataset": "digits"})
    return {
        "table": "\n".join(lines), "methods": {6: "six"}[len(rows)],
        "seeds": f"{', '.join(map(str, seeds[:-1]))} and {seeds[-1]}",
        "rounds": str(config.rounds), "servers": str(config.servers),
    }  # fmt: skip


def _row_of_first_comparison(row: Mapping[str, Any]) -> str:
    percents = [
        f"{row[f'{name}_accuracy']:.1f} ± {row[f'{name}_accuracy_sd']:.1f}" for name in ("avg", "std", "best", "worst")
    ]
    joules = [_joules(1e6 * row[f"{kind}_energy_mj"], 1e6 * row[f"{kind}_energy_mj_sd"]) for kind in ("total", "link")]
    return f"| `{row['method']}` | {' | '.join((*percents, *joules))} | {row['links_per_round']:.1f} |"


def _joules(mean: float, deviation: float) -> str:
    share = f"{100 * deviation / mean:.0f}" if mean else "0"
    return f"{mean / 1e3:.2f} kJ ± {share} %" if mean >= 1e3 else f"{mean:.1f} J ± {share} %"


# At equal joules, on digits


def explored_frontier() -> Figures:
    """The recipe's lead over sgp at equal link joules, by number of servers."""
    return {"few": show(_explored_lead(5)), "many": show(_explored_lead(20))}


def _explored_lead(servers: int) -> list[float]:
    mine, theirs = (_explored_points(name, servers) for name in (PLUS, "sgp"))
    (as_it_is,) = [point for point in mine if "policy" not in point["settings"]]
    leads = []
    for seed, run in sorted(as_it_is["runs"].items()):
        spent = [[point["runs"][seed]["link_energy_mj"] for point in side] for side in (mine, theirs)]
        wanted = min(max(run["link_energy_mj"], *map(min, spent)), *map(max, spent))
        reached = [_interpolate(_front(side), seed, wanted) for side in (mine, theirs)]
        leads.append(reached[0] - reached[1])
    return leads


def _explored_points(method: str, servers: int) -> list[dict[str, Any]]:
    """The points of a method with their runs by seed; without those that draw links at random for comparison."""
    points: dict[str, dict[str, Any]] = {}
    for run in load("paper/explored/frontier.json")["runs"]:
        settings = {name: value for name, value in run["settings"].items() if name != "seed"}
        if (settings["method"], settings["servers"]) == (method, servers) and "thrift" not in settings.get(
            "policy", {}
        ):
            point = points.setdefault(json.dumps(settings), {"settings": settings, "runs": {}})
            point["runs"][run["settings"]["seed"]] = run["figures"]
    return list(points.values())


def _front(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that no other beats at both link joules and validation accuracy, means over seeds."""

    def mean(point: dict[str, Any], figure: str) -> float:
        return float(np.mean([figures[figure] for figures in point["runs"].values()]))

    figures = [(mean(each, "link_energy_mj"), mean(each, "validation_accuracy")) for each in points]
    return [
        point
        for point, (joules, accuracy) in zip(points, figures, strict=True)
        if not any((j <= joules and a >= accuracy) and (j, a) != (joules, accuracy) for j, a in figures)
    ]


def _interpolate(front: Sequence[dict[str, Any]], seed: int, joules: float) -> float:
    """Test accuracy at these joules, along the points of a front."""
    spots = sorted((each["runs"][seed]["link_energy_mj"], each["runs"][seed]["avg_accuracy"]) for each in front)
    return float(np.interp(joules, *zip(*spots, strict=True)))


def spent_less_with_fifty() -> Figures:
    """How much less than the recipe a rival on equal footing spends on links with 50 servers, at most."""
    less = []
    for dataset in DATASETS:
        place = SETTINGS[0]
        mine = _pick("link_energy_mj", dataset, PLUS, place, 50)
        for name in FOUR:
            theirs = {
                run["settings"]["seed"]: run["figures"]["link_energy_mj"]
                for run in _runs("plus_equal_large")
                if tuple(run["settings"][key] for key in _PLACE[:-1]) == (dataset, name, 50, *place)
                and run["settings"]["schedule"]["finish_rounds"] == 2
            }
            less.append(float(np.mean(list(combine([theirs, mine], _saved).values()))))
    return {"quarter": "a quarter" if 22.5 <= max(less) <= 27.5 else f"{max(less):.0f} %"}
