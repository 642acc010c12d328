"""The commands ``airflow`` and ``webcollect``, in processes forked from one that has imported what they need.

Each would import for seconds what it works with for moments. A process is forked for an environment that has
the same Airflow as the one it was imported in; in any other, the command itself is run.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tests.interruption import until

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The function that each runs.
COMMANDS = {"airflow": ("airflow.__main__", "main"), "webcollect": ("airflow_provider_webcollect.cli", "run")}
GIVEN = re.compile(rf"^(?:\w+=\S* )*({'|'.join(COMMANDS)}) ", re.MULTILINE)
#: What Airflow reads when it is imported. It is part of the script, which must start within moments.
KEY = """
def key(environment):
    own = {n: v for n, v in environment.items() if n.startswith(("AIRFLOW__", "AIRFLOW_HOME", "PYTHON"))}
    return hashlib.sha1(repr(sorted(own.items())).encode()).hexdigest()[:12]
"""
SCRIPT = f"""#!{sys.executable} -IS
import hashlib, json, os, socket, sys
{KEY}
folder, command = os.path.split(os.path.abspath(sys.argv[0]))
connection = socket.socket(socket.AF_UNIX)
try:
    connection.connect(f"{{folder}}/{{command}}-{{key(os.environ)}}")
except OSError:
    os.execv({str(Path(sys.executable).parent)!r} + "/" + command, [command, *sys.argv[1:]])
given = json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(connection, [len(given).to_bytes(4, "big")], [0, 1, 2])
connection.sendall(given)
sys.exit((connection.recv(1) or b"\\1")[0])
"""


class Commands:
    """Scripts of the commands' names, to be found first, and the processes that are forked.

    :param folder: of the scripts, and of the sockets of the processes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._forked: dict[Path, subprocess.Popen[bytes]] = {}
        for command in COMMANDS:
            script = folder / command
            script.write_text(SCRIPT)
            script.chmod(0o755)

    def prepare(self, block: str) -> None:
        """Have a process to be forked for each command that a block of shell gives."""
        for command in GIVEN.findall(block):
            path = self.folder / f"{command}-{_key(os.environ)}"
            if path not in self._forked:
                started = [sys.executable, "-m", __name__, command, str(path)]
                root = Path(__file__).parents[2]
                self._forked[path] = subprocess.Popen(started, cwd=root, start_new_session=True)
                until(path.exists)

    def close(self) -> None:
        """End the processes, and all that is left of those forked from them."""
        for process in self._forked.values():
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def _key(environment: Mapping[str, str]) -> str:
    names: dict[str, Any] = {"hashlib": importlib.import_module("hashlib")}
    exec(KEY, names)
    return str(names["key"](environment))


def serve(command: str, path: Path) -> None:
    """Fork a process for each command that is given, until a signal ends this one."""
    module, function = COMMANDS[command]
    importlib.import_module(module)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    learned = path.with_suffix(".modules")
    while True:
        connection, _ = listener.accept()
        if learned.exists():
            _import(learned.read_text().split())
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not os.fork():
            break
        connection.close()
    listener.close()
    size, files, *_ = socket.recv_fds(connection, 4, 3)
    given = b""
    while len(given) < int.from_bytes(size, "big"):
        given += connection.recv(65536)
    if child := os.fork():
        connection.send(bytes([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255]))
        os._exit(0)
    connection.close()
    for number, (file, name) in enumerate(zip(files, ("stdin", "stdout", "stderr"), strict=True)):
        os.dup2(file, number)
        os.close(file)
        setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    sys.argv, folder, environment = json.loads(given)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    try:
        sys.exit(getattr(sys.modules[module], function)())
    finally:
        installed = (sysconfig.get_path("stdlib"), sysconfig.get_path("platlib"))
        learned.write_text("\n".join(name for name, of in sys.modules.items() if _is_in(of, installed)))


def _import(names: list[str]) -> None:
    """Import what a command has imported, and make what that makes once, for those to come."""
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    if "sqlalchemy.orm" in sys.modules:
        sys.modules["sqlalchemy.orm"].configure_mappers()
    if "airflow.api_fastapi.execution_api.app" in names:
        asyncio.run(_use_execution_api())


async def _use_execution_api() -> None:
    """Make what the tasks of a DAG run ask, of which the first request makes most: it takes seconds."""
    server = importlib.import_module("airflow.sdk.execution_time.supervisor").in_process_api_server()
    async with httpx.AsyncClient(transport=server.atransport) as client:
        (await client.get("http://in-process.invalid/health")).raise_for_status()


def _is_in(module: Any, folders: tuple[str, ...]) -> bool:
    return str(getattr(module, "__file__", None) or "").startswith(folders)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))
