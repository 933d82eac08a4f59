"""`python -m hatdfed` is the command `hatdfed`."""

from hatdfed.cli.app import main

main()
