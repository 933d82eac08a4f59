"""The dashboard as one application: pages, data, static files, and what is said when something is wrong."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles

from hatdfed.dashboard.api import api_routes
from hatdfed.dashboard.pages import page_routes
from hatdfed.dashboard.safety import Guard
from hatdfed.dashboard.site import HERE, Site, plotly_file
from hatdfed.errors import HatdfedError

_FOR_A_YEAR = {"Cache-Control": "public, max-age=31536000, immutable"}  # its address has its version


def make_app(site: Site, *, listens_at: str = "127.0.0.1") -> FastAPI:
    """The application for a server that listens at that host."""
    app = FastAPI(title="hatdfed", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, listens_at=listens_at)
    app.include_router(page_routes(site))
    app.include_router(api_routes(site))
    script = plotly_file()

    @app.get("/static/plotly-{version}.min.js")
    def plotly(version: str) -> FileResponse:
        return FileResponse(script, media_type="text/javascript", headers=_FOR_A_YEAR)

    app.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
    _explain_trouble(app, site)
    return app


def _explain_trouble(app: FastAPI, site: Site) -> None:
    def explain(request: Request, status: int, sentence: str) -> Response:
        if request.url.path.startswith("/api/"):
            return JSONResponse({"trouble": sentence}, status)
        return site.page("trouble.html", {"status": status, "sentence": sentence}, status)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        sentence = str(error.detail)
        if sentence == "Not Found":
            sentence = "There is no page at this address."
        return explain(request, error.status_code, sentence)

    @app.exception_handler(RequestValidationError)
    async def misunderstood(request: Request, error: RequestValidationError) -> Response:
        return explain(request, 422, "This address asks for something that cannot be.")

    @app.exception_handler(HatdfedError)
    async def broken(request: Request, error: HatdfedError) -> Response:
        return explain(request, 500, str(error))
