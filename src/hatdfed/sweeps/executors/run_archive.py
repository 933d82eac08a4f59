"""A run folder as plain bytes: how a run comes home from a machine that shares no disk with this one.

A parcel is believed only after a look: known names, the settings that were asked for, every round in the records. A
folder is complete or, as far as anybody can tell, not there: a new one appears under its name in one step, and in one
that was there before results.json comes last, which alone says that a run is finished.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hatdfed.errors import RunFolderError
from hatdfed.runs.play import Job
from hatdfed.runs.records.checkpoint import write_atomically
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.records.reading import reading
from hatdfed.sweeps.catalogue import is_finished

Parcel = Mapping[str, bytes]  # the files of one run folder, by name

# In the order in which they are put into a folder that is there already.
FILES = ("environment.json", "config.yaml", "run.sqlite", "checkpoint.safetensors", "results.json")
_LOG, _INDEX = "run.sqlite-wal", "run.sqlite-shm"  # beside the records of a run that was killed


def pack(folder: Path) -> dict[str, bytes]:
    """All files of a run, finished or not, that nobody is playing now."""
    return {name: (folder / name).read_bytes() for name in (*FILES, _LOG) if (folder / name).is_file()}


def lay_out(parcel: Parcel, folder: Path) -> None:
    """A half-played run where it is to go on; nobody else looks at this folder."""
    _refuse_strangers(parcel, (*FILES, _LOG))
    folder.mkdir(parents=True)
    for name, content in parcel.items():
        (folder / name).write_bytes(content)


def deliver(parcel: Parcel, job: Job, out: Path) -> None:
    """A run, finished or paused, into its folder; a parcel that is not that is refused, and nothing has changed."""
    _refuse_strangers(parcel, FILES)
    with _workshop_beside(out) as workshop:
        fresh = RunFolder(workshop / out.name)
        lay_out(parcel, fresh.path)
        _inspect(job, fresh)
        if (results := fresh.read_results()) is not None:
            fresh.write_json("results.json", {**results, "run_folder": str(out)})  # not where it was played
        for name in set(parcel) - {"results.json"}:
            write_atomically(fresh.path / name, parcel[name])  # safe on the disk before anybody hears of it
        if out.exists():
            _take_over(fresh.path, out)
        else:
            fresh.path.replace(out)


def _refuse_strangers(parcel: Parcel, known: Collection[str]) -> None:
    strange = sorted(set(parcel) - set(known))
    if strange:
        raise RunFolderError(f"A run came back with the file {strange[0][:80]!r}, which none has; it was not accepted.")


def _inspect(job: Job, folder: RunFolder) -> None:
    if not is_finished(job._replace(out=folder.path)):
        raise RunFolderError("A run came back that is not finished or has other settings; it was not accepted.")
    with reading(folder.database) as records:
        progress = records.progress()
    rounds = job.last_round
    if (progress["rounds"], progress["first"], progress["last"]) != (rounds, 0, rounds - 1):
        raise RunFolderError(
            f"A run came back with {progress['rounds']} of its {rounds} rounds in the records; it was not accepted."
        )


def _take_over(fresh: Path, out: Path) -> None:
    """Into a folder that is there. Interrupted anywhere, what is left is a run to begin again or one that is done."""
    for name in ("results.json", "checkpoint.safetensors", _LOG, _INDEX):
        (out / name).unlink(missing_ok=True)
    for name in FILES:
        if (fresh / name).is_file():
            (fresh / name).replace(out / name)


@contextmanager
def _workshop_beside(out: Path) -> Iterator[Path]:
    """A hidden folder on the same disk, gone afterwards."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        workshop = Path(tempfile.mkdtemp(prefix=".arriving-", dir=out.parent))
    except OSError as error:
        raise RunFolderError(
            f"The folder {out} cannot be made ({error.strerror}). Choose another one with --out."
        ) from None
    try:
        yield workshop
    except OSError as error:
        raise RunFolderError(f"The run {out.name} cannot be written to {out.parent} ({error.strerror}).") from None
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
