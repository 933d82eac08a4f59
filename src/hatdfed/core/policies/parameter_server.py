"""A parameter server: the centralised reference, in which one server averages the models of all in every round.

B. McMahan et al. Communication-efficient learning of deep networks from decentralized data. AISTATS 2017.

All servers send their models to the *host*, one of them, which sends the average back: 2(N − 1) messages. Everybody
ends up with the average of all models, as if everybody had received all of them. So that is what is drawn, and
`LinkDraw.host` says that only links from and to the host carry a message, which is what joules, bits and seconds are
counted for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.links import BoolMatrix, FloatMatrix
from hatdfed.core.policies.base import PolicyContext, Stateless, certain, silence
from hatdfed.core.round import LinkDraw


@dataclass(frozen=True)
class ParameterServer(Stateless):
    """All servers exchange models with one host, as with a parameter server.

    The host is the server whose links from and to all others are cheapest in total, of those that are present.
    """

    name: ClassVar[str] = "parameter-server"
    uses_budget: ClassVar[bool] = False
    has_parameter_server: ClassVar[bool] = True

    def propose(self, state: object, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """Give the models of all servers that reach the host, and that it reaches, to all of these."""
        links = context.links
        possible = links.to_dense(context.possible)
        host = find_host(possible, links.to_dense(context.prices))
        member = _find_members(possible, host)
        drawn = context.possible & links.at_receivers(member) & links.at_senders(member)
        if not drawn.any():
            return silence(context, plans_mixing=False)
        return certain(links, drawn)._replace(host=host)


def find_host(possible: BoolMatrix, prices: FloatMatrix) -> int:
    """The server with the most possible partners; of these, the one with the lowest total price of its links."""
    both = possible & possible.T
    joules = np.where(both, prices + prices.T, 0.0).sum(axis=1)
    return int(np.lexsort([joules, -both.sum(axis=1)])[0])


def _find_members(possible: BoolMatrix, host: int) -> NDArray[np.bool_]:  # -> [N]
    member: NDArray[np.bool_] = possible[host] & possible[:, host]
    member[host] = True
    return member
