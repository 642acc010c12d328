"""Cost of a DAG file's imports, compared with other providers: ``python -m benchmarks.imports``.

For each provider, fresh processes import its operators, sensors and triggers; they have already imported the
modules that every DAG imports. The providers take turns. CPU times are medians, with cached bytecode. It
needs a quiet machine and a minute.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from benchmarks.report import machine, table

OURS = "airflow_provider_webcollect"
#: The modules of each provider that a DAG imports, relative to the provider's package.
PROVIDERS = {
    OURS: (
        "operators.webcollect",
        "sensors.webcollect",
        "triggers.webcollect",
        "transfers.webcollect_to_object_storage",
    ),
    "airflow.providers.airbyte": ("operators.airbyte", "sensors.airbyte", "triggers.airbyte"),
    "airflow.providers.databricks": ("operators.databricks", "sensors.databricks", "triggers.databricks"),
    "airflow.providers.dbt.cloud": ("operators.dbt", "sensors.dbt", "triggers.dbt"),
    "airflow.providers.http": ("operators.http", "sensors.http", "triggers.http"),
}
TURNS = 7
IMPORT = """
import importlib, json, sys, time
import airflow.sdk, airflow.providers.common.compat.sdk, airflow.triggers.base
package, *modules = sys.argv[1:]
before, began = set(sys.modules), time.process_time()
for module in modules:
    importlib.import_module(f"{package}.{module}")
seconds = time.process_time() - began
new = set(sys.modules) - before
own = sum(name.startswith(package) for name in sys.modules)
print(json.dumps([own, len(new), seconds]))
"""


def main() -> None:
    """Measure the imports, and print a table."""
    print(machine())
    for package in PROVIDERS:
        _once(package)
    taken = [{package: _once(package) for package in PROVIDERS} for _ in range(TURNS)]
    seconds = {package: statistics.median(turn[package][2] for turn in taken) for package in PROVIDERS}
    table(
        "provider | its own modules | all modules | ms of CPU | x this provider",
        [
            (
                package.removeprefix("airflow.providers."),
                taken[0][package][0],
                taken[0][package][1],
                f"{seconds[package] * 1000:.0f}",
                f"{seconds[package] / seconds[OURS]:.1f}",
            )
            for package in PROVIDERS
        ],
    )


def _once(package: str) -> tuple[int, int, float]:
    command = [sys.executable, "-c", IMPORT, package, *PROVIDERS[package]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    own, new, seconds = json.loads(done.stdout.splitlines()[-1])
    return own, new, seconds


if __name__ == "__main__":
    main()
