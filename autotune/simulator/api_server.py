"""The API server as a serial resource: one core that takes requests in and writes chunks out, in order of arrival.

Under many clients this core, not the GPU, sets the pace: outputs of several steps that wait for it leave as one chunk,
and requests that come in meanwhile reach the engine in a convoy. With a stream interval of n a chunk is written for a
request's first token, for its last, and for every n tokens between (vllm/v1/engine/output_processor.py, 0.32): the
others are detokenised only. Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.simulator.coefficients import Coefficients
from autotune.simulator.scheduler import SimRequest

Serials = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiJob:
    """What the core does next: take `request` in, or write one chunk to each of `serials` at `chunk_times_s`.

    Attributes:
        finished: requests whose last chunk this is, with its time.
    """

    until_s: float
    request: SimRequest | None = None
    serials: Serials | None = None
    chunk_times_s: NDArray[np.float64] | None = None
    finished: tuple[tuple[SimRequest, float], ...] = ()


class ApiServer:
    """One API-server process; times are seconds on the caller's clock and must not go back.

    Args:
        stream_interval: tokens of one chunk; 1 writes them as they come.
        serials: of all requests that may come; needed for longer intervals only.
    """

    def __init__(self, coefficients: Coefficients, *, stream_interval: int = 1, serials: range = range(0)) -> None:
        self._c = coefficients
        self._interval = stream_interval
        self._first = serials.start
        self._unsent = np.zeros(len(serials) if stream_interval > 1 else 0, dtype=np.int64)
        self._begun = np.zeros(len(self._unsent), dtype=np.bool_)
        self._inbox: deque[tuple[float, SimRequest, int]] = deque()
        self._outbox: deque[tuple[float, Serials, tuple[SimRequest, ...]]] = deque()
        self.busy = False

    def receive(self, at_s: float, request: SimRequest) -> None:
        """A client's request arrives."""
        self._inbox.append((at_s, request, self._c.api_turns))

    def emit(self, at_s: float, serials: Serials, finishing: tuple[SimRequest, ...]) -> None:
        """A step's outputs arrive: one token for each of `serials`; `finishing` got their last one."""
        self._outbox.append((at_s, serials, finishing))

    def next_job(self, now_s: float) -> ApiJob | None:
        """Start the oldest work; None when there is none. The caller asks again at the job's `until_s`."""
        self.busy = bool(self._inbox or self._outbox)
        if not self.busy:
            return None
        if self._inbox and (not self._outbox or self._inbox[0][0] <= self._outbox[0][0]):
            return self._take_in(now_s)
        return self._write(now_s)

    def _take_in(self, now_s: float) -> ApiJob:
        """One turn of the oldest request; those that remain queue behind all that has come meanwhile."""
        _, request, turns = self._inbox.popleft()
        cost = self._c.api_request_s + self._c.api_prompt_token_s * request.prompt_tokens
        until_s = now_s + cost / self._c.api_turns
        if turns == 1:
            return ApiJob(until_s=until_s, request=request)
        self._inbox.append((until_s, request, turns - 1))
        return ApiJob(until_s=until_s)

    def _write(self, now_s: float) -> ApiJob:
        """Everything that waits leaves in one go; tokens of one request merge into one chunk."""
        _, serials, finishing = self._outbox.popleft()
        emitted = serials
        if self._outbox:
            parts = [serials]
            while self._outbox:
                _, more, ended = self._outbox.popleft()
                parts.append(more)
                finishing += ended
            emitted = np.concatenate(parts)
            serials = np.unique(emitted)
        if self._interval > 1:
            serials = self._due(serials, emitted, finishing)
        start = now_s + len(emitted) * self._c.api_token_s
        if not len(serials):
            return ApiJob(until_s=start)
        times = start + self._c.api_chunk_s * np.arange(1, len(serials) + 1, dtype=np.float64)
        lasts = tuple((r, float(times[np.flatnonzero(serials == r.serial)[0]])) for r in finishing)
        return ApiJob(until_s=float(times[-1]), serials=serials, chunk_times_s=times, finished=lasts)

    def _due(self, serials: Serials, emitted: Serials, finishing: tuple[SimRequest, ...]) -> Serials:
        """Those of `serials` that get a chunk now; the others' tokens stay for a later one."""
        np.add.at(self._unsent, emitted - self._first, 1)
        places = serials - self._first
        ended = np.isin(serials, np.array([r.serial for r in finishing], dtype=np.int64))
        now = ended | ~self._begun[places] | (self._unsent[places] >= self._interval)
        self._begun[places] = True
        self._unsent[places[now]] = 0
        return serials[now]
