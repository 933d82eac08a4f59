"""hatdfed doctor: check that this machine has everything that a run needs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.markup import escape
from rich.table import Table

from hatdfed.cli.console import out, require_torch
from hatdfed.cli.options import DataDir, DatasetName, DeviceName, Json
from hatdfed.data.datasets import DATASETS, load_dataset
from hatdfed.meters.choose import DEFAULT_ORDER, choose_meter
from hatdfed.runs.records.folder import environment
from hatdfed.setup.config import Config
from hatdfed.setup.layers import resolve


class Finding(NamedTuple):
    """The result of one check."""

    what: str
    good: bool
    detail: str


NetworkName = Annotated[str | None, typer.Option("--network", help="Also say how runs of this network are computed.")]


def doctor_command(
    network: NetworkName = None,
    dataset: DatasetName = None,
    data_dir: DataDir = None,
    device: DeviceName = "auto",
    as_json: Json = False,
) -> None:
    """Check this machine; the exit code is 1 if runs cannot work here.

    With --network, a trial step with a few samples of --dataset finds out how its servers are computed, and why.
    """
    findings = [check() for check in (_python, _torch, _kernels, _gpu, _energy, _plots, _digits, _data, _disk)]
    if network is not None:
        findings.append(_network(network, dataset or Config.model_fields["dataset"].default, data_dir, device))
    if as_json:
        typer.echo(json.dumps([finding._asdict() for finding in findings]))
    else:
        table = Table("what", "", "found")
        for finding in findings:
            table.add_row(finding.what, "[green]ok[/]" if finding.good else "[red]missing[/]", escape(finding.detail))
        out.print(table)
    if not all(finding.good for finding in findings):
        raise typer.Exit(1)


def _python() -> Finding:
    here = environment()
    return Finding("machine", True, f"Python {here['python']}, {here['cores']} cores, {here['processor']}")


def _network(network: str, dataset: str, data_dir: Path | None, device: str) -> Finding:
    require_torch()
    from hatdfed.setup.build.placement import Placement
    from hatdfed.setup.build.simulation import foresee_computation

    config = resolve({"network": network, "dataset": dataset})
    data = load_dataset(config.dataset, data_dir=data_dir, options=config.dataset_options)
    return Finding(f"network {network}", True, foresee_computation(config, data, Placement(device=device)))


def _installed(what: str, module: str, package: str, describe: Callable[[], str]) -> Finding:
    if find_spec(module) is None:
        return Finding(what, False, f"{package} is not installed: pip install 'hatdfed[sim]'")
    return Finding(what, True, describe())


def _torch() -> Finding:
    def describe() -> str:
        import torch

        return f"torch {torch.__version__}, {torch.get_num_threads()} threads"

    return _installed("training", "torch", "PyTorch", describe)


def _kernels() -> Finding:
    """Check for the compiled kernels; without them runs are slower but work."""
    if find_spec("torch") is None:
        return Finding("inner loops", True, "unknown without PyTorch")
    from hatdfed.fleets.kernels.native.vectors import native_vectors

    if os.environ.get("HATDFED_NATIVE") == "0":
        return Finding("inner loops", True, "torch, because HATDFED_NATIVE is 0")
    without = "torch; several times faster with a C compiler (cc, gcc or clang)"
    return Finding("inner loops", True, without if native_vectors() is None else "C, compiled for this processor")


def _gpu() -> Finding:
    if find_spec("torch") is None:
        return Finding("GPU", True, "unknown without PyTorch")
    import torch

    name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none; the processor does the work"
    return Finding("GPU", True, name)


def _energy() -> Finding:
    """What energy can be measured here, and why not the rest; runs work without."""
    found = {source: choose_meter((source,)) for source in DEFAULT_ORDER}
    works = [f"{source} ({', '.join(choice.meter.domains)})" for source, choice in found.items() if choice.meter]
    refused = [f"{source}: {choice.refused[source]}" for source, choice in found.items() if source in choice.refused]
    known = f"can be measured by {', '.join(works)}." if works else "is modelled: nothing can be measured here."
    return Finding("energy", True, " ".join([known, *refused]))


def _plots() -> Finding:
    return _installed("plots", "matplotlib", "matplotlib", lambda: "matplotlib")


def _digits() -> Finding:
    return _installed("embedded digits", "sklearn", "scikit-learn", lambda: "scikit-learn")


def _data() -> Finding:
    places = {
        name: kind.locate(None) or ("to install" if kind.install else "to download")
        for name, kind in DATASETS.built_in.items()
    }
    return Finding("data sets", True, ", ".join(f"{name}: {place}" for name, place in places.items()))


def _disk() -> Finding:
    here = Path.cwd()
    free = shutil.disk_usage(here).free / 1e9
    writable = os.access(here, os.W_OK)
    return Finding(
        "disk", writable and free > 0.1, f"{free:.0f} GB free here" if writable else f"{here} is not writable"
    )
