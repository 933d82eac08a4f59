"""Settings of the whole suite: repeatable examples, no deadlines, one thread for torch."""

import logging

import pytest
import torch
from hypothesis import settings
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from hatdfed import registry

# Examples are derived from the test's name, so a run on another day tries the same ones.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=40, database=None)
settings.load_profile("repeatable")

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def usual_logs():
    """Commands of a deployment send the log to where they are told; for the next test it goes where it went before."""
    loggers = [logging.getLogger(name) for name in ("hatdfed", "asyncio", "grpc")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    yield
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture(autouse=True)
def usual_sources(monkeypatch):
    """Modules that add things in a test are not imported by worker processes of the next one."""
    monkeypatch.setattr(registry, "_sources", dict(registry._sources))


@pytest.fixture(scope="session")
def write_blank_picture():
    """What stands in for drawing, which takes most of a picture's time: the file is there, with nothing on it."""
    return lambda canvas, path, **_: Image.new("RGB", (1, 1)).save(path, "PNG")


@pytest.fixture
def blank_pictures(monkeypatch, write_blank_picture):
    """Figures are made up to the last label, and then not drawn: for tests of what stands around them."""
    monkeypatch.setattr(FigureCanvasAgg, "print_png", write_blank_picture)


def pytest_terminal_summary(terminalreporter):
    """Say which random schedules were tried, so that the same or others can be tried again."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    tried = [value for report in reports for name, value in report.user_properties if name == "schedules"]
    if tried:
        terminalreporter.write_line(f"Random schedules: {'; '.join(sorted(set(tried)))}.")
