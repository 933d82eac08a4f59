"""Take the expected files out of a downloaded tar archive, and nothing else.

Names in an archive are only compared, never used as paths, so a member called ../x can do no harm.
"""

from __future__ import annotations

import shutil
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from hatdfed.errors import DataError
from hatdfed.learning.datasets.download import publish, writing_under

CHUNK_BYTES = 1 << 20


def unpack(archive: Path, members: Sequence[str], folder: Path, *, member_bytes: int) -> None:
    """Write each of `members`, which must be regular files of this size, into `folder` by its last name."""
    missing = set(members)
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                if member.name in missing:
                    _require_plain(archive, member, member_bytes)
                    source = tar.extractfile(member)
                    if source is not None:
                        _write(source, folder / Path(member.name).name, member_bytes)
                        missing.remove(member.name)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise _spoilt(archive, f"it cannot be unpacked ({error or 'it is cut short'})") from error
    if missing:
        raise _spoilt(archive, f"it lacks {', '.join(sorted(missing))}")


def _require_plain(archive: Path, member: tarfile.TarInfo, wanted_bytes: int) -> None:
    if not member.isreg():
        raise _spoilt(archive, f"its member {member.name} is not a regular file")
    if member.size != wanted_bytes:
        raise _spoilt(archive, f"its member {member.name} has {member.size} bytes, {wanted_bytes} were wanted")


def _write(source: IO[bytes], target: Path, wanted_bytes: int) -> None:
    part = target.with_name(f"{target.name}.part")
    try:
        with writing_under(target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as sink:
                shutil.copyfileobj(source, sink, CHUNK_BYTES)
            if part.stat().st_size != wanted_bytes:
                raise EOFError(f"{target.name} ends after {part.stat().st_size} of {wanted_bytes} bytes")
            publish(part, target)
    finally:
        part.unlink(missing_ok=True)


def _spoilt(archive: Path, reason: str) -> DataError:
    return DataError(f"{archive} is spoilt: {reason}. Delete it and run the same command again.")
