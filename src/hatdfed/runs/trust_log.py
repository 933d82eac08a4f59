"""What is kept of a policy's beliefs: a row for every change of a server and, at intervals, the verdicts on all links.

Rows say what holds for a server from their round on, so that the last row of every server describes the present.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.beliefs import NO_GROUP, Beliefs, Groups, number_groups
from hatdfed.core.links import BoolMatrix, FloatMatrix

MOST_VERDICTS = 40  # matrices of verdicts that are kept of a run

Verdicts = NDArray[np.float32]  # [N, N] row receives, nan: unknown


class TrustChange(NamedTuple):
    """One row: what is new about a server after a round."""

    t: int
    server: int
    state: str
    group_number: int | None
    reason: str
    verdict_left: float | None = None  # mean of the verdicts between it and those who left its group, or whom it left
    verdict_joined: float | None = None  # the same of those who are in its group now, but were not before


class KeptBeliefs(NamedTuple):
    """The beliefs that are on record, and the verdicts that were kept last."""

    state: tuple[str, ...] = ()
    group: Groups = np.empty(0, dtype=np.int64)
    verdicts: Verdicts | None = None


class NewBeliefs(NamedTuple):
    """What is to be kept of one round."""

    changes: list[TrustChange]
    verdicts: Verdicts | None = None


def is_verdict_round(t: int, rounds: int) -> bool:
    """Whether verdicts are kept after round t: at equal intervals, and after the last round."""
    every = -(-rounds // MOST_VERDICTS)
    return (t + 1) % every == 0 or t + 1 == rounds


def find_new_beliefs(
    kept: KeptBeliefs, t: int, beliefs: Beliefs, *, with_verdicts: bool
) -> tuple[KeptBeliefs, NewBeliefs]:
    """What of these beliefs is not on record yet, and the record with it; verdicts only if asked for."""
    group = number_groups(kept.group, beliefs.group)
    changes = _find_changes(kept, t, beliefs, group)
    verdicts = _find_new_verdicts(kept.verdicts, beliefs) if with_verdicts else None
    now_kept = KeptBeliefs(beliefs.state, group, kept.verdicts if verdicts is None else verdicts)
    return now_kept, NewBeliefs(changes, verdicts)


def restore_kept(changes: Iterable[TrustChange], verdicts: Verdicts | None) -> KeptBeliefs:
    """Restore what is on record from rows that were read back."""
    last = {change.server: change for change in changes}
    rows = [last[server] for server in sorted(last)]
    if [row.server for row in rows] != list(range(len(rows))):
        return KeptBeliefs()  # rows were lost: everything is kept again from here on
    group = [NO_GROUP if row.group_number is None else row.group_number for row in rows]
    return KeptBeliefs(tuple(row.state for row in rows), np.array(group, dtype=np.int64), verdicts)


def _find_new_verdicts(kept: Verdicts | None, beliefs: Beliefs) -> Verdicts | None:
    """All verdicts; None where they are as they were kept, or nothing is known yet."""
    verdicts = beliefs.links.to_dense(beliefs.verdict, np.nan).astype(np.float32)
    if kept is None:
        return verdicts if np.isfinite(verdicts).any() else None
    return None if np.array_equal(verdicts, kept, equal_nan=True) else verdicts


def _find_changes(kept: KeptBeliefs, t: int, beliefs: Beliefs, group: Groups) -> list[TrustChange]:
    before = np.full(len(group), NO_GROUP)
    before[: len(kept.group)] = kept.group
    state = (*kept.state, *[""] * (len(group) - len(kept.state)))
    is_new = [old != new for old, new in zip(state, beliefs.state, strict=True)]
    changed = np.flatnonzero((before != group) | is_new | np.array([bool(reason) for reason in beliefs.reason]))
    if not len(changed):
        return []
    left, joined = (means.tolist() for means in _mean_verdicts(beliefs, before, group))
    return [
        TrustChange(
            t,
            server,
            beliefs.state[server],
            None if group[server] == NO_GROUP else int(group[server]),
            _find_reason(server, kept, beliefs, before, group, left[server], joined[server]),
            _finite_or_none(left[server]),
            _finite_or_none(joined[server]),
        )
        for server in changed.tolist()
    ]


def _find_reason(
    server: int, kept: KeptBeliefs, beliefs: Beliefs, before: Groups, group: Groups, left: float, joined: float
) -> str:
    """The policy's own reason, or what the verdicts show."""
    if beliefs.reason[server]:
        return beliefs.reason[server]
    if server >= len(kept.state):
        return "joined" if kept.state else "start"
    if left < 0:
        return "harm"
    if joined > 0:
        return "fit"
    gone = np.flatnonzero((before != NO_GROUP) & (before == before[server]) & (group != group[server]))
    return "others left" if len(gone) and all(beliefs.reason[other] for other in gone) else "hearsay"


def _mean_verdicts(beliefs: Beliefs, before: Groups, group: Groups) -> tuple[FloatMatrix, FloatMatrix]:  # [N], [N]
    """Mean verdict between each server and those it no longer, or only now, shares a group with; nan of none."""
    size = len(group)
    if not beliefs.links.has_all:
        return np.full(size, np.nan), np.full(size, np.nan)
    verdict = beliefs.links.to_dense(beliefs.verdict, np.nan)
    was, now = _share_group(before), _share_group(group)
    return _mean_over(verdict, was & ~now), _mean_over(verdict, now & ~was)


def _share_group(group: Groups) -> BoolMatrix:  # -> [N, N]
    together: BoolMatrix = (group[:, None] == group) & (group != NO_GROUP)
    return together


def _mean_over(verdict: FloatMatrix, chosen: BoolMatrix) -> FloatMatrix:  # -> [N]
    """Mean of the known verdicts of each server about the chosen others, and of these about it."""
    known = chosen & np.isfinite(verdict)
    total = np.where(known, verdict, 0.0)
    count = known.sum(axis=1) + known.sum(axis=0)
    mean: FloatMatrix = np.where(count > 0, (total.sum(axis=1) + total.sum(axis=0)) / np.maximum(count, 1), np.nan)
    return mean


def _finite_or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None
