"""What meters and price list say of the same work in a whole run, beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hatdfed.core.energy.energy_model import Cause
from hatdfed.runs.records.database import RunDatabase


def summarise_measured(database: RunDatabase) -> dict[str, Any]:
    """By cause: measured and modelled joules of what was measured, their ratio, how many rows that is of all."""
    found: dict[str, Any] = {}
    for cause, modelled, measured, rows, all_rows, meters in database.read_measured():
        found[cause] = {
            "measured_joules": measured,
            "modelled_joules": modelled,
            "ratio": measured / modelled if modelled else None,
            "rows": rows,
            "rows_in_all": all_rows,
            "meters": sorted(meters.split(",")),
        }
    return found


def name_energy(source: str, measured: Mapping[str, Any] | None) -> str:
    """How the energy of a run is known, in a few words; `measured` is None where the run has no results yet.

    Only training is calibrated or measured; links and uploads are modelled in every run.

    >>> name_energy("measured", {"training": {"rows": 3, "rows_in_all": 4}})
    'training measured where possible'
    """
    if source == "calibrated":
        return "training calibrated"
    if source != "measured" or (measured is not None and Cause.TRAINING not in measured):
        return "modelled"
    training = None if measured is None else measured[Cause.TRAINING]
    is_whole = isinstance(training, Mapping) and training.get("rows") == training.get("rows_in_all")
    return "training measured" if is_whole else "training measured where possible"


def describe_energy_source(source: str, measured: Mapping[str, Any]) -> list[str]:
    """Sentences on how the energy of a run is known; none where all of it is modelled, as every figure says."""
    training = measured.get(Cause.TRAINING)
    if training is None:
        if source == "measured":
            return ["Energy was to be measured, but no meter was read: all of it is modelled."]
        return [] if source == "modelled" else ["Training energy is calibrated: no meter was read during the run."]
    share = f"{training['rows']} of {training['rows_in_all']} trainings"
    prices = "calibrated profiles" if source == "calibrated" else "the price list"
    ratio = "" if training["ratio"] is None else f", a ratio of {training['ratio']:.3g}"
    said = [
        f"The energy of {share} was measured by {', '.join(training['meters'])}: {training['measured_joules']:.4g} J, "
        f"by {prices} {training['modelled_joules']:.4g} J{ratio}. "
        f"The {source} energy counts. The energy of links is modelled by their bits."
    ]
    if source == "measured" and training["rows"] < training["rows_in_all"]:
        said.append("Trainings that were not measured are charged as modelled; the ledger says which.")
    return said
