"""How Sphinx makes the site; ``make docs`` runs it."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))
# Airflow writes a configuration file into its home when it is imported
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="webcollect-docs-")
atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"])

project = "airflow-provider-webcollect"
author = "The airflow-provider-webcollect authors"
release = version_of(project)

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "arguments",
    "citations",
    "commands",
    "links",
]
exclude_patterns = ["extensions"]
myst_heading_anchors = 4
# a single backtick in a docstring
default_role = "literal"

autodoc_typehints = "none"
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 100
add_module_names = False
toc_object_entries_show_parents = "hide"

nitpicky = True
nitpick_ignore_regex = [
    # of Python, Airflow and other packages
    (
        "py:.*",
        r"[a-z]+|[A-Z]|\w+Error|Airflow\w+|Any|Asset|Dataset|DltResource|DuckDBPyRelation|Iterator|SplitResult|pa\.Table|pandas\.DataFrame|polars\.DataFrame",
    ),
    # not public: what users need of them is said where they are given
    (
        "py:.*",
        r"AsyncClient|Client|FileFormat|Folder|Landed|NewParts|Options|Row|Run|Source|WebCollectConnection",
    ),
]

html_theme = "furo"
html_title = f"{project} {release}"
html_show_copyright = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]

# blocks of the language `text` are what a program prints
copybutton_selector = "div:not(.highlight-text) > div.highlight pre"
