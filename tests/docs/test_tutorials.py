"""The Python of the tutorials runs as it stands."""

import re
from pathlib import Path

import matplotlib as mpl
import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "written"),
    [("first-run.md", "runs/from-python/results.json"), ("comparison.md", "comparison.pdf")],
)
def test_the_python_of_a_tutorial_runs(page, written, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(mpl.rcParams, "backend", "agg")
    scope = {"__name__": "tutorial"}
    for code in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(code, page, "exec"), scope)  # noqa: S102
    assert (tmp_path / written).stat().st_size > 0
