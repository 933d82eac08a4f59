"""Which commit made a result, and whether a plan was committed before it: all that is asked of git."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Any

import hatdfed
from hatdfed.errors import HatdfedError

OUTSIDE = "not in a git checkout"


class PlanError(HatdfedError):
    """A confirmatory experiment whose plan is missing, changed or not committed."""


def code_commit() -> dict[str, Any]:
    """The commit of the code that runs, and whether its files differ from it; null with a note outside a checkout."""
    place = Path(hatdfed.__file__).resolve().parent
    commit = _git(place, "rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "note": OUTSIDE}
    changed = bool(_git(place, "status", "--porcelain", "--untracked-files=no", "--", ":/src", ":/paper/src"))
    return {"commit": commit.strip()} | ({"note": "with uncommitted changes"} if changed else {})


def check_plan(name: str, text: str, path: Path) -> str:
    """The digest of a plan that may be played: its file says `text`, and git has that file in HEAD.

    Outside a checkout git cannot be asked; then the file must be there and say the same, and its digest in the results
    shows later which committed plan they belong to.
    """
    advice = f"write it with `hatdfed paper plan {name} --write` and commit it, or run with --exploratory"
    try:
        written = path.read_text(encoding="utf-8")
    except OSError:
        raise PlanError(f"{name} is confirmatory, but has no plan at {path}: {advice}.") from None
    if written != text:
        raise PlanError(f"{name} is confirmatory, but {path} is not the plan of this code: {advice}.")
    folder = path.resolve().parent
    if _git(folder, "rev-parse", "HEAD") is not None and _git(folder, "show", f"HEAD:./{path.name}") != text:
        raise PlanError(f"{name} is confirmatory, but {path} is not committed as it is: {advice}.")
    return plan_digest(text)


def plan_digest(text: str) -> str:
    """A short name for a plan's text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _git(folder: Path, *words: str) -> str | None:
    """What git answers; None where there is no git, no checkout, or no such thing."""
    try:
        command = ("git", "-C", str(folder), *words)
        done = subprocess.run(command, capture_output=True, check=True, timeout=30)  # noqa: S603 (our own words)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode()
