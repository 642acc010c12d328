"""Draws the package in ``docs/contributing/architecture.md``; ``make docs`` runs it.

The picture has the layers of the import contracts in ``pyproject.toml``, which ``make lint`` checks.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "contributing" / "architecture.md"
PACKAGE = "airflow_provider_webcollect"

BEGIN = "<!-- `make docs` draws this picture from the import contracts in pyproject.toml -->\n"
END = "<!-- end of the picture -->\n"
PICTURE = """
```text
{}```

In these packages, no contract gives the modules an order:

```text
{}```

Other contracts:

{}
"""


def page() -> str:
    """Return the whole page: what is written by hand, with the picture between its two comments."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}{_picture()}{END}{after}"


def _picture() -> str:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    layered = [contract for contract in contracts if contract["type"] == "layers"]
    others = [contract for contract in contracts if contract["type"] != "layers"]
    without_airflow = {
        module
        for contract in others
        if contract.get("forbidden_modules") == ["airflow"]
        for module in contract["source_modules"]
    }
    boxes = {
        package: _rows(package, contract, without_airflow)
        for contract in layered
        for package in contract["containers"]
    }
    names = "".join(f"- {contract['name']}\n" for contract in others)
    return PICTURE.format(_drawn(boxes), _without_order(boxes), names)


def _rows(
    package: str, contract: Mapping[str, Any], without_airflow: set[str]
) -> list[str]:
    """Return the lines of a package's box: its layers, an empty line, and modules that are in no layer."""
    rows = []
    ignored = contract.get("exhaustive_ignores", [])
    for layer in [*contract["layers"], *([""] if ignored else []), *ignored]:
        modules = {f"{package}.{name}" for name in re.findall(r"\w+", layer)}
        row = re.sub(r"\w+", lambda name: _with_slash(package, name[0]), layer)
        is_without = modules and modules <= without_airflow
        rows.append(f"{row}  (no Airflow)" if is_without else row)
    return rows


def _with_slash(package: str, name: str) -> str:
    is_package = (ROOT / package.replace(".", "/") / name).is_dir()
    return f"{name}/" if is_package else name


def _drawn(boxes: Mapping[str, Sequence[str]]) -> str:
    """Return the boxes in two columns; those that begin in the first half of all lines are on the left."""
    lines = [len(rows) for rows in boxes.values()]
    begins = itertools.accumulate(lines, initial=0)
    is_left = [2 * begin < sum(lines) for begin in begins]
    left = list(itertools.compress(boxes, is_left))
    columns = [
        _column({package: boxes[package] for package in packages})
        for packages in (left, [package for package in boxes if package not in left])
    ]
    width = max(map(len, columns[0]))
    pairs = itertools.zip_longest(*columns, fillvalue="")
    return "".join(
        f"{one.ljust(width)}  {other}".rstrip() + "\n" for one, other in pairs
    )


def _column(boxes: Mapping[str, Sequence[str]]) -> list[str]:
    width = max(len(row) for rows in boxes.values() for row in rows)
    lines = []
    for package, rows in boxes.items():
        lines += [
            f"┌─ {_path(package)} ".ljust(width + 3, "─") + "┐",
            *(
                f"│ {row.ljust(width)} │" if row else f"├{'─' * (width + 2)}┤"
                for row in rows
            ),
            f"└{'─' * (width + 2)}┘",
        ]
    return lines


def _without_order(ordered: Iterable[str]) -> str:
    """Return a line for each package without layers: its modules."""
    lines = []
    for file in sorted((ROOT / PACKAGE).rglob("__init__.py")):
        package = ".".join(file.parent.relative_to(ROOT).parts)
        if package not in ordered:
            names = sorted(module.stem for module in file.parent.glob("*.py"))
            names.remove("__init__")
            lines.append(f"{_path(package)}: {', '.join(names)}\n")
    return "".join(lines)


def _path(package: str) -> str:
    """Return the folder of a package, relative to the one of the whole package."""
    return package.removeprefix(f"{PACKAGE}.").replace(".", "/") + "/"


if __name__ == "__main__":
    PAGE.write_text(page())
