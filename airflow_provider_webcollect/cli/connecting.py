"""How a command reaches the service: by an Airflow connection, or by a URL and environment variables."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import os
import sys
import types
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from airflow_provider_webcollect.cli.output import log_to_stderr, tell
from airflow_provider_webcollect.hooks.connection import WebCollectConnection, read_connection
from airflow_provider_webcollect.hooks.connection_fields import FIELDS
from airflow_provider_webcollect.hooks.storage import connections_of
from airflow_provider_webcollect.landing.errors import ExtraMissing
from airflow_provider_webcollect.landing.location import Location, is_iceberg_name
from airflow_provider_webcollect.service import arguments
from airflow_provider_webcollect.service.call import ClientContext, make_context
from airflow_provider_webcollect.service.client import Client
from airflow_provider_webcollect.service.errors import ConnectionIncomplete, InvalidArgument, WebCollectError
from airflow_provider_webcollect.service.threads import Stop
from airflow_provider_webcollect.service.tokens import FileTokenStore, TokenStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from airflow_provider_webcollect.collection_tasks import CollectionTasks
    from airflow_provider_webcollect.landing.location import TableFormat
    from airflow_provider_webcollect.landing.storage.folder import Folder

F = TypeVar("F", bound="Callable[..., Any]")

#: Prefix of the environment variables that make up a connection without Airflow. After it comes ``URL``,
#: ``USERNAME``, ``PASSWORD`` or the name of an extra, in capitals.
PREFIX = "WEBCOLLECT_"
#: Keys of a context's ``meta`` under which :func:`connect` keeps names that users know for the connection's
#: fields, for errors, and, without Airflow, an explanation of what the connection is.
FIELD_NAMES, HINT = "webcollect.field_names", "webcollect.hint"
#: The environment variable that names the file of collection tasks, if there is no ``--collection-tasks``;
#: without both, the file is Airflow's. A context's ``meta`` has the file's path under the same key.
TASKS_FILE = f"{PREFIX}COLLECTION_TASKS"
#: The key of a context's ``meta`` under which :func:`resolve_tasks` keeps the hint for a task that the
#: service does not know; it is empty unless the task may be given by name and there is no file of names.
NO_NAME = "webcollect.no_name"
#: The key of a context's ``meta`` under which :func:`resolve_tasks` keeps :func:`called`, since errors are
#: shown after the command has ended.
CALLED = "webcollect.called"
DEFAULT_CONN_ID = "webcollect_default"
#: Seconds after which a command that a person waits for gives up on a service that cannot be reached.
PATIENCE = 2.0


@dataclass(frozen=True)
class ServiceAccess:
    """The access of a command to the service.

    :ivar context: the context for clients of the service.
    :ivar store: the store in which the processes that use the connection share its token.
    """

    connection: WebCollectConnection
    context: ClientContext
    store: TokenStore

    def client(self, stop: Stop | None = None) -> Client:
        """Return a client, once the service accepts connections.

        :raises ServiceUnreachable: if the service does not accept any.
        """
        client = Client(self.context, stop=stop)
        client.reach()
        return client


def connection_options(command: F) -> F:
    """Add the options ``--conn-id`` and ``--url``, which are the arguments of :func:`connect`."""
    url = click.option(
        "--url",
        envvar=f"{PREFIX}URL",
        show_envvar=True,
        metavar="URL",
        is_eager=True,  # so that both options are known before a task's name is looked up
        help=f"The service's base URL, without Airflow. Credentials are environment variables, such as "
        f"{PREFIX}USERNAME and {PREFIX}PASSWORD.",
    )
    conn_id = click.option(
        "--conn-id",
        metavar="ID",
        is_eager=True,
        help=f"The Airflow connection; by default {DEFAULT_CONN_ID}, unless --url is given.",
    )
    return conn_id(url(command))


def collection_tasks() -> CollectionTasks | None:
    """Return the entries of the file of collection tasks; None if the command has no file.

    :raises InvalidArgument: if the file is invalid.
    :raises ExtraMissing: if Airflow's file is needed, and Airflow is not installed.
    :raises ConnectionIncomplete: if Airflow's file is needed, and Airflow cannot start.
    """
    from airflow_provider_webcollect.collection_tasks import OPTION, configured, read_collection_tasks

    context = click.get_current_context()
    if path := context.meta.get(TASKS_FILE):
        is_option = context.get_parameter_source("tasks_file") is ParameterSource.COMMANDLINE
        origin = "--collection-tasks" if is_option else f"the environment variable {TASKS_FILE}"
        context.meta.setdefault(FIELD_NAMES, {})[OPTION] = origin
        return read_collection_tasks(path)
    is_without_airflow = "conn_id" not in context.params or context.params["url"] is not None
    if is_without_airflow and context.params.get("conn_id") is None:
        return None
    use_airflow()
    return configured()


def resolve_tasks(context: click.Context, parameter: click.Parameter, keys: str | Sequence[str]) -> Any:
    """Return the ids of tasks that are given by id or by a name in the file, each once.

    This is the callback of all arguments and options that name tasks.

    :param keys: a list of ids and names; or one of them as text, whose id is then returned as text.
    :raises InvalidArgument: if a text is empty, or if there is a file and a text is neither a UUID nor in it.
    """
    from airflow_provider_webcollect.collection_tasks import OPTION, SECTION, hint_at_names, task_of

    argument, listed = str(parameter.name), [keys] if isinstance(keys, str) else keys
    ids = [task_of(argument, key, collection_tasks).id for key in listed]
    setting = f"{TASKS_FILE} or, with Airflow, `[{SECTION}] {OPTION}`"
    context.meta[NO_NAME] = hint_at_names(ids, collection_tasks, setting)

    def called_later(task_ids: Sequence[str]) -> list[str]:
        with context.scope(cleanup=False):
            return called(task_ids)

    context.meta[CALLED] = called_later
    return ids[0] if isinstance(keys, str) else [*dict.fromkeys(ids)]


def lines_of(data: bytes, parameter: click.Parameter, file: str) -> list[str]:
    """Return the lines of a file.

    :param parameter: the parameter that names the file, for errors.
    :param file: the name of the file, for errors.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidArgument(str(parameter.name), file, f"it must be UTF-8 ({error.reason})") from None
    # not `splitlines`, which also ends a line at a form feed and at other characters
    return [line.rstrip("\r\n") for line in io.StringIO(text)]


def ids_of(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> list[str]:
    """Return ids, each once; ``-`` stands for the ids on standard input."""
    ids: list[str] = []
    for value in values:
        if value != "-":
            ids.append(value.strip())
        elif piped := [*filter(None, map(str.strip, lines_of(sys.stdin.buffer.read(), parameter, value)))]:
            ids += piped
        else:
            raise InvalidArgument(str(parameter.name), value, "there are no ids on standard input")
    ids = list(dict.fromkeys(ids))
    return arguments.texts(str(parameter.name), ids, may_be_empty=not parameter.required)


def _tasks_of(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> Any:
    return resolve_tasks(context, parameter, ids_of(context, parameter, values))


#: The option ``--collection-tasks`` of commands that name tasks; :func:`collection_tasks` reads its file.
names_option = click.option(
    "--collection-tasks",
    "tasks_file",
    envvar=TASKS_FILE,
    show_envvar=True,
    metavar="FILE",
    callback=lambda context, _, path: context.meta.update({TASKS_FILE: path}),
    expose_value=False,
    is_eager=True,  # so that the file is known before a task's name is looked up
    help="The file with the names of collection tasks; by default Airflow's file.",
)


def task_argument(*name: str, **attributes: Any) -> Callable[[F], F]:
    """Return a decorator that adds an argument for tasks, and :data:`names_option`.

    An argument for several tasks takes ``-`` for the ids on standard input.

    :param name: names of the argument, as for ``click.argument``.
    :param attributes: attributes of the argument, as for ``click.argument``.
    """
    callback = _tasks_of if attributes.get("nargs") == -1 else resolve_tasks
    argument = click.argument(*name, callback=callback, **attributes)
    return lambda command: argument(names_option(command))


def called(task_ids: Sequence[str]) -> list[str]:
    """Return the ids of tasks, each after its name if the file has one."""
    names = task_names(task_ids)
    return [f"{names[task_id]} ({task_id})" if task_id in names else task_id for task_id in task_ids]


def task_names(ids: Iterable[str]) -> dict[str, str]:
    """Return the names that the file has for tasks, by id; if it is invalid, a message says so."""
    try:
        tasks = collection_tasks()
    except InvalidArgument as error:
        tell(f"No names of the file of collection tasks are shown: {error}")
        return {}
    return tasks.names(ids) if tasks else {}


#: The option ``--object-storage-conn-id``, which is an argument of :func:`parse_landing`.
storage_option = click.option(
    "--object-storage-conn-id",
    metavar="ID",
    help="The Airflow connection of the storage; by default the storage's own environment variables and "
    "files give the credentials.",
)


def at_landing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument LANDING and the option for its connection; the command gets their ``location``."""

    @functools.wraps(command)
    def located(landing: str, object_storage_conn_id: str | None, **given: Any) -> Any:
        return command(parse_landing(landing, object_storage_conn_id), **given)

    return click.argument("landing")(storage_option(located))


def parse_landing(
    path: str, conn_id: str | None, table_format: TableFormat | None = None, *, is_landed: bool = True
) -> Location:
    """Return the location of a landing.

    :param path: the path, which may also begin with ``./`` or ``../``; with a connection, it may be the name
        of an Iceberg table.
    :param conn_id: the Airflow connection of the storage; None for the connection in ``path``, if any.
    :param table_format: the format of a table to land in; None for everything else.
    :param is_landed: whether the landing already exists; then its name shows whether it is an Iceberg table.
    :raises InvalidArgument: if the path is invalid, or could mean either a local folder or a bucket.
    """
    if table_format == "iceberg":
        return Location.parse("landing", path, conn_id=conn_id, table_format=table_format)
    is_table = is_landed and conn_id is not None and is_iceberg_name(path)
    if path.split("/")[0] in {".", ".."}:
        path = str(Path(path).resolve())
    elif path and not (is_table or path.startswith("/") or ":" in path):
        rule = "it needs a scheme (s3://bucket/folder), or ./ in front for a folder here"
        raise InvalidArgument("landing", path, rule)
    if is_landed:
        return Location.parse_landed("landing", path, conn_id=conn_id, is_exact=True)
    return Location.parse("landing", path, conn_id=conn_id, table_format=table_format, is_exact=True)


def open_location(location: Location, *, is_landed: bool = True) -> Folder:
    """Return the folder of a landing; without a connection, Airflow is not needed.

    :param is_landed: whether the landing already exists; if not, an Iceberg table is created for it.
    :raises InvalidArgument: if Airflow does not have the connection, or cannot use it.
    :raises NothingLanded: if the location is an Iceberg table that should exist but does not.
    """
    if location.conn_id is not None or location.kind == "iceberg":
        use_airflow()
    connections = connections_of(location)
    return location.open_landed(connections) if is_landed else location.open(connections, is_made=True)


def shown_place(location: Location) -> str:
    """Return the location of a landing as text that ``landing verify`` takes."""
    is_local = location.scheme in {"file", "local"} and location.kind != "iceberg"
    return location.key if is_local else location.uri


def connect(conn_id: str | None, url: str | None, *, patient: bool = False) -> ServiceAccess:
    """Return the access to the service that a command's options name.

    :param patient: whether the command may take long, so that it keeps trying if the service cannot be
        reached.
    :raises UsageError: if both options are given, or the URL has no scheme.
    :raises ExtraMissing: if Airflow is needed, and is not installed.
    :raises ConnectionIncomplete: if Airflow cannot start or does not have the connection, or if the
        connection has no host.
    :raises InvalidArgument: if a field of the connection is invalid; the error names the field.
    """
    context = click.get_current_context()
    is_option = context.get_parameter_source("url") is ParameterSource.COMMANDLINE
    if conn_id is None and url is not None:
        origin = "--url" if is_option else f"the environment variable {PREFIX}URL"
        if "://" not in url:  # it may hold a password, so it is not shown
            raise click.UsageError(f"{origin} must begin with https:// or http://")
        context.meta[FIELD_NAMES] = _field_names(origin, lambda name: f"{PREFIX}{name.upper()}")
        context.meta[HINT] = (
            f"Without Airflow, the connection is the environment: its host is {origin}, login and password "
            f"are {PREFIX}USERNAME and {PREFIX}PASSWORD, and an extra such as `refresh_token` is "
            f"{PREFIX}REFRESH_TOKEN."
        )
        access = _without_airflow(url, origin)
    elif is_option:
        raise click.UsageError(f"the connection {conn_id} and --url cannot both be given")
    else:
        context.meta[FIELD_NAMES] = _field_names(
            "the connection's host", lambda name: f"the connection's extra {name}"
        )
        access = _through_airflow(conn_id or DEFAULT_CONN_ID)
    own = access.context if patient else access.context.short_retries(unreachable=PATIENCE)
    hint = context.meta.get(NO_NAME, "")
    return replace(access, context=replace(own, hint=lambda task_ids: hint))


def _field_names(host: str, extra: Callable[[str], str]) -> dict[str, str]:
    names = {field.name: extra(field.name) for field in FIELDS}
    return {"base_url": host, **names, **{f"extra {name}": called for name, called in names.items()}}


def use_airflow() -> None:
    """Make Airflow look up connections in its database and its secrets backends, as its own commands do.

    Without the environment variable that is set here, Airflow treats this process as a task's process, and
    looks in neither.
    """
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
    try:
        import airflow.settings  # noqa: F401  # configures logging
    except ImportError as error:
        raise ExtraMissing(
            f"Airflow's connections need apache-airflow, which cannot be imported here ({error}); --url "
            "and `load --destination` work without it, as do storage credentials in the environment"
        ) from error
    except Exception as error:  # its text may hold the password of Airflow's database
        raise ConnectionIncomplete(
            f"Airflow cannot start with its configuration ({type(error).__name__}); --url works without it"
        ) from None
    log_to_stderr()
    # Airflow logs a traceback if its database cannot be read; the command's own error says so in one sentence
    logging.getLogger("airflow.models.variable").setLevel(logging.CRITICAL)


def _said_by_airflow(error: Exception) -> str:
    """Return the message of an Airflow error on one line; errors of its database have many lines."""
    from sqlalchemy.exc import SQLAlchemyError

    message = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    if isinstance(error, SQLAlchemyError):
        return f"its database cannot be read, `airflow db migrate` sets it up ({message})"
    return message


@contextlib.contextmanager
def from_airflow(conn_id: str, otherwise: str) -> Iterator[None]:
    """Start Airflow for a block that reads a connection, and report the block's errors.

    :param conn_id: the connection that the block reads, for errors.
    :param otherwise: the option that works without Airflow, for errors.
    :raises ConnectionIncomplete: if Airflow has no such connection, or cannot start.
    :raises ExtraMissing: if Airflow is not installed.
    """
    use_airflow()
    try:
        yield
    except WebCollectError:
        raise
    except Exception as error:  # Airflow has several classes for a connection that it cannot provide
        raise ConnectionIncomplete(
            f"Airflow cannot provide the connection {conn_id}: {_said_by_airflow(error)}. Name another "
            f"connection, or use {otherwise}, which works without Airflow"
        ) from error


def _through_airflow(conn_id: str) -> ServiceAccess:
    with from_airflow(conn_id, "--url"):
        from airflow_provider_webcollect.hooks.token_store import VariableTokenStore, make_token_store
        from airflow_provider_webcollect.hooks.webcollect import WebCollectHook

        hook = WebCollectHook(conn_id)
        connection = hook.connection
    store = make_token_store(conn_id)
    if isinstance(store, VariableTokenStore) and connection.credentials.can_renew_tokens:
        _require_database(conn_id)
    return ServiceAccess(connection, hook.client.context, store)


def _require_database(conn_id: str) -> None:
    """Raise :class:`ConnectionIncomplete` if Airflow's database, which keeps the token, cannot be read."""
    from airflow.models import Variable
    from airflow.utils.session import create_session
    from sqlalchemy import select
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with create_session() as session:
            session.scalar(select(Variable.id).limit(1))
    except SQLAlchemyError as error:
        raise ConnectionIncomplete(
            f"Airflow keeps the token of the connection {conn_id}, but {_said_by_airflow(error)}"
        ) from error


def _without_airflow(url: str, origin: str) -> ServiceAccess:
    fields: Any = types.SimpleNamespace(
        conn_id=url,
        host=url,
        schema=None,
        port=None,
        login=os.environ.get(f"{PREFIX}USERNAME"),
        password=os.environ.get(f"{PREFIX}PASSWORD"),
    )
    extras = {field.name: os.environ.get(f"{PREFIX}{field.name.upper()}") for field in FIELDS}
    connection = read_connection(fields, extras, origin)
    name = connection.credentials.lineage_at(connection.settings.base_url)
    # a refresh token works once: if its successor were not stored, the next command would have no valid one
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    folder = state / "webcollect"
    if connection.credentials.can_renew_tokens:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            is_writable = os.access(folder, os.W_OK | os.X_OK)
        except OSError:
            is_writable = False
        if not is_writable:
            raise ConnectionIncomplete(
                f"the access token cannot be kept in {folder}, which cannot be written: set XDG_STATE_HOME "
                "to a folder of yours"
            )
    store = FileTokenStore(folder / name)
    context = make_context(connection.settings, connection.credentials, name, store)
    return ServiceAccess(connection, context, store)
