"""Check that the checkout is ready for release under a tag: ``python -m tests.check_release v1.0.0``.

Prints a line for each problem, and exits with 1 if there is one.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def missing(root: Path, tag: str) -> list[str]:
    """Return the problems that prevent the release, as sentences.

    :param root: the checkout.
    :param tag: the tag, such as ``v1.0.0``.
    """
    source = (root / "airflow_provider_webcollect" / "__init__.py").read_text()
    version = re.findall(r'^__version__ = "(.+)"$', source, re.MULTILINE)[0]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    heading = re.findall(
        rf"^## {re.escape(version)} \((.+)\)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    is_candidate = not re.fullmatch(r"[\d.]+", version)
    status = "4 - Beta" if is_candidate else "5 - Production/Stable"
    problems = []
    if tag != f"v{version}":
        problems.append(f"the tag is {tag}, the version {version}: the tag must be v{version}")
    if not heading or not re.fullmatch(r"\d{4}-\d{2}-\d{2}", heading[0]):
        problems.append(f"CHANGELOG.md must have the heading `## {version} (YYYY-MM-DD)`")
    if f"Development Status :: {status}" not in project["classifiers"]:
        problems.append(f"pyproject.toml must have the classifier `Development Status :: {status}`")
    if "Repository" not in project.get("urls", {}):
        problems.append(
            "pyproject.toml must have `[project.urls]` with `Repository`: the long description links to it"
        )
    return problems


if __name__ == "__main__":
    said = missing(Path(__file__).resolve().parent.parent, sys.argv[1])
    print(*said, sep="\n", end="\n" if said else "")
    sys.exit(bool(said))
