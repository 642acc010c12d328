"""The extras of a connection of the type ``webcollect``, declared once, and the form that is made from them.

``hooks/connection.py`` checks connections against this declaration, and ``make docs`` generates the table in
``docs/reference/connection.md`` from it. All processes of Airflow read the form, without the rest of the
provider, so this module imports only the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Field:
    """An extra of a connection.

    :param name: name of the extra, and of the attribute of ``Settings``, ``Credentials`` or
        ``WebCollectConnection`` that gets the value.
    :param label: name of the field in the form.
    :param help: description of the field, for the form and the documentation.
    :param kind: type of the value: ``str``, ``float``, ``int`` or ``bool``.
    :param default: value of a field that is not set.
    :param secret: whether the form hides the value.
    :param choices: accepted values; empty if any value is accepted.
    :param limits: lowest and highest accepted value; None for no limits.
    :param web_page: whether the value must be an http(s) URL.
    """

    name: str
    label: str
    help: str
    kind: type = str
    default: str | float | None = None
    secret: bool = False
    choices: tuple[str, ...] = ()
    limits: tuple[int, int] | None = None
    web_page: bool = False

    @property
    def suggestion(self) -> str | float | None:
        """The default that the form suggests; None unless the value is a number.

        If a field's name looks secret, Airflow 3 masks the field's default, and then saves the mask. The
        non-numeric fields with a default have such names (``token_refresh``, ``api_key_everywhere``).
        """
        return self.default if self.kind in {float, int} else None


FIELDS = (
    Field(
        "refresh_token",
        "Refresh token",
        "The latest refresh token. It works once; the provider keeps its successors itself.",
        secret=True,
    ),
    Field(
        "access_token",
        "Access token",
        "Only needed if there is no refresh token. Used until the service rejects it, after a day.",
        secret=True,
    ),
    Field(
        "api_key",
        "API key",
        "From the service's account page (op_sk_…). Five endpoints accept it instead of a token.",
        secret=True,
    ),
    Field(
        "api_key_everywhere",
        "API key everywhere",
        "Set it if every endpoint of the main service accepts the account's key.",
        bool,
        False,
    ),
    Field("datahub_url", "Data-app service URL", "Base URL of the data-app service."),
    Field("datahub_api_key", "Data-app API key", "API key of the data apps' author.", secret=True),
    Field(
        "token_refresh",
        "Token refresh",
        "auto (the default): any process renews the token when needed. keeper: never renew here, wait for "
        "the token that the token keeper's DAG stores.",
        default="auto",
        choices=("auto", "keeper"),
    ),
    Field("connect_timeout", "Connect timeout", "Seconds to wait for a connection.", float, 10),
    Field("read_timeout", "Read timeout", "Seconds to wait for each piece of a response.", float, 60),
    Field("total_timeout", "Total timeout", "Seconds for a whole response.", float, 300),
    Field(
        "max_response_bytes",
        "Largest response",
        "Maximum bytes of a response after decompression; the contract's limit is 8 MB.",
        int,
        64 * 1024 * 1024,
    ),
    Field("ca_file", "CA file", "File of certificate authorities to trust instead of the default ones."),
    Field(
        "requests_per_second",
        "Requests per second",
        "Maximum that each process sends; the service allows 20 per address. 0 sets no limit. If several "
        "connections share an address, the lowest limit applies.",
        float,
        20,
    ),
    Field(
        "status_batch_size",
        "Status batch size",
        "Tasks per status query, at most 100.",
        int,
        100,
        limits=(1, 100),  # assumptions.md, Limits
    ),
    Field(
        "timezone",
        "Time zone",
        "Zone of the service's times, such as Asia/Shanghai; empty leaves them without a zone.",
    ),
    Field(
        "task_url_template",
        "Task URL template",
        "The service's web page of a task, with {task_id} in it, for links in Airflow's UI: an http(s) URL.",
        web_page=True,
    ),
    Field(
        "export_url_template",
        "Export URL template",
        "The storage's web page of a folder, with {bucket} and {path} in it, for links to landed rows: an "
        "http(s) URL.",
        web_page=True,
    ),
)

#: How the form shows Airflow's standard connection fields: hidden fields, other labels, and examples.
UI_FIELD_BEHAVIOUR: dict[str, Any] = {
    "hidden_fields": ["schema", "port"],
    "relabeling": {"host": "Base URL", "login": "Login (first token)", "password": "Password (first token)"},
    "placeholders": {"host": "https://openapi.example.com"},
}

# Special values and prefixes that the forms of some Airflow versions put into a connection.

#: Airflow 2's form shows it instead of a stored secret; when the form is saved, Airflow restores the secret.
PLACEHOLDER = "RATHER_LONG_SENSITIVE_FIELD_PLACEHOLDER"
#: Masks, which stand for a stored secret; Airflow 3 shows "***".
MASKS = ("***", PLACEHOLDER)
#: Airflow 2 tests a connection with each extra under two names, one of them with this prefix.
PREFIX = "extra__webcollect__"
#: Spellings of booleans; Airflow 2 sends "y" for a checked checkbox.
_BOOLEANS = {
    **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
}
_JSON_TYPES = {str: "string", float: "number", int: "integer", bool: "boolean"}


def read_boolean(text: str) -> bool | str:
    """Return the boolean that ``text`` spells, or ``text`` unchanged if it spells none."""
    return _BOOLEANS.get(text.lower(), text)


def conn_fields() -> dict[str, dict[str, Any]]:
    """Return the form's fields for the provider's metadata, which Airflow 3.2 and later read."""
    return {
        field.name: {"label": field.label, "description": field.help, "schema": _schema(field)}
        for field in FIELDS
    }


def _schema(field: Field) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": [_JSON_TYPES[field.kind], "null"]}
    if field.suggestion is not None:
        schema["default"] = field.suggestion
    if field.secret:
        schema["format"] = "password"
    if field.choices:
        schema["enum"] = list(field.choices)
    if field.limits:
        schema["minimum"], schema["maximum"] = field.limits
    if field.web_page:
        schema["format"] = "url"
    return schema


def widgets() -> dict[str, Any]:
    """Return the form's fields as widgets, for Airflow before 3.2.

    Airflow before 3.2 supports four kinds of widgets, and drops the whole connection type if a field has
    another kind. That is why numbers have text fields.
    """
    return {field.name: _widget(field) for field in FIELDS}


def _widget(field: Field) -> Any:
    from flask_appbuilder.fieldwidgets import BS3TextFieldWidget
    from wtforms import BooleanField, PasswordField, StringField
    from wtforms.validators import Optional, any_of

    if field.kind is bool:
        return BooleanField(field.label, description=field.help, widget=_checkbox)
    validators = [Optional(), any_of(list(field.choices))] if field.choices else [Optional()]
    if field.secret:
        return PasswordField(field.label, description=field.help, widget=_secret, validators=validators)
    return StringField(
        field.label,
        description=field.help,
        default=None if field.suggestion is None else str(field.suggestion),
        widget=BS3TextFieldWidget(),
        validators=validators,
    )


def _checkbox(field: Any, **attributes: Any) -> Any:
    """Render a checkbox, checked if the value means true; wtforms alone would check it for "false", too."""
    from wtforms.widgets import CheckboxInput

    return CheckboxInput()(field, **attributes, checked=read_boolean(str(field.data)) is True)


def _secret(field: Any, **attributes: Any) -> Any:
    """Render a password field, with a placeholder in place of a secret from the connection.

    When the form is saved, Airflow restores the secret if the field holds the placeholder, and deletes the
    secret if the field is empty. If the form is shown again after an error, it shows what the user has typed.
    """
    from flask_appbuilder.fieldwidgets import BS3PasswordFieldWidget

    value = field.data if field.raw_data else PLACEHOLDER
    return BS3PasswordFieldWidget(hide_value=False)(field, **attributes, value=value if field.data else "")
