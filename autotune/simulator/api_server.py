"""The API server as a serial resource: one core that takes requests in and writes chunks out, in order of arrival.

Under many clients this core, not the GPU, sets the pace: outputs of several steps that wait for it leave as one chunk,
and requests that come in meanwhile reach the engine in a convoy. Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.simulator.scheduler import SimRequest
from autotune.simulator.step_time import Coefficients

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
    """One API-server process; times are seconds on the caller's clock and must not go back."""

    def __init__(self, coefficients: Coefficients) -> None:
        self._c = coefficients
        self._inbox: deque[tuple[float, SimRequest]] = deque()
        self._outbox: deque[tuple[float, Serials, tuple[SimRequest, ...]]] = deque()
        self.busy = False

    def receive(self, at_s: float, request: SimRequest) -> None:
        """A client's request arrives."""
        self._inbox.append((at_s, request))

    def emit(self, at_s: float, serials: Serials, finishing: tuple[SimRequest, ...]) -> None:
        """A step's outputs arrive: one token for each of `serials`; `finishing` got their last one."""
        self._outbox.append((at_s, serials, finishing))

    def next_job(self, now_s: float) -> ApiJob | None:
        """Start the oldest work; None when there is none. The caller asks again at the job's `until_s`."""
        self.busy = bool(self._inbox or self._outbox)
        if not self.busy:
            return None
        if self._inbox and (not self._outbox or self._inbox[0][0] <= self._outbox[0][0]):
            _, request = self._inbox.popleft()
            cost = self._c.api_request_s + self._c.api_prompt_token_s * request.prompt_tokens
            return ApiJob(until_s=now_s + cost, request=request)
        return self._write(now_s)

    def _write(self, now_s: float) -> ApiJob:
        """Everything that waits leaves in one go; tokens of one request merge into one chunk."""
        _, serials, finishing = self._outbox.popleft()
        tokens = len(serials)
        if self._outbox:
            parts = [serials]
            while self._outbox:
                _, more, ended = self._outbox.popleft()
                parts.append(more)
                finishing += ended
            joined = np.concatenate(parts)
            tokens = len(joined)
            serials = np.unique(joined)
        start = now_s + tokens * self._c.api_token_s
        times = start + self._c.api_chunk_s * np.arange(1, len(serials) + 1, dtype=np.float64)
        lasts = tuple((r, float(times[np.flatnonzero(serials == r.serial)[0]])) for r in finishing)
        return ApiJob(until_s=float(times[-1]), serials=serials, chunk_times_s=times, finished=lasts)
