import time

import pytest

from airflow_provider_webcollect.operators.webcollect import *
from tests.airflow.dag_runs import run_tasks


@pytest.mark.usefixtures("airflow_database")
def test_a(sandbox, set_connection):
    set_connection()
    t = sandbox.control.add_task(lots=[10])
    for _i in range(3):
        a = time.time()
        r = run_tasks(lambda: WebCollectMarkExportedOperator(task_id="m", collection_task_id=t["task_id"]))
        print(time.time() - a, r, r.xcoms)
    assert sandbox.control.task(t["task_id"])["exported"]
    assert len(sandbox.control.requests("/token")) == 1
