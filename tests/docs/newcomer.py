"""``python -m tests.docs.newcomer FOLDER``: README.md from top to bottom, as a newcomer follows it.

Its blocks run in an empty home, with the Python that made this environment and the pip that this Python
brings, and each has five minutes. The wheel in FOLDER replaces the clone's folder, and this environment's
constraints replace Airflow's, which are not on an index. All else comes from the package index. The
newcomer has a bucket: ``my-bucket``, on an S3 server.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from pathlib import Path

from demo.ports import free_port
from tests.storages import s3_server

log = logging.getLogger("tests.docs.newcomer")

ROOT = Path(__file__).parents[2]
#: Kept until the next run, for inspection; removing an environment takes half a minute on a slow disk.
HOME = ROOT / "build/newcomer"
CLONE = "'.[s3,duckdb,sandbox]'"
CONSTRAINTS = "https://raw.githubusercontent.com/apache/airflow/constraints-$AIRFLOW/constraints-$PYTHON.txt"


def main(wheels: Path) -> None:
    """Run the blocks; a block that fails ends it with an error that names its line."""
    begun = time.monotonic()
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    logging.getLogger("tests.docs").setLevel(logging.INFO)
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    home = str(HOME)
    with s3_server() as s3:
        s3.fs.call_s3("create_bucket", Bucket="my-bucket")
        for name in [
            name for name in os.environ if name.startswith(("AIRFLOW_", "AWS_", "PYTHON", "VIRTUAL_ENV"))
        ]:
            del os.environ[name]
        # pip's settings for this machine, which may name the package index
        os.environ.setdefault("XDG_CONFIG_HOME", str(Path.home() / ".config"))
        os.environ |= {
            "AWS_ENDPOINT_URL": s3.options["endpoint_url"],
            "HOME": home,
            "PATH": os.pathsep.join((f"{sys.base_prefix}/bin", os.environ["PATH"])),
            # Python compiles what it imports, pip would compile all; a false value turns that off
            "PIP_NO_COMPILE": "0",
            "PIP_FIND_LINKS": " ".join((str(wheels.resolve()), os.environ.get("PIP_FIND_LINKS", ""))),
        }
        os.chdir(home)
        # only now, since this imports Airflow, which creates its home
        from tests.docs.world import World

        wheel = CLONE.replace(".[", "airflow-provider-webcollect[")
        own = {CLONE: wheel, CONSTRAINTS: str(ROOT / "constraints/airflow-3.3.txt")}
        world = World(Path(home), Path(home, "airflow/dags"), free_port(), own)
        try:
            world.run(ROOT / "README.md")
        finally:
            world.close()
    log.info("All of README.md: %.0f s", time.monotonic() - begun)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
