"""Looking on while a server that somebody else started serves its users: readings of its counters, nothing sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from autotune.engine.found_server import FoundServer, find_server
from autotune.engine.metrics_text import parse_metrics
from autotune.engine.observed import Reading
from autotune.errors import ServerUnusable

READINGS = 60
"""Over the whole time: bins long enough to hold several requests, and enough of them to tell bursts."""

SHORTEST_GAP_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A server, what it says of itself, and readings of its counters, oldest first.

    Attributes:
        info: its resolved configuration as text; None outside of vLLM's development mode.
    """

    server: FoundServer
    readings: tuple[Reading, ...]
    info: str | None


async def watch(
    base: str, seconds: float, *, clock: Callable[[], float], model: str | None = None, key: str | None = None
) -> Watched:
    """Read a server's counters for `seconds`, evenly.

    Args:
        base: from `found_server.base_of`.
        clock: monotonic seconds.

    Raises:
        ServerUnusable: it cannot be reached, has no metrics of vLLM, or went away meanwhile.
        InvalidOption: as `find_server`.
    """
    server = await find_server(base, model=model, key=key)
    info = await server.door.server_info()
    gap = max(SHORTEST_GAP_S, seconds / READINGS)
    begun = clock()
    readings = [await _read(server, base, clock)]
    _require_vllm(base, readings[0])
    while (left := begun + seconds - clock()) > 0:
        # Against the clock and not against the last reading: a slow answer must not make the whole longer.
        due = begun + gap * (int((clock() - begun) / gap) + 1)
        await asyncio.sleep(min(left, max(0.0, due - clock())))
        readings.append(await _read(server, base, clock))
    return Watched(server=server, readings=tuple(readings), info=info)


async def _read(server: FoundServer, base: str, clock: Callable[[], float]) -> Reading:
    at_s = clock()
    text = await server.door.metrics()
    if text is None:
        raise ServerUnusable(
            f"{base}/metrics does not answer", hint="A vLLM has it; behind a router, give the address of the server."
        )
    return Reading(at_s=at_s, text=text)


def _require_vllm(base: str, reading: Reading) -> None:
    """Refuse metrics of something else: of them nothing could be told, which is not the same as nothing wrong.

    Raises:
        ServerUnusable: no series of a vLLM is among them.
    """
    if not parse_metrics(reading.text).is_vllm:
        raise ServerUnusable(
            f"{base}/metrics has no metrics of a vLLM",
            hint="Behind a router, give the address of the server; a vLLM under --disable-log-stats tells nothing.",
        )
