"""The same event loop and threads as the tests of deployments."""

from tests.deploy.conftest import eager, one_thread, play

__all__ = ["eager", "one_thread", "play"]
