"""`vllm serve` without a GPU: HTTP in real time, vLLM's flags, log lines, exit codes, and faults on demand.

    python -m autotune.simulator.server serve MODEL --port 8000 --sim-node 1xH100-80GB --sim-fault oom-under-load:20

A test double for everything that starts, watches, loads and stops a server, and a way to try the tools on a laptop.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

from autotune.simulator.server_args import ServerOptions, parse_args
from autotune.simulator.server_asking import Step, ask
from autotune.simulator.server_faults import Fault
from autotune.simulator.server_log import ServerLog
from autotune.simulator.server_start import FAILED, Starter, StartRefused


def main(argv: Sequence[str] | None = None, env: Mapping[str, str] | None = None) -> int:
    """Serve until TERM or INT; the exit status.

    Returns:
        0 after a clean stop, 1 when the start failed or the engine died. A wrong command line exits with 2.
    """
    environment = os.environ if env is None else env
    options = parse_args(sys.argv[1:] if argv is None else argv, environment)
    log = ServerLog(sys.stdout)
    if Fault.IGNORE_TERM in options.faults:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _lose_port(options)
        listener = _bind(options)
    except OSError as error:
        log.traceback(f"OSError: {error}")
        return FAILED
    with listener:
        ask(options.faults.path(Fault.ASKS), Step.START)
        try:
            started = Starter(options, log).run()
        except StartRefused as refused:
            return refused.status
        # The HTTP stack takes longer to import than everything before: a start that fails does not wait for it.
        from autotune.simulator.server_serving import Serving

        serving = Serving(options, started, listener, log, dev_mode=environment.get("VLLM_SERVER_DEV_MODE") == "1")
        return asyncio.run(serving.run())


def _lose_port(options: ServerOptions) -> None:
    """Where that fault is asked for: let somebody else have the port first."""
    thief = options.faults.path(Fault.PORT_LOST)
    if thief is None:
        return
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(thief)
        asking.sendall(f"{options.port}\n".encode())
        asking.recv(1)


def _bind(options: ServerOptions) -> socket.socket:
    """The listening address is taken before anything is loaded, and answers only when the server is ready."""
    host = options.host or "0.0.0.0"  # noqa: S104  # vLLM's own default; callers give --host 127.0.0.1
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, options.port))
    except OSError:
        listener.close()
        raise
    return listener


if __name__ == "__main__":
    sys.exit(main())
