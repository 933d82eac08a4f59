"""Where the reproduction's files lie: `paper/` in the current folder, else beside the source it runs from."""

from __future__ import annotations

from pathlib import Path

from hatdfed_paper.plan import FULL, Scale


def paper_folder() -> Path:
    """The folder with claims and results."""
    here = Path("paper")
    beside_the_source = Path(__file__).resolve().parents[3] / "paper"
    return here if (here / "claims").is_dir() or not (beside_the_source / "claims").is_dir() else beside_the_source


def results_folder(chosen: Path | None, scale: Scale) -> Path:
    """What the user chose, or the place of this scale's results."""
    if chosen is not None:
        return chosen
    return paper_folder() / "results" if scale == FULL else Path("runs") / f"paper-{scale.name}"
