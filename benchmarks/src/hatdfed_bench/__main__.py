"""`python -m hatdfed_bench` is the verb `hatdfed bench`, from source and without an installation."""

import typer

from hatdfed.cli.app import run_verb
from hatdfed_bench.cli import bench_command

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(bench_command)
run_verb(app, "python -m hatdfed_bench")
