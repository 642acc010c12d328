"""``python -m demo``: what `make demo` and `make ui` run."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from demo import main_job
from demo.airflow_api import AirflowProblem
from demo.browser import VARIABLE, find_browser
from demo.console import Console
from demo.landing import LandingProblem
from demo.pictures import Pictures
from demo.processes import ProcessEnded, Processes
from demo.real_airflow import RealAirflow
from demo.sandbox import start_sandbox

PROJECT = Path(__file__).resolve().parent.parent
FOLDER = PROJECT / ".demo"
# A run of the collection task takes about five minutes of sandbox time.
SANDBOX_OPTIONS = ("--speed", "30", "--rows-per-item", "1000")

#: The numbers of loop items of further runs, so that the pictures show several landings, one of them odd.
RUNS_FOR_PICTURES = (11, 12, 10, 11, 4)


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
        console.say(f"The stand-in service listens on {url}; Airflow is starting")
        airflow = stack.enter_context(RealAirflow(FOLDER / "airflow", dags))
        console.say(f"Airflow is up, with version {main_job.check_provider(airflow)} of the provider")
        if pictures:
            pictures.take_connection_form(airflow)
        main_job.add_connection(airflow, url)
        run_id = main_job.run(airflow, control, FOLDER / "landing", console)
        if pictures:
            pictures.take_dag_run(airflow, main_job.DAG_ID, run_id)
            for items in RUNS_FOR_PICTURES:
                main_job.run(airflow, control, FOLDER / "landing", console, main_job.LOOP_ITEMS[:items])
            pictures.take_page(airflow)
            console.say(f"The pictures are in {pictures.folder}")
        if keep:
            console.say(f"Airflow's web interface: {airflow.url} (Ctrl-C ends it)")
            console.say(f"The landings, and what the service says: {airflow.url}/plugin/webcollect")
            with suppress(KeyboardInterrupt):
                signal.pause()
    console.say("Airflow and the stand-in service have ended; `make ui` does this again and keeps them up")


if __name__ == "__main__":
    sys.exit(main())
