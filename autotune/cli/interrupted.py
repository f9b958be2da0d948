"""Running a coroutine from a command, so that Ctrl-C, TERM and HUP end it in order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from autotune.errors import Interrupted

Result = TypeVar("Result")


def heard_signals() -> tuple[signal.Signals, ...]:
    """What ends a command in order; HUP not below `nohup`, which is to survive the terminal."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM) if ignored else (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_until_signalled(make: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """The coroutine's result.

    Raises:
        Interrupted: Ctrl-C, TERM or HUP.
    """
    from autotune.load.loops import new_loop

    async def run() -> Result:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # inside a coroutine that a runner drives there is one
        for number in heard_signals():
            loop.add_signal_handler(number, task.cancel)
        return await make()

    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(run())
    except asyncio.CancelledError:
        raise Interrupted("stopped; nothing was written") from None
