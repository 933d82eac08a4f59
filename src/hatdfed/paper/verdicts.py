"""Claim by claim, in the paper's order: what is published, what we measured, and the verdict of `verdict_rules`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hatdfed.paper.claims import Claims
from hatdfed.paper.expected_energy import expected_energy
from hatdfed.paper.headline import drop, easy_point, gain_over, measured_headline, settings_of
from hatdfed.paper.plans import (
    BASELINES,
    GAIN_SHARES,
    QUALITY_SHARES,
    Scale,
    Settings,
    point,
    points,
    settings_of_table_1,
)
from hatdfed.paper.results import Results
from hatdfed.paper.verdict_rules import (
    NOT,
    PARTLY,
    REPRODUCED,
    Verdict,
    best_of_sweep,
    by_share,
    claimed,
    with_interval,
)
from hatdfed.statistics import paired_difference

NEAR_POINTS = 3.0  # of the published average accuracy
NEAR_SHARE = 0.10  # of the published energy
MARGINAL, SHARP = 1.0, 5.0  # point, percent: what we take "marginally" and "sharply" to mean


def verdicts(results: Results, claims: Claims, scale: Scale) -> list[Verdict]:
    """Every claim that our runs can say something about, in the paper's order."""
    found: list[Verdict] = []
    for part in (_levels, _rq1, _rq2, _rq3, _rq4, _rq5):
        found += part(results, claims, scale)
    return found


def _levels(results: Results, claims: Claims, scale: Scale) -> Iterator[Verdict]:
    """Whether the world is the paper's: baselines' accuracies and everybody's energies."""
    near, settings, energies, near_energies = 0, 0, 0, 0
    for place in settings_of(scale):
        theirs, ours = [], []
        for method in (*BASELINES, "hat-dfed"):
            at = point(place["dataset"], method, **{name: place[name] for name in place if name != "dataset"})
            published, mine = claims.row("table_1", at), _mean(results, at, "avg_accuracy")
            if published is None or mine is None:
                continue
            energies += 1
            total = _mean(results, at, "total_energy_mj") or 0.0
            near_energies += abs(total / published["total_energy_mj"][0] - 1) <= NEAR_SHARE
            if method in BASELINES:
                theirs.append(published["avg_accuracy"][0])
                ours.append(mine)
        if len(ours) == len(BASELINES):
            settings += 1
            near += abs(sum(ours) - sum(theirs)) / len(ours) <= NEAR_POINTS
    if settings:
        words = f"The four baselines' mean accuracy, within {NEAR_POINTS:g} points"
        yield Verdict("levels", words, f"{settings} settings", f"{near} of {settings}", by_share(near, settings))
        priced = expected_energy(results, scale)
        kept = sum(
            abs(row[f"{kind}_energy_mj_deviation_percent"]) <= 100 * NEAR_SHARE
            for row in priced
            for kind in ("link", "total")
        )
        words = f"Our energies, within {NEAR_SHARE:.0%} of what the paper's price list should come to"
        yield Verdict("levels", words, "price list", f"{kept} of {2 * len(priced)}", by_share(kept, 2 * len(priced)))
        words = f"Total energy of the five methods, within {NEAR_SHARE:.0%} of the published"
        yield Verdict(
            "levels", words, f"{energies} rows", f"{near_energies} of {energies}", by_share(near_energies, energies)
        )


def _rq1(results: Results, claims: Claims, scale: Scale) -> Iterator[Verdict]:
    ours, theirs = measured_headline(results, scale), claims.headline
    for key, words, unit in (
        ("avg_accuracy_gain_points", "More accurate than the mean of the baselines", "points"),
        ("best_accuracy_gain_points", "Best server more accurate", "points"),
        ("worst_accuracy_gain_points", "Worst server more accurate", "points"),
        ("accuracy_gain_at_lambda_03_rho_05", "Gain at λ 0.3, ρ 0.5", "points"),
        ("total_energy_saving_percent", "Less total energy than the mean of the baselines", "%"),
        ("link_energy_saving_percent", "Less link energy than the mean of the baselines", "%"),
    ):
        yield from claimed("RQ1", words, ours.get(key), theirs[key], unit)
    for method in BASELINES:
        gain = ours.get("accuracy_gain_over", {}).get(method)
        yield from claimed("RQ1", f"More accurate than {method}", gain, theirs["accuracy_gain_over"][method], "points")
    for method in BASELINES:
        saving = ours.get("total_energy_saving_over_percent", {}).get(method)
        published = theirs["total_energy_saving_over_percent"][method]
        yield from claimed("RQ1", f"Less total energy than {method}", saving, published, "%")
    spread = gain_over(results, settings_of(scale), BASELINES, "std_accuracy")
    if spread is not None:
        yield Verdict(
            "RQ1",
            "Accuracies of its servers lie closer together than those of the baselines",
            _published_spread(claims, scale),
            with_interval(spread, "points of deviation"),
            REPRODUCED if spread.high is not None and spread.high < 0 else NOT,
        )


def _rq2(results: Results, claims: Claims, scale: Scale) -> Iterator[Verdict]:
    for dataset in scale.datasets:
        sparse, middle, dense = (_over_settings(results, dataset, share) for share in (0.1, 0.3, 0.5))
        if sparse and middle and dense:
            first, second = paired_difference(middle, sparse), paired_difference(dense, middle)
            verdict = REPRODUCED if first.low is not None and first.low > 0 else NOT
            yield Verdict(
                "RQ2", f"Accuracy grows up to γ = 0.3 ({dataset})", "yes", with_interval(first, "points"), verdict
            )
            verdict = REPRODUCED if second.mean < MARGINAL else PARTLY if 2 * second.mean < first.mean else NOT
            words = f"Only marginally beyond it (under {MARGINAL:g} point; {dataset})"
            yield Verdict("RQ2", words, "yes", with_interval(second, "points"), verdict)
    ratios = [
        (_mean(results, each, "total_energy_mj") or 0.0) / published["total_energy_mj"][0]
        for each in points("sparsity", scale)
        if (published := claims.row("sparsity", each)) and results.at(each)
    ]
    if ratios:
        near = sum(abs(ratio - 1) <= NEAR_SHARE for ratio in ratios)
        words = f"Total energy at every γ, within {NEAR_SHARE:.0%}"
        yield Verdict("RQ2", words, f"{len(ratios)} cells", f"{near} of {len(ratios)}", by_share(near, len(ratios)))


def _over_settings(results: Results, dataset: str, link_share: float) -> dict[int, float]:
    """Test accuracy at this γ by seed, mean over the four settings."""
    each = [
        results.figures(point(dataset, "hat-dfed", **setting, link_share=link_share), "avg_accuracy")
        for setting in settings_of_table_1()
    ]
    return {seed: sum(one[seed] for one in each) / len(each) for seed in set.intersection(*map(set, each))}


def _rq3(results: Results, claims: Claims, scale: Scale) -> Iterator[Verdict]:
    drops = measured_headline(results, scale).get("scalability_accuracy_drop_points", {})
    for dataset, ours in drops.items():
        published = claims.headline["scalability_accuracy_drop_points"].get(dataset)
        if published is not None:
            words = f"Accuracy falls slightly from N = {min(scale.servers)} to {max(scale.servers)} ({dataset})"
            yield from claimed("RQ3", words, ours, published, "points lost")
    for dataset in scale.datasets:
        few, many = (easy_point(dataset, servers) for servers in (min(scale.servers), max(scale.servers)))
        theirs = [claims.row("scalability", each) for each in (few, many)]
        ours = drop(results, many, few, "std_accuracy")
        if theirs[0] is not None and theirs[1] is not None:
            published = theirs[1]["var_accuracy"][0] - theirs[0]["var_accuracy"][0]
            words = f"Servers lie further apart with N = {max(scale.servers)} ({dataset})"
            yield from claimed("RQ3", words, ours, published, "points of deviation")


def _rq4(results: Results, claims: Claims, scale: Scale) -> Iterator[Verdict]:
    alpha, beta = claims.sensitivity["best_alpha"], claims.sensitivity["best_beta"]
    for dataset in scale.datasets:
        over_alpha = {a: point(dataset, "hat-dfed", gain_share=a, quality_share=beta) for a in GAIN_SHARES}
        over_beta = {b: point(dataset, "hat-dfed", gain_share=alpha, quality_share=b) for b in QUALITY_SHARES}
        yield from best_of_sweep("RQ4", f"α = {alpha:g} is the most accurate ({dataset})", results, over_alpha, alpha)
        yield from best_of_sweep("RQ4", f"β = {beta:g} is the most accurate ({dataset})", results, over_beta, beta)
        joules = [results.figures(over_alpha[a], "total_energy_mj") for a in (alpha, max(GAIN_SHARES))]
        if all(joules):
            rise = {seed: 100 * (joules[1][seed] / joules[0][seed] - 1) for seed in joules[0].keys() & joules[1].keys()}
            ours = paired_difference(rise, dict.fromkeys(rise, 0.0))
            words = (
                f"Total energy rises sharply from α = {alpha:g} to {max(GAIN_SHARES):g} (over {SHARP:g} %; {dataset})"
            )
            verdict = REPRODUCED if ours.mean > SHARP else PARTLY if ours.low is not None and ours.low > 0 else NOT
            yield Verdict("RQ4", words, "yes", with_interval(ours, "%"), verdict)


def _rq5(results: Results, claims: Claims, scale: Scale) -> Iterator[Verdict]:
    for dataset in scale.datasets:
        whole = point(dataset, "hat-dfed")
        for method, words in (
            ("hat-dfed-without-utc", "More accurate than with random links at the same budget"),
            ("hat-dfed-without-ima", "More accurate than with plain averaging"),
        ):
            other = point(dataset, method)
            published = [claims.row("ablation", each) for each in (whole, other)]
            if published[0] is None or published[1] is None or not results.at(other):
                continue
            gain = paired_difference(results.figures(whole, "avg_accuracy"), results.figures(other, "avg_accuracy"))
            theirs = published[0]["avg_accuracy"][0] - published[1]["avg_accuracy"][0]
            yield from claimed("RQ5", f"{words} ({dataset})", gain, theirs, "points")
    saved = measured_headline(results, scale).get("ablation_without_utc_energy_saving_percent")
    if saved:
        theirs = claims.headline["ablation_without_utc_energy_saving_percent"]
        for words, ours, published in zip(("total", "link"), saved, theirs, strict=True):
            yield from claimed("RQ5", f"The bandit saves {words} energy against random links", ours, published, "%")


def _published_spread(claims: Claims, scale: Scale) -> str:
    """In how many settings the paper's own table has hat-dfed below every baseline."""
    below, all_of_them = 0, 0
    for place in settings_of(scale):
        rows: dict[str, Any] = {
            method: claims.row("table_1", {**place, "method": method}) for method in (*BASELINES, "hat-dfed")
        }
        if all(rows.values()):
            all_of_them += 1
            mine = rows["hat-dfed"]["var_accuracy"][0]
            below += all(mine <= rows[method]["var_accuracy"][0] for method in BASELINES)
    return f"least or equal in {below} of {all_of_them} settings"


def _mean(results: Results, settings: Settings, figure: str) -> float | None:
    values = results.figures(settings, figure)
    return sum(values.values()) / len(values) if values else None
