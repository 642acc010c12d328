"""Apache Airflow provider for a web data collection service.

What DAGs use can be imported from here; a module is loaded when the first of its names is used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "1.0.0rc1"

#: The public names by their modules; ``__init__.pyi`` says the same to type checkers.
_PUBLIC = {
    "assets": ("LandingEvent", "create_asset"),
    "hooks.webcollect": ("WebCollectHook",),
    "landing.reader": ("read_landing",),
    "operators.webcollect": (
        "WebCollectAcceptLandingOperator",
        "WebCollectCleanLandingOperator",
        "WebCollectCompactLandingOperator",
        "WebCollectCopyTaskOperator",
        "WebCollectCopyTasksOperator",
        "WebCollectDeleteTaskGroupsOperator",
        "WebCollectDeleteTasksOperator",
        "WebCollectDeprecateDataAppOperator",
        "WebCollectGetActionsOperator",
        "WebCollectGetRunningCountsOperator",
        "WebCollectMarkExportedOperator",
        "WebCollectMetricsCheckOperator",
        "WebCollectMoveTaskOperator",
        "WebCollectQueryAnalyticsOperator",
        "WebCollectRefreshTokenOperator",
        "WebCollectReplaceUrlsOperator",
        "WebCollectStartSubTasksOperator",
        "WebCollectUpdateLoopItemsOperator",
        "WebCollectUpdateTaskParametersOperator",
        "WebCollectVerifyLandingOperator",
    ),
    "sensors.webcollect": (
        "WebCollectCapacitySensor",
        "WebCollectSubTaskStatusSensor",
        "WebCollectTaskStatusSensor",
    ),
    "transfers.landing_to_warehouse": ("WebCollectLoadOperator",),
    "transfers.webcollect_to_object_storage": ("WebCollectToObjectStorageOperator",),
    "triggers.webcollect": ("WebCollectTaskFinishedTrigger",),
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]
