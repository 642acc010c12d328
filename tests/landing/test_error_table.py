"""The table of landing's errors in ``docs/reference/errors.md`` names all, and says which are retried."""

from __future__ import annotations

import re
from pathlib import Path

from airflow_provider_webcollect.landing import errors
from airflow_provider_webcollect.landing.errors import LandingError

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
ROW = re.compile(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)
RETRIED = dict(ROW.findall(PAGE.read_text().partition("\n## Landing\n")[2]))
ERRORS = {
    name: error
    for name, error in vars(errors).items()
    if isinstance(error, type) and issubclass(error, LandingError) and error is not LandingError
}


def test_the_table_has_every_error_of_landing() -> None:
    assert set(RETRIED) == set(ERRORS)


def test_the_table_says_which_errors_airflow_retries() -> None:
    it_depends = {name for name, cell in RETRIED.items() if cell.startswith("yes; no if ")}
    assert it_depends == {"LoadFailed", "StorageError", "SomeFailed"}
    for name in RETRIED.keys() - it_depends:
        assert RETRIED[name] == ("no" if ERRORS[name].permanent else "yes"), name
