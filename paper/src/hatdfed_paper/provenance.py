"""Which commit made a result, and whether a plan was committed before it: all that is asked of git."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hatdfed
from hatdfed.errors import HatdfedError

OUTSIDE = "not in a git checkout"
CHANGED = "with uncommitted changes"
NAMED_BY = "HATDFED_COMMIT"  # names the commit that a copy without git was made of
NAMED = f"not in a git checkout; named by {NAMED_BY}"


class PlanError(HatdfedError):
    """A confirmatory experiment whose plan is missing, changed or not committed."""


def code_commit() -> dict[str, Any]:
    """The commit of the code that runs, and whether its files differ from it.

    Outside a checkout it is the one that is named in the environment, with a note, or null. Sessions also keep a digest
    of the code (`play.source_digest`), by which a named commit can be checked later.
    """
    place = Path(hatdfed.__file__).resolve().parent
    commit = _git(place, "rev-parse", "HEAD")
    if commit is None:
        return _named_commit()
    changed = bool(_git(place, "status", "--porcelain", "--untracked-files=no", "--", ":/src", ":/paper/src"))
    return {"commit": commit.strip()} | ({"note": CHANGED} if changed else {})


def _named_commit() -> dict[str, Any]:
    named = os.environ.get(NAMED_BY)
    if not named:
        return {"commit": None, "note": OUTSIDE}
    if not re.fullmatch(r"[0-9a-f]{40}", named):
        raise PlanError(f"{NAMED_BY} is {named!r}, but must be the 40 digits that `git rev-parse HEAD` prints.")
    return {"commit": named, "note": NAMED}


def refuse_changed_code(names: Sequence[str]) -> None:
    """Refuse to play confirmatory experiments with code that no commit has."""
    if names and code_commit().get("note") == CHANGED:
        raise PlanError(
            f"{' and '.join(names)}: confirmatory, but the code differs from its commit. Commit src/ and paper/src/ "
            "first, or run with --exploratory."
        )


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
