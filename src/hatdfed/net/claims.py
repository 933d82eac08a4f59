"""Two processes with one name: a restart is let in, a second copy is not."""

from __future__ import annotations

from hatdfed.errors import HatdfedError
from hatdfed.net.membership import Member, Membership

STARTED_TWICE = "started-twice"  # as it is counted among refusals


class NameTakenError(HatdfedError):
    """Another process has this name; whether it is surely alive, or may have died without a word."""

    def __init__(self, sentence: str, *, is_sure: bool) -> None:
        super().__init__(sentence)
        self.is_sure = is_sure


def refuse_second(membership: Membership, member: Member, process: str, now: float) -> None:
    """Whose line is open is there, unless it has been silent until it counts as away: then its place is free."""
    is_another = bool(process) and member.process not in ("", process)
    if not is_another or not membership.is_alive(member, now):
        return
    if membership.is_alive_beside(member, process, now):
        raise NameTakenError(
            f"{member.name} already takes part as another process, perhaps on another machine. Stop that one first, or "
            "give this one an identity of its own.",
            is_sure=True,
        )
    raise NameTakenError(
        f"{member.name} is still connected as another process, which may be dead; this one gets in once that is sure",
        is_sure=False,
    )
