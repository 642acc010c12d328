"""Errors in the words of the command line: its options and environment variables, not Python's arguments."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from airflow_provider_webcollect.hooks.connection_fields import FIELDS
from airflow_provider_webcollect.service.errors import InvalidArgument, WebCollectError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Set in a context's ``meta`` once a command goes without Airflow.
WITHOUT_AIRFLOW = "webcollect.without_airflow"
#: The environment variables of a connection without Airflow begin with this, before an extra's name.
PREFIX = "WEBCOLLECT_"
#: Names that an error has for what a parameter of a command gives, and the names of such parameters.
_PARAMETERS = {
    "path": ("destination",),
    "task_id": ("task", "task_ids"),
    "task_ids": ("tasks",),
    "object_storage_conn_id": ("storage_conn_id",),
    "base_url": ("url",),
}
#: `name`, `name[0]` or `name, line 1`, and name='value'.
_NAME = re.compile(r"`(?:extra )?(?P<name>[a-z_]+)(?:\[\d+\])?(?P<line>, line \d+)?`")
_SETTING = re.compile(r"\b(?P<name>[a-z_]+)=(?P<quote>['\"])(?P<value>[^'\"]*)(?P=quote)")
#: A hint in parentheses that has a template, which only a DAG has.
_TEMPLATE = re.compile(r" \([^()]*\{\{.*?\}\}[^()]*\)")
#: What an error says of an Airflow connection, and what it is without Airflow.
_WITHOUT_AIRFLOW = (
    (re.compile(r"\b(?:the )?(?:connection|its) extras? (?=`)"), ""),
    (re.compile(r"\bno extra (?=`)"), "no "),
    (re.compile(r"\bthe connection's host\b"), "the URL (--url)"),
    (re.compile(r"\b(?:its )?login and password\b"), f"{PREFIX}USERNAME and {PREFIX}PASSWORD"),
    (re.compile(r"\b(in|into|to|with) the connection\b"), r"\1 the environment"),
    (re.compile(r"\bthe connection(?= (?:has|lacks|holds)\b)"), "the environment"),
)


def in_options(error: Exception, context: click.Context, command: click.Command) -> str:
    """Return an error's message, with the names that a person types.

    In messages, an argument is `` `name` `` or ``name='value'``.

    :param context: of the command line.
    :param command: the command that has failed.
    """
    airflow = not context.meta.get(WITHOUT_AIRFLOW)
    names = {each.name: _typed(each) for each in command.params if each.name}
    for name, parameters in _PARAMETERS.items():
        for parameter in names.keys() & parameters:
            names[name] = names[parameter]
    if not airflow:
        names = {field.name: f"{PREFIX}{field.name.upper()}" for field in FIELDS} | names
    if isinstance(error, InvalidArgument):
        # the value is the person's own
        fields = {field.name: f"the connection's extra {field.name}" for field in FIELDS}
        host = {"base_url": "the connection's host"} if airflow else {}
        subject = _renamed(f"`{error.argument}`", fields | names | host)
        return f"{subject} is {error.value}; {_renamed(error.rule, names)}"
    said = str(error)
    if isinstance(error, WebCollectError):  # the endpoint is named as the hook's method
        said = said.removeprefix(f"{error.endpoint}: ")
    if not airflow:
        for pattern, words in _WITHOUT_AIRFLOW:
            said = pattern.sub(words, said)
    return _renamed(said, names)


def _typed(parameter: click.Parameter) -> str:
    """Return how a parameter is named on the command line."""
    if isinstance(parameter, click.Option):
        return parameter.opts[-1]
    return (parameter.metavar or str(parameter.name).upper()).strip("[].")


def _renamed(said: str, names: Mapping[str, str]) -> str:
    def name(found: re.Match[str]) -> str:
        if found["name"] not in names:
            return found[0]
        return names[found["name"]] + (found["line"] or "")

    def setting(found: re.Match[str]) -> str:
        return f"{names[found['name']]} {found['value']}" if found["name"] in names else found[0]

    return _SETTING.sub(setting, _NAME.sub(name, _TEMPLATE.sub("", said)))
