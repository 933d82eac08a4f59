"""The documentation site: its navigation, and the checks that `make docs` makes of the built site."""

import ast
import runpy
import sys
from pathlib import Path

import pytest
import yaml

import hatdfed

ROOT = Path(__file__).resolve().parents[2]
FINE = '<link rel="stylesheet" href="style.css"><h1 id="top">A</h1><a href="b.html#there">b</a><img src="a.png">'


class PlainLoader(yaml.SafeLoader):
    """Reads mkdocs.yml without making the objects that it names."""


PlainLoader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


def leaves(nav):
    """The pages of a navigation, in order."""
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in leaves(part)]


def navigation():
    return leaves(yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), PlainLoader)["nav"])  # noqa: S506


def test_every_page_is_in_the_navigation_once():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "paper/README.md", ROOT / "examples/README.md"]
    wanted = {page.relative_to(ROOT).as_posix() for page in pages}
    named = navigation()
    assert wanted - set(named) == set()
    assert len(named) == len(set(named))


def test_the_navigation_names_files_that_exist():
    named = [ROOT / name.replace(".ipynb.md", ".ipynb") for name in navigation()]
    assert [path for path in named if not path.is_file()] == []


@pytest.fixture
def site(tmp_path):
    """A site of two pages without fault."""
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "search_index.js").write_text("var __index = {}")
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "style.css").write_text("p { background: url(a.png) }")
    (tmp_path / "index.html").write_text(FINE)
    (tmp_path / "b.html").write_text(
        '<p id="there"><a href="index.html">a</a> <a href="https://example.org">out</a></p>'
    )
    return tmp_path


def check(site, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["docs/check_site.py", str(site)])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / "docs" / "check_site.py"), run_name="__main__")
    return stop.value.code


def test_a_site_without_fault_passes(site, monkeypatch):
    assert check(site, monkeypatch) == 0


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("c.html", '<a href="d.html">d</a>', "c.html links to d.html, which is no file."),
        ("c.html", '<a href="search/">d</a>', "c.html links to search/, which is no file."),
        ("c.html", '<a href="b.html#here">b</a>', "c.html links to b.html#here, but there is no such place"),
        ("c.html", '<a href="#here">b</a>', "c.html links to #here, but there is no such place"),
        ("c.html", '<script src="https://example.org/a.js"></script>', "c.html loads https://example.org/a.js."),
        ("c.html", '<link rel="stylesheet" href="//example.org/a.css">', "c.html loads //example.org/a.css."),
        ("c.html", '<source srcset="dark.png">', "c.html links to dark.png, which is no file."),
        ("c.html", '<pre class="mermaid"></pre>', "c.html has a mermaid, which needs the internet."),
        ("style.css", '@import "https://example.org/font.css";', "style.css loads https://example.org/font.css."),
    ],
)
def test_a_fault_of_a_site_is_found(name, content, why, site, monkeypatch):
    (site / name).write_text(content)
    assert why in check(site, monkeypatch)


def test_a_site_without_an_index_for_search_is_refused(site, monkeypatch):
    (site / "search" / "search_index.js").unlink()
    assert "search_index.js is missing" in check(site, monkeypatch)


def test_lists_of_github_are_lists_on_the_site():
    to_python_markdown = runpy.run_path(str(ROOT / "docs" / "github_markdown.py"))["to_python_markdown"]
    text = "Text\n- one\n  more\n- two\n\n1. a\n\n   ```\n   - code\n   ```\n2. b\n\n```\nx\n- y\n```"
    assert to_python_markdown(text) == (
        "Text\n\n- one\n    more\n- two\n\n1. a\n\n    ```\n    - code\n    ```\n\n2. b\n\n```\nx\n- y\n```"
    )


def test_marks_of_generated_parts_are_not_on_the_site():
    to_python_markdown = runpy.run_path(str(ROOT / "docs" / "github_markdown.py"))["to_python_markdown"]
    assert to_python_markdown("- of\n  <!-- a-part -->3 %<!-- /a-part -->.") == "- of\n    3 %."


def test_every_public_name_is_on_the_page_of_the_api():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert [name for name in hatdfed.__all__ if f"hatdfed.{name}" not in page] == ["__version__"]


def test_every_public_name_can_be_found_without_running_the_package():
    tree = ast.parse(Path(hatdfed.__file__).read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(hatdfed.__all__) <= imported, "the API reference and type checkers read the imports, not __getattr__"
