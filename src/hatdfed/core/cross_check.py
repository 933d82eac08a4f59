"""What receivers say about the same models in the same round, compared.

Two servers agree if each says that the other's model does it no harm: by their own words their data fit together. A
server that calls a model harmful is contradicted if most servers that it agrees with say that the model does them no
harm, and the sender says the same of the server's own model. Honest servers are contradicted about a model here and
there, because data differ; one that is contradicted about several models at once, and about many of those that can be
compared, tells different stories to set apart servers that belong together.

A minority whose data differ is compared with its own kind only, and whoever agrees with fewer than three others is
compared with nobody: a server that calls all others harmful keeps itself apart, and nobody else. So liars who speak
well of each other only, or who outnumber the honest servers that they praise, are not found.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hatdfed.core.links import BoolMatrix, LinkTable
from hatdfed.core.round import RoundReport

_EVIDENCE = 15.0  # samples behind a verdict that is compared
_NO_HARM = 0.5  # at most: the model fits
_MUCH_HARM = 1.0  # at least: all that the receiver knows would be lost
_WITNESSES = 3  # that it agrees with, for each model
_MAJORITY = 0.75  # of them
_MODELS = 5  # about which it is contradicted, at least
_SHARE = 0.5  # of all that can be compared, at least


class _Comparison(NamedTuple):
    agrees: BoolMatrix  # [N, N] each says that the other's model does it no harm
    is_praised: BoolMatrix  # [N, N] the verdict of the row on the column can be compared: others speak well of it
    is_contradicted: BoolMatrix  # [N, N] of them: where the row calls the column's model harmful


def find_contradictions(report: RoundReport, links: LinkTable) -> dict[int, str]:
    """Which servers contradict those they agree with, and about whom, in a sentence."""
    if not links.has_all or not _has_enough(report):
        return {}
    found = _compare(report, links)
    contradicted, compared = found.is_contradicted.sum(axis=1), found.is_praised.sum(axis=1)
    suspects = np.flatnonzero((contradicted >= _MODELS) & (contradicted >= _SHARE * compared))
    return {int(server): _describe(found, int(server)) for server in suspects}


def _has_enough(report: RoundReport) -> bool:
    """Whether anybody has judged as many models as a contradiction takes."""
    harms = [each.scores["harm"] for each in report.servers if each is not None and "harm" in each.scores]
    return max(map(len, harms), default=0) > _MODELS + _WITNESSES


def _compare(report: RoundReport, links: LinkTable) -> _Comparison:
    harm, evidence = report.scores("harm", links), report.scores("evidence", links)
    is_known = np.isfinite(harm) & (np.nan_to_num(evidence) >= _EVIDENCE)
    known = links.to_dense(is_known)
    fits, harms = (links.to_dense(is_known & each) for each in (harm <= _NO_HARM, harm >= _MUCH_HARM))
    agrees = fits & fits.T
    witnesses, in_favour = agrees.astype(np.float64) @ known, agrees.astype(np.float64) @ fits
    is_praised = known & fits.T & (witnesses >= _WITNESSES) & (in_favour >= _MAJORITY * witnesses)
    return _Comparison(agrees, is_praised, is_praised & harms)


def _describe(found: _Comparison, server: int) -> str:
    about, friends = (np.flatnonzero(each[server]).tolist() for each in (found.is_contradicted, found.agrees))
    return (
        f"It called the models of servers {_list(about)} harmful, in contradiction to servers {_list(friends)}, "
        "with which it agrees otherwise."
    )


def _list(servers: list[int]) -> str:
    more = f" and {len(servers) - 5} more" if len(servers) > 5 else ""
    return ", ".join(map(str, servers[:5])) + more
