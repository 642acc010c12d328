"""A task group that runs the collection tasks of a file, waits for them and lands their rows."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
from airflow.providers.common.compat.sdk import AssetAlias, TaskGroup, literal
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from airflow_provider_webcollect.assets import landing_asset
from airflow_provider_webcollect.collection_tasks import (
    FIELD,
    OPTION,
    SECTION,
    CollectionTask,
    by_key,
    configured,
    filled,
    id_or_name,
    make_collection_task,
    plain_name,
    read_collection_tasks,
    table_name,
    task_of,
)
from airflow_provider_webcollect.common import MOST_RETRIES, RETRY_GROUP, is_literal
from airflow_provider_webcollect.landing.checks import make_checks
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.location import Location, folder_name, refuse_overlaps
from airflow_provider_webcollect.operators.analytics import WebCollectMetricsCheckOperator
from airflow_provider_webcollect.operators.start import WebCollectStartSubTasksOperator
from airflow_provider_webcollect.operators.webcollect import (
    WebCollectSetMissingInputsOperator,
    WebCollectUpdateTaskParametersOperator,
)
from airflow_provider_webcollect.sensors.webcollect import WebCollectTaskStatusSensor
from airflow_provider_webcollect.service import arguments
from airflow_provider_webcollect.service.errors import InvalidArgument
from airflow_provider_webcollect.transfers.landing_to_warehouse import (
    Claims,
    WebCollectLoadOperator,
    claim_table,
)
from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.providers.common.compat.sdk import DAG

Arrangement = Literal["each", "together"]
#: The text for each arrangement in the group's tooltip.
_TOOLTIPS = {"each": "each (for hundreds, together is cheaper)", "together": "together"}
_SUFFIXES = (".yaml", ".yml", ".json")
#: The beginning of an argument's name in an error about a source.
_SOURCE = re.compile(r"sources\[(\d+)\]")
#: Values of an entry that Airflow renders: the folders of its rows; and its table, which cannot have a
#: template in the file, but can have one in the DAG.
_RENDERED = {"destination", "partition", "landing", "table"}
#: Arguments whose values have texts from the file.
_WRITTEN = (
    *("collection_task_id", "collection_task_ids", "collection_task_names", "collection_task_name"),
    *("lotno", "loop_items", "updates"),
)
#: The operators of the group by task id, which is also the name of the group's argument for the operator.
_OPERATORS: dict[str, type] = {
    "limit": WebCollectMetricsCheckOperator,
    "set_loop_items": WebCollectUpdateTaskParametersOperator,
    "start": WebCollectStartSubTasksOperator,
    "wait": WebCollectTaskStatusSensor,
    "land": WebCollectToObjectStorageOperator,
    "load": WebCollectLoadOperator,
}
#: The tasks besides the landing; of several tasks that have an argument, the first one is the most likely.
_LIKELY = ("wait", "start", "set_loop_items", "load", "limit")
#: The tasks that set loop items for another collection of missing inputs, and restore them; they take the
#: arguments of ``set_loop_items`` too.
_SETTING = {
    "set_missing_inputs": WebCollectSetMissingInputsOperator,
    "restore_loop_items": WebCollectUpdateTaskParametersOperator,
}
#: Arguments that the group itself reads, and that ``default_args`` may have, by task id.
_READ = {
    "land": ("checks", "object_storage_conn_id", "skip_if_nothing_new", "table_format"),
    "load": ("primary_key",),
}


class _Part(msgspec.Struct, frozen=True):
    """A collection task of the group, with its folder, its load and its loop.

    :ivar task: the entry of the collection task.
    :ivar folder: the folder of its rows, or its Iceberg table.
    :ivar load: arguments of its load, with the table; None for no load.
    :ivar loop: the entry of its ``loop_items`` whose missing inputs are collected again; None for no loop.
    """

    task: CollectionTask
    folder: str
    load: dict[str, Any] | None
    loop: dict[str, Any] | None

    @property
    def called(self) -> str:
        """The collection task as errors name it."""
        return f"collection task {self.task.name!r}"

    @property
    def name(self) -> str | None:
        """The collection task's name; None if it has only an id."""
        return None if self.task.name == self.task.id else self.task.name

    @property
    def storage(self) -> dict[str, Any]:
        """The argument with the connection that its own destination names; empty to use the group's."""
        own = self.task.destination
        conn_id = Location.parse_landed("destination", own).conn_id if own and is_literal(own) else None
        return {"object_storage_conn_id": conn_id} if conn_id else {}


class WebCollectTaskGroup(TaskGroup):
    """The tasks that run collection tasks and land their rows: a DAG in a few lines.

    For each collection task, the group sets its loop items, if the file has any for it; starts it; waits for
    the run in the triggerer; lands the new rows; and loads them into a warehouse, if ``load`` is given. Names
    and settings come from the file of collection tasks. The file is read while the DAG is parsed; nothing is
    sent to the service then.

    The tasks are called ``set_loop_items``, ``start``, ``wait``, ``land`` and ``load``. With
    ``arrangement="each"``, each collection task has a group of its own inside this one, with its name, and no
    group waits for another. With ``"together"``, there is one task of each kind for all collection tasks.
    That is much cheaper for hundreds of them, but one failed run holds up the landing of all. Both
    arrangements land in the same folders, with the same outlets: an asset for each folder.

    With ``retry_missing_inputs``, the group collects inputs without a row again, for collection tasks whose
    ``loop_items`` are in the file and whose landing checks its ``inputs``. A group ``retry_1`` sets the loop
    to the missing inputs (``set_missing_inputs``), starts the collection task, waits and lands; if no input
    is missing, the tasks of this group are skipped. The outcome of the last landing has the inputs that are
    still missing, and only this landing can fail because of them. Then the teardown ``restore_loop_items``
    sets the whole list again, and ``landed`` is the last task before the load. With ``"together"``, only the
    folders of collection tasks that are collected again get a second event, from Airflow 3 on.

    The group is a ``TaskGroup`` of Airflow and takes its arguments (``prefix_group_id``, ``default_args``,
    ``tooltip``, ``ui_color``…); it can have dependencies and be inside other groups. All other arguments,
    such as ``mark_exported=True``, are passed to the landing, like the arguments in ``land``. There is no
    ``partial`` and no ``expand``, since the tasks are created from the file while the DAG is parsed. If the
    collection tasks are known only in a run, map the operators themselves.

    :param group_id: the id of the group, unique in the DAG.
    :param collection_tasks: the path of a file of collection tasks (``.yaml``, ``.yml`` or ``.json``),
        relative to the folder of the DAG's file; or a list, whose entries are names in the file of
        ``[webcollect] collection_tasks``, ids (which take nothing from that file), or dicts with the file's
        keys (the name is the id by default). None (default) for all entries of the file of ``[webcollect]
        collection_tasks``. Texts in them are not templates, except for ``destination``.
    :param destination: the folders of the rows, such as ``s3://bucket/{name}``: ``{name}`` and ``{id}`` stand
        for the name and the id of each collection task. With ``table_format="iceberg"``, this is the name of
        the tables. An entry's own ``destination`` overrides it, and may name another connection; None
        (default) if each entry has its own. (templated)
    :param arrangement: ``each`` (default), or ``together``, which is better for hundreds of collection tasks;
        the tooltip shows it. The task ids depend on the arrangement, so changing it begins a new history.
    :param retry_missing_inputs: how often inputs without a row are collected again, 0 (default) to 3.
    :param limit: arguments of :class:`.WebCollectMetricsCheckOperator`, for a task ``limit`` before the other
        tasks of the group, and before each start of a retry. None (default) for no such task.
    :param set_loop_items: arguments of :class:`.WebCollectUpdateTaskParametersOperator`.
    :param start: arguments of :class:`.WebCollectStartSubTasksOperator`.
    :param wait: arguments of :class:`.WebCollectTaskStatusSensor`, which is deferrable here, unless
        ``deferrable`` or ``mode="reschedule"`` says otherwise.
    :param land: arguments of :class:`.WebCollectToObjectStorageOperator`, whose ``mode`` is ``incremental``
        here. A collection task's own options take precedence.
    :param load: arguments of :class:`.WebCollectLoadOperator`, with ``table``, such as ``shops.{name}``;
        there, names are in lower case, and ``_`` replaces other characters. A collection task's own ``load``
        takes precedence, key by key. None (default) loads nothing.
    :param webcollect_conn_id: the Airflow connection of the service, for all tasks. (templated)
    :raises InvalidArgument: if a collection task is unknown, named twice, or invalid; if there is none; if
        two of them have the same folder, or one folder is inside the other; and if an operator raises it.
    """

    def __init__(
        self,
        group_id: str,
        *,
        collection_tasks: str | Path | Sequence[str | Mapping[str, Any]] | None = None,
        destination: str | None = None,
        arrangement: Arrangement = "each",
        retry_missing_inputs: int = 0,
        limit: Mapping[str, Any] | None = None,
        set_loop_items: Mapping[str, Any] | None = None,
        start: Mapping[str, Any] | None = None,
        wait: Mapping[str, Any] | None = None,
        land: Mapping[str, Any] | None = None,
        load: Mapping[str, Any] | None = None,
        webcollect_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        own = [name for name in inspect.signature(TaskGroup.__init__).parameters if name in kwargs]
        super().__init__(group_id, **{name: kwargs.pop(name) for name in own})
        service = {} if webcollect_conn_id is None else {"webcollect_conn_id": webcollect_conn_id}
        _refuse_mistakes(kwargs, self.default_args or {})
        setting = {**service, **_arguments("set_loop_items", set_loop_items)}
        # parameters of other steps are set only once, not for each retry
        again = {name: value for name, value in setting.items() if name != "actions"}
        self._given: dict[str, dict[str, Any]] = {
            "limit": {**service, **_arguments("limit", limit)},
            "set_loop_items": setting,
            **dict.fromkeys(_SETTING, again),
            "start": {**service, **_arguments("start", start)},
            "wait": {**service, **_arguments("wait", wait)},
            "land": {"mode": "incremental", **service, **kwargs, **_arguments("land", land)},
            "load": {**_arguments("load", load)},
        }
        defaults = {**self.dag.default_args, **self.default_args}
        # a deployment that reschedules sensors may have no triggerer
        waits = self._given["wait"]
        is_deferred = waits.get("mode", defaults.get("mode")) != "reschedule" or "no_new_rows_for" in waits
        waits.setdefault("deferrable", defaults.get("deferrable", is_deferred))
        for task_id, names in _READ.items():
            usual = {name: defaults[name] for name in names if name in defaults}
            self._given[task_id] = {**usual, **self._given[task_id]}
        # each load has its own table
        self._table = self._given["load"].pop("table", None)
        self._loads = load is not None
        self._retries = arguments.integer("retry_missing_inputs", retry_missing_inputs, 0, MOST_RETRIES)
        self._is_limited = limit is not None
        parts = self._parts(_selected(collection_tasks, _folders_of(self.dag)), destination)
        arguments.one_of("arrangement", arrangement, get_args(Arrangement))
        if self._retries and not any(part.loop for part in parts):
            rule = "no collection task has `loop_items` and a landing that checks its `inputs`"
            raise InvalidArgument("retry_missing_inputs", retry_missing_inputs, rule)
        self.tooltip = self.tooltip or f"{len(parts)} collection tasks, {_TOOLTIPS[arrangement]}"
        if arrangement == "together":
            self._add_together(parts, destination)
        else:
            for part in parts:
                self._add(part)
        if self._is_limited:
            firsts = [*self.get_roots()]
            self._made("limit", task_group=self) >> firsts

    def _made(self, task_id: str, options: Mapping[str, Any] | None = None, **given: Any) -> Any:
        """Return a new operator of the group, for which Airflow does not render texts from the file.

        The operator first gets the texts as plain values, since it checks only plain values while the DAG is
        parsed.

        :param options: the operator's arguments from the file, which replace the DAG's; None for none.
        :param given: the operator's other arguments, which the DAG cannot set.
        """
        own = {**self._given[task_id], **(options or {})}
        made = {**_OPERATORS, **_SETTING}[task_id](task_id=task_id, dag=self.dag, **given, **own)
        for name in (*(name for name in _WRITTEN if name in given), *(options or {})):
            value = getattr(made, name) if name in made.template_fields else None
            # Airflow does not render the result of another task in any case
            if value is not None and name not in _RENDERED and not hasattr(value, "resolve"):
                setattr(made, name, literal(value))
        if isinstance(given.get("sources"), list):
            made.sources = [
                {name: value if name in _RENDERED else literal(value) for name, value in source.items()}
                for source in given["sources"]
            ]
        return made

    def _connect_load(self, land: WebCollectToObjectStorageOperator) -> None:
        """Make the loads use the landing's storage connection, unless they have their own."""
        is_iceberg = land.table_format == "iceberg"
        storage = land.iceberg_conn_id if is_iceberg else land.object_storage_conn_id
        self._given["load"].setdefault("object_storage_conn_id", storage)

    def _parts(self, tasks: Sequence[CollectionTask], destination: str | None) -> list[_Part]:
        """Return the collection tasks of the group; no two of them may share an id, a folder or a table.

        :param destination: the group's destination, for tasks without their own; None if there is none.
        :raises InvalidArgument: if two of them do, or if one has no folder or no table.
        """
        table_format = self._given["land"].get("table_format")
        conn_id = self._given["land"].get("object_storage_conn_id")
        conn_id = conn_id if is_literal(conn_id) else None
        spell = table_name if table_format == "iceberg" else functools.partial(folder_name, OPTION)
        parts, spelled, claims = list[_Part](), dict[str, str](), Claims()
        for task in tasks:
            if (folder := task.destination) is None:
                if not (destination and isinstance(destination, str)):
                    rule = f"it must be a text, since {task.name!r} has no destination of its own"
                    raise InvalidArgument("destination", destination, rule)
                folder = filled("destination", destination, task, spell)
                if folder == destination and sum(each.destination is None for each in tasks) > 1:
                    rule = "it must have {name} or {id} in it: each collection task needs a folder of its own"
                    raise InvalidArgument("destination", destination, rule)
            if (other := spelled.setdefault(table_name(task.name), task.name)) != task.name:
                rule = f"its Airflow id or its table would be the same as that of {other!r}: rename one"
                raise InvalidArgument("collection_tasks", task.name, rule)
            part = _Part(task, folder, self._load_of(task), self._loop_of(task))
            if load := part.load and {**self._given["load"], **part.load}:
                alone = None if load.get("primary_key") else "loads into one table need a primary_key"
                claim_table(claims, part.called, f"{part.called}: load.table", load["table"], alone)
            parts.append(part)
        names = [part.called for part in parts]
        kind: Any = "iceberg" if table_format == "iceberg" else "folder"
        refuse_overlaps(
            names, [Location(kind, part.folder, None if part.storage else conn_id) for part in parts]
        )
        return parts

    def _load_of(self, task: CollectionTask) -> dict[str, Any] | None:
        """Return the load's arguments for one collection task; None for no load."""
        if not self._loads or task.load is False:
            return None
        own = task.load or {}
        table = own.get("table", self._table)
        if table is None:
            rule = f"it must be a text, such as shops.{{name}}, since {task.name!r} has no table of its own"
            raise InvalidArgument("load.table", table, rule)
        table = filled("load.table", arguments.text("load.table", table), task, table_name)
        return {**own, "table": table}

    def _loop_of(self, task: CollectionTask) -> dict[str, Any] | None:
        """Return the loop of a collection task whose missing inputs are collected again; None for none."""
        given = self._checks_of(task)
        if not (self._retries and task.loop_items and given):
            return None
        options = {**self._given["land"], **task.options}
        with arguments.inside(f"collection task {task.name!r}"):
            if not is_literal(given):
                rule = "with `retry_missing_inputs`, it must have no template"
                raise InvalidArgument("checks", given, rule)
            checks = make_checks(given, make_format())
            if not (checks and checks.inputs):
                return None
            action_id = checks.inputs.action_id
            loops = [loop for loop in task.loop_items if action_id in (None, loop["action_id"])]
            if len(loops) != 1:
                rule = "with `retry_missing_inputs`, it must be the loop of one of the lists in `loop_items`"
                raise InvalidArgument("checks['inputs']['action_id']", action_id, rule)
            if loops[0].get("is_append"):
                rule = "with `retry_missing_inputs`, it must be false: each run sets the whole list"
                raise InvalidArgument("loop_items: is_append", True, rule)
            if options["mode"] != "incremental" or task.lotno is not None:
                rule = "with `retry_missing_inputs`, it must be 'incremental', and `lotno` not set"
                raise InvalidArgument("mode", options["mode"], rule)
            if options.get("skip_if_nothing_new"):
                rule = "with `retry_missing_inputs`, it must be false: what has no row is collected again"
                raise InvalidArgument("skip_if_nothing_new", options["skip_if_nothing_new"], rule)
        return loops[0]

    def _checks_of(self, task: CollectionTask) -> Any:
        return task.options.get("checks", self._given["land"].get("checks"))

    def _options_of(self, part: _Part, retry: int) -> dict[str, Any]:
        """Return the landing's options for one collection task.

        :param retry: the number of the retry, 0 for the first landing; only the last landing can fail because
            of missing inputs.
        """
        options = part.task.options
        if not part.loop or retry == self._retries:
            return options
        checks = self._checks_of(part.task)
        return {**options, "checks": {**checks, "inputs": {**checks["inputs"], "on_missing": "warn"}}}

    def _add_retries(
        self,
        group: TaskGroup,
        land: Any,
        parts: Sequence[_Part],
        add_landing: Callable[[int, dict[str, Any], Any], Any],
        sources_of: Callable[[Sequence[_Part], int], Any] | None = None,
    ) -> Any:
        """Add the tasks that collect missing inputs again after a landing; return the last task.

        :param group: the group to which the tasks are added.
        :param land: the first landing.
        :param parts: the collection tasks whose rows the landing has.
        :param add_landing: adds the landing of a retry; takes the retry's number, the arguments of all tasks
            of the retry's group, and the landing's ``sources``.
        :param sources_of: returns the ``sources`` for a retry of some collection tasks, from which a run
            chooses; takes these and the retry's number. None for a landing of one collection task.
        """
        if AIRFLOW_V_3_0_PLUS:
            from airflow.providers.standard.operators.empty import EmptyOperator
        else:
            from airflow.operators.empty import EmptyOperator  # type: ignore[no-redef]

        parts = [part for part in parts if part.loop]
        if not parts:
            return land
        updates = [{"collection_task_id": part.task.id, "loop_items": [part.loop]} for part in parts]
        setting: dict[str, Any] = {"updates": updates, "collection_task_names": _names(parts)}
        landings, setups = [land], []
        for number in range(1, self._retries + 1):
            retry = TaskGroup(RETRY_GROUP.format(number), parent_group=group, dag=self.dag)
            usual = {"task_group": retry, "collection_task_names": _names(parts)}
            chosen: dict[str, Any] = {"landed": [each.output for each in landings]}
            if sources_of:
                chosen["sources"] = sources_of(parts, number)
            set_missing = self._made("set_missing_inputs", task_group=retry, **setting, **chosen)
            ids = {"collection_task_ids": set_missing.output["collection_task_ids"]}
            of_run = {**(ids if sources_of else {"collection_task_id": parts[0].task.id}), **usual}
            start = set_missing >> self._made("start", **of_run)
            if self._is_limited:
                set_missing >> self._made("limit", task_group=retry) >> start
            landing = add_landing(number, usual, set_missing.output["sources"])
            landing << self._made("wait", after=start.output, **of_run)
            for task in retry:
                # no other rule works after a setup, and with this one, a skipped task skips the next tasks
                task.trigger_rule = "all_success"
            landings.append(landing)
            setups.append(set_missing)
        restore = self._made("restore_loop_items", task_group=group, **setting)
        landings[-1] >> restore.as_teardown(setups=setups, on_failure_fail_dagrun=True)
        landed = EmptyOperator(
            task_id="landed", task_group=group, dag=self.dag, trigger_rule="none_failed_min_one_success"
        )
        landings >> landed
        return landed

    def _add(self, part: _Part) -> None:
        """Add the tasks of one collection task, in their own group."""
        task = part.task
        tooltip = ", ".join((f"{task.name} ({task.id})", *task.tags))
        group = TaskGroup(plain_name(task.name), parent_group=self, dag=self.dag, tooltip=tooltip)
        usual: dict[str, Any] = {"task_group": group, "collection_task_names": _names([part])}

        def add_landing(retry: int, usual: dict[str, Any], _: object = None) -> Any:
            own = {"collection_task_id": task.id, "lotno": task.lotno, "destination": part.folder}
            with arguments.inside(part.called if task.options else ""):
                return self._made("land", {**self._options_of(part, retry), **part.storage}, **own, **usual)

        start = self._made("start", collection_task_id=task.id, **usual)
        if task.loop_items:
            start << self._made(
                "set_loop_items", collection_task_id=task.id, loop_items=task.loop_items, **usual
            )
        land = add_landing(0, usual)
        land << self._made("wait", collection_task_id=task.id, after=start.output, **usual)
        landed = self._add_retries(group, land, [part], add_landing)
        if part.load:
            if not part.storage:
                self._connect_load(land)
            own = {"landing": part.folder, "collection_task_name": part.name}
            with arguments.inside(part.called if task.load else ""):
                landed >> self._made("load", {**part.load, **part.storage}, task_group=group, **own)

    def _add_together(self, parts: Sequence[_Part], destination: str | None) -> None:
        """Add one task of each kind for all collection tasks."""
        ids = [part.task.id for part in parts]
        usual: dict[str, Any] = {"task_group": self, "collection_task_names": _names(parts)}
        start = self._made("start", collection_task_ids=ids, **usual)
        if updates := [
            {"collection_task_id": part.task.id, "loop_items": part.task.loop_items}
            for part in parts
            if part.task.loop_items
        ]:
            start << self._made("set_loop_items", updates=updates, **usual)
        outlets = [
            asset for part in parts if is_literal(part.folder) and (asset := landing_asset(part.folder))
        ]
        # the folder that contains all folders, and stands for the whole landing
        around = FIELD.split(destination or "")[0].rpartition("/")[0]
        # a landing without outlets uses its destination as an outlet
        is_named = outlets and around and not around.endswith("/")
        # a folder whose entry names no connection: that one would not be the group's connection
        place = next((part.folder for part in parts if not part.storage), None)
        place = place or Location.parse_landed("destination", parts[0].folder).asset_uri
        own = {"destination": around if is_named else place}

        def sources_of(parts: Sequence[_Part], retry: int) -> list[dict[str, Any]]:
            return [
                {
                    "collection_task_id": part.task.id,
                    "lotno": part.task.lotno,
                    "destination": part.folder,
                    **self._options_of(part, retry),
                }
                for part in parts
            ]

        def add_landing(retry: int, usual: dict[str, Any], sources: Any) -> Any:
            given = self._given["land"].get("outlets")
            with _errors_of_sources(parts):
                land = self._made("land", {"outlets": given or outlets}, sources=sources, **own, **usual)
            if retry and not given:
                if land.asset_partition is not None:
                    rule = (
                        "with `retry_missing_inputs`, the events of an alias cannot have it: set `outlets`, "
                        "or arrangement='each'"
                    )
                    raise InvalidArgument("asset_partition", land.asset_partition, rule)
                # with an alias, only folders of collection tasks that are collected again get an event;
                # Airflow 2 does not accept the lists in an alias's events
                land.outlets = [AssetAlias(f"{self.group_id}.retries")] if AIRFLOW_V_3_0_PLUS else []
            return land

        land = add_landing(0, usual, sources_of(parts, 0))
        land << self._made("wait", collection_task_ids=ids, after=start.output, **usual)
        landed = self._add_retries(self, land, parts, add_landing, sources_of)
        if loading := [part for part in parts if part.load is not None]:
            self._connect_load(land)
            loads: list[dict[str, Any]] = [
                {"landing": part.folder, "collection_task_name": part.name, **(part.load or {})}
                for part in loading
            ]
            with _errors_of_sources(loading):
                landed >> self._made("load", sources=loads, task_group=self)


def _names(parts: Sequence[_Part]) -> dict[str, str]:
    """Return the names of the collection tasks that have one, by id."""
    return {part.task.id: part.name for part in parts if part.name}


@contextlib.contextmanager
def _errors_of_sources(parts: Sequence[_Part]) -> Iterator[None]:
    """Return a context manager that puts the collection task in place of ``sources[…]`` in its errors."""
    try:
        yield
    except InvalidArgument as error:
        if not (place := _SOURCE.match(error.argument)):
            raise
        argument = parts[int(place[1])].called + error.argument[place.end() :]
        raise InvalidArgument(argument, None, error.rule, as_text=error.value) from error


def _refuse_mistakes(given: Mapping[str, Any], default_args: Mapping[str, Any]) -> None:
    """Refuse ``conn_id``, and arguments that the landing does not take, but another operator of the group."""
    for arguments_of in (given, default_args):
        if "conn_id" in arguments_of:
            rule = "the argument is called webcollect_conn_id"
            raise InvalidArgument("conn_id", arguments_of["conn_id"], rule)
    for name in given.keys() - _names_of(WebCollectToObjectStorageOperator):
        for option in _LIKELY:
            if name in _names_of(_OPERATORS[option]):
                rule = f"it is an argument of another task of the group: {option}={{{name!r}: …}}"
                raise InvalidArgument(name, given[name], rule)


@functools.cache
def _names_of(operator: type) -> frozenset[str]:
    """Return the names of an operator's arguments, including the arguments of its base classes."""
    return frozenset(
        name
        for base in inspect.getmro(operator)
        if "__init__" in vars(base)
        for name in inspect.signature(vars(base)["__init__"]).parameters
    )


def _arguments(argument: str, given: Any) -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise InvalidArgument(argument, given, "it must be a dict of an operator's arguments")
    return given


def _folders_of(dag: DAG) -> list[Path]:
    """Return the folder of the file that is being imported, and the folder of the DAG's code."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    # in a test or a script, no DAG file is imported
    is_imported = frame is not None and frame.f_globals.get("__name__") != "__main__"
    imported = [Path(frame.f_code.co_filename).parent] if frame and is_imported else []
    return [*imported, Path(dag.folder)]


def _selected(given: Any, folders: Sequence[Path]) -> Sequence[CollectionTask]:
    """Return the selected collection tasks, at least one.

    :param given: the group's argument ``collection_tasks``.
    :param folders: folders to which the path of a file can be relative; the first one with the file counts.
    :raises InvalidArgument: if a collection task is unknown, invalid, or named twice.
    """
    argument = "collection_tasks"
    if given is None:
        if (tasks := configured()) is None:
            rule = f"it must be given, since [{SECTION}] {OPTION} names no file"
            raise InvalidArgument(argument, None, rule)
        return tasks.tasks
    if isinstance(given, str | Path):
        if Path(given).suffix not in _SUFFIXES:
            rule = f"it must be a file ({', '.join(_SUFFIXES)}), or a list of names, ids and dicts"
            raise InvalidArgument(argument, str(given), rule)
        paths = [folder / Path(given).expanduser() for folder in folders]
        return read_collection_tasks(next(filter(Path.exists, paths), paths[0])).tasks
    entries = []
    for index, entry in enumerate(arguments.items(argument, given)):
        where = functools.partial("{}[{}].{}".format, argument, index)
        if isinstance(entry, Mapping):
            task = make_collection_task({"name": entry.get("id"), **entry}, where)
        else:
            where_listed = f"{argument}[{index}]"
            task = task_of(where_listed, id_or_name(where_listed, entry))
        entries.append((task, where))
    by_key(entries)
    return [task for task, _ in entries]
