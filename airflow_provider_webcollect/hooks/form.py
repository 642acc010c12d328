"""The connection form of the type ``webcollect``, defined once for all Airflow versions.

Airflow 3.2 and later read it from the provider's metadata; earlier versions get widgets from the hook.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Shown by Airflow 2's form instead of a stored secret; Airflow puts the secret back when it saves.
PLACEHOLDER = "RATHER_LONG_SENSITIVE_FIELD_PLACEHOLDER"
#: Values that stand for a stored secret and are not the secret: Airflow 3 shows "***".
MASKS = ("***", PLACEHOLDER)
#: Airflow 2 tests a connection with each extra under two names, one of them with this prefix.
PREFIX = "extra__webcollect__"
#: Spellings of booleans; a checked checkbox of Airflow 2 is "y".
_BOOLEANS = {
    **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the form.

    :param kind: the JSON schema type of its value.
    :param default: the form's suggestion. If a field's name looks secret, Airflow 3 masks its default and
        then saves the mask, so such a field has no default.
    """

    name: str
    label: str
    help: str
    kind: str = "string"
    default: float | None = None
    secret: bool = False
    choices: tuple[str, ...] = ()


FIELDS = (
    Field(
        "refresh_token",
        "Refresh token",
        "From the service's token response. It works once; the provider keeps its successors itself.",
        secret=True,
    ),
    Field("access_token", "Access token", "Only if there is no refresh token; lasts a day.", secret=True),
    Field(
        "api_key",
        "API key",
        "From the service's account page (op_sk_…). Five endpoints take it.",
        secret=True,
    ),
    Field(
        "api_key_everywhere",
        "API key everywhere",
        "Set it if the account's key is taken by every endpoint.",
        kind="boolean",
    ),
    Field("datahub_url", "Data-app service URL", "Base URL of the data-app service."),
    Field("datahub_api_key", "Data-app API key", "API key of the data apps' author.", secret=True),
    Field(
        "token_refresh",
        "Token refresh",
        "auto (the default): whoever needs it renews the token. keeper: only the token keeper's DAG does.",
        choices=("auto", "keeper"),
    ),
    Field(
        "connect_timeout", "Connect timeout", "Seconds to wait for a connection.", kind="number", default=10
    ),
    Field("read_timeout", "Read timeout", "Seconds to wait for a response.", kind="number", default=60),
    Field("total_timeout", "Total timeout", "Seconds for a whole response.", kind="number", default=300),
    Field(
        "max_response_bytes",
        "Largest response",
        "Bytes that a response may hold, unpacked; those of the contract hold 8 MB at most.",
        kind="integer",
        default=67_108_864,
    ),
    Field("ca_file", "CA file", "File of certificate authorities to trust instead of the usual ones."),
    Field(
        "requests_per_second",
        "Requests per second",
        "The most that each process sends; the service allows 20 per address. 0 disables rate limiting.",
        kind="number",
        default=20,
    ),
    Field(
        "status_batch_size",
        "Status batch size",
        "Tasks per status query, at most 100.",
        kind="integer",
        default=100,
    ),
    Field(
        "timezone",
        "Time zone",
        "Zone of the service's times, such as Asia/Shanghai; empty leaves them without.",
    ),
    Field(
        "task_url_template",
        "Task URL template",
        "The service's web page of a task, with {task_id} in it, for links in the Airflow UI.",
    ),
    Field(
        "export_url_template",
        "Export URL template",
        "The storage's web page of a folder, with {bucket} and {path} in it, for links to landed rows.",
    ),
)

HIDDEN_FIELDS = ["schema", "port"]
_UI_TEXTS: dict[str, dict[str, str]] = {
    "relabeling": {"host": "Base URL", "login": "Login (first token)", "password": "Password (first token)"},
    "placeholders": {"host": "https://openapi.example.com"},
}
#: What the form hides, renames and suggests, in the spelling of the provider's metadata.
METADATA_BEHAVIOUR: dict[str, Any] = {"hidden-fields": HIDDEN_FIELDS, **_UI_TEXTS}
#: The same in the spelling of the hook.
HOOK_BEHAVIOUR: dict[str, Any] = {"hidden_fields": HIDDEN_FIELDS, **_UI_TEXTS}


def conn_fields() -> dict[str, dict[str, Any]]:
    """Return the fields for the provider's metadata."""
    return {field.name: _conn_field(field) for field in FIELDS}


def _conn_field(field: Field) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": [field.kind, "null"]}
    if field.default is not None:
        schema["default"] = field.default
    if field.secret:
        schema["format"] = "password"
    if field.choices:
        schema["enum"] = list(field.choices)
    return {"label": field.label, "description": field.help, "schema": schema}


def widgets() -> dict[str, Any]:
    """Return the fields as form widgets, for Airflow before 3.2.

    Airflow before 3.2 knows four kinds of widgets and drops the whole connection type if it meets another, so
    numbers are strings.
    """
    return {field.name: _widget(field) for field in FIELDS}


def read_boolean(value: Any) -> Any:
    """Return the boolean that ``value`` spells; return any other value unchanged."""
    return _BOOLEANS.get(value.lower(), value) if isinstance(value, str) else value


def _widget(field: Field) -> Any:
    from flask_appbuilder.fieldwidgets import BS3TextFieldWidget
    from wtforms import BooleanField, PasswordField, StringField
    from wtforms.validators import Optional, any_of

    if field.kind == "boolean":
        return BooleanField(field.label, description=field.help, widget=_box)
    validators = [Optional(), any_of(list(field.choices))] if field.choices else [Optional()]
    if field.secret:
        return PasswordField(field.label, description=field.help, widget=_secret, validators=validators)
    default = None if field.default is None else str(field.default)
    return StringField(
        field.label,
        description=field.help,
        default=default,
        widget=BS3TextFieldWidget(),
        validators=validators,
    )


def _box(field: Any, **attributes: Any) -> Any:
    """Render a checkbox, checked if the value means true; wtforms also checks it for the text "false"."""
    from wtforms.widgets import CheckboxInput

    return CheckboxInput()(field, **attributes, checked=read_boolean(field.data) is True)


def _secret(field: Any, **attributes: Any) -> Any:
    """Render a password field; a value that Airflow fills in from the connection is shown as a placeholder.

    When the form is saved, Airflow restores the secret if the field holds the placeholder, and removes it if
    the field is empty. If the form is shown again after an error, it shows what the user has typed.
    """
    from flask_appbuilder.fieldwidgets import BS3PasswordFieldWidget

    value = field.data if field.raw_data else PLACEHOLDER
    return BS3PasswordFieldWidget(hide_value=False)(field, **attributes, value=value if field.data else "")
