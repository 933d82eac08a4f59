"""`python -m hatdfed_paper` is the verb `hatdfed paper`, from source and without an installation."""

from hatdfed.cli.app import run_verb
from hatdfed_paper.cli import app

run_verb(app, "python -m hatdfed_paper")
