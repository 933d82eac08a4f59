"""Every sentence with a figure on README and the pages that sum up results: what it rests on, and whether it holds.

`python docs/claims.py [NAME…]` computes the figures anew from the committed runs (`claim_figures.py`) and says which
sentences the pages do not have. `generate.py` writes docs/claims.md from the same list. A new sentence with a figure
needs a line in `CLAIMS`; the tests find it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import claim_figures as figures
from claim_figures import DATASETS, ROOT, Figures

README, EVALUATION, PLUS_PAGE, PAPER = "README.md", "docs/evaluation.md", "docs/hat-dfed-plus.md", "paper/README.md"
BEFORE = "before plans existed"
KNOWN = "before plans existed; test results of an earlier recipe were known"
EXPLORATORY = "exploratory"
MEASURED = "none: a measurement of time or size"
# Digits that are no figures: names, versions, and settings that sentences without a result mention.
NAMES = (
    "CIFAR-10", "Apache-2.0", "ARM64", r"arXiv \d{4}\.\d{5}", r"Python 3\.11 or 3\.12", "version 0.1",
    "95 % confidence intervals",
)  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """A sentence with its figures left open, what computes them, and what it rests on."""

    name: str
    pages: tuple[str, ...]
    words: str
    compute: Callable[[], Figures]
    plan: str
    results: tuple[str, ...]
    made_by: str
    shown: str = ""  # on the page of claims, in place of a table

    def sentence(self) -> str:
        """With the figures that the results give today."""
        return _fill(self)


@cache
def _fill(claim: Claim) -> str:
    return " ".join(claim.words.format(**claim.compute()).split())


def _results(*names: str) -> tuple[str, ...]:
    return tuple(f"paper/results/{name}.json" for name in names)


_SHORT = (EVALUATION, PAPER)
_TABLE_1 = _results("table1")
_CHECKED = _results("table1", "sparsity", "scalability", "sensitivity", "ablation")
_BEST = _results("plus", "plus_equal", "plus_equal_large", "table1")

_README = (
    Claim("verdicts-in-words", (README,), "{most} of the paper's claims do not reproduce", figures.verdict_counts,
          BEFORE, _CHECKED, "hatdfed paper run all"),
    Claim("fleets", (README,), "A simulator runs {servers} of servers", figures.largest_fleet,
          MEASURED, ("benchmarks/results/many_servers.json",), "python benchmarks/many_servers.py"),
    Claim("first-commands", (README,),
          "On {cores} cores ({processor}), `make run` took {run} s, {install} s of them to install {gigabytes} GB, and "
          "the last line {last} s.", figures.first_commands,
          MEASURED, ("benchmarks/results/first-run-cpu.json",), "python benchmarks/first_run.py"),
    Claim("cluster", (README,), "with certificates ({cluster})", figures.first_commands,
          MEASURED, ("benchmarks/results/first-run-cpu.json",), "python benchmarks/first_run.py"),
    Claim("make-run", (README,), "then compares {methods} methods on embedded data", figures.first_comparison,
          EXPLORATORY, ("docs/make_run/comparison.json",), "make readme-figures"),
    Claim("make-run-table", (README,), "{table}", figures.first_comparison,
          EXPLORATORY, ("docs/make_run/comparison.json",), "make readme-figures", "the table of `make run`"),
    Claim("make-run-seeds", (README,),
          "Test accuracy and modelled energy after {rounds} rounds with {servers} servers, mean ± standard deviation "
          "over seeds {seeds};",
          figures.first_comparison, EXPLORATORY, ("docs/make_run/comparison.json",), "make readme-figures"),
)  # fmt: skip

_OF_THE_PAPER = (
    Claim("verdicts", _SHORT, "{claims} claims: {reproduced} reproduced, {partly} partly, {not} not.",
          figures.verdict_counts, BEFORE, _CHECKED, "hatdfed paper run all"),
    Claim("accuracy", _SHORT,
          "Average accuracy of `hat-dfed` against the four baselines: {gain}; published {gain_theirs} points.",
          figures.paper_headline, BEFORE, _TABLE_1, "hatdfed paper run table1"),
    Claim("total-energy", _SHORT, "Total energy saved: {total}; published {total_theirs} %.",
          figures.paper_headline, BEFORE, _TABLE_1, "hatdfed paper run table1"),
    Claim("link-energy", _SHORT, "Link energy saved: {link}; published {link_theirs} %.",
          figures.paper_headline, BEFORE, _TABLE_1, "hatdfed paper run table1"),
    Claim("random-links", _SHORT,
          "`hat-dfed` against random links at the same budget, λ 0.3, ρ 0.5: {fashion-mnist} on fashion-mnist, "
          "{cifar-10} on cifar-10.",
          figures.against_random_links, BEFORE, _results("table1", "ablation"), "hatdfed paper run ablation"),
    Claim("readings", _SHORT,
          "Other readings of its formulas (D7 to D18) that are distinguishably more accurate on validation data, on "
          "either data set, λ 0.3, ρ 0.5: {better}.",
          figures.better_readings, BEFORE, _results("readings", "table1"), "hatdfed paper run readings"),
    Claim("best-round", _SHORT,
          "The released code's best round on the test set is {least} to {most} points above its last round ({seeds} "
          "seeds).", figures.best_round_gaps, BEFORE, _results("released"), "hatdfed paper run released"),
)  # fmt: skip


def _lead(dataset: str) -> Figures:
    equal = figures.on_equal_footing(dataset, 5)
    return {**figures.as_they_are(dataset, 5), "lead": equal["best"]}


_BEYOND = (
    *(
        Claim(f"brief-{dataset}", (EVALUATION,),
              "{dataset}, 5 servers: {points} points against the mean of `rnd`, `d-psgd`, `dac` and `sgp` as their "
              "authors describe them, {rounded} % less energy on average ({least} to {most} % less than each). With "
              "the same loss, learning-rate decay, last rounds and codec for all: {lead} points against the best of "
              "them.",
              partial(_lead, dataset), KNOWN, _BEST, "hatdfed paper run plus plus_equal")
        for dataset in DATASETS
    ),
    Claim("leads", (EVALUATION,), "({least} to {most} points over the best of the others)", figures.leads_over_best,
          KNOWN, _BEST, "hatdfed paper run plus_equal plus_equal_large"),
    Claim("frontier-explored", (EVALUATION,),
          "At equal link energy on digits, seeds 20 to 24, its lead over `sgp` with the same parts is {few} points "
          "with five servers and {many} with 20",
          figures.explored_frontier, EXPLORATORY, ("paper/explored/frontier.json",),
          "hatdfed paper run frontier --scale explore"),
    Claim("two-meanings", (EVALUATION,),
          "in exploratory runs with two such groups on digits, `hat-dfed-plus` reached {plus} % validation accuracy "
          "and `local` {local} %", figures.groups_of_two_meanings,
          EXPLORATORY, ("benchmarks/results/worlds-groups-digits.json",), "python benchmarks/worlds.py groups"),
    *(
        Claim(f"plus-{dataset}-{servers}", (PLUS_PAGE,),
              "{dataset}, {servers} servers: {points} points against the mean of the four, {total} % less energy on "
              "average ({least} to {most} % less than each; {link} % less on links); at least as accurate as the best "
              "in {best} of {settings} settings, its worst server at least as good as the best server of each in "
              "{worst} of {settings}.", partial(figures.as_they_are, dataset, servers),
              KNOWN, _results(*(("plus", "table1") if servers == 5 else ("plus_large",))), "hatdfed paper run plus"
              if servers == 5 else "hatdfed paper run plus_large")
        for dataset in DATASETS
        for servers in (5, 20, 50)
    ),
    Claim("equal-footing", (PLUS_PAGE,),
          "it is not distinguishably below the best of the four in {not_below} of {settings} settings. Against their "
          "mean: {words}.", figures.on_equal_footing_everywhere,
          KNOWN, _BEST, "hatdfed paper run plus_equal plus_equal_large"),
    Claim("spent-less", (PLUS_PAGE,),
          "The others spend less on links than it does, with 50 servers up to {quarter} less",
          figures.spent_less_with_fifty, KNOWN, _results("plus_equal_large"), "hatdfed paper run plus_equal_large"),
    Claim("dense", (PLUS_PAGE,),
          "Against the best of the four with its loss and finish and float32 in every round: {words}.",
          figures.against_dense, KNOWN, _results("plus_dense", "plus"), "hatdfed paper run plus_dense"),
    Claim("behind", (PLUS_PAGE,), "distinguishably more accurate as they are: {found}.",
          figures.more_accurate_as_they_are, KNOWN, _results("plus", "plus_large", "table1"),
          "hatdfed paper run plus plus_large"),
)  # fmt: skip

CLAIMS: tuple[Claim, ...] = (*_README, *_OF_THE_PAPER, *_BEYOND)


def read_words(page: str) -> str:
    """A page in one line, without marks of generated blocks."""
    text = re.sub(r"<!--.*?-->", " ", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    return " ".join(text.split())


def missing_from(claim: Claim) -> list[str]:
    """The pages that do not say what the results give."""
    return [page for page in claim.pages if claim.sentence() not in read_words(page)]


def unlisted_figures(page: str, text: str | None = None) -> list[str]:
    """What is left of a page's prose around digits when every listed sentence is taken out."""
    words = read_words(page) if text is None else text
    for claim in (each for each in CLAIMS if page in each.pages):
        words = words.replace(claim.sentence(), " ")
    words = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", " ", words)
    for name in NAMES:
        words = re.sub(name, " ", words)
    return [found[0].strip() for found in re.finditer(r"[^.]{0,60}\d[^.]{0,60}", words)]


_HEAD = """# Claims

Every sentence with a figure in README, in [evaluation](evaluation.md) and in the sections *In short* of
[hat-dfed-plus](hat-dfed-plus.md) and [the paper's page](../paper/README.md): the plan behind it, the committed results,
the command that made them, and the command that checks it. A check computes the figures anew from the raw runs, with
numpy and SciPy and none of the code that wrote the pages, and fails where a page says something else.
`python docs/claims.py` checks all of them. So do the tests, which also fail at a figure in README or evaluation that is
not listed here. This page is written by `docs/generate.py` from the list in `docs/claims.py`.

No figure rests on a plan so far:
[what is planned](../paper/README.md#plans-and-playing-them-in-limited-time) has not been played.
"""


def claims_page() -> str:
    """docs/claims.md: every sentence with its plan, its results and the command that checks it."""
    parts = []
    for page in (README, EVALUATION, PLUS_PAGE):
        parts += [f"\n## {page}\n", "| sentence | plan | results | made by | checked by |", "|---|---|---|---|---|"]
        parts += [_row(claim) for claim in CLAIMS if claim.pages[0] == page]
    return _HEAD + "\n".join(parts) + "\n"


def _row(claim: Claim) -> str:
    links = ", ".join(f"[{path.rsplit('/', 1)[1]}]({_from_docs(path)})" for path in claim.results)
    cells = [
        claim.shown or claim.sentence(),
        claim.plan,
        links,
        f"`{claim.made_by}`",
        f"`python docs/claims.py {claim.name}`",
    ]
    return f"| {' | '.join(cells)} |"


def _from_docs(path: str) -> str:
    return path.removeprefix("docs/") if path.startswith("docs/") else f"../{path}"


def main(names: Sequence[str]) -> int:
    """Print every claim with what the results give; 1 if a page says something else."""
    known = {claim.name: claim for claim in CLAIMS}
    if unknown := [name for name in names if name not in known]:
        sys.stderr.write(f"error: there is no claim called {unknown[0]!r}; known are {', '.join(known)}.\n")
        return 2
    failed = 0
    for claim in [known[name] for name in names] or CLAIMS:
        wrong = missing_from(claim)
        failed += bool(wrong)
        says = f"NOT on {' and '.join(wrong)}" if wrong else "holds"
        sys.stdout.write(f"{claim.name}: {says}: {claim.sentence()}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
