"""`python -m hatdfed` is the command `hatdfed`."""

from hatdfed.cli.app import start

start()
