"""``python -m demo``: what `make demo` and `make ui` run."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from airflow_provider_webcollect.sandbox.demo import TASK_ID
from demo import main_job
from demo.airflow_api import PATIENCE_SECONDS, AirflowProblem
from demo.browser import VARIABLE, find_browser
from demo.console import Console
from demo.landing import LandingProblem
from demo.pictures import Pictures
from demo.processes import ProcessEnded, Processes
from demo.real_airflow import RealAirflow
from demo.sandbox import start_sandbox

if TYPE_CHECKING:
    from airflow_provider_webcollect.sandbox import Control

PROJECT = Path(__file__).resolve().parent.parent
FOLDER = PROJECT / ".demo"
# A run of the collection task takes nine seconds.
SANDBOX_OPTIONS = ("--speed", "30", "--rows-per-item", "1000")

#: The example DAG with a task group, of which pictures are taken.
GROUP = "webcollect_task_group"
#: Names of further collection tasks, in the order of the histories that land them.
SITES = ("Book prices", "Job offers", "Hotel rates", "Flight fares", "Fuel prices", "Product recalls")
SHOPS = tuple(f"Garden shop {number}" for number in range(1, 13))
REST = ("Old catalogue", "Product reviews", "Rents, north", "Rents, south", "Rents, west")


def main() -> int:
    """Run the demo; the exit code says whether every row has landed."""
    parser = _parser()
    arguments = parser.parse_args()
    pictures = None
    if arguments.pictures:
        if not (chromium := find_browser()):
            parser.error(f"--pictures needs Chromium: install it, or name it by {VARIABLE}")
        pictures = Pictures(chromium, arguments.pictures)
    # SIGTERM cleans up as well; a shell's background jobs start with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    FOLDER.mkdir(exist_ok=True)
    try:
        with FileLock(FOLDER / "lock", timeout=0):
            _demo(Console(), arguments.dags, arguments.keep, pictures)
    except Timeout:
        print("Another demo is running here (`make ui`, perhaps): end it first", file=sys.stderr)
        return 1
    except (AirflowProblem, LandingProblem, ProcessEnded, TimeoutError) as problem:
        print(f"\n{problem}\n\nThe demo failed; its logs are in {FOLDER}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m demo", description=main_job.__doc__)
    parser.add_argument("--keep", action="store_true", help="keep Airflow's web interface up until Ctrl-C")
    parser.add_argument("--dags", type=Path, default=PROJECT / "example_dags", help="folder with the DAGs")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="take the documentation's pictures")
    return parser


def _demo(console: Console, dags: Path, keep: bool, pictures: Pictures | None) -> None:
    for name in ("airflow", "landing", "sandbox"):
        shutil.rmtree(FOLDER / name, ignore_errors=True)
    with ExitStack() as stack:
        url, control = start_sandbox(stack.enter_context(Processes()), FOLDER / "sandbox", *SANDBOX_OPTIONS)
        console.say(f"The stand-in service listens on {url}")

        def say(step: str) -> None:
            console.say(f"Airflow is starting: {step}")

        airflow = stack.enter_context(RealAirflow(FOLDER / "airflow", dags, say=say))
        console.say(f"Airflow is up, with version {main_job.check_provider(airflow)} of the provider")
        if pictures:
            pictures.take_page(airflow, "empty", "ol")
            pictures.take_connection_form(airflow)
        main_job.add_connection(airflow, url)
        if keep and not pictures:
            console.say("Thirty days of landings are put into its database, as if they had run")
            _add_history(airflow, control)
        run_id = main_job.run(airflow, control, FOLDER / "landing", console)
        if pictures:
            pictures.take_dag_run(airflow, "dag-run", main_job.DAG_ID, run_id)
            run_id = airflow.trigger(GROUP, {"destination": (FOLDER / "landing" / "shops").as_uri()})
            airflow.wait(GROUP, run_id)
            pictures.take_dag_run(airflow, "task-group", GROUP, run_id)
            pictures.take_log(airflow, "task-group-log", GROUP, run_id, "shops.Shop_search.start")
            _take_pages(airflow, control, pictures)
            console.say(f"The pictures are in {pictures.folder}")
        if keep:
            console.say(f"Airflow's web interface: {airflow.url} (Ctrl-C ends it)")
            console.say(f"The landings, and what the service says: {airflow.url}/plugin/webcollect")
            with suppress(KeyboardInterrupt):
                signal.pause()
    console.say("Airflow and the stand-in service have ended; `make ui` does this again and keeps them up")


def _add_history(airflow: RealAirflow, control: Control) -> None:
    """Add weeks of landings, and add their collection tasks to the service, so that it knows their names."""
    tasks = [control.add_task(name=name, state="Finished") for name in (*SITES, *SHOPS, *REST)]
    airflow.add_history(*(task["task_id"] for task in tasks))


def _take_pages(airflow: RealAirflow, control: Control, pictures: Pictures) -> None:
    """Take pictures of the page with weeks of landings, a wait, and a service that falls silent."""
    _add_history(airflow, control)
    # slow enough that the sensor still waits for the run when the last picture is taken
    control.configure(speed=1)
    main_job.start(airflow, control, FOLDER / "landing")

    def is_started() -> bool:
        return bool(control.task(TASK_ID)["state"] == "Waiting")

    airflow.wait_for(is_started, PATIENCE_SECONDS, "the collection task to be started")
    # by then the first of four sub-tasks has finished; the last one finishes a minute later
    control.advance(210)
    at_work = f"[data-collection-task='{TASK_ID}']"
    pictures.take_page(airflow, "light", at_work)
    pictures.take_page(airflow, "dark", at_work, theme="dark")
    pictures.take_page(airflow, "narrow", at_work, width=400)
    control.fail("*", times=None, kind="slow", seconds=600)
    pictures.take_page(airflow, "down", "[data-section=service] .note:has-text('has not answered')")


if __name__ == "__main__":
    sys.exit(main())
