"""Writes the tables of ``docs/reference/errors.md`` from the classes of errors; ``make docs`` runs it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from airflow_provider_webcollect.landing import errors as landing
from airflow_provider_webcollect.service import errors as service

PAGE = Path(__file__).parent / "reference" / "errors.md"

BEGIN = "<!-- `make docs` writes this table from {} -->\n"
END = "<!-- end of the table -->\n"
CLASSES = """
| Error | Meaning, and what to do | Retried |
|---|---|---|
"""
CODES = """
| Error | Codes | HTTP status with another code |
|---|---|---|
"""
#: Where to read more on what to do.
MORE = {
    "ChecksFailed": "../guides/notice-when-a-site-changes.md#decide",
    "NotFound": "collection-tasks.md",
    "OutcomeUnknown": "../guides/ask-a-person.md#whether-a-start-took-effect",
    "PermissionDenied": "../contributing/contract.md#required-plan-tiers",
    "SourceReset": "landing.md#if-the-source-has-lost-rows",
    "TokenStoreUnavailable": "connection.md#where-tokens-are-kept",
}
#: What the service answers with most errors, and with those that the status tells apart.
STATUSES = (200, 400, 401, 403, 404, 408, 429, 500)


def page() -> str:
    """Return the whole page: what is written by hand, with the tables between their comments."""
    text = PAGE.read_text()
    tables = {
        "service/errors.py": CLASSES + "".join(map(_row, _errors(service))),
        "landing/errors.py": CLASSES + "".join(map(_row, _errors(landing))),
        "the codes in service/errors.py": CODES + "".join(_codes()),
    }
    for source, table in tables.items():
        begin = BEGIN.format(source)
        before, _, rest = text.partition(begin)
        after = rest.partition(END)[2]
        text = f"{before}{begin}{table}\n{END}{after}"
    return text


def _errors(module: ModuleType) -> Iterator[type[Exception]]:
    """Yield the errors of a module that are raised."""
    for kind in vars(module).values():
        is_own = inspect.isclass(kind) and kind.__module__ == module.__name__
        if is_own and not _paragraphs(kind)[0].startswith("Base of "):
            yield kind


def _paragraphs(kind: type[Exception]) -> list[str]:
    """Return the paragraphs before the fields of a docstring, as Markdown."""
    text, _, _ = inspect.cleandoc(kind.__doc__ or "").partition("\n\n:")
    return [" ".join(part.replace("``", "`").split()) for part in text.split("\n\n")]


def _row(kind: type[Exception]) -> str:
    meaning, *more = _paragraphs(kind)
    meaning, _, condition = meaning.partition(" It is permanent if ")
    texts = [meaning, getattr(kind, "advice", ""), *more]
    if link := MORE.get(kind.__name__):
        texts.append(f"[More]({link})")
    said = " ".join(filter(None, texts))
    return f"| `{kind.__name__}` | {said} | {_retried(kind, condition.rstrip('.'))} |\n"


def _retried(kind: type[Exception], condition: str) -> str:
    by = "client" if getattr(kind, "retryable", False) else "Airflow"
    if condition:
        by += f"; no if {condition}"
    if kind.permanent:
        by = "no"
    return f"{by}; outcome unknown" if getattr(kind, "uncertain", False) else by


def _codes() -> Iterator[str]:
    """Yield a row for each class that codes, or statuses with an unknown code, lead to."""
    causes: dict[str, tuple[list[str], list[str]]] = {}
    for code, kind in service.CODES.items():
        causes.setdefault(kind.__name__, ([], []))[0].append(f"`{code}`")
    for status in STATUSES:
        kind = service.service_error_type(status, None)
        causes.setdefault(kind.__name__, ([], []))[1].append(str(status))
    for name, (codes, statuses) in causes.items():
        yield f"| `{name}` | {', '.join(codes)} | {', '.join(statuses)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
