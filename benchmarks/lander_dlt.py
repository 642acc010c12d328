"""Landing rows with dlt, in an environment that has dlt: ``python -m benchmarks.lander_dlt WAY URL FOLDER
TASK TOKEN``. The way is ``jsonl``, ``jsonl gzip`` or ``parquet``.

As dlt's documentation recommends, it uses the ``rest_api`` source with a cursor paginator, the ``filesystem``
destination, and dlt's default number of workers. Telemetry is off. dlt compresses JSON lines by default; for
``jsonl``, compression is off.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
if sys.argv[1] == "jsonl":
    os.environ["DATA_WRITER__DISABLE_COMPRESSION"] = "true"

import dlt
import pyarrow.parquet  # noqa: F401  # imported here, so that the import is not measured
from dlt.destinations import filesystem
from dlt.sources.rest_api import rest_api_source

from benchmarks.measured import measured


def main(way: str, url: str, folder: str, task: str, token: str) -> None:
    """Measure a landing."""
    measured(lambda: land(way.split()[0], url, folder, task, token))


def land(file_format: Any, url: str, folder: str, task: str, token: str) -> int:
    """Land a task's rows, and return the number of rows that dlt has counted."""
    source = rest_api_source(
        {
            "client": {"base_url": url, "auth": {"type": "bearer", "token": token}},
            "resources": [
                {
                    "name": "rows",
                    "endpoint": {
                        "path": "data/all",
                        "params": {"taskId": task, "offset": 0, "size": 1000},
                        "data_selector": "data.data",
                        "paginator": {
                            "type": "cursor",
                            "cursor_path": "data.offset",
                            "cursor_param": "offset",
                            # the service also returns a cursor with the last page
                            "stop_after_empty_page": True,
                        },
                    },
                }
            ],
        }
    )
    pipeline = dlt.pipeline(
        pipeline_name="benchmark",
        pipelines_dir=f"{folder}/pipelines",
        destination=filesystem(bucket_url=f"file://{folder}/bucket"),
        dataset_name="landed",
    )
    pipeline.run(source, loader_file_format=file_format).raise_on_failed_jobs()
    trace: Any = pipeline.last_trace
    return int(trace.last_normalize_info.row_counts["rows"])


if __name__ == "__main__":
    main(*sys.argv[1:])
