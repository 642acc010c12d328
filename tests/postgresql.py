"""A PostgreSQL server on loopback, run from the programs that the Makefile finds or installs."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg2

from demo.airflow_api import AirflowProblem
from demo.ports import free_port
from demo.processes import Processes
from tests.interruption import PATIENCE


class PostgreSQL:
    """A PostgreSQL server that may be killed and started again.

    :param programs: the folder with ``postgres`` and ``initdb``
    """

    def __init__(self, programs: Path, folder: Path, processes: Processes) -> None:
        self._programs, self._folder, self._processes = programs, folder, processes
        self._port, self._password = free_port(), secrets.token_hex()
        self.address = f"airflow:{self._password}@127.0.0.1:{self._port}/postgres"
        self.socket_folder = str(folder / "data")
        # PostgreSQL refuses to run as root
        self._user = "nobody" if os.getuid() == 0 else None

    def create(self) -> None:
        """Create the database and start the server."""
        self._folder.mkdir()
        password = self._folder / "password"
        password.write_text(self._password)
        data = self._folder / "data"
        data.mkdir(mode=0o700)
        if self._user:
            user = pwd.getpwnam(self._user)
            for path in (self._folder, password, data):
                os.chown(path, user.pw_uid, user.pw_gid)
        options: list[str | Path] = ["-D", data, "-U", "airflow", "-A", "scram-sha-256", "--pwfile", password]
        subprocess.run(
            [self._programs / "initdb", *options, "--no-sync", "--encoding", "UTF8"],
            cwd=self._folder,
            user=self._user,
            check=True,
            capture_output=True,
        )
        self.start()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = {"port": self._port, "max_connections": 400, "fsync": "off", "jit": "off"}
        options |= {"listen_addresses": "127.0.0.1", "unix_socket_directories": self.socket_folder}
        command = [str(self._programs / "postgres"), "-D", str(self._folder / "data")]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        self._processes.start(
            "postgres",
            command,
            log=self._folder.parent / "output" / "postgres.log",
            env=os.environ,
            cwd=self._folder,
            user=self._user,
        )
        wait_for(lambda: _answers(self.address), "PostgreSQL")

    def start_pooler(self) -> str:
        """Start PgBouncer, which runs each transaction in any session, and return its address."""
        port, host = free_port(), self.address.partition("@")[2].partition("/")[0]
        settings = self._folder.parent / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\npostgres = host=127.0.0.1 port={host.partition(':')[2]} user=airflow "
            f"password={self._password}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            "auth_type = any\npool_mode = transaction\nignore_startup_parameters = options\n"
        )
        settings.chmod(0o644)
        self._processes.start(
            "pgbouncer",
            [str(self._programs / "pgbouncer"), str(settings)],
            log=self._folder.parent / "output" / "pgbouncer.log",
            env=os.environ,
            cwd=self._folder,
            user=self._user,
        )
        address = self.address.replace(host, f"127.0.0.1:{port}")
        wait_for(lambda: _answers(address), "PgBouncer")
        return address

    def kill(self) -> None:
        """Kill the server; open transactions are lost."""
        self._processes.kill("postgres")

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query; the values replace its ``%s``."""
        with psycopg2.connect(f"postgresql://{self.address}") as connection:
            cursor = connection.cursor()
            cursor.execute(statement, values)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows


def _answers(address: str) -> bool:
    try:
        psycopg2.connect(f"postgresql://{address}").close()
    except psycopg2.OperationalError:
        return False
    return True


def copy_programs(programs: Path, folder: Path) -> Path:
    """Copy the servers' programs to where every user can reach them, and return their folder.

    A server that root starts runs as another user, who may not be allowed to enter this project's folder.
    """
    return shutil.copytree(programs, folder / "programs", symlinks=True) / "bin"


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until a server answers.

    :param condition: returns whether the server answers.
    :param what: the server's name.
    """
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AirflowProblem(f"{what} does not answer")
        time.sleep(0.1)


@contextlib.contextmanager
def running_postgresql(programs: Path) -> Iterator[PostgreSQL]:
    """Run a server whose files every user can reach.

    :param programs: folder that the Makefile has found or installed, with the programs in ``bin``.
    """
    with tempfile.TemporaryDirectory(prefix="webcollect-postgresql-") as name, Processes() as processes:
        folder = Path(name)
        folder.chmod(0o711)
        server = PostgreSQL(copy_programs(programs.resolve(), folder), folder / "postgresql", processes)
        server.create()
        yield server
