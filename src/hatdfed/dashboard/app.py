"""The dashboard as one application (pages, data, static files, error pages), and the port that serves it."""

from __future__ import annotations

import socket
from contextlib import suppress

import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles

from hatdfed.dashboard.api import api_routes
from hatdfed.dashboard.pages import page_routes
from hatdfed.dashboard.safety import Guard
from hatdfed.dashboard.site import HERE, Site, find_plotly_script
from hatdfed.errors import ConfigError, HatdfedError

_FOR_A_YEAR = {"Cache-Control": "public, max-age=31536000, immutable"}  # its URL has the version in it


def make_app(site: Site, *, listens_at: str = "127.0.0.1") -> FastAPI:
    """Make the application for a server that listens at that host."""
    app = FastAPI(title="hatdfed", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, listens_at=listens_at)
    app.include_router(page_routes(site))
    app.include_router(api_routes(site))
    script = find_plotly_script()

    @app.get("/static/plotly-{version}.min.js")
    def plotly(version: str) -> FileResponse:
        return FileResponse(script, media_type="text/javascript", headers=_FOR_A_YEAR)

    app.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
    _add_error_handlers(app, site)
    return app


def _add_error_handlers(app: FastAPI, site: Site) -> None:
    """Answer errors with a sentence: as JSON under /api, else as a page."""

    def explain(request: Request, status: int, sentence: str) -> Response:
        if request.url.path.startswith("/api/"):
            return JSONResponse({"trouble": sentence}, status)
        return site.render_page("trouble.html", {"status": status, "sentence": sentence}, status)

    @app.exception_handler(HTTPException)
    async def explain_http_error(request: Request, error: HTTPException) -> Response:
        sentence = str(error.detail)
        if sentence == "Not Found":
            sentence = "There is no page at this address."
        return explain(request, error.status_code, sentence)

    @app.exception_handler(RequestValidationError)
    async def explain_bad_request(request: Request, error: RequestValidationError) -> Response:
        return explain(request, 422, "This address has a parameter that is not valid.")

    @app.exception_handler(HatdfedError)
    async def explain_hatdfed_error(request: Request, error: HatdfedError) -> Response:
        return explain(request, 500, str(error))


def listen(host: str, port: int) -> socket.socket:
    """Open a port; raises `ConfigError` if it is taken or the host is not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), port))
        listener.listen(128)  # a browser may connect as soon as the address is printed
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"Cannot listen at {host}:{port} ({error.strerror}). Choose another --port or --host."
        ) from None
    return listener


def serve(app: FastAPI, listener: socket.socket) -> None:
    """Serve until Ctrl-C; open streams are not waited for."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        limit_concurrency=200,
        proxy_headers=False,
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
