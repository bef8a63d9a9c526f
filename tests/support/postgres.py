"""Pytest fixtures: a private PostgreSQL server for the session, and an empty database for a test.

A plugin: a test module asks for it with ``pytest_plugins = ("tests.support.postgres",)``.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.support.ports import free_port

_START_DEADLINE_S = 60.0
_PR_SET_PDEATHSIG = 1


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a running server without a database name: ``postgresql://postgres@127.0.0.1:<port>/``."""
    programs = _programs()
    if programs is None:
        pytest.skip("no PostgreSQL server programs (initdb, postgres) on this machine")
    directory = Path(tempfile.mkdtemp(prefix="standfast-postgres-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(directory, "postgres", "postgres")
        data = directory / "data"
        subprocess.run(
            [programs / "initdb", "--pgdata", data, "--username", "postgres", "--auth", "trust", "--no-sync"],
            check=True,
            capture_output=True,
            cwd=directory,
            **_unprivileged(),
        )
        with _running(programs, data, directory / "server.log") as url:
            yield url
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The SQLAlchemy URL of a database of this test's own."""
    name = f"test_{uuid4().hex}"
    with psycopg.connect(f"{postgres_server}postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    yield f"{postgres_server.replace('postgresql://', 'postgresql+psycopg://')}{name}"
    with psycopg.connect(f"{postgres_server}postgres", autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


def _programs() -> Path | None:
    found = shutil.which("initdb")
    candidates = [Path(found).resolve().parent] if found else []
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((path for path in candidates if (path / "initdb").exists() and (path / "postgres").exists()), None)


def _unprivileged() -> dict[str, Any]:
    """PostgreSQL refuses to run as root: its processes then run as the user that the package made for it."""
    return {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}


@contextmanager
def _running(programs: Path, data: Path, log: Path) -> Iterator[str]:
    for _try in range(3):
        port = free_port()
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": str(data.parent),
            "fsync": "off",
            "full_page_writes": "off",
            "max_connections": "200",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with log.open("wb") as output:
            server = subprocess.Popen(
                [programs / "postgres", "-D", data, *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=data.parent,
                start_new_session=True,
                preexec_fn=_end_with_parent,
                **_unprivileged(),
            )
        try:
            url = f"postgresql://postgres@127.0.0.1:{port}/"
            if _answers(url, server):
                yield url
                return
        finally:
            server.send_signal(signal.SIGQUIT)  # the immediate shutdown
            server.wait(30)
    raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text()}")


def _end_with_parent() -> None:
    # A test run that is killed must not leave its server behind.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


def _answers(url: str, server: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + _START_DEADLINE_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            psycopg.connect(f"{url}postgres", connect_timeout=5).close()
        except psycopg.OperationalError:
            time.sleep(0.05)
        else:
            return True
    return False
