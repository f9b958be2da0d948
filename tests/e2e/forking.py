"""An interpreter that has imported the libraries and the program, and forks for each command.

Nine tenths of what a short command takes is importing them. Each child is a process of its own with its own folder,
environment, input and output, and runs and ends as `python -m autotune` does; nothing of the program reads any of these
as it is imported. That modules can be imported in any order is a contract in pyproject.toml.

Run as `forking.py SOCKET`. Each message carries a file with the order as JSON, input, output and error output, and a
socket that is told the process id and then the status.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import warnings
from typing import Any

import coverage

IMPORTED = (
    "asyncio", "ssl", "sqlite3", "numpy.random", "pynvml", "rich.live", "sqlalchemy.dialects.sqlite",
    "alembic.runtime.migration", "optuna.trial", "autotune.planning.explaining", "autotune.planning.overview",
    "autotune.review.history_text", "autotune.review.page", "autotune.session", "autotune.store.archive",
    "autotune.web.app",
)  # fmt: skip
"""What the commands import as they run, beside their own modules."""


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
    if order["session"]:
        os.setsid()
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environ"])
    sys.path[0] = order["folder"]
    sys.argv = ["-m", *order["words"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the program was imported before
        coverage.process_startup()  # where the environment asks for it


if __name__ == "__main__":
    from autotune.cli import main

    for name in (*IMPORTED, *(f"autotune.cli.{module}" for module in main.MODULES)):
        importlib.import_module(name)
    gc.freeze()  # children do not look through all of it, nor copy it by doing so
    become(wait_for_orders(socket.socket(fileno=int(sys.argv[1]))))
    runpy.run_module("autotune", run_name="__main__", alter_sys=True)
