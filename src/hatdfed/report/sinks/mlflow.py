"""Publishes runs to MLflow: to a SQLite database beside the runs, or to a store or server that the user names.

MLflow's telemetry is switched off before it is imported.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatdfed.errors import ConfigError, MissingDependencyError, RunFolderError
from hatdfed.report.sinks.figures import read_published_run

_STORES = ("sqlite:///", "postgresql", "mysql", "mssql", "http://", "https://", "databricks")
_NEEDED = ("mlflow", "sqlalchemy", "alembic")
_LONGEST = 500  # letters of a setting's value, which every store takes
_AT_ONCE = 900  # figures in one call; MLflow takes 1000
_SETTINGS_AT_ONCE = 100
_TAG, _ROUNDS = "hatdfed.run", "hatdfed.rounds"


def require_mlflow() -> None:
    """Raise an error that says what to install if MLflow is missing."""
    if any(find_spec(package) is None for package in _NEEDED):
        raise MissingDependencyError(
            "--mlflow needs MLflow and SQLAlchemy, which are not installed: pip install 'hatdfed[mlflow]'."
        )


def store_address(given: str, folder: Path) -> str:
    """Return the store that the user named, or a SQLite file in `folder`; MLflow's file store is refused.

    >>> store_address("sqlite:///runs.sqlite", Path("x"))
    'sqlite:///runs.sqlite'
    """
    if not given:
        return f"sqlite:///{(folder / 'mlflow.sqlite').resolve()}"
    if not given.startswith(_STORES):
        raise ConfigError(
            f"--mlflow-uri is {given!r}, but must be a database or a server, as in sqlite:///mlflow.sqlite or "
            "https://host. MLflow's own file store is not supported."
        )
    return given


class MlflowStore:
    """Publishes each finished run as an MLflow run, once."""

    def __init__(self, address: str, *, experiment: str, artifacts: Path) -> None:
        require_mlflow()
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        os.environ["DO_NOT_TRACK"] = "true"
        self._address, self._experiment, self._artifacts = address, experiment, artifacts
        self._ready: tuple[Any, str] | None = None

    def __call__(self, name: str, run: Path) -> None:
        """Publish settings, curves and final figures of a run."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # in MLflow's use of SQLAlchemy
            self._publish(name, run)

    def _publish(self, name: str, run: Path) -> None:
        client, experiment = self._client()
        published, now = read_published_run(run), int(1000 * time.time())
        last = published.rounds[-1][0] if published.rounds else 0
        tags = {_TAG: _remove_quotes(name), _ROUNDS: str(last)}
        known = client.search_runs([experiment], f"tags.`{_TAG}` = '{tags[_TAG]}'")
        if any(one.info.status == "FINISHED" and one.data.tags.get(_ROUNDS) == tags[_ROUNDS] for one in known):
            return
        for old in known:  # left behind by a killed process, or the run has been extended since
            client.delete_run(old.info.run_id)
        from mlflow.entities import Metric, Param

        made = client.create_run(experiment, tags=tags, run_name=name).info.run_id
        params = [Param(key, value[:_LONGEST]) for key, value in published.settings]
        points = [*published.rounds, (last, published.final)]
        metrics = [Metric(key, value, now, step) for step, figures in points for key, value in figures.items()]
        for start in range(0, len(params), _SETTINGS_AT_ONCE):
            client.log_batch(made, params=params[start : start + _SETTINGS_AT_ONCE])
        for start in range(0, len(metrics), _AT_ONCE):
            client.log_batch(made, metrics=metrics[start : start + _AT_ONCE])
        client.set_terminated(made)

    def _client(self) -> tuple[Any, str]:
        """Return the client, made on first use because a database takes seconds to set up."""
        if self._ready is None:
            from mlflow import MlflowClient

            for chatty in ("mlflow", "alembic"):
                logging.getLogger(chatty).setLevel(logging.WARNING)
            try:
                client = MlflowClient(self._address)
                known = client.get_experiment_by_name(self._experiment)
                place = (self._artifacts / "mlflow").resolve().as_uri()
                found = client.create_experiment(self._experiment, place) if known is None else known.experiment_id
            except Exception as error:  # noqa: BLE001 (whatever the store's driver raises)
                reason = " ".join(str(error).split())[:300]
                raise RunFolderError(
                    f"MLflow's store {_hide_password(self._address)} cannot be used: {reason}"
                ) from None
            self._ready = client, found
        return self._ready


def _remove_quotes(name: str) -> str:
    return name.replace("'", "").replace("`", "")


def _hide_password(address: str) -> str:
    """Remove the password from an address.

    >>> _hide_password("postgresql://me:secret@host/runs")
    'postgresql://…@host/runs'
    """
    scheme, separator, rest = address.partition("://")
    return f"{scheme}{separator}…@{rest.rpartition('@')[2]}" if "@" in rest else address
