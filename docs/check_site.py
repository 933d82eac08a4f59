"""Check a built site: `python docs/check_site.py build/site`.

Every link inside the site leads to a file and a place in it, and no page loads anything from the internet, so that the
site works from a folder without a connection. Links that a reader may follow to other sites are not visited.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

SEARCH_INDEX = "search/search_index.js"  # a script, because a page in a folder may not read JSON
LOADED_ELSEWHERE = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")
# Material's scripts load these from the internet where a page has them.
NEEDS_INTERNET = {"mermaid", "md-source"}


class Reference(NamedTuple):
    """What an element refers to, and whether a browser loads it without being asked."""

    target: str
    is_loaded: bool


class PageReader(HTMLParser):
    """The references of a page, the places that links can lead to, and the classes of its elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[Reference] = []
        self.places: set[str] = {""}
        self.classes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what one element says."""
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        self.classes |= set(given.get("class", "").split())
        if "href" in given and given.get("rel") != "canonical":
            self.references.append(Reference(given["href"], tag == "link" and given.get("rel") not in ("next", "prev")))
        if "src" in given:
            self.references.append(Reference(given["src"], is_loaded=True))
        self.references += [Reference(each.split()[0], True) for each in given.get("srcset", "").split(",") if each]


def check_site(site: Path) -> list[str]:
    """One sentence for each thing that is wrong."""
    pages = {path: PageReader(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = [] if (site / SEARCH_INDEX).is_file() else [f"{SEARCH_INDEX} is missing, so search needs a web server."]
    for path, page in pages.items():
        name = path.relative_to(site)
        found += [f"{name} {problem}" for each in page.references if (problem := _problem(path, each, pages))]
        found += [f"{name} has a {each}, which needs the internet." for each in page.classes & NEEDS_INTERNET]
    for path in sorted(site.rglob("*.css")):
        found += [
            f"{path.relative_to(site)} loads {url}."
            for url in LOADED_ELSEWHERE.findall(path.read_text(encoding="utf-8"))
        ]
    return found


def _problem(page: Path, reference: Reference, pages: dict[Path, PageReader]) -> str | None:
    parts = urlsplit(reference.target)
    if parts.scheme == "data":
        return None
    if parts.scheme or parts.netloc:
        return f"loads {reference.target}." if reference.is_loaded else None
    if page.name == "404.html" and parts.path.startswith("/"):
        return None  # a web server shows it for any address, so its links begin at the root
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page.resolve()
    if target.is_dir() or not target.exists():
        return f"links to {reference.target}, which is no file."
    if target in pages and unquote(parts.fragment) not in pages[target].places:
        return f"links to {reference.target}, but there is no such place on that page."
    return None


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    if not (folder / "index.html").is_file():
        sys.exit(f"There is no site in {folder}. Build it with: make docs")
    problems = check_site(folder)
    sys.exit("\n".join(problems) or 0)
