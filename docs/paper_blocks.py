"""What the reproduction says, as Markdown, from `paper/results`; `generate.py` puts it where it belongs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from hatdfed.runs.statistics import PairedDifference
from hatdfed_paper.claims import Claims
from hatdfed_paper.experiment import BEYOND
from hatdfed_paper.experiments import EXPERIMENTS, THE_PAPER
from hatdfed_paper.experiments.calibration import calibrate, choose_passes
from hatdfed_paper.experiments.readings import choose_readings
from hatdfed_paper.headline import measure_headline
from hatdfed_paper.markdown import table
from hatdfed_paper.plan import FULL, point, settings_of_table_1
from hatdfed_paper.results import Results, read_all, read_sessions
from hatdfed_paper.tables import all_markdown, all_tables, judge_claims
from hatdfed_paper.todo import todo
from hatdfed_paper.verdict_rules import NOT, PARTLY, REPRODUCED, format_interval

PAPER = Path(__file__).resolve().parent.parent / "paper"


class Reproduction:
    """The committed results and what follows from them."""

    def __init__(self) -> None:
        self.files = read_all(PAPER / "results", EXPERIMENTS, FULL.name)
        self.results, self.claims = Results(self.files), Claims.read()
        self.tables = all_tables(self.results, self.claims, FULL)
        self.markdown = all_markdown(self.tables)

    def blocks(self) -> dict[str, str]:
        """For paper/README.md."""
        markdown = {f"paper-{name}": text for name, text in self.markdown.items()}
        return {**markdown, "paper-short": self.short(), "paper-cost": self.cost(), "paper-missing": self.missing()}

    def short(self) -> str:
        """The result in a few lines."""
        ours, theirs = measure_headline(self.results, FULL), self.claims.headline
        count = Counter(each.verdict for each in judge_claims(self.results, self.claims, FULL))
        lines = [
            f"{sum(count.values())} claims: {count[REPRODUCED]} reproduced, {count[PARTLY]} partly, {count[NOT]} not.",
            "",
            *(
                f"- {words}: {format_interval(ours[key], unit)}; published {theirs[key]:+.1f} {unit}."
                for key, words, unit in (
                    ("avg_accuracy_gain_points", "Average accuracy of `hat-dfed` against the four baselines", "points"),
                    ("total_energy_saving_percent", "Total energy saved", "%"),
                    ("link_energy_saving_percent", "Link energy saved", "%"),
                )
            ),
            f"- `hat-dfed` against random links at the same budget, λ 0.3, ρ 0.5: {self._against_random()}.",
            "- Other readings of its formulas (D7 to D18) that are distinguishably more accurate on validation data, "
            f"on either data set, λ 0.3, ρ 0.5: {self._better()}.",
            f"- The released code's best round on the test set is {self._leak()} above its last round (five seeds).",
        ]
        return "\n".join(lines)

    def cost(self) -> str:
        """Who computed it, and how long that took."""
        sessions = [each for each in read_sessions(PAPER / "results") if each["scale"] == FULL.name]
        cells = [
            [
                ", ".join(each["experiments"]),
                f"{each['runs']:,}",
                f"{each['server_rounds']:,}",
                f"{each['seconds']:.0f}",
                f"{each['server_rounds'] / each['seconds']:,.0f}",
                f"{each['device']}, {each['processes']} processes{', MPS' if each['mps'] else ''}",
            ]
            for each in sessions
        ]
        paper = [each for each in sessions if set(each["experiments"]) & set(THE_PAPER)]
        done, seconds = (sum(each[name] for each in paper) for name in ("server_rounds", "seconds"))
        headings = ("experiments", "runs", "server-rounds", "seconds", "server-rounds per second", "machine")
        words = (
            f"The sessions that ran RQ1 to RQ5 took {seconds / 60:.1f} minutes for {done:,} server-rounds "
            "(including other experiments that they ran)."
        )
        return f"{table(headings, cells)}\n\n{words}"

    def missing(self, *, plus: bool = False) -> str:
        """What has been planned and not been run: about the paper, or about `hat-dfed-plus`."""
        cells = []
        for name in (name for name, experiment in EXPERIMENTS.items() if (experiment.group == BEYOND) == plus):
            for dataset in FULL.datasets:
                what = todo([name], FULL, PAPER / "results", dataset, files=self.files)
                if what.missing:
                    cells.append([name, dataset, f"{len(what.missing)} of {len(what.missing) + what.known}"])
        if not cells:
            return "Nothing is missing: every planned run is in the committed results."
        return "Not run yet, and so in no table or figure:\n\n" + table(
            ("experiment", "data set", "runs missing"), cells
        )

    def repeat(self) -> str:
        """How far two runs of the very same settings are apart on a GPU."""
        parts = []
        for dataset in FULL.datasets:
            passes = choose_passes(calibrate(self.results, self.claims, dataset))
            apart = []
            for setting in settings_of_table_1():
                one = self.results.figures(point(dataset, "d-psgd", **setting), "avg_accuracy")
                two = self.results.figures(point(dataset, "d-psgd", **setting, local_passes=passes), "avg_accuracy")
                apart += [one[seed] - two[seed] for seed in one.keys() & two.keys()]
            parts.append(f"{np.std(apart, ddof=1):.2f} points on {dataset} ({len(apart)} pairs)")
        return " and ".join(parts)

    def calibration(self) -> str:
        """The curve of D4 and what the rule makes of it."""
        chosen = {name: choose_passes(calibrate(self.results, self.claims, name)) for name in FULL.datasets}
        words = "; ".join(f"{name}: {passes} passes" for name, passes in chosen.items())
        text = self.markdown["calibration"]
        return f"{text}\n\nChosen by the rule: {words}."

    def readings(self) -> str:
        """What each reading is worth, and what the rule makes of it."""
        chosen = choose_readings(self.results, FULL.datasets)
        words = "; ".join(f"{number}: {reading.words}" for number, reading in chosen.items())
        verdict = f"Preferred by the rule: {words}." if words else "The rule prefers none of them: `hat-dfed` stays."
        return f"{self.markdown['readings']}\n\n{verdict}"

    def worth(self, number: str) -> str:
        """One line for the entry of a reading; of test accuracy where a run has no validation accuracy."""
        found: dict[str, list[str]] = {}
        for row in self.tables["readings"]:
            if row["reading"] == number:
                known = row["validation_accuracy_difference"] or row["avg_accuracy_difference"]
                found.setdefault(row["words"], []).append(f"{_words(known)} on {row['dataset']}")
        return "; ".join(f"{words}: {', '.join(each)}" for words, each in found.items())

    def _against_random(self) -> str:
        rows = [row for row in self.tables["bandit"] if row["against_random_links"]]
        return ", ".join(f"{_words(row['against_random_links']['avg_accuracy'])} on {row['dataset']}" for row in rows)

    def _better(self) -> str:
        rows = [row for row in self.tables["readings"] if row["reading"] not in ("D3", "D4")]
        better = [f"{row['words']} ({row['reading']}, {row['dataset']})" for row in rows if _is_above_zero(row)]
        return "; ".join(better) or "none"

    def _leak(self) -> str:
        rows = [row for row in self.tables["released"] if row["feedback"] == "test"]
        gaps = [row["best_round_accuracy"][0] - row["avg_accuracy"][0] for row in rows]
        return f"{min(gaps):.1f} to {max(gaps):.1f} points"


def _is_above_zero(row: dict[str, Any]) -> bool:
    known = row["validation_accuracy_difference"]
    return known is not None and known["low"] is not None and known["low"] > 0


def _words(known: dict[str, Any]) -> str:
    return format_interval(PairedDifference(known["mean"], known["low"], known["high"], known["pairs"]), "points")
