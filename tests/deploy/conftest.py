"""One event loop for all tests: gRPC does not like several in one process."""

import asyncio

import pytest
import torch


@pytest.fixture(scope="session")
def play():
    """Runs a coroutine to its end."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture
def one_thread():
    """As many threads as a small edge has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def eager(monkeypatch):
    """Edges in this process dial again at once."""
    monkeypatch.setattr("hatdfed.deploy.edge.edge.random.random", lambda: 0.0)
