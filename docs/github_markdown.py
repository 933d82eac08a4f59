"""GitHub's Markdown, in which the documents are written, as Python-Markdown reads it, with which the site is built."""

from __future__ import annotations

import re

MARKER = re.compile(r"<!-- /?[\w-]+ -->")  # of generated parts
ITEM = re.compile(r"(?:[-*]|\d+\.) +")
OPENING = re.compile(r" *(`{3,}|~{3,})")


def to_python_markdown(text: str) -> str:
    """The same document: lists are lists, tables inside <details> are tables, markers of generated parts are gone.

    Commands are coloured as commands: without a prompt in front, `console` would be all output, in grey.
    """
    commands = text.replace("```console", "```bash")
    return _suit_lists(MARKER.sub("", commands).replace("<details>", '<details markdown="1">'))


def _suit_lists(markdown: str) -> str:
    """Put an empty line before a list, and four spaces before what belongs to an item."""
    lines: list[str] = []
    width = 0  # of the marker of the item that we are in
    has_parts = False  # the item consists of more than one paragraph
    fence = ""  # of the code that we are in
    for line in markdown.splitlines():
        item = None if fence else ITEM.match(line)
        opening = None if fence else OPENING.match(line)
        if item:
            lines += [""] if lines and lines[-1].strip() and (has_parts or not width) else []
            width, has_parts = item.end(), False
        elif line.strip() and not line.startswith(" " * width):
            width = 0
        has_parts = has_parts or bool(opening) or not line.strip()
        lines.append("    " + line[width:] if width and not item and line.strip() else line)
        if opening:
            fence = opening[1]
        elif line.strip() == fence:
            fence = ""
    return "\n".join(lines)
