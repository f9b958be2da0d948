"""A PostgreSQL of the tests' own, where its programs are installed (Debian's package `postgresql`)."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback import kept_port

NAME = "AUTOTUNE_TEST_POSTGRES_URL"
"""An empty database of the operator's, instead of one of our own."""

START_S = 300.0


def programs() -> Path | None:
    """The newest version's; Debian keeps them out of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    beside = shutil.which("initdb")
    return found[-1].parent if found else Path(beside).parent if beside else None


def account() -> str | None:
    """PostgreSQL refuses to run as root: whose rights it gets instead; None for our own."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in names)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A URL of an empty database; skips where there is no PostgreSQL or no driver."""
    given = os.environ.get(NAME)
    if given:
        yield given
        return
    there = programs()
    if there is None or importlib.util.find_spec("psycopg") is None:
        pytest.skip("no PostgreSQL here (Debian: apt-get install postgresql), or no psycopg")
    user = account()
    with tempfile.TemporaryDirectory(prefix="autotune-pg-", ignore_cleanup_errors=True) as folder, kept_port() as kept:
        if user is not None:
            shutil.chown(folder, user)
        data, port = f"{folder}/data", int(kept.getsockname()[1])
        words = [
            "--no-sync",
            "--auth=trust",
            "--username=autotune",
            "--encoding=UTF8",
            "--locale=C",
            f"--pgdata={data}",
        ]
        subprocess.run(
            [there / "initdb", *words], user=user, cwd=folder, check=True, capture_output=True, timeout=START_S
        )
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": folder,
            "fsync": "off",
        }
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        server = subprocess.Popen(
            [there / "postgres", "-D", data, *settings],
            user=user,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for(port, server)
            yield f"postgresql://autotune@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)  # its "fast" shutdown
            server.wait(START_S)


@pytest.fixture
def own_postgres_url(postgres_url: str) -> Iterator[str]:
    """The same, in which there is nothing of the tests before, and of which nothing is left for those after."""
    empty(postgres_url)
    yield postgres_url
    empty(postgres_url)


def empty(postgres_url: str) -> None:
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
        connection.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")  # as the first one had it


def wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    import psycopg

    deadline = time.monotonic() + START_S
    while True:
        assert server.poll() is None, "PostgreSQL ended as it started"
        try:
            psycopg.connect(host="127.0.0.1", port=port, user="autotune", dbname="postgres").close()
        except psycopg.OperationalError:
            assert time.monotonic() < deadline, "PostgreSQL does not answer"
            time.sleep(0.05)
        else:
            return
