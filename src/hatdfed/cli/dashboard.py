"""hatdfed dashboard: runs and deployments in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hatdfed.cli.console import note, out
from hatdfed.cli.coordinator import Insecure, InsecureAnywhere
from hatdfed.cli.identity import require_deploy, split_address
from hatdfed.cli.operate import ViewerIdentity
from hatdfed.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from hatdfed.dashboard.deployment import ReadStatus

_PACKAGES = ("fastapi", "jinja2", "plotly", "starlette", "uvicorn")


def dashboard_command(
    runs: Annotated[
        Path, typer.Option("--runs", metavar="DIR", help="Where runs are; folders inside count too.")
    ] = Path("runs"),
    coordinator: Annotated[
        str | None, typer.Option("--coordinator", metavar="HOST:PORT", help="A deployment to watch as well.")
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option("--ca", envvar="HATDFED_CA", help="The coordinator's folder of certificates, on its machine."),
    ] = None,
    identity: ViewerIdentity = None,
    insecure: Insecure = False,
    insecure_anywhere: InsecureAnywhere = False,
    host: Annotated[
        str, typer.Option("--host", help="Where to listen; anything else opens it to others.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 chooses a free one.")] = 8050,
) -> None:
    """Show runs and a deployment in a browser, read-only."""
    with require_dashboard():
        from hatdfed.dashboard.app import listen, make_app, serve
        from hatdfed.dashboard.catalogue import Catalogue
        from hatdfed.dashboard.deployment import DeploymentMonitor, make_finder
        from hatdfed.dashboard.safety import is_local
        from hatdfed.dashboard.site import Site
    if not runs.is_dir():
        raise ConfigError(f"The folder {runs} does not exist. Name the folder of your runs with --runs.")
    catalogue = Catalogue(runs)
    read = _make_status_reader(coordinator, ca, identity, insecure, insecure_anywhere)
    site = Site(catalogue, None if read is None else DeploymentMonitor(coordinator or "", read, make_finder(catalogue)))
    app = make_app(site, listens_at=host)
    listener = listen(host, port)
    site.warm_up()
    if not is_local(host):
        note(f"Everybody who reaches {host} can read these runs: the dashboard has no password and no encryption.")
    shown = f"[{host}]" if ":" in host else host
    out.print(f"hatdfed dashboard at http://{shown}:{listener.getsockname()[1]}/  (Ctrl-C ends it)", soft_wrap=True)
    serve(app, listener)


@contextmanager
def require_dashboard() -> Iterator[None]:
    """Turn a missing package of the dashboard into an error that says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _PACKAGES:
            raise
        raise MissingDependencyError(
            f"This command needs the package {error.name}: pip install 'hatdfed[dashboard]'."
        ) from None


def _make_status_reader(
    coordinator: str | None, ca: Path | None, viewer: Path | None, insecure: bool, forced: bool
) -> ReadStatus | None:
    """Prepare the connection to the coordinator, if one was named."""
    from hatdfed.dashboard.deployment import make_status_reader

    if coordinator is None:
        if insecure:
            raise ConfigError("--insecure says how to reach a coordinator, but none is named: --coordinator HOST:PORT.")
        return None
    with require_deploy():
        from hatdfed.deploy.transport.endpoints import refuse_open_plain_text

        if insecure:
            refuse_open_plain_text(coordinator, forced=forced)
            return make_status_reader(coordinator, None)
        if viewer is not None:
            host, port = split_address(coordinator)
            return make_status_reader(coordinator, viewer, (host, port - 1))
        if ca is None:
            raise ConfigError(
                "A coordinator is asked with a viewer's identity, --identity FOLDER, or with its own certificates, "
                "--ca FOLDER; or with --insecure."
            )
        if not (ca / "coordinator").is_dir():
            raise ConfigError(
                f"{ca} has no folder coordinator with its certificates. Name what `hatdfed ca init` made."
            )
        return make_status_reader(coordinator, ca / "coordinator")
