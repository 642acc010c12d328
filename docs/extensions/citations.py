"""Makes links of what docstrings cite: sections of the contract, pages, and names of this package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils.nodes import make_id

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

#: ``contract.md, endpoint 7``, ``contract.md, endpoints 17, 18 and 19``, ``assumptions.md, Status``
SECTION = re.compile(
    r"\b(contract|assumptions)\.md,\s+(endpoints?\s+\d+(?:(?:,| and| to)\s+\d+)*|[A-Z][\w-]*(?: [\w-]+)*)"
)
PAGE = re.compile(r"(?:``)?\bdocs/([\w/-]+)\.md(?:``)?")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect with autodoc, and with what looks up names."""
    app.connect("autodoc-process-docstring", _link)
    app.connect("missing-reference", _by_last_part)
    return {"parallel_read_safe": True}


def _link(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    text = SECTION.sub(
        lambda match: _sections(app, match[1], match[2]), "\n".join(lines)
    )
    lines[:] = PAGE.sub(r":doc:`/\1`", text).splitlines()


def _sections(app: Sphinx, page: str, cited: str) -> str:
    """Return a link to each cited section; the pages that docstrings are on are in ``reference/api``."""
    site = f"../../contributing/{page}.html"
    site = f"../../contributing/{page}.html"
    if not cited.startswith("endpoint"):
        return f"`{page}, {cited} <{site}#{make_id(cited)}>`__"
    ids = {
        match[1]: make_id(match[0])
        for match in re.finditer(
            r"Endpoint (\d+): .*",
            Path(app.srcdir, "contributing", f"{page}.md").read_text(),
        )
    }
    if cited.startswith("endpoint "):
        return f"`{page}, {' '.join(cited.split())} <{site}#{ids[cited.split()[1]]}>`__"
    numbers = re.sub(
        r"\d+", lambda match: f"`{match[0]} <{site}#{ids[match[0]]}>`__", cited
    )
    return f"{page}, {' '.join(numbers.split())}"


def _by_last_part(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contents: nodes.Element
) -> nodes.Element | None:
    """Find a name, such as ``InvalidArgument``, wherever the package defines it, if it does so once."""
    if node.get("refdomain") != "py":
        return None
    last = "." + node["reftarget"].lstrip(".")
    python = env.domains["py"]
    names = [
        name
        for name, entry in python.objects.items()
        if name.endswith(last) and not entry.aliased
    ]
    if len(names) != 1:
        return None
    return python.resolve_xref(
        env, node["refdoc"], app.builder, "obj", names[0], node, contents
    )
