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
HEAD = """
| Error | Meaning, and what to do | Retried |
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


def page() -> str:
    """Return the whole page: what is written by hand, with the tables between their comments."""
    text = PAGE.read_text()
    for source, module in {
        "service/errors.py": service,
        "landing/errors.py": landing,
    }.items():
        begin = BEGIN.format(source)
        before, _, rest = text.partition(begin)
        after = rest.partition(END)[2]
        text = (
            f"{before}{begin}{HEAD}{''.join(map(_row, _errors(module)))}\n{END}{after}"
        )
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
    codes = [f"`{code}`" for code, of in service.CODES.items() if of is kind]
    if codes:
        texts.append(f"Codes: {', '.join(codes)}.")
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


if __name__ == "__main__":
    PAGE.write_text(page())
