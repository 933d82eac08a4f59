"""Plays a notebook: `python docs/play_notebook.py NOTEBOOK` writes what its cells show, as JSON.

Notebooks are committed without outputs. The site shows those of its own build, and tests play the same cells. Python's
own compiler is enough for that: a kernel of Jupyter would bring forty packages and a server along.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import os
import sys
import tempfile
from contextlib import chdir, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt


@dataclass(frozen=True)
class Shown:
    """What one cell shows below itself."""

    printed: str = ""
    text: str = ""  # of its last line
    html: str = ""  # of its last line, where that has such a form
    pictures: list[str] = field(default_factory=list)  # PNG in base64


def read_cells(notebook: Path) -> list[tuple[str, str]]:
    """Kind and text of every cell."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [(cell["cell_type"], "".join(cell["source"])) for cell in cells]


def play_notebook(notebook: Path, scope: dict[str, Any]) -> list[Shown]:
    """Play all cells in a temporary folder, with the names in `scope`; one entry for each cell with code."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        return [play_cell(text, scope) for kind, text in read_cells(notebook) if kind == "code"]


def play_cell(text: str, scope: dict[str, Any]) -> Shown:
    """Play one cell. As in Jupyter, its last line is shown, unless a semicolon ends it, and so are its figures."""
    *body, last = ast.parse(text).body
    is_shown = isinstance(last, ast.Expr) and not text.rstrip().endswith(";")
    printed, value = io.StringIO(), None
    with redirect_stdout(printed):
        exec(compile(ast.Module(body if is_shown else [*body, last], []), "cell", "exec"), scope)  # noqa: S102
        if isinstance(last, ast.Expr) and is_shown:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), scope)  # noqa: S307
    html = value._repr_html_() if hasattr(value, "_repr_html_") else ""
    return Shown(printed.getvalue(), "" if value is None else repr(value), html, _take_figures())


def _take_figures() -> list[str]:
    """Every open figure as a picture; afterwards none is open."""
    pictures = []
    for number in plt.get_fignums():
        picture = io.BytesIO()
        plt.figure(number).savefig(picture, format="png", dpi=110)
        pictures.append(base64.b64encode(picture.getvalue()).decode("ascii"))
    plt.close("all")
    return pictures


if __name__ == "__main__":
    os.environ["MPLBACKEND"] = "agg"
    cells = play_notebook(Path(sys.argv[1]).resolve(), {"__name__": "__main__"})
    sys.stdout.write(json.dumps([asdict(cell) for cell in cells]))
