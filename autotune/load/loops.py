"""The event loop that load is driven on."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed, else asyncio's own, at twice the CPU time per read.

    For `asyncio.Runner(loop_factory=new_loop)`: signals and child processes work on both, so that the whole program
    runs on it and not the load alone.
    """
    if find_spec("uvloop") is None:  # no wheel for this interpreter or system
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()
