"""False reports: what liars tell the coordinator to draw links to themselves and to disturb what it learns.

For experiments only; models are not touched (see `hatdfed.server.attacks` for these). What is caught by checking that a
report is possible (`hatdfed.core.report_check`):

- `joules`: modelled rows are computed again from the prices, the plan and the samples that were claimed. Measured rows
  cannot be.
- `evidence`: 100 samples are more than most probes have.
- `num_samples`: only above what that server can have had. The lie is the largest count of anyone in the round, so it is
  caught by itself only where this server has less data.
- `accuracy` of 1 and losses of 0 and 20 are possible values.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.round import RoundReport, ServerReport

FALSE_ACCURACY = 1.0
LOSS_OF_LIARS = 0.0
LOSS_OF_HONEST = 20.0
HARM_OF_HONEST = 10.0
EVIDENCE = 100.0
JOULES_DIVISOR = 10.0


def falsify(report: RoundReport, liars: NDArray[np.int64]) -> RoundReport:
    """The reports of a round in which the servers `liars` lie.

    Each claims an accuracy of 1, as many samples as anyone trained on in this round, a loss of 0 for the models of
    liars (itself included) and of 20 for all others, harm likewise with much evidence, and a tenth of the joules that
    it spent. Other scores, importances, bits and sketches stay as they are; so does a report that did not come.
    """
    samples = max((each.num_samples for each in report.servers if each is not None), default=0)
    lying = set(liars.tolist())
    told = (
        _falsify(each, liars, samples) if each is not None and server in lying else each
        for server, each in enumerate(report.servers)
    )
    return replace(report, servers=tuple(told))


def _falsify(report: ServerReport, liars: NDArray[np.int64], num_samples: int) -> ServerReport:
    is_liar = np.isin(report.senders, liars)
    false = {
        "loss": np.where(is_liar, LOSS_OF_LIARS, LOSS_OF_HONEST),
        "harm": np.where(is_liar, 0.0, HARM_OF_HONEST),
        "evidence": np.full(len(is_liar), EVIDENCE),
    }
    return report._replace(
        accuracy=FALSE_ACCURACY,
        num_samples=num_samples,
        scores={name: false.get(name, values) for name, values in report.scores.items()},
        energy=tuple(row._replace(joules=row.joules / JOULES_DIVISOR) for row in report.energy),
    )
