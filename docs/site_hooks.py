"""How MkDocs reads this repository: the site has its layout, so that the same relative links work here and there.

Pages are the Markdown documents and the notebooks. What they link to is found by reading their links: pictures and data
are copied; program text and folders, which a browser would download or refuse, get a page that shows them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from github_markdown import to_python_markdown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from play_notebook import read_cells

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("*.md", "docs/**/*.md", "paper/*.md", "benchmarks/*.md", "examples/**/*.md", "examples/*.ipynb")
COPIED = (".png", ".svg", ".json", ".csv")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".cff": "yaml", ".service": "ini", ".toml": "toml"}
COPIED_AS_THEY_ARE = ("docs/site/iframe-worker.js", "docs/site/style.css")
UNSEARCHED = "---\nsearch: {exclude: true}\n---\n"
SOUGHT_FIRST = {"docs/settings.md": 4, "docs/cli.md": 2}  # of equal finds: who seeks a setting wants its meaning
FENCE = "~" * 6  # longer than any fence in what is shown

LINK = re.compile(r"(?<=\]\()(?!https?://|mailto:|#)([^)#\s]+)")
SOURCE = re.compile(r"\b(?:src|srcset)=\"(?!https?://)([^\"]+)\"")


def find_pages() -> list[Path]:
    """The documents of the repository, without what only tests read."""
    return sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace what lies in docs/ by the documents of the whole repository and what they link to."""
    for file in list(files):
        if (file.abs_src_path or "").startswith(config.docs_dir):
            files.remove(file)
    pages = find_pages()
    for path in pages:
        files.append(_make_page(path, config))
    for path in sorted({target for page in pages for target in _linked_files(page)} - set(pages)):
        files.append(_make_linked(path, config))
    for name in COPIED_AS_THEY_ARE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Lead links to what has a page of its own to that page, and write GitHub's Markdown as MkDocs reads it."""
    if page.file.src_uri in SOUGHT_FIRST:
        page.meta["search"] = {"boost": SOUGHT_FIRST[page.file.src_uri]}
    folder = ROOT / Path(page.file.src_uri).parent
    linked = LINK.sub(lambda found: _page_address(folder, found[1]), markdown)
    return to_python_markdown(linked)


def _page_address(folder: Path, target: str) -> str:
    path = (folder / target).resolve()
    return f"{target.rstrip('/')}.md" if path.exists() and _needs_page(path) else target


def _needs_page(path: Path) -> bool:
    return path.is_dir() or path.suffix not in (*COPIED, ".md")


def _make_page(path: Path, config: MkDocsConfig) -> File:
    if path.suffix == ".ipynb":
        return File.generated(config, f"{_address(path)}.md", content=_show_notebook(path))
    return File.generated(config, _address(path), abs_src_path=str(path))


def _make_linked(path: Path, config: MkDocsConfig) -> File:
    if not _needs_page(path):
        return File.generated(config, _address(path), abs_src_path=str(path))
    title = path.name.replace("_", r"\_")  # __init__ is not to be bold
    text = _show_folder(path) if path.is_dir() else f"# {title}\n\n{_show_text(path)}"
    return File.generated(
        config, f"{_address(path)}.md", content=f"{UNSEARCHED}{text}", inclusion=InclusionLevel.NOT_IN_NAV
    )


def _linked_files(page: Path) -> Iterator[Path]:
    """What the links and pictures of a document lead to, and for a folder the data in it."""
    text = page.read_text(encoding="utf-8")
    for target in LINK.findall(text) + SOURCE.findall(text):
        path = (page.parent / target).resolve()
        if path.exists() and path.is_relative_to(ROOT):
            yield path
            if path.is_dir():
                yield from (file for file in path.iterdir() if file.suffix in COPIED)


def _address(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _show_text(path: Path) -> str:
    text = path.read_text(encoding="utf-8").rstrip()
    return f"{FENCE} {LANGUAGES.get(path.suffix, 'text')}\n{text}\n{FENCE}\n"


def _show_folder(folder: Path) -> str:
    """One section for each file of a folder, with its text, or with a link to data."""
    parts = [f"# {_address(folder)}\n"]
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        link = f"[{path.name}]({os.path.relpath(path, folder.parent)})\n"
        parts.append(f"## {path.name}\n\n{link if path.suffix in COPIED else _show_text(path)}")
    return "\n".join(parts)


@cache
def _show_notebook(path: Path) -> str:
    """The cells of a notebook, played now, and what they show. In a process of its own: notebooks change registries."""
    command = [sys.executable, str(ROOT / "docs" / "play_notebook.py"), str(path)]
    played = iter(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))  # noqa: S603
    parts = []
    for kind, text in read_cells(path):
        parts.append(text if kind == "markdown" else f"{FENCE} python\n{text}\n{FENCE}")
        parts += _show_outputs(next(played)) if kind == "code" else []
    return "\n\n".join(parts)


def _show_outputs(shown: dict[str, Any]) -> list[str]:
    words = shown["printed"].rstrip() or ("" if shown["html"] else shown["text"])
    parts = [f"{FENCE} text\n{words}\n{FENCE}"] if words else []
    parts += [f"<div>{shown['html']}</div>"] if shown["html"] else []
    return parts + [
        f'<p><img alt="Figure of the cell above" src="data:image/png;base64,{each}"></p>' for each in shown["pictures"]
    ]
