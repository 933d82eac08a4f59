"""Where the results lie: in `paper/` of the current folder, else in the checkout that the package runs from."""

from __future__ import annotations

from pathlib import Path

from hatdfed_paper.plan import EXPLORE, FULL, Scale
from hatdfed_paper.results import ResultsError


def paper_folder() -> Path:
    """The folder with the results and figures of the repository."""
    here, of_the_source = Path("paper"), Path(__file__).resolve().parents[2]
    return of_the_source if (of_the_source / "results").is_dir() and not (here / "results").is_dir() else here


def results_folder(chosen: Path | None, scale: Scale) -> Path:
    """What the user chose, or the place of this scale's results."""
    if chosen is not None:
        return chosen
    if scale == EXPLORE:
        return paper_folder() / "explored"
    return paper_folder() / "results" if scale == FULL else Path("runs") / f"paper-{scale.name}"


def plan_path(name: str) -> Path:
    """The committed plan of a confirmatory experiment."""
    return paper_folder() / "plans" / f"{name}.toml"


def choice_path(name: str, scale: Scale) -> Path:
    """The settings that were frozen for an experiment, chosen by its first stage."""
    folder = paper_folder() / "plans" if scale == FULL else results_folder(None, scale)
    return folder / f"{name}.choice.json"


def not_frozen(name: str, first: str) -> ResultsError:
    """What to say where an experiment waits for its first stage."""
    return ResultsError(
        f"{name} has no frozen settings yet. Play its first stage with: hatdfed paper run {first}; "
        f"then: hatdfed paper freeze {name}"
    )


def no_results(folder: Path, scale: Scale) -> ResultsError:
    """What to say where a folder has no results: where they are, or how they are made."""
    there = "name the folder paper/results of a checkout of hatdfed" if scale == FULL else "name their folder"
    return ResultsError(
        f"There are no results of scale {scale.name} in {folder}: {there} with --results FOLDER, "
        f"or make them with: hatdfed paper run all --scale {scale.name}"
    )
