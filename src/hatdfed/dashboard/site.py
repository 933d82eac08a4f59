"""What all routes share: the runs, the deployment if there is one, open event streams, templates."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse

from hatdfed.dashboard.catalogue import Card, Catalogue
from hatdfed.dashboard.deployment import DeploymentMonitor
from hatdfed.dashboard.event_streams import EventStreams
from hatdfed.errors import MissingDependencyError
from hatdfed.report.formatting import FILTERS
from hatdfed.version import __version__

HERE = Path(__file__).parent


def _load_templates() -> Environment:
    loader = FileSystemLoader(HERE / "templates")
    environment = Environment(
        loader=loader,
        autoescape=True,
        auto_reload=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    environment.globals.update(
        version=__version__, plotly=version("plotly"), marks=find_style_marks(find_plotly_script())
    )
    for name in loader.list_templates():  # now, so that the first request does not wait for it
        environment.get_template(name)
    return environment


@dataclass(frozen=True)
class Site:
    """One dashboard."""

    catalogue: Catalogue
    deployment: DeploymentMonitor | None = None
    streams: EventStreams = field(default_factory=EventStreams)
    templates: Environment = field(default_factory=_load_templates)

    def render_page(self, name: str, content: Mapping[str, Any], status: int = 200) -> HTMLResponse:
        """Render a page from its template; `section` in its content says which part of the site it belongs to."""
        return HTMLResponse(self.templates.get_template(name).render({"section": "", **content}), status)

    def warm_up(self) -> None:
        """Read all runs in a thread, so that the first request finds them read."""
        threading.Thread(target=self.catalogue.cards, daemon=True).start()

    def find_run(self, run_id: str) -> tuple[Path, Card]:
        """Return the folder and the card of a run; an identifier that is not in the list is a 404."""
        found = self.catalogue.find(run_id)
        if found is None:
            raise HTTPException(404, "There is no such run here. It may have been moved or removed.")
        return found


@cache
def find_style_marks(script: Path) -> list[str]:
    """Find the element ids by which plotly's script knows that a style sheet of one of its parts exists already.

    Those parts draw maps, which the dashboard does not use. On a page that has elements with these ids, plotly does not
    add style sheets that our policy would refuse.
    """
    return sorted(set(re.findall(r'getElementById\("([0-9a-f]{64})"\)', script.read_text(encoding="utf-8"))))


def find_plotly_script() -> Path:
    """Find the script that draws charts; it comes with the package plotly, so nothing is loaded from elsewhere."""
    spec = find_spec("plotly")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = [Path(folder) / "package_data" / "plotly.min.js" for folder in folders]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise MissingDependencyError("The dashboard needs the package plotly: pip install 'hatdfed[dashboard]'.")
    return found
