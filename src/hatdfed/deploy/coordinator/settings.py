"""The section `deploy` of a coordinator's settings file."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationError

from hatdfed.errors import ConfigError
from hatdfed.setup.config import Count, Positive, Section

_GATHER_SECONDS = 300.0
_NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_RelayName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}@.{1,253}:[0-9]{1,5}$")]


class DeploySettings(Section):
    """When rounds close and how long edges are waited for; all times in seconds."""

    min_servers: Count | None = None
    """The quorum: servers without which no round begins; by default a majority of `servers`."""
    gather_seconds: _NotNegative | None = None
    """How long the first round waits for all servers once the quorum is there; by default 300, or 0 with a
    `min_servers` of one's own."""
    round_seconds: Positive = 600.0
    """A round closes after this time with whoever has reported."""
    beat_seconds: Positive = 5.0
    """How often an edge says that it is alive."""
    away_seconds: Positive = 20.0
    """After this much silence a server counts as away, and no round waits for it."""
    idle_seconds: Positive = 10.0
    """A transfer that has not moved for so long is given up; one that moves may take as long as the round."""
    least_kbit_per_second: Positive = 128.0
    """A transfer that falls behind this rate by `idle_seconds` is cut, and its sender not waited for in this round."""
    relay: _RelayName | None = None
    """NAME@HOST:PORT of a relay (`hatdfed relay`) for edges of which neither can dial the other."""
    certificate_hours: Positive = 720.0
    """How long a certificate is valid; edges renew theirs after two thirds of it."""
    renewal_grace_days: _NotNegative = 30.0
    """How long after its expiry a certificate can still be renewed, by proof of its key."""

    def quorum(self, servers: int) -> int:
        """Return how many of the servers a round needs.

        >>> [DeploySettings().quorum(servers) for servers in (1, 2, 3, 4, 5, 20)]
        [1, 2, 2, 3, 3, 11]
        """
        return min(self.min_servers or servers // 2 + 1, servers)

    @property
    def first_wait(self) -> float:
        """How long the first round waits for all servers, in seconds."""
        if self.gather_seconds is not None:
            return self.gather_seconds
        return _GATHER_SECONDS if self.min_servers is None else 0.0


def split_layer(layer: dict[str, Any]) -> tuple[dict[str, Any], DeploySettings]:
    """Split a user's settings into those of the run and the section `deploy`."""
    rest = {name: value for name, value in layer.items() if name != "deploy"}
    try:
        return rest, DeploySettings.model_validate(layer.get("deploy") or {})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in ("deploy", *first["loc"]))
        raise ConfigError(f"{where}: {first['msg']}; got {first.get('input')!r}.") from None
