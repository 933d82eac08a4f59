"""What all addresses share: the runs, the deployment if there is one, open streams, templates."""

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

from hatdfed.dashboard.cards import Card
from hatdfed.dashboard.catalogue import Catalogue
from hatdfed.dashboard.deployment import Deployment
from hatdfed.dashboard.live import Streams
from hatdfed.errors import MissingDependencyError
from hatdfed.report.words import FILTERS
from hatdfed.version import __version__

HERE = Path(__file__).parent


def _templates() -> Environment:
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
    environment.globals.update(version=__version__, plotly=version("plotly"), marks=style_marks(plotly_file()))
    for name in loader.list_templates():  # now, so that the first reader does not wait for it
        environment.get_template(name)
    return environment


@dataclass(frozen=True)
class Site:
    """One dashboard."""

    catalogue: Catalogue
    deployment: Deployment | None = None
    streams: Streams = field(default_factory=Streams)
    templates: Environment = field(default_factory=_templates)

    def page(self, name: str, content: Mapping[str, Any], status: int = 200) -> HTMLResponse:
        """A page from its template; `place` in its content says which part of the site it is."""
        return HTMLResponse(self.templates.get_template(name).render({"place": "", **content}), status)

    def warm_up(self) -> None:
        """Read all runs beside whatever else is done, so that the first reader finds them read."""
        threading.Thread(target=self.catalogue.cards, daemon=True).start()

    def run(self, run_id: str) -> tuple[Path, Card]:
        """Folder and card of a run; an identifier that is not in the list leads nowhere."""
        found = self.catalogue.find(run_id)
        if found is None:
            raise HTTPException(404, "There is no such run here. It may have been moved or removed.")
        return found


@cache
def style_marks(script: Path) -> list[str]:
    """Names by which plotly's script knows that a style sheet of one of its parts is there already.

    Those parts draw maps, which we have none of. A page that has elements of these names is spared style sheets that
    our policy would refuse.
    """
    return sorted(set(re.findall(r'getElementById\("([0-9a-f]{64})"\)', script.read_text(encoding="utf-8"))))


def plotly_file() -> Path:
    """The charts' script, which comes with the package plotly: nothing is loaded from elsewhere."""
    spec = find_spec("plotly")
    places = list(spec.submodule_search_locations or ()) if spec else []
    files = [Path(place) / "package_data" / "plotly.min.js" for place in places]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise MissingDependencyError("The dashboard needs the package plotly: pip install 'hatdfed[dashboard]'.")
    return found
