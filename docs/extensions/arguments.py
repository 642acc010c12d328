"""Completes the docstrings that autodoc shows.

Every argument gets its type and its default. A class also gets the arguments that it hands to base classes of
this package, as these document them. An argument that no docstring documents is a warning, and so an error of
``make docs``.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from typing import TYPE_CHECKING, Any, get_origin

import msgspec
from airflow_provider_webcollect.service.arguments import declared
from sphinx.util import logging

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_provider_webcollect.service.arguments import Argument
    from sphinx.application import Sphinx

PACKAGE = "airflow_provider_webcollect"
FIELD = re.compile(r"^:(param|raises|return|ivar)\b ?(\w*):")

#: Made by functions alone: what they are made of is nobody's business.
MADE_BY_FUNCTIONS = {
    f"{PACKAGE}.landing.read.contents.LandedData",
    f"{PACKAGE}.landing.write.job.Landed",
}
#: Arguments that Python and pytest pass.
NOT_GIVEN = {"self", "cls", "request"}

log = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect with autodoc."""
    app.connect("autodoc-process-signature", _sign)
    app.connect("autodoc-process-docstring", _complete, priority=400)
    return {"parallel_read_safe": True}


def _sign(
    app: Sphinx, what: str, name: str, obj: Any, *_: Any
) -> tuple[str, None] | None:
    """Show all arguments of a class, not only those of its own ``__init__``."""
    if what == "class" and obj.__module__.startswith(PACKAGE):
        parameters = [
            parameter.replace(
                annotation=parameter.empty,
                default=parameter.default
                if parameter.default is parameter.empty
                else _Literally(_shown(parameter.default)),
            )
            for parameter in _parameters(obj)
        ]
        return str(inspect.Signature(parameters, __validate_parameters__=False)), None
    return None


def _complete(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Add to a docstring what it leaves to the signature and to base classes."""
    if (
        what not in {"class", "function", "method"}
        or not name.startswith(PACKAGE)
        or name.endswith("__")
    ):
        return
    head, fields = _split(lines)
    documented = {
        _argument(field): field for field in fields if field[0].startswith(":param ")
    }
    inherited = [field for base in _bases(obj) for field in _split(_docstring(base))[1]]
    for field in inherited:
        if field[0].startswith(":param "):
            documented.setdefault(_argument(field), field)
    for argument, meaning in _described(obj):
        documented[argument] = [f":param {argument}: {meaning}"]
    lines[:] = [*head, ""]
    for parameter in _parameters(obj):
        if parameter.kind is parameter.VAR_KEYWORD and parameter.name not in documented:
            continue
        if parameter.name not in documented:
            log.warning(
                "%s: the argument %s is not documented",
                name,
                parameter.name,
                location=name,
            )
            continue
        lines += documented.pop(parameter.name)
        lines.append(f":type {parameter.name}: {_type(parameter)}")
    rest = [field for field in fields if not field[0].startswith(":param ")]
    if inspect.isclass(obj) and issubclass(obj, msgspec.Struct):
        rest = _fields(obj, [*fields, *inherited])
    lines += (line for field in rest for line in field)
    lines += _result(obj)
    lines.append("")
    own = {_argument(field) for field in fields if field[0].startswith(":param ")}
    for unknown in documented.keys() & own:
        log.warning("%s: there is no argument %s", name, unknown, location=name)


def _described(obj: Any) -> Iterator[tuple[str, str]]:
    """Yield the fields of a dataclass that their metadata describes, and how."""
    if inspect.isclass(obj) and "__dataclass_params__" in vars(obj):
        for field in dataclasses.fields(obj):
            if "description" in field.metadata:
                yield field.name, field.metadata["description"]


def _bases(obj: Any) -> list[type]:
    """Return the base classes of this package."""
    bases = inspect.getmro(obj)[1:] if inspect.isclass(obj) else ()
    return [base for base in bases if base.__module__.startswith(PACKAGE)]


def _docstring(cls: type) -> list[str]:
    return inspect.cleandoc(vars(cls).get("__doc__") or "").splitlines()


def _fields(
    struct: type[msgspec.Struct], documented: list[list[str]]
) -> list[list[str]]:
    """Return all fields of a struct with their types, and with their documentation if there is one."""
    meanings = {
        _argument(field): field
        for field in reversed(documented)
        if field[0].startswith(":ivar ")
    }
    types: dict[str, str] = {}
    for cls in reversed(struct.__mro__):
        types |= inspect.get_annotations(cls)
    fields = []
    for name in struct.__struct_fields__:
        meaning, kind = [f":ivar {name}:"], f"``{types[name]}``"
        if types[name].startswith("Annotated["):
            argument = declared(struct)[name]
            meaning, kind = [f":ivar {name}: {argument.help}"], _values(argument)
            if argument.default not in (None, (), inspect.Parameter.empty):
                kind += f", default ``{_shown(argument.default)}``"
        fields.append([*meanings.get(name, meaning), f":vartype {name}: {kind}"])
    return fields


def _values(argument: Argument) -> str:
    """Return what an option can be, in words."""
    if argument.choices:
        return ", ".join(f"``{word}``" for word in argument.choices)
    if argument.is_list:
        return "``list of texts``"
    if get_origin(argument.kind) is tuple:
        return "``text, or list of texts``"
    return f"``{argument.limits or getattr(argument.kind, '__name__', 'dict')}``"


def _parameters(obj: Any) -> list[inspect.Parameter]:
    """Return the parameters of a function, or of a class and the base classes that it hands them to."""
    if (
        inspect.isclass(obj)
        and f"{obj.__module__}.{obj.__qualname__}" in MADE_BY_FUNCTIONS
    ):
        return []
    if not inspect.isclass(obj):
        return [
            parameter
            for parameter in _signature(obj)
            if parameter.name not in NOT_GIVEN
        ]
    by_name: dict[str, inspect.Parameter] = {}
    for cls in inspect.getmro(obj):
        if not cls.__module__.startswith(PACKAGE) or "__init__" not in vars(cls):
            continue
        parameters = [
            parameter
            for parameter in _signature(cls.__init__)
            if parameter.name not in NOT_GIVEN
        ]
        for parameter in parameters:
            if parameter.kind is not parameter.VAR_KEYWORD:
                by_name.setdefault(parameter.name, parameter)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return list(by_name.values())


def _signature(function: Any) -> Iterable[inspect.Parameter]:
    # Airflow wraps the `__init__` of operators
    return inspect.signature(inspect.unwrap(function)).parameters.values()


def _type(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    untold = annotation is parameter.empty or annotation.startswith("Annotated[")
    parts = [] if untold else [f"``{annotation}``"]
    if parameter.default is not parameter.empty:
        parts.append(f"default ``{_shown(parameter.default)}``")
    elif parameter.kind is not parameter.VAR_KEYWORD:
        parts.append("required")
    return ", ".join(parts)


def _shown(value: Any) -> str:
    match value:
        case enum.Enum():
            return repr(value.value)
        case tuple():
            return f"({', '.join(map(_shown, value))}{',' * (len(value) == 1)})"
    # such an object is shown as what makes it
    return (
        f"{type(value).__name__}()" if " object at 0x" in repr(value) else repr(value)
    )


class _Literally(str):
    """A text that stands for itself."""

    def __repr__(self) -> str:
        return str(self)


def _result(obj: Any) -> Iterator[str]:
    """Yield the type of a function's result."""
    if inspect.isclass(obj) or not callable(obj):
        return
    annotation = inspect.signature(inspect.unwrap(obj)).return_annotation
    if annotation not in (inspect.Signature.empty, "None", None):
        yield f":rtype: {annotation}"


def _split(lines: Iterable[str]) -> tuple[list[str], list[list[str]]]:
    """Return the text of a docstring, and its fields, each with the lines that belong to it."""
    head: list[str] = []
    fields: list[list[str]] = []
    for line in lines:
        if FIELD.match(line):
            fields.append([line])
        elif fields:
            fields[-1].append(line)
        else:
            head.append(line)
    return head, fields


def _argument(field: list[str]) -> str:
    match = FIELD.match(field[0])
    assert match
    return match[2]
