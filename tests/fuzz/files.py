"""What lies on a disk and may be damaged, or made by somebody else: settings, images, data sets, states and records."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import sqlite3
import struct
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from PIL import Image
from tests.fuzz.damage import change_json, damage, draw_json, draw_noise
from tests.fuzz.harness import MIB, DefectError, Target
from tests.fuzz.messages import edge_key, identity_store

from hatdfed.cli.show import show_command
from hatdfed.core.task import TaskKind
from hatdfed.data.datasets import cifar10, fashion_mnist, load_dataset
from hatdfed.data.datasets.base import SampleFormat
from hatdfed.data.datasets.files import unpack
from hatdfed.data.own.folder import ClassFolders
from hatdfed.data.own.images import OnceWarner
from hatdfed.data.own.source import read_npz_samples
from hatdfed.data.traces.files import read_trace
from hatdfed.deploy.coordinator.backup import CONTENT, make_backup, restore_backup
from hatdfed.deploy.coordinator.durable import DurableCoordinator
from hatdfed.deploy.coordinator.process import CoordinatorOptions, CoordinatorProcess
from hatdfed.deploy.coordinator.settings import DeploySettings
from hatdfed.deploy.edge.export import read_stored_model
from hatdfed.deploy.edge.store import EdgeStore, SavedState
from hatdfed.deploy.identity.certificates import make_csr
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.identity_store import open_identity_store
from hatdfed.deploy.identity.names import edge_id
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.errors import DataError
from hatdfed.runs.records.checkpoint import Checkpoints
from hatdfed.runs.records.folder import RunFolder
from hatdfed.server.optimisers import OptimiserState
from hatdfed.server.program import ServerState
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.simulation import Simulation, make_batch
from hatdfed.setup.layers import read_config, resolve
from hatdfed.setup.plain_yaml import read_yaml
from hatdfed.setup.run_identity import resume_digest
from hatdfed.sweeps.file import read_sweep

FIXTURES = Path(__file__).parents[1] / "fixtures" / "v0.1.0"
_SHAPE = (1, 8, 8)
_FORM = SampleFormat(_SHAPE, np.dtype(np.uint8), TaskKind("classification", 2), (0.5,), (0.5,))
_CLASSES = ("cat", "dog")
_COUNT = 12


class File(NamedTuple):
    """A file under a name that readers expect."""

    name: str
    content: bytes

    def write(self, folder: Path) -> Path:
        """Write it into the folder."""
        path = folder / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.content)
        return path


def _most_bytes(case: Any) -> int:
    return 16 * len(case.content) + 8 * MIB


def _empty(folder: Path) -> Path:
    """The folder, without what earlier cases left in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


# Settings.


@cache
def _settings() -> list[dict[str, Any]]:
    own = {"method": "hat-dfed", "servers": 4, "policy": {"name": "ring"}, "energy": {"link_kbit_per_joule": [20, 50]}}
    return [own, resolve({}).model_dump(mode="json")]


def _make_yaml(rng: Random, sample: Any, name: str) -> File:
    if rng.random() < 0.5:
        changed = change_json(rng, sample)
        return File(name, yaml.safe_dump(changed, allow_unicode=True).encode("utf-8", "surrogatepass"))
    return File(name, damage(rng, yaml.safe_dump(sample).encode()))


def _read_settings(file: File, folder: Path) -> None:
    path = file.write(folder)
    resolve(read_yaml(path))
    read_config(path)


@cache
def _sweeps() -> list[dict[str, Any]]:
    parameters = {
        "learner.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
        "batch_size": {"choices": [32, 64]},
    }
    return [
        yaml.safe_load((FIXTURES / "sweep-file.yaml").read_text()),
        {"base": {"rounds": 2}, "seeds": [0, 1], "search": {"parameters": parameters, "trials": 3}},
        {"grid": {"method": ["rnd", "ring"]}, "zip": {"servers": [5, 10], "rounds": [4, 2]}, "seeds": 2},
    ]


# A server's own images, and data sets.


def _picture(shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(len(shape)).integers(0, 256, shape, dtype=np.uint8)


def _save(write: Callable[[io.BytesIO], object]) -> bytes:
    held = io.BytesIO()
    write(held)
    return held.getvalue()


@cache
def _images() -> list[File]:
    grey = _picture((8, 8))
    image = Image.fromarray(grey)
    return [
        File("a.npy", _save(lambda held: np.save(held, grey))),
        File("a.pgm", b"P5\n# a comment\n8 8\n255\n" + grey.tobytes()),
        File("a.ppm", b"P6 8 8 100\n" + grey.tobytes() * 3),
        File("a.png", _save(lambda held: image.save(held, "PNG"))),
        File("a.jpg", _save(lambda held: image.save(held, "JPEG"))),
    ]


def _make_image(rng: Random) -> File:
    sample = rng.choice(_images())
    if sample.name == "a.npy" and rng.random() < 0.5:
        return File(sample.name, _make_npy(rng))
    return File(sample.name, damage(rng, sample.content))


def _make_npy(rng: Random) -> bytes:
    """A header that claims any shape and type, before few bytes."""
    dtype = rng.choice(("|u1", "<f8", "|O", "<U9", "<f4", ">i2", "|V8", "<M8[s]", "nonsense"))
    shape = tuple(rng.choice((0, 1, 8, 64, -1, 2**20, 2**31, 2**62)) for _ in range(rng.randint(0, 4)))
    header = repr({"descr": dtype, "fortran_order": rng.random() < 0.3, "shape": shape}).encode() + b"\n"
    header = damage(rng, header, most_edits=1)
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) & 0xFFFF) + header + draw_noise(rng, 100)


def _warner() -> OnceWarner:
    return OnceWarner(lambda sentence: None)


def _read_folder(file: File, folder: Path) -> None:
    root = _empty(folder / "own")
    for name in _CLASSES:
        (root / name).mkdir()
    os.utime(file.write(root / _CLASSES[0]), (1, 1))
    images = ClassFolders(root, _SHAPE, 2, most_files=10, warner=_warner(), clock=lambda: 1e6)
    if not images.new(0):
        raise DataError("; ".join(images.skipped) or "nothing was found")


def _make_class_list(rng: Random) -> File:
    return File("classes.txt", damage(rng, "\n".join(_CLASSES).encode()))


def _read_class_list(file: File, folder: Path) -> None:
    root = _empty(folder / "own")
    for name in _CLASSES:
        (root / name).mkdir()
    file.write(root)
    ClassFolders(root, _SHAPE, 2, most_files=10, warner=_warner(), clock=lambda: 1e6).new(0)


def _make_npz(rng: Random) -> File:
    x, y = _picture((_COUNT, 8, 8)), np.arange(_COUNT) % 2
    arrays: dict[str, Any] = {"x": x, "y": y}
    match rng.randint(0, 3):
        case 0:
            arrays["y"] = np.array([draw_json(rng, depth=0) for _ in range(3)], dtype=object)
        case 1:
            arrays["y"] = rng.choice((y - 5, y.astype(float), y * 2**40, y[:3], y[:, None], np.array(3)))
        case 2:
            arrays["x"] = rng.choice((x[:0], x.astype("f8"), x / 255, x[0], np.array(["a"] * _COUNT), x.astype("c16")))
    save = np.savez_compressed if rng.random() < 0.5 else np.savez
    content = _save(lambda held: save(held, **arrays))
    return File("own.npz", damage(rng, content) if rng.random() < 0.6 else content)


def _read_npz(file: File, folder: Path) -> None:
    read_npz_samples(file.write(folder), _FORM, most=100, warner=_warner())


def _make_idx(rng: Random) -> File:
    shape = tuple(rng.choice((2, 2, 2, 0, 28, 2**16, 2**32 - 1)) for _ in range(3))
    body = b"\x00\x00\x08\x03" + struct.pack(">3I", *shape) + bytes(8)
    body = damage(rng, body, most_edits=2)
    return File("images", damage(rng, gzip.compress(body, mtime=0)) if rng.random() < 0.5 else body)


def _make_records(rng: Random) -> File:
    return File("batch.bin", damage(rng, bytes([3]) + bytes(cifar10.RECORD_BYTES - 1)))


@cache
def _archive() -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        member = tarfile.TarInfo("data/one.bin")
        member.size = 100
        archive.addfile(member, io.BytesIO(bytes(100)))
    return gzip.decompress(held.getvalue())


def _make_archive(rng: Random) -> File:
    content = damage(rng, _archive())
    packed = gzip.compress(content, mtime=0)
    return File("data.tar.gz", damage(rng, packed) if rng.random() < 0.3 else packed)


def _read_archive(file: File, folder: Path) -> None:
    root = _empty(folder / "archive")
    unpack(file.write(root), ["data/one.bin"], root / "out", member_bytes=100)
    if [path.name for path in root.rglob("*.bin")] != ["one.bin"]:
        raise DefectError("an archive was unpacked to another place")


# Run folders, journals, stores and identities.


class Damaged(NamedTuple):
    """A copy of a folder with one of its files damaged."""

    file: File
    statements: tuple[tuple[str, tuple[Any, ...]], ...] = ()  # for a database

    @property
    def content(self) -> bytes:
        """The bytes of the damaged file."""
        return self.file.content

    def write(self, source: Path, folder: Path) -> Path:
        """Copy the folder, then damage its file."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        path = self.file.write(folder)
        if self.statements:
            with closing(sqlite3.connect(path)) as database, database:
                for text, values in self.statements:
                    with suppress(sqlite3.Error, UnicodeError):  # not every column takes every value
                        database.execute(text, values)
        return folder


def _damage_one(rng: Random, source: Path, names: Sequence[str]) -> Damaged:
    name = rng.choice(list(names))
    content = (source / name).read_bytes()
    if name.endswith(".sqlite") and rng.random() < 0.7:
        return Damaged(File(name, content), tuple(_change_rows(rng, source / name)))
    if name.endswith(".json") and rng.random() < 0.7:
        return Damaged(File(name, json.dumps(change_json(rng, json.loads(content))).encode()))
    if name.endswith(".yaml") and rng.random() < 0.7:
        return Damaged(_make_yaml(rng, yaml.safe_load(content), name))
    return Damaged(File(name, damage(rng, content)))


def _change_rows(rng: Random, path: Path) -> list[tuple[str, tuple[Any, ...]]]:
    columns = _columns(path)
    changes: list[tuple[str, tuple[Any, ...]]] = []
    for _ in range(rng.randint(1, 2)):
        table = rng.choice(sorted(columns))
        column = rng.choice(columns[table])
        if rng.random() < 0.2:
            changes.append((f"DELETE FROM {table} WHERE rowid % 2 = ?", (rng.randint(0, 1),)))  # noqa: S608 (our names)
        else:
            text = f"UPDATE OR IGNORE {table} SET {column} = ? WHERE rowid % 3 = ?"  # noqa: S608 (our names)
            changes.append((text, (_odd_value(rng), rng.randint(0, 2))))
    return changes


def _odd_value(rng: Random) -> Any:
    value = draw_json(rng, depth=1)
    if isinstance(value, dict | list):
        return json.dumps(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    return draw_noise(rng, 20) if value is None and rng.random() < 0.5 else value


@cache
def _columns(path: Path) -> dict[str, list[str]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {table: [row[1] for row in database.execute(f"PRAGMA table_info({table})")] for table in tables}


_RUN = FIXTURES / "run"
_DEPLOYMENT = FIXTURES / "deployment" / "state"


def _show(case: Damaged, folder: Path) -> None:
    run = case.write(_RUN, folder / "run")
    for as_json in (False, True):
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            show_command(run, as_json)


@cache
def _simulation() -> Simulation:
    config = read_config(_RUN / "config.yaml")
    dataset = load_dataset(config.dataset, options=config.dataset_options)
    return make_batch([config], dataset, Placement("mailbox", "cpu"), ["run"]).simulations[0]


def _read_checkpoint(case: Damaged, folder: Path) -> None:
    coordinator, fleet = _simulation()
    config = read_config(_RUN / "config.yaml")
    run = case.write(_RUN, folder / "run")
    read_stored_model(run, 0)
    Checkpoints(RunFolder(run).checkpoint, resume_digest(config), 1, config.rounds, fleet).restore(coordinator)


def _start_coordinator(case: Damaged, folder: Path) -> None:
    """All that a coordinator reads at its start, but the network."""
    run = case.write(_DEPLOYMENT, folder / "state")
    options = CoordinatorOptions(run, "127.0.0.1:0", Endpoints(None))
    process = CoordinatorProcess(read_config(_DEPLOYMENT / "config.yaml"), DeploySettings(), options)
    journal = process._journal
    try:
        json.dumps(process.status(), allow_nan=False)
        journal.read_links()
        if (manifest := process.hub.manifest) is not None:
            DurableCoordinator(process._config, manifest, journal, lambda: None).restore()  # type: ignore[arg-type, return-value]
    finally:
        journal.close()


@cache
def _sample_state() -> bytes:
    moments = OptimiserState(3, torch.zeros(4), torch.zeros(4))
    server = ServerState(torch.ones(6), moments, torch.zeros(0))
    with tempfile.TemporaryDirectory() as folder:
        EdgeStore(Path(folder)).save(SavedState("run", 3, server, b"report"))
        (path,) = Path(folder).glob("*.safetensors")
        return path.read_bytes()


def _make_state(rng: Random) -> File:
    content = _sample_state()
    if rng.random() < 0.5:
        length = 8 + int.from_bytes(content[:8], "little")
        header = json.dumps(change_json(rng, json.loads(content[8:length]))).encode()
        return File("round-00000003.safetensors", len(header).to_bytes(8, "little") + header + content[length:])
    return File("round-00000003.safetensors", damage(rng, content))


def _read_state(file: File, folder: Path) -> None:
    store = EdgeStore(_empty(folder / "store"))
    file.write(store.folder)
    state = store.load("run")
    if state is not None and state.server.params.shape != (6,):
        raise DefectError("a state of another model was read")


@cache
def _identity_files() -> Path:
    """An authority's folder, and an edge's beside it."""
    store = identity_store()
    store.tokens.create("edge-2", store.lifetime)
    store.deny_list.add("edge-3")
    cert = store.authority.sign(make_csr(edge_key()), edge_id("edge-1"), store.lifetime)
    IdentityFolder(store.authority.folder / "edge").save(edge_key(), cert, store.authority.pem)
    with closing(sqlite3.connect(store.tokens.path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return store.authority.folder


_IDENTITY_NAMES = (
    "ca.pem", "ca-key.pem", "tokens.sqlite", "denied.txt", "coordinator/cert.pem", "edge/key.pem", "edge/cert.pem"
)  # fmt: skip


def _read_identity(case: Damaged, folder: Path) -> None:
    root = case.write(_identity_files(), folder / "ca")
    for name in ("ca-key.pem", "coordinator/key.pem", "edge/key.pem"):
        (root / name).chmod(0o600)
    IdentityFolder(root / "edge").load()
    store = open_identity_store(root)
    store.deny_list.names()
    store.tokens.list()
    store.refresh()


# Backups.


@cache
def _sample_backup() -> dict[str, bytes]:
    """The files of a backup, by their names in it."""
    with tempfile.TemporaryDirectory() as folder:
        state = shutil.copytree(_DEPLOYMENT, Path(folder) / "state")  # SQLite leaves files beside what it reads
        make_backup(state, Path(folder) / "backup")
        root = Path(folder) / "backup"
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _make_backup(rng: Random) -> File:
    """A backup as a .tar file: one of its files damaged, or its list of contents forged, or the whole damaged."""
    files, how = dict(_sample_backup()), rng.choice(("file", "content", "content", "archive"))
    if how == "file":
        name = rng.choice(sorted(files))
        files[name] = damage(rng, files[name])
    elif how == "content":
        content = json.loads(files[CONTENT])
        del content["digest"]
        content = change_json(rng, content)
        if isinstance(content, dict):
            content["digest"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        files[CONTENT] = json.dumps(content).encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return File("backup.tar", damage(rng, packed.getvalue()) if how == "archive" else packed.getvalue())


def _restore(file: File, folder: Path) -> None:
    source, state = file.write(folder), folder / "restored"
    shutil.rmtree(state, ignore_errors=True)
    restore_backup(source, state)
    if {path.name for path in folder.iterdir()} - {"backup.tar", "restored"}:
        raise DefectError("a backup was restored beside its folder")


_TRACE = b"# watts\nseconds linear every 86400, a, b\n0, 0, 0.5\n3600, 1e3, 2\n7200, 3, 4\n"


def _make_trace(rng: Random) -> File:
    return File("trace.csv", draw_noise(rng) if rng.random() < 0.1 else damage(rng, _TRACE))


FILES = [
    Target(
        "trace",
        "file",
        _make_trace,
        lambda file, folder: read_trace("supply.harvest_trace", str(file.write(folder)), 2),
        _most_bytes,
    ),
    Target("backup", "file", _make_backup, _restore, _most_bytes),
    Target(
        "config", "file", lambda rng: _make_yaml(rng, rng.choice(_settings()), "mine.yaml"), _read_settings, _most_bytes
    ),
    Target(
        "sweep-file",
        "file",
        lambda rng: _make_yaml(rng, rng.choice(_sweeps()), "sweep.yaml"),
        lambda file, folder: read_sweep(file.write(folder)),
        _most_bytes,
    ),
    Target("image", "file", _make_image, _read_folder, _most_bytes),
    Target("class-list", "file", _make_class_list, _read_class_list, _most_bytes),
    Target("npz", "file", _make_npz, _read_npz, _most_bytes),
    Target(
        "idx",
        "file",
        _make_idx,
        lambda file, folder: fashion_mnist.read_idx(file.write(folder), dimensions=3),
        _most_bytes,
    ),
    Target("cifar", "file", _make_records, lambda file, folder: cifar10.read_records(file.write(folder)), _most_bytes),
    Target("archive", "file", _make_archive, _read_archive, _most_bytes),
    Target(
        "run-folder",
        "file",
        lambda rng: _damage_one(rng, _RUN, ("config.yaml", "results.json", "run.sqlite")),
        _show,
        _most_bytes,
    ),
    Target(
        "checkpoint",
        "file",
        lambda rng: _damage_one(rng, _RUN, ("checkpoint.safetensors",)),
        _read_checkpoint,
        _most_bytes,
    ),
    Target(
        "journal",
        "file",
        lambda rng: _damage_one(rng, _DEPLOYMENT, ("journal.sqlite", "journal.sqlite", "config.yaml")),
        _start_coordinator,
        _most_bytes,
    ),
    Target("edge-store", "file", _make_state, _read_state, _most_bytes),
    Target(
        "identity",
        "file",
        lambda rng: _damage_one(rng, _identity_files(), _IDENTITY_NAMES),
        _read_identity,
        _most_bytes,
    ),
]
