"""Claim by claim, in the paper's order: what is published, what we measured, and the verdict of `verdict_rules`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hatdfed.runs.statistics import PairedDifference, paired_or_none
from hatdfed_paper.claims import Claims
from hatdfed_paper.headline import drop, easy_point, gain_over, measured_headline, settings_of
from hatdfed_paper.plans import BASELINES, GAIN_SHARES, QUALITY_SHARES, Scale, Settings, point, settings_of_table_1
from hatdfed_paper.results import Results
from hatdfed_paper.verdict_rules import Verdict, at_most, best_of_sweep, directed, sized

MARGINAL, SHARP = 1.0, 5.0  # points, percent: what we take "marginally" and "sharply" to mean


def verdicts(results: Results, claims: Claims, scale: Scale) -> list[Verdict]:
    """Every claim that our runs can say something about, in the paper's order."""
    found: list[Verdict] = []
    for part in (_rq1, _rq2, _rq3, _rq4, _rq5):
        found += part(results, claims, scale)
    return found


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
        yield from sized("RQ1", words, ours.get(key), theirs[key], unit)
    for method in BASELINES:
        gain = ours.get("accuracy_gain_over", {}).get(method)
        yield from sized("RQ1", f"More accurate than {method}", gain, theirs["accuracy_gain_over"][method], "points")
    for method in BASELINES:
        saving = ours.get("total_energy_saving_over_percent", {}).get(method)
        published = theirs["total_energy_saving_over_percent"][method]
        yield from sized("RQ1", f"Less total energy than {method}", saving, published, "%")
    spread = gain_over(results, settings_of(scale), BASELINES, "std_accuracy")
    closer = None if spread is None else _negative(spread)
    words = "Accuracies of its servers lie closer together than those of the baselines"
    yield from directed("RQ1", words, closer, _published_spread(claims, scale), "points of deviation")


def _rq2(results: Results, claims: Claims, scale: Scale) -> Iterator[Verdict]:
    for dataset in scale.datasets:
        sparse, middle, dense = (_over_settings(results, dataset, share) for share in (0.1, 0.3, 0.5))
        growth, beyond = paired_or_none(middle, sparse), paired_or_none(dense, middle)
        yield from directed("RQ2", f"Accuracy grows up to γ = 0.3 ({dataset})", growth, "grows", "points")
        yield from at_most("RQ2", f"Beyond γ = 0.3 only marginally ({dataset})", beyond, MARGINAL, "points")


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
            yield from sized("RQ3", words, ours, published, "points lost")
    for dataset in scale.datasets:
        few, many = (easy_point(dataset, servers) for servers in (min(scale.servers), max(scale.servers)))
        theirs = [claims.row("scalability", each) for each in (few, many)]
        ours = drop(results, many, few, "std_accuracy")
        if theirs[0] is not None and theirs[1] is not None:
            published = theirs[1]["var_accuracy"][0] - theirs[0]["var_accuracy"][0]
            words = f"Servers lie further apart with N = {max(scale.servers)} ({dataset})"
            yield from sized("RQ3", words, ours, published, "points of deviation")


def _rq4(results: Results, claims: Claims, scale: Scale) -> Iterator[Verdict]:
    alpha, beta = claims.sensitivity["best_alpha"], claims.sensitivity["best_beta"]
    for dataset in scale.datasets:
        over_alpha = {a: point(dataset, "hat-dfed", gain_share=a, quality_share=beta) for a in GAIN_SHARES}
        over_beta = {b: point(dataset, "hat-dfed", gain_share=alpha, quality_share=b) for b in QUALITY_SHARES}
        yield from best_of_sweep("RQ4", f"α = {alpha:g} is the most accurate ({dataset})", results, over_alpha, alpha)
        yield from best_of_sweep("RQ4", f"β = {beta:g} is the most accurate ({dataset})", results, over_beta, beta)
        rise = _rise(results, over_alpha[alpha], over_alpha[max(GAIN_SHARES)])
        words = f"Total energy rises sharply from α = {alpha:g} to {max(GAIN_SHARES):g} ({dataset})"
        yield from sized("RQ4", words, rise, SHARP, "%", theirs=f"sharply; we say {SHARP:g} %")


def _rise(results: Results, first: Settings, last: Settings) -> PairedDifference | None:
    """How much more energy, in percent."""
    before, after = (results.figures(each, "total_energy_mj") for each in (first, last))
    percent = {seed: 100 * (after[seed] / before[seed] - 1) for seed in before.keys() & after.keys()}
    return paired_or_none(percent, dict.fromkeys(percent, 0.0))


def _rq5(results: Results, claims: Claims, scale: Scale) -> Iterator[Verdict]:
    for dataset in scale.datasets:
        whole = point(dataset, "hat-dfed")
        for method, words in (
            ("hat-dfed-without-utc", "More accurate than with random links at the same budget"),
            ("hat-dfed-without-ima", "More accurate than with plain averaging"),
        ):
            other = point(dataset, method)
            published = [claims.row("ablation", each) for each in (whole, other)]
            gain = paired_or_none(results.figures(whole, "avg_accuracy"), results.figures(other, "avg_accuracy"))
            if published[0] is not None and published[1] is not None:
                theirs = published[0]["avg_accuracy"][0] - published[1]["avg_accuracy"][0]
                yield from sized("RQ5", f"{words} ({dataset})", gain, theirs, "points")
    saved = measured_headline(results, scale).get("ablation_without_utc_energy_saving_percent")
    if saved:
        theirs = claims.headline["ablation_without_utc_energy_saving_percent"]
        for words, ours, published in zip(("total", "link"), saved, theirs, strict=True):
            yield from sized("RQ5", f"The bandit saves {words} energy against random links", ours, published, "%")


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


def _negative(ours: PairedDifference) -> PairedDifference:
    low, high = (None if end is None else -end for end in (ours.high, ours.low))
    return PairedDifference(-ours.mean, low, high, ours.n)
