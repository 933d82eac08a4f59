"""Settings between versions of hatdfed: what an older version left out is filled in, what it does not know is left out.

A setting that was added later is declared with its version and its neutral value, at which a run is what it was without
it (`run_identity.SETTINGS`). So settings of an older version are completed by neutral values, never by today's
defaults, and an older version can be sent the settings of a run in which all newer ones are neutral.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hatdfed.errors import ConfigError
from hatdfed.setup.config import Config
from hatdfed.setup.run_identity import SETTINGS, Since

Release = tuple[int, int]

# The first release that has the settings of each age; those of the first results are in every release.
_RELEASES: dict[Since, Release] = {Since.FIRST_RESULTS: (0, 1), Since.V0_1: (0, 1), Since.V0_2: (0, 2)}
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})\b")


def fill_in(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Complete the settings of an earlier version by the neutral values of those that came later."""
    filled = dict(settings)
    for key, setting in SETTINGS.items():
        if setting.since is not Since.FIRST_RESULTS:
            _set_if_missing(filled, key, setting.neutral)
    return filled


def settings_for(version: str, config: Config | Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings as a hatdfed of another version reads them; refused where it would play another run."""
    plain = config.model_dump(mode="json") if isinstance(config, Config) else dict(config)
    release = read_release(version)
    newer = [] if release is None else [key for key, own in SETTINGS.items() if _RELEASES[own.since] > release]
    for key in newer:
        if _matters(plain, key):
            raise ConfigError(
                f"hatdfed {version} does not know the setting {key}, which is {_value(plain, key)!r} in this run. "
                "Install a newer version."
            )
    for key in newer:
        plain = _without(plain, key)
    return plain


def _matters(settings: Mapping[str, Any], key: str) -> bool:
    """Whether a run of these settings is another one without this setting."""
    switch = SETTINGS[key].only_with
    return _value(settings, key) != SETTINGS[key].neutral and (switch is None or _matters(settings, switch))


def _value(settings: Mapping[str, Any], key: str) -> Any:
    section, _, name = key.rpartition(".")
    holder = settings.get(section, {}) if section else settings
    return holder.get(name, SETTINGS[key].neutral) if isinstance(holder, Mapping) else None


def _without(settings: dict[str, Any], key: str) -> dict[str, Any]:
    """The settings without one, and without its section if that held no other: the older version has none of it."""
    section, _, name = key.rpartition(".")
    if not section:
        return {other: value for other, value in settings.items() if other != name}
    holder = settings.get(section)
    if not isinstance(holder, Mapping) or name not in holder:
        return settings
    rest = {other: value for other, value in holder.items() if other != name}
    return {**settings, section: rest} if rest else {k: value for k, value in settings.items() if k != section}


def read_release(version: str) -> Release | None:
    """Read the first two numbers of a version; None if it has none.

    >>> read_release("0.2.0.dev0"), read_release("some")
    ((0, 2), None)
    """
    found = _VERSION.match(version)
    return None if found is None else (int(found[1]), int(found[2]))


def _set_if_missing(settings: dict[str, Any], key: str, value: Any) -> None:
    section, _, name = key.rpartition(".")
    if not section:
        settings.setdefault(name, value)
    elif isinstance(there := settings.get(section, {}), Mapping) and name not in there:
        settings[section] = {**there, name: value}
