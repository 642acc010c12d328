"""Tries the wheel on versions of Airflow and Python, each in a fresh environment, and prints a table."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SMOKE = Path(__file__).with_name("smoke.py")
#: Parts of the checkout, without the package, that the smoke tests and ANSWERS need.
NEEDED = ("demo", "example_dags", "tests/real_airflow", "tests/spans.py")
ANSWERS = "tests/real_airflow/test_answers.py"
FOLDER = Path(".cache/matrix").resolve()
#: The first Python on which a version of Airflow does not run, where that matters.
TOO_NEW = {"2.11": (3, 13), "3.1": (3, 14)}


class Result(NamedTuple):
    """How one combination went."""

    airflow: str
    python: str
    outcome: str
    seconds: float = 0.0
    #: Whether it has failed though it has to work here.
    bad: bool = False

    def __str__(self) -> str:
        return f"Airflow {self.airflow}, Python {self.python}: {self.outcome}"


def main() -> int:
    """Try all combinations; return the exit status, which is 1 if one fails or none could be tried."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--airflow", nargs="+", required=True, help="versions, such as 3.1")
    parser.add_argument("--python", nargs="+", required=True, help="interpreters, such as python3.12")
    arguments = parser.parse_args()

    results = []
    for python in arguments.python:
        for airflow in arguments.airflow:
            results.append(combination(arguments.wheel.resolve(), airflow, python))
            print(results[-1], flush=True)
    print("\n| Airflow | Python | Result | Seconds |\n|---|---|---|---|")
    for result in results:
        print(f"| {result.airflow} | {result.python} | {result.outcome} | {result.seconds:.0f} |")
    return int(any(result.bad for result in results) or not any(result.seconds for result in results))


def combination(wheel: Path, airflow: str, python: str) -> Result:
    """Install the wheel with the newest versions of all else, and run the smoke tests on it."""
    number = version_of(python)
    if number is None:
        return Result(airflow, python, f"not run: no {python} here")
    too_new = TOO_NEW.get(airflow)
    if too_new and number >= too_new:
        return Result(airflow, dotted(number), f"not run: Airflow {airflow} is not for this Python")

    folder = FOLDER / f"airflow-{airflow}-python-{dotted(number[:2])}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    interpreter = folder / "venv" / "bin" / "python"
    tools = ("pytest", "psutil", "filelock")
    requirements = (f"{wheel}[sandbox,duckdb,patterns]", f"apache-airflow=={airflow}.*", *tools)
    if problem := install(python, interpreter, requirements):
        return Result(airflow, dotted(number), f"not installed: {problem}", bad=True)
    release = "import importlib.metadata as m; print(m.version('apache-airflow'), end='')"
    version = run(interpreter, "-c", release).stdout

    begin = time.monotonic()
    # a folder of its own, since pytest would take the settings and the package of the checkout
    shutil.copy(SMOKE, folder)
    for needed in NEEDED:
        if (ROOT / needed).is_dir():
            shutil.copytree(ROOT / needed, folder / needed, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / needed, folder / needed)
    (folder / "pytest.ini").write_text("[pytest]\n")
    tested = run(interpreter, "-m", "pytest", "-p", "no:cacheprovider", SMOKE.name, ANSWERS, folder=folder)
    failed = re.findall(r"^(?:FAILED|ERROR) \S+::(\w+)", tested.stdout, re.MULTILINE)
    if tested.returncode:
        print(tested.stdout + tested.stderr)
    outcome = f"failed: {', '.join(failed) or 'see the output'}" if tested.returncode else "ok"
    seconds = time.monotonic() - begin
    return Result(version, dotted(number), outcome, seconds, bad=bool(tested.returncode))


def version_of(python: str) -> tuple[int, ...] | None:
    """Return an interpreter's version; None if there is no such interpreter."""
    if shutil.which(python) is None:
        return None
    asked = run(python, "-c", "import sys; print(*sys.version_info[:3])")
    # pyenv has a command for each Python of any of its environments, which fails in the others
    return tuple(map(int, asked.stdout.split())) if asked.returncode == 0 else None


def dotted(number: tuple[int, ...]) -> str:
    """Return a version as text."""
    return ".".join(map(str, number))


def install(python: str, interpreter: Path, requirements: tuple[str, ...]) -> str | None:
    """Make an environment; with uv where that works, else with pip, which takes minutes.

    :return: what went wrong, in one line; None if nothing did.
    """
    made = run(python, "-m", "venv", interpreter.parent.parent)
    uv = Path(sys.executable).with_name("uv")
    if uv.exists() and not made.returncode:
        by_uv = run(uv, "pip", "install", "--python", interpreter, "--compile-bytecode", *requirements)
        if by_uv.returncode == 0:
            return None
    if not made.returncode:
        made = run(interpreter, "-m", "pip", "install", "--disable-pip-version-check", *requirements)
    return " ".join(made.stderr.split())[-300:] if made.returncode else None


def run(*command: str | Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command, without ``PYTHONPATH``, and return its exit status and its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
