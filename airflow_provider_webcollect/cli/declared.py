"""Options of commands, made from the declaration of an argument: its kind, limits, default and help."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click

from airflow_provider_webcollect.service.arguments import Range, Seconds

F = TypeVar("F", bound=Callable[..., Any])


def declared_option(declaration: Any, name: str, flag: str = "", **settings: Any) -> Callable[[F], F]:
    """Return the decorator that adds an option to a command.

    :param declaration: the struct with the field, or the function with the parameter.
    :param name: of the field or parameter.
    :param flag: of the option; ``--name`` with dashes by default.
    :param settings: of click, which replace or extend those that the declaration gives.
    """
    annotation = get_type_hints(declaration, include_extras=True)[name]
    default = inspect.signature(declaration).parameters[name].default
    kind, *notes = notes_of(annotation)
    made: dict[str, Any] = {"default": None if default in (inspect.Parameter.empty, ()) else default}
    made["required"] = default is inspect.Parameter.empty
    made["help"] = next((note for note in reversed(notes) if isinstance(note, str)), None)
    limits = next((note for note in notes if isinstance(note, Range)), Range())
    if kind is bool:
        made["is_flag"] = True
    elif get_origin(kind) is Literal:
        made["type"] = click.Choice(get_args(kind))
    elif get_origin(kind) is Sequence:
        made["multiple"] = True
    elif kind is int:
        made["type"] = click.IntRange(limits.low, limits.high)
    elif any(isinstance(note, Seconds) for note in notes):
        made["type"] = click.FloatRange(min=0)
    return click.option(flag or f"--{name.replace('_', '-')}", name, **{**made, **settings})


def notes_of(annotation: Any) -> list[Any]:
    """Return the type that an annotation is about, without None, and what is said of it, inner first."""
    kind, *notes = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    if NoneType in (kinds := get_args(kind)) and get_origin(kind) is not Literal:
        kind = next(kind for kind in kinds if kind is not NoneType)
    if get_origin(kind) is Annotated:
        kind, *inner = notes_of(kind)
        notes = [*inner, *notes]
    return [kind, *notes]
