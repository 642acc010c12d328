from airflow_provider_webcollect.assets import LandingEvent as LandingEvent
from airflow_provider_webcollect.assets import create_asset as create_asset
from airflow_provider_webcollect.hooks.storage import read_landing as read_landing
from airflow_provider_webcollect.hooks.webcollect import WebCollectHook as WebCollectHook
from airflow_provider_webcollect.operators.webcollect import *  # noqa: F403  # its `__all__`
from airflow_provider_webcollect.sensors.webcollect import (
    WebCollectCapacitySensor as WebCollectCapacitySensor,
)
from airflow_provider_webcollect.sensors.webcollect import (
    WebCollectSubTaskStatusSensor as WebCollectSubTaskStatusSensor,
)
from airflow_provider_webcollect.sensors.webcollect import (
    WebCollectTaskStatusSensor as WebCollectTaskStatusSensor,
)
from airflow_provider_webcollect.task_group import WebCollectTaskGroup as WebCollectTaskGroup
from airflow_provider_webcollect.transfers.landing_to_warehouse import (
    WebCollectLoadOperator as WebCollectLoadOperator,
)
from airflow_provider_webcollect.transfers.webcollect_to_object_storage import (
    WebCollectToObjectStorageOperator as WebCollectToObjectStorageOperator,
)
from airflow_provider_webcollect.triggers.webcollect import (
    WebCollectTaskFinishedTrigger as WebCollectTaskFinishedTrigger,
)

__version__: str
