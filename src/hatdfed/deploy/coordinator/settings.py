"""The section `deploy` of a coordinator's settings file."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from hatdfed.errors import ConfigError
from hatdfed.setup.config import Count, Positive, Section


class DeploySettings(Section):
    """When rounds close and how long edges are waited for; all times in seconds."""

    min_servers: Count | None = None
    """Servers without which no round begins; all that `servers` says, unless told otherwise."""
    round_seconds: Positive = 600.0
    """A round closes after this time with whoever has reported."""
    beat_seconds: Positive = 5.0
    """How often an edge says that it is alive."""
    away_seconds: Positive = 20.0
    """After this much silence a server counts as away, and no round waits for it."""
    idle_seconds: Positive = 10.0
    """A transfer that has not moved for so long is given up; one that moves may take as long as the round."""
    certificate_hours: Positive = 24.0
    """How long a certificate is good for; edges renew theirs after two thirds of it."""


def split_layer(layer: dict[str, Any]) -> tuple[dict[str, Any], DeploySettings]:
    """Split a user's settings into those of the run and the section `deploy`."""
    rest = {name: value for name, value in layer.items() if name != "deploy"}
    try:
        return rest, DeploySettings.model_validate(layer.get("deploy") or {})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in ("deploy", *first["loc"]))
        raise ConfigError(f"{where}: {first['msg']}; got {first.get('input')!r}.") from None
