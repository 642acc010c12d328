"""What the files at a destination were written with, so that nothing else is put beside them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_provider_webcollect.landing.errors import FormatChanged

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.formats import FileFormat


def encoding_of(file_format: FileFormat) -> dict[str, Any]:
    """Return the format with all its options, as plain JSON."""
    # every format is a dataclass of its options
    names = [field.name for field in dataclasses.fields(file_format)]  # type: ignore[arg-type]
    options = {name: getattr(file_format, name) for name in names}
    encoding: dict[str, Any] = msgspec.to_builtins({"file_format": file_format.name, **options})
    # as it will be once it was read back: without tuples
    return {name: list(value) if isinstance(value, tuple) else value for name, value in encoding.items()}


def refuse_another(file_format: FileFormat, found: dict[str, Any], where: str) -> None:
    """Raise :class:`FormatChanged` if ``found`` is not what this format would write.

    :param where: what was written like that.
    """
    wanted = encoding_of(file_format)
    differing = [
        f"{name} is {wanted.get(name)!r} and was {found.get(name)!r}"
        for name in {**wanted, **found}
        if wanted.get(name) != found.get(name)
    ]
    if differing:
        if wanted["file_format"] != found.get("file_format"):
            # the other options are those of another format
            del differing[1:]
        raise FormatChanged(
            f"{where} was written with other options: {'; '.join(differing)}. "
            "Use the same options, or give the landing another destination"
        )
