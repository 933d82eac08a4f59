"""Settings in YAML files and on the command line, without the features of YAML that settings have no use for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from hatdfed.errors import ConfigError
from hatdfed.setup.methods import METHODS

# What PyYAML raises besides its own errors: for impossible dates, very long numbers, values that do not fit their tag.
_UNREADABLE = (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError)
_LONGEST_INTEGER = 256  # bits
_LONGEST_VALUE = 80  # characters of a value in an error message


class _NotPlainError(Exception):
    """Valid YAML with features that settings may not use; the message is the end of a sentence about its source."""


class _PlainLoader(yaml.SafeLoader):
    """Refuses aliases, which can make a few lines expand without limit, and duplicate keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse an alias before it is expanded."""
        if self.check_event(yaml.AliasEvent):
            alias: Any = self.peek_event()  # type: ignore[no-untyped-call]
            raise _NotPlainError(f"has the alias *{alias.anchor}{_format_line(alias.start_mark)}. Write its value out.")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Refuse a duplicate key, whose first value would be lost."""
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _NotPlainError(f"has {key.value!r} twice{_format_line(key.start_mark)}. Keep one of the two.")
                seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_short_integer(self, node: Any) -> int:
        """Refuse very large integers: no setting needs them, and Python cannot convert them to text."""
        value: int = self.construct_yaml_int(node)
        if value.bit_length() > _LONGEST_INTEGER:
            raise ValueError(f"an integer of more than {_LONGEST_INTEGER} bits")
        return value


_PlainLoader.add_constructor("tag:yaml.org,2002:int", _PlainLoader.construct_short_integer)


def read_yaml(path: Path, what: str = "config file") -> dict[str, Any]:
    """Read the settings in a YAML file, which errors call by what it is."""
    try:
        content = _load_plain_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        hint = f"For the method of this name: --method {path}." if str(path) in METHODS else "Check the path."
        raise ConfigError(f"The {what} {path} cannot be read ({error.strerror}). {hint}") from None
    except _NotPlainError as error:
        raise ConfigError(f"The {what} {path} {error}") from None
    except _UNREADABLE as error:
        place = _format_line(getattr(error, "problem_mark", None))
        raise ConfigError(f"The {what} {path} is not valid YAML{place}. Correct it and try again.") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"The {what} {path} holds a {type(content).__name__}, wanted `key: value` lines.")
    return {str(key): value for key, value in content.items()}


def parse_assignment(text: str) -> dict[str, Any]:
    """Parse an assignment such as `policy.learning_rate=0.02` into a nested layer."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set wants key=value, got {text!r}.")
    try:
        layer: Any = _load_plain_yaml(value) if value.strip() else value
    except yaml.YAMLError:
        layer = value
    except _NotPlainError as error:
        raise ConfigError(f"--set {key.strip()} {error}") from None
    except _UNREADABLE:
        raise ConfigError(
            f"--set {key.strip()} cannot take {format_value(value)}. Put text into quotes of its own."
        ) from None
    for part in reversed(key.strip().split(".")):
        layer = {part: layer}
    return dict(layer)


def _load_plain_yaml(text: str) -> Any:
    loader = _PlainLoader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _format_line(mark: Any) -> str:
    return f" at line {mark.line + 1}" if mark else ""


def format_value(value: object) -> str:
    """Format a value for an error message, shortened where it is long."""
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
