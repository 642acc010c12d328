"""Apache Airflow provider for a web data collection service.

DAGs can import all public names from here; a module is loaded when one of its names is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "1.0.0rc1"

#: The modules of the public names, except for the names in ``operators.webcollect.__all__``.
_MODULES = {
    "LandingEvent": "assets",
    "create_asset": "assets",
    "WebCollectHook": "hooks.webcollect",
    "read_landing": "hooks.storage",
    "WebCollectCapacitySensor": "sensors.webcollect",
    "WebCollectSubTaskStatusSensor": "sensors.webcollect",
    "WebCollectTaskStatusSensor": "sensors.webcollect",
    "WebCollectTaskGroup": "task_group",
    "WebCollectLoadOperator": "transfers.landing_to_warehouse",
    "WebCollectToObjectStorageOperator": "transfers.webcollect_to_object_storage",
    "WebCollectTaskFinishedTrigger": "triggers.webcollect",
}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return [*_MODULES, *_load("operators.webcollect").__all__]
    if name in _MODULES:
        return getattr(_load(_MODULES[name]), name)
    if name.endswith("Operator") and name in (operators := _load("operators.webcollect")).__all__:
        return getattr(operators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__getattr__("__all__")]


def _load(module: str) -> Any:
    return importlib.import_module(f"{__name__}.{module}")
