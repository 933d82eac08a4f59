"""How long a newcomer's first commands take: those of README's "First run", then `make docs` and `make cluster`.

python benchmarks/first_run.py [--out benchmarks/results/first-run-cpu.json]

They are typed into one shell, in a fresh clone of the commit that is checked out. The shell has an empty home, the
programs of the system and no variables besides pip's own (PIP_CONFIG_FILE and others), so everything is installed anew;
how long that takes depends on where packages come from.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LATER = ("make docs", "make cluster")


def read_first_commands(readme: str) -> list[str]:
    """The lines of the first console block under "First run", without their comments."""
    block = re.search(r"^## First run\n.*?^```console\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    if block is None:
        raise SystemExit('README.md has no console block under "First run".')
    return [re.sub(r"\s+#.*", "", line) for line in block[1].splitlines()]


def type_commands(typed: list[str], folder: Path, home: Path) -> list[dict[str, Any]]:
    """Every command with its seconds; the first one that fails ends it all."""
    times = home / "times"
    timed = "begin=$(date +%s.%N)\n{}\necho $begin $(date +%s.%N) >> {}\n"
    script = "set -e\n" + "".join(timed.format(command, times) for command in typed)
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    variables = {"HOME": str(home), "PATH": "/usr/bin:/bin", **kept}
    subprocess.run(["/bin/bash", "-c", script], cwd=folder, env=variables, check=True)  # noqa: S603
    spans = [[float(word) for word in line.split()] for line in times.read_text(encoding="utf-8").splitlines()]
    return [
        {"typed": command, "seconds": round(end - begin, 1)} for command, (begin, end) in zip(typed, spans, strict=True)
    ]


def measure(folder: Path, home: Path) -> dict[str, Any]:
    """Clone, type, and describe the machine as the run that was typed describes it."""
    clone = folder / "hatdfed"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)  # noqa: S603, S607
    cloned = clone.stat().st_ctime
    typed = [*read_first_commands((clone / "README.md").read_text(encoding="utf-8")), *LATER]
    commands = type_commands(typed, clone, home)
    (described,) = clone.glob("runs/*/environment.json")
    return {
        "machine": json.loads(described.read_text(encoding="utf-8")),
        "installed_after_seconds": round((clone / ".venv/.ready").stat().st_mtime - cloned, 1),
        "environment_megabytes": round(_count_bytes(clone / ".venv") / 1e6),
        "commands": commands,
    }


def _count_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as home:
        report = measure(Path(folder), Path(home))
    for command in report["commands"]:
        print(f"{command['seconds']:7.1f} s  {command['typed']}")
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
