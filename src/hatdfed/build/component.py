"""A named component with checked settings: its dataclass fields are what may be set."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from hatdfed.config import Component
from hatdfed.errors import ConfigError, did_you_mean, require_one_of

T = TypeVar("T")


def build_component(key: str, component: Component, known: Mapping[str, type[T]], **given: Any) -> T:
    """The component called for, with the user's settings and those of `given` that it has a field for."""
    require_one_of(f"{key}.name", component.name, known)
    maker = known[component.name]
    fields = {field.name for field in dataclasses.fields(maker)}  # type: ignore[arg-type]
    for name in component.settings:
        if name not in fields - set(given):
            hint = did_you_mean(name, fields - set(given)) if fields - set(given) else "It has none."
            raise ConfigError(f"{key} {component.name!r} has no setting {name!r}. {hint}")
    settings = {**{name: value for name, value in given.items() if name in fields}, **component.settings}
    try:
        built: T = TypeAdapter(maker).validate_python(settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join([key, *(str(part) for part in first["loc"][:1])])
        raise ConfigError(f"{place} is {first['input']!r}: {first['msg'].lower()}.") from None
    return built
