"""`python -m hatdfed_bench` is the verb `hatdfed bench`, from source and without an installation."""

from hatdfed.cli.app import run_verb
from hatdfed.cli.verbs import as_application
from hatdfed_bench.cli import bench_command

run_verb(as_application(bench_command), "python -m hatdfed_bench")
