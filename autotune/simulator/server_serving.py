"""A ready simulated server: the engine behind a socket, until a signal or the engine's death."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass

from aiohttp import web

from autotune.simulator.coefficients import Coefficients
from autotune.simulator.server_args import ServerOptions
from autotune.simulator.server_asking import Step, asked
from autotune.simulator.server_engine import RealTimeEngine, StatsWindow
from autotune.simulator.server_faults import Fault
from autotune.simulator.server_http import ENGINE_DEAD, HttpSurface
from autotune.simulator.server_log import ServerLog
from autotune.simulator.server_start import FAILED, Started
from autotune.simulator.start_checks import out_of_memory

STATS_INTERVAL_S = 10.0
_BACKLOG = 2048


@dataclass(slots=True)
class Serving:
    """A ready engine behind a socket, until a signal or the engine's death."""

    options: ServerOptions
    started: Started
    listener: socket.socket
    log: ServerLog
    dev_mode: bool

    async def run(self) -> int:
        options, log = self.options, self.log
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        engine = RealTimeEngine(
            self.started,
            Coefficients(),
            seed=options.seed,
            speed=options.speed,
            on_request=lambda number: self._under_load(number, engine, ended),
        )
        self._handle_signals(ended)
        surface = HttpSurface(options, engine, created=int(time.time()), dev_mode=self.dev_mode)
        for path, methods in surface.routes():
            log.info("launcher.py:46", f"Route: {path}, Methods: {methods}")
        log.plain(f"INFO:     Started server process [{log.pid}]\nINFO:     Waiting for application startup.")
        runner = web.AppRunner(surface.app(), access_log=None, handle_signals=False, shutdown_timeout=0.1)
        await runner.setup()
        late_s = options.faults.seconds(Fault.LATE_PORT, 2.0)
        if late_s:
            log.plain("INFO:     Application startup complete.")
            await asyncio.sleep(late_s)
        await web.SockSite(runner, self.listener, backlog=_BACKLOG).start()
        if not late_s:
            log.plain("INFO:     Application startup complete.")
        stats = asyncio.create_task(self._log_stats(engine))
        try:
            status = await ended
            if status == 0:
                await asked(options.faults.path(Fault.ASKS), Step.STOP)
                await self._shut_down(engine)
                await asyncio.sleep(options.stop_s)
        finally:
            stats.cancel()
            await runner.cleanup()
        if status == 0:
            log.plain("INFO:     Waiting for application shutdown.\nINFO:     Application shutdown complete.")
        return status

    def _handle_signals(self, ended: asyncio.Future[int]) -> None:
        if Fault.IGNORE_TERM in self.options.faults:
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _finish, ended, 0)

    def _under_load(self, number: int, engine: RealTimeEngine, ended: asyncio.Future[int]) -> None:
        """Faults that wait for the request of this number (1-based)."""
        faults = self.options.faults
        if number == faults.count(Fault.CRASH_UNDER_LOAD, 1):
            os._exit(FAILED)  # as after a kill: no line, no cleanup
        if number == faults.count(Fault.OOM_UNDER_LOAD, 1):
            cause = f"torch.OutOfMemoryError: {out_of_memory(self.started.node.gpus[0], 448 * 2**20)}"
            self.log.error_traceback("core.py:1240", "EngineCore encountered a fatal error.", cause, "EngineCore")
            self.log.error_traceback(
                "async_llm.py:768",
                "AsyncLLM output_handler failed.",
                f"vllm.v1.engine.exceptions.EngineDeadError: {ENGINE_DEAD}",
                "APIServer",
            )
            engine.die()
            # The clients in mid-stream still get their error frames.
            asyncio.get_running_loop().call_later(0.2, _finish, ended, FAILED)

    async def _log_stats(self, engine: RealTimeEngine) -> None:
        windows = [StatsWindow() for _ in engine.metrics]
        while True:
            await asyncio.sleep(STATS_INTERVAL_S)
            engine.refresh()
            for number, (window, metrics) in enumerate(zip(windows, engine.metrics, strict=True)):
                stats = window.take(metrics, STATS_INTERVAL_S)
                if stats is not None:
                    self.log.info("loggers.py:273", stats.text(number))

    async def _shut_down(self, engine: RealTimeEngine) -> None:
        """As vLLM from 0.18 on: without `--shutdown-timeout` requests in flight are aborted, with it they may end."""
        left_s = self.options.drain_s
        mode = "drain" if left_s else "abort"
        self.log.info("launcher.py:100", "[shutdown] API server: shutdown triggered")
        self.log.info("launcher.py:116", f"[shutdown] API server: stopping engine client mode={mode} timeout={left_s}s")
        with suppress(TimeoutError):
            await asyncio.wait_for(engine.idle(), left_s)
        engine.die()
        self.log.info("core.py:1227", "[shutdown] EngineCore: exiting busy loop", "EngineCore")
        self.log.info("launcher.py:149", "[shutdown] API server: shutting down FastAPI HTTP server")
        self.log.plain("INFO:     Shutting down")


def _finish(ended: asyncio.Future[int], status: int) -> None:
    if not ended.done():
        ended.set_result(status)
