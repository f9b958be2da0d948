"""An interpreter that has imported the libraries, though nothing of the program, and forks for each command.

Half of what a short command takes is importing numpy, SQLAlchemy, Alembic, Optuna and the like. Each child is a process
of its own with its own folder, environment, input and output, imports the program itself and ends as `python -m
autotune` does.

Run as `forking.py SOCKET`. Each message carries a file with the order as JSON, input, output and error output, and a
socket that is told the process id and then the status.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import socket
import sys
from typing import Any

LIBRARIES = (
    "asyncio", "ssl", "sqlite3", "concurrent.futures", "numpy", "pydantic", "yaml", "typer", "rich.table", "rich.live",
    "sqlalchemy.orm", "alembic.command", "optuna.storages", "aiohttp.web", "httptools", "uvloop", "psutil", "jinja2",
)  # fmt: skip


def wait_for_orders(control: socket.socket) -> dict[str, Any]:
    """Return in each child, with its order; end with the tests."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those who tell statuses need not be waited for
    while True:
        _, files, _, _ = socket.recv_fds(control, 1, 5)
        if not files:
            os._exit(0)
        if os.fork():
            for file in files:
                os.close(file)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        wanted, *streams, told = files
        with socket.socket(fileno=told) as answer:
            pid = os.fork()
            if pid:
                for file in (wanted, *streams):
                    os.close(file)
                answer.send(str(pid).encode())
                answer.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                os._exit(0)
        for number, file in enumerate(streams):
            os.dup2(file, number)
            os.close(file)
        with os.fdopen(wanted, encoding="utf-8") as order:
            order.seek(0)
            found: dict[str, Any] = json.load(order)
        return found


def become(order: dict[str, Any]) -> None:
    """Take over folder, environment and arguments, as `python -m autotune` finds them."""
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environ"])
    sys.path[0] = order["folder"]
    sys.argv = ["-m", *order["words"]]


if __name__ == "__main__":
    for library in LIBRARIES:
        importlib.import_module(library)
    become(wait_for_orders(socket.socket(fileno=int(sys.argv[1]))))
    runpy.run_module("autotune", run_name="__main__", alter_sys=True)
