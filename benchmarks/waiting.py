"""Ten thousand waits in one event loop: ``python benchmarks/waiting.py [--waits N] [--interval S] [--rounds
N]``.

A sandbox that enforces the service's limits runs in its own process. The first measurement runs the
provider's
triggers, as a triggerer would; the second is the common way, a request for each waiter and look, on the same
server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from airflow_provider_webcollect.sandbox import Control, demo

STATUS = "/cloudextraction/statuses/v2"


def main() -> None:
    """Start a sandbox, measure both ways, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--waits", type=int, default=10_000, help="waits at once (default: %(default)s)")
    parser.add_argument(
        "--interval", type=float, default=60.0, help="seconds between looks (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="looks per wait (default: %(default)s)")
    parser.add_argument(
        "--common", type=float, default=60.0, help="seconds for the common way (default: %(default)s)"
    )
    arguments = parser.parse_args()
    # Airflow's log of ten thousand first looks would be most of what is printed
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as directory:
        ready = Path(directory) / "url"
        command = [sys.executable, "-m", "airflow_provider_webcollect.sandbox", "--port", "0"]
        server = subprocess.Popen([*command, "--ready-file", str(ready)], stdout=subprocess.DEVNULL)
        try:
            while not ready.exists():
                time.sleep(0.02)
            control = Control(ready.read_text())
            ids = [control.add_task(state="Extracting")["task_id"] for _ in range(arguments.waits)]
            os.environ["AIRFLOW_CONN_WEBCOLLECT_DEFAULT"] = json.dumps(
                {
                    "conn_type": "webcollect",
                    "host": ready.read_text(),
                    "extra": {"access_token": demo.ACCESS_TOKEN, "token_store": "memory"},
                }
            )
            print(f"{arguments.waits} waits, a look every {arguments.interval:.0f} s")
            asyncio.run(shared(control, ids, arguments.interval, arguments.rounds))
            control.clear_requests()
            asyncio.run(common(control, ready.read_text(), ids, arguments.interval, arguments.common))
        finally:
            server.terminate()
            server.wait()


class Blocks:
    """Measures the longest time that the event loop did not come round."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            self.longest = max(self.longest, time.perf_counter() - before - 0.005)

    def stop(self) -> None:
        self._task.cancel()


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def requests_by_status(control: Control) -> dict[int, int]:
    return control.counters().get(STATUS, {})


async def shared(control: Control, ids: list[str], interval: float, rounds: int) -> None:
    """Run a trigger for each task and let some tasks finish meanwhile."""
    from airflow_provider_webcollect.triggers.webcollect import WebCollectTaskStatusTrigger

    noticed: dict[str, float] = {}

    async def wait(task_id: str) -> None:
        trigger = WebCollectTaskStatusTrigger(
            wait={"task_ids": [task_id]}, poke_interval=interval, webcollect_conn_id="webcollect_default"
        )
        async for event in trigger.run():
            assert event.payload["outcome"] == "done", event.payload
            noticed[task_id] = time.time()

    # what the first wait alone brings (imports, connection) is not counted for each
    first = asyncio.create_task(wait(ids[0]))
    await asyncio.sleep(2)
    gc.collect()
    before = resident()
    waits = [first, *(asyncio.create_task(wait(task_id)) for task_id in ids[1:])]
    blocks = Blocks()
    await asyncio.sleep(interval)
    gc.collect()
    blocks.longest = 0.0  # the collection was ours
    per_wait = (resident() - before) / len(ids)
    control_loop = asyncio.get_running_loop()
    started, used = time.perf_counter(), cpu()
    asked = sum(requests_by_status(control).values())
    finished: dict[str, float] = {}
    for number in range(rounds):
        for task_id in random.sample([t for t in ids if t not in finished], max(1, len(ids) // 100)):
            await control_loop.run_in_executor(None, control.mark_state, task_id, "Finished")
            finished[task_id] = time.time()
        await asyncio.sleep(max(0.0, started + (number + 1) * interval - time.perf_counter()))
    elapsed, used = time.perf_counter() - started, cpu() - used
    by_status = requests_by_status(control)
    asked = sum(by_status.values()) - asked
    await asyncio.sleep(interval + 1)
    blocks.stop()
    late = [noticed.get(task_id, float("inf")) - moment for task_id, moment in finished.items()]
    for task in waits:
        task.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    print("\nthis provider's triggers")
    print(
        f"  requests per round      {asked / rounds:.1f} ({-(-len(ids) // 100)} batches of 100 is the least)"
    )
    print(f"  answers 429             {by_status.get(429, 0)}")
    print(f"  finished tasks noticed  {sum(n < float('inf') for n in late)} of {len(late)}")
    print(f"  noticed after           {max(late):.1f} s at most")
    print(f"  CPU                     {used / elapsed:.2%} of a core")
    print(f"  memory                  {per_wait / 1024:.1f} KB per wait")
    print(f"  longest block           {blocks.longest * 1000:.0f} ms")


async def common(control: Control, url: str, ids: list[str], interval: float, seconds: float) -> None:
    """Look at each task with a request of its own, every ``interval`` seconds, as providers commonly do."""
    headers = {"Authorization": f"Bearer {demo.ACCESS_TOKEN}"}
    answered: set[str] = set()

    # httpx's own pool takes longer and longer with thousands of waiting requests
    free = asyncio.Semaphore(50)

    async def wait(client: httpx.AsyncClient, task_id: str) -> None:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                async with free:
                    answer = await client.post(url + STATUS, json={"taskIds": [task_id]}, headers=headers)
                if answer.status_code == 200:
                    answered.add(task_id)
            await asyncio.sleep(interval)

    used = cpu()
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=50)) as client:
        waits = [asyncio.create_task(wait(client, task_id)) for task_id in ids]
        await asyncio.sleep(seconds)
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    by_status = requests_by_status(control)
    share = len(answered) / seconds
    print(f"\na request for each wait and look, for {seconds:.0f} s")
    print(f"  requests                {sum(by_status.values())}")
    print(f"  answers 429             {by_status.get(429, 0)}")
    print(f"  waits answered          {len(answered)} of {len(ids)}")
    print(f"  time to answer all      about {len(ids) / share:.0f} s" if share else "  none answered")
    print(f"  CPU                     {(cpu() - used) / seconds:.2%} of a core")


if __name__ == "__main__":
    main()
