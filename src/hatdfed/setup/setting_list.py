"""Every setting with its default and its meaning, from the definition of `Config`."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from typing import Any, NamedTuple

from pydantic import BaseModel

from hatdfed.setup.config import Component, Config


class SettingEntry(NamedTuple):
    """One setting, under the name that --set takes."""

    name: str
    default: Any
    meaning: str


def list_settings(model: type[BaseModel] = Config, prefix: str = "") -> list[SettingEntry]:
    """All settings in the order of their definition, those of sections with dots in their names."""
    found: list[SettingEntry] = []
    meanings = _read_meanings(model)
    for name, field in model.model_fields.items():
        value = field.get_default()
        if isinstance(value, Component):
            meaning = f"Name of the {name}; its own settings are written beside `name`, see docs/deviations.md."
            found.append(SettingEntry(f"{prefix}{name}.name", value.name, meaning))
        elif isinstance(value, BaseModel):
            found += list_settings(type(value), f"{prefix}{name}.")
        else:
            meaning = " ".join(meanings.get(name, name.replace("_", " ").capitalize() + ".").split())
            found.append(SettingEntry(f"{prefix}{name}", value, meaning))
    return found


def _read_meanings(model: type[BaseModel]) -> dict[str, str]:
    """The string below each field, read only when settings are listed: with pydantic's own option, every start of the
    command would take a tenth longer."""
    fields = next(node.body for node in ast.parse(inspect.getsource(model)).body if isinstance(node, ast.ClassDef))
    meanings = {}
    for field, below in pairwise(fields):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                meanings[name] = text
    return meanings
