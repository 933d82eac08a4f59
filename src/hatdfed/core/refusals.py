"""The words under which models that could not be used are counted, and what a run says about them."""

from __future__ import annotations

from collections.abc import Mapping

NOT_FINITE = "not-finite"  # a received model
OWN_NOT_FINITE = "own-not-finite"  # a server's own model: it went back to a finite one
NOTHING_FINITE = "nothing-finite"  # likewise, but there was none to go back to and none was received

_ABOUT_OWN = {
    OWN_NOT_FINITE: "A server's own model was not finite {}; the server went back to a finite model.",
    NOTHING_FINITE: "A server had no finite model, neither its own nor a received one, {}: its accuracy means nothing.",
}


def describe_own(refused: Mapping[str, int]) -> list[str]:
    """Sentences about servers whose own model was not finite."""
    counts = {word: refused.get(word, 0) for word in _ABOUT_OWN}
    return [_ABOUT_OWN[word].format("once" if n == 1 else f"{n} times") for word, n in counts.items() if n]


def describe_received(refused: Mapping[str, int]) -> list[str]:
    """A sentence about models that their receivers refused."""
    counts = ", ".join(f"{count} {word}" for word, count in sorted(refused.items()) if word not in _ABOUT_OWN)
    return [f"Models were refused by their receivers: {counts}."] if counts else []
