"""Write the generated parts of the documents: `python docs/generate.py`, or `--check` to see that they are current.

README.md       the table of `make run`, from docs/make_run/comparison.json, and the table of methods
settings.md     every setting, from the config's own definition
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from pydantic import BaseModel

from hatdfed.cli.tables import COLUMNS, cell
from hatdfed.config import Component, Config
from hatdfed.methods import METHODS

ROOT = Path(__file__).resolve().parent.parent


def make_run_table() -> str:
    """What `make run` printed, as Markdown."""
    rows = json.loads((ROOT / "docs/make_run/comparison.json").read_text(encoding="utf-8"))
    lines = [["method", *(heading for _, heading in COLUMNS)], ["---"] * (1 + len(COLUMNS))]
    lines += [[f"`{row['method']}`", *(cell(row, key) for key, _ in COLUMNS)] for row in rows]
    return "\n".join(_line(line) for line in lines)


def methods_table() -> str:
    """The named recipes."""
    rows = [["name", "what it is"], ["---", "---"]]
    rows += [[f"`{method.name}`", method.summary] for method in METHODS.values()]
    return "\n".join(_line(row) for row in rows)


def settings_page() -> str:
    """Every setting with its default and its meaning."""
    lines = [
        "# Settings",
        "",
        "Written by `docs/generate.py` from `hatdfed.config`. Data sets and methods may bring other defaults; a run's",
        "`config.yaml` has the values that were used. Sections are nested in YAML and dotted after `--set`.",
        "",
        "| setting | default | meaning |",
        "|---|---|---|",
    ]
    return "\n".join([*lines, *_settings(Config, "")]) + "\n"


def _settings(model: type[BaseModel], prefix: str) -> list[str]:
    rows = []
    for name, field in model.model_fields.items():
        value = field.get_default()
        if isinstance(value, Component):
            meaning = f"The {name}; its own settings stand beside `name`, see docs/deviations.md."
            rows.append(_line([f"`{prefix}{name}.name`", f"`{value.name}`", meaning]))
        elif isinstance(value, BaseModel):
            rows += _settings(type(value), f"{prefix}{name}.")
        else:
            meaning = " ".join((field.description or name.replace("_", " ").capitalize() + ".").split())
            rows.append(_line([f"`{prefix}{name}`", f"`{json.dumps(value)}`", meaning]))
    return rows


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def generated() -> dict[Path, str]:
    """Every document that has a generated part, as it should read."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, table in (("make-run-table", make_run_table()), ("methods-table", methods_table())):
        readme = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)",
            lambda m, t=table: f"{m[1]}{t}\n{m[2]}",
            readme,
            flags=re.DOTALL,
        )
    return {ROOT / "README.md": readme, ROOT / "docs/settings.md": settings_page()}


if __name__ == "__main__":
    stale = [
        path for path, text in generated().items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if "--check" in sys.argv:
        sys.exit(f"out of date: {', '.join(map(str, stale))}; run docs/generate.py" if stale else 0)
    for path in stale:
        path.write_text(generated()[path], encoding="utf-8")
