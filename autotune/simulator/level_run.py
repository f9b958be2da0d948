"""The event loop of one load level: clients, API servers and engine replicas in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from autotune.load.growing import Looks, growth_of
from autotune.load.reading import RequestError
from autotune.load.sending_order import SendingOrder
from autotune.records import Arrivals, LoadLevel, PlannedRequest, RequestRecord
from autotune.simulator.api_server import ApiJob, ApiServer
from autotune.simulator.coefficients import Coefficients
from autotune.simulator.replica import Launched, Replica
from autotune.simulator.scheduler import SimRequest, StepPlan

_REFUSED, _DEADLINE = str(RequestError.HTTP_4XX), str(RequestError.DEADLINE)
_Serials = NDArray[np.int64]


class LevelRun:
    """Drives `requests` through the replicas; made for one call of `run`. Times count from the level's start.

    Requests are known by their position in `requests`; serials of `sims` count on over levels, so a serial less the
    first one is the position. Data-parallel ranks are numbered through all replicas.

    A request that names another in `after` waits for that one's end. In a closed loop a free slot takes the earliest
    request that may be sent and idles while there is none; in an open loop a request whose turn comes late is sent at
    once, and its record counts from then: the wait was the conversation's, not the server's.

    Raises:
        ValueError: `after` names no earlier request of the level.
    """

    def __init__(
        self,
        level: LoadLevel,
        requests: Sequence[PlannedRequest],
        sims: Sequence[SimRequest],
        replicas: Sequence[Replica],
        api_servers: Sequence[ApiServer],
        coefficients: Coefficients,
        noise: Callable[[], float],
        *,
        max_model_len: int,
        looks: Looks | None = None,
    ) -> None:
        count = len(requests)
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self._level = level
        self._requests = requests
        self._sims = sims
        self._replicas = replicas
        self._servers = api_servers
        self._c = coefficients
        self._noise = noise
        self._max_model_len = max_model_len
        self._base = sims[0].serial if sims else 0
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._pushed = 0
        self._due: list[float] = [0.0] * count
        self._sent: list[float | None] = [None] * count
        self._done: list[float | None] = [None] * count
        self._prefilled = [False] * count
        self._seats = [(index, rank) for index, replica in enumerate(replicas) for rank in _ranks(replica)]
        self._first_rank = [self._seats.index((index, 0)) for index in range(len(replicas))]
        self._load = [0] * len(self._seats)
        self._queued_s: list[float] = [0.0] * count
        self._arrived: list[list[int]] = [[] for _ in replicas]
        self._queue_times: list[float] = []
        self._chunks: list[tuple[_Serials, NDArray[np.float64]]] = []
        self._batch: list[tuple[tuple[SimRequest, ...], _Serials]] = [((), np.empty(0, dtype=np.int64))] * (
            len(self._seats)
        )
        self._order = SendingOrder(requests)
        self._idle_slots = 0
        self._open = count
        self._looks = looks or growth_of(level)
        self._planned = count

    @property
    def queue_time_mean_s(self) -> float | None:
        """Mean time from reaching the engine to first admission; None when nothing was admitted."""
        return sum(self._queue_times) / len(self._queue_times) if self._queue_times else None

    def run(self, *, stagger_s: float, deadline_s: float) -> float:
        """Run until every request has ended or the deadline; seconds from the level's start to its end.

        Raises:
            ValueError: a closed loop without concurrency, or an open loop without schedule.
        """
        if self._level.arrivals is Arrivals.CLOSED:
            self._open_slots(stagger_s)
        else:
            self._schedule_all()
        now = 0.0
        while self._events and self._open:
            at, _, action = heapq.heappop(self._events)
            if at > deadline_s:
                if self._looks is not None:  # what such a level had not come to by then was never part of it
                    due = max(self._level.requests, sum(due <= deadline_s for due in self._due))
                    self._planned = min(self._planned, due)
                self._give_up()
                return deadline_s
            now = at
            action(now)
        return now

    def records(self) -> tuple[RequestRecord, ...]:
        """One record per request, in order; none of requests that the level had no need of."""
        serials = np.concatenate([s for s, _ in self._chunks]) if self._chunks else np.empty(0, dtype=np.int64)
        times = np.concatenate([t for _, t in self._chunks]) if self._chunks else np.empty(0)
        order = np.argsort(serials, kind="stable")  # chunks were appended in order of time
        bounds = np.searchsorted(serials[order], np.arange(len(self._sims) + 1) + self._base)
        in_order = times[order].tolist()
        edges = bounds.tolist()
        return tuple(
            self._record(position, tuple(in_order[edges[position] : edges[position + 1]]))
            for position in range(min(self._planned, len(self._sims)))
        )

    def _record(self, position: int, times: tuple[float, ...]) -> RequestRecord:
        request, done = self._requests[position], self._done[position]
        refused = self._too_long(request)
        finished = done is not None and not refused
        error = _REFUSED if refused and done is not None else None if finished else _DEADLINE
        return RequestRecord(
            index=request.index,
            scheduled_s=self._due[position],
            sent_s=self._sent[position],
            first_byte_s=times[0] if times else done,
            first_token_s=times[0] if times else None,
            last_token_s=times[-1] if times else None,
            done_s=done,
            token_times_s=times,
            prompt_tokens=request.prompt_tokens if finished else None,
            output_tokens=request.output_tokens if finished else None,
            counted_tokens=len(times),
            wanted_output_tokens=request.output_tokens,
            finish_reason="length" if finished else None,
            status=400 if error == _REFUSED else 200 if times else None,
            error=error,
            message=f"longer than max_model_len ({self._max_model_len})" if error == _REFUSED else None,
        )

    def _push(self, at: float, action: Callable[[float], None]) -> None:
        self._pushed += 1
        heapq.heappush(self._events, (at, self._pushed, action))

    # Clients

    def _open_slots(self, stagger_s: float) -> None:
        if not self._level.concurrency:
            raise ValueError(f"level {self._level.name} is a closed loop without concurrency")
        slots = min(self._level.concurrency, len(self._requests))
        for slot in range(slots):
            self._push(stagger_s * slot / slots, self._open_slot)

    def _schedule_all(self) -> None:
        for position, request in enumerate(self._requests):
            if request.scheduled_s is None:
                raise ValueError(f"request {request.index} of open-loop level {self._level.name} has no scheduled time")
            self._due[position] = request.scheduled_s
        self._schedule_free()
        for count in self._looks.looks if self._looks is not None else ():
            self._push(self._due[count - 1], partial(self._look, count))

    def _look(self, count: int, now: float) -> None:
        """Where a level may end: go on, or leave it at the first `count` requests."""
        del now
        if count >= self._planned or self._looks is None:
            return
        while count < self._planned and self._sent[count] is not None:
            count += 1  # due at the same instant
        sent = [position for position in range(count) if self._sent[position] is not None]
        firsts = self._first_tokens()
        if self._looks.enough([(self._due[at], firsts.get(self._sims[at].serial)) for at in sent]):
            # None of the later ones was sent yet: their events find that they are not planned any more.
            self._open -= self._planned - count
            self._planned = count

    def _first_tokens(self) -> dict[int, float]:
        """Time of the first chunk so far, by serial."""
        firsts: dict[int, float] = {}
        for serials, times in reversed(self._chunks):
            firsts.update(zip(serials.tolist(), times.tolist(), strict=True))
        return firsts

    def _schedule_free(self) -> None:
        while (free := self._order.take()) is not None:
            position, since_s = free
            self._push(max(self._due[position], since_s or 0.0), partial(self._send, position))

    def _open_slot(self, now: float) -> None:
        self._idle_slots += 1
        self._fill_slots(now)

    def _fill_slots(self, now: float) -> None:
        while self._idle_slots and (free := self._order.take()) is not None:
            self._idle_slots -= 1
            self._send(free[0], now)

    def _send(self, position: int, now: float) -> None:
        if position >= self._planned:
            return
        self._due[position] = self._sent[position] = now
        server = position % len(self._servers)
        self._servers[server].receive(now, self._sims[position])
        self._next_job(server, now)

    def _end(self, position: int, now: float) -> None:
        self._done[position] = now
        self._open -= 1
        self._order.ended(self._requests[position].index, now)
        if self._level.arrivals is Arrivals.CLOSED:
            self._open_slot(now)
        else:
            self._schedule_free()

    def _too_long(self, request: PlannedRequest) -> bool:
        return request.prompt_tokens + request.output_tokens > self._max_model_len

    # API servers

    def _next_job(self, server: int, now: float) -> None:
        if not self._servers[server].busy:
            self._start_job(server, now)

    def _start_job(self, server: int, now: float) -> None:
        job = self._servers[server].next_job(now)
        if job is not None:
            self._push(job.until_s, partial(self._job_done, server, job))

    def _job_done(self, server: int, job: ApiJob, now: float) -> None:
        if job.request is not None:
            position = job.request.serial - self._base
            if self._too_long(self._requests[position]):
                self._end(position, now)
            else:
                self._push(now + self._c.api_in_latency_s, partial(self._add, job.request))
        elif job.serials is not None and job.chunk_times_s is not None:
            self._chunks.append((job.serials, job.chunk_times_s))
            for request, _ in job.finished:
                self._end(request.serial - self._base, now)
        self._start_job(server, now)

    # Engine replicas

    def _add(self, request: SimRequest, now: float) -> None:
        seat = min(range(len(self._load)), key=self._load.__getitem__)
        index, rank = self._seats[seat]
        self._load[seat] += 1
        self._arrived[index].append(request.serial - self._base)
        self._replicas[index].schedulers[rank].add(request)
        self._launch(index, now)

    def _launch(self, index: int, now: float) -> None:
        if self._replicas[index].polls:
            # The engine stamps a request as queued when its loop comes round to it, not when it arrives.
            for position in self._arrived[index]:
                self._queued_s[position] = now
            self._arrived[index].clear()
        for step in self._replicas[index].launch(now, self._noise):
            for _, plan in step.plans:
                for request in plan.admitted:
                    if not request.preemptions:
                        self._queue_times.append(now - self._queued_s[request.serial - self._base])
            self._push(step.end_s, partial(self._step_end, index, step))

    def _step_end(self, index: int, step: Launched, now: float) -> None:
        self._replicas[index].finish(step)
        for rank, plan in step.plans:
            self._deliver(self._first_rank[index] + rank, plan, now)
        self._launch(index, now)

    def _deliver(self, seat: int, plan: StepPlan, now: float) -> None:
        """Count a finished step of one rank and hand its tokens to the API servers."""
        self._load[seat] -= len(plan.finishing)
        self.generation_tokens += plan.emitting
        for request in plan.finished_prefill:
            # Once for each request, also when it was preempted and its prompt computed again.
            if not self._prefilled[request.serial - self._base]:
                self._prefilled[request.serial - self._base] = True
                self.prompt_tokens += request.prompt_tokens
        at = now + self._c.api_out_latency_s
        serials = self._emitting(seat, plan)
        servers = len(self._servers)
        if not len(serials):
            pass  # a step of nothing but unfinished prompts has nothing to write
        elif servers == 1:
            self._push(at, partial(self._output, 0, serials, plan.finishing))
        else:
            owner = (serials - self._base) % servers
            for server in range(servers):
                own = serials[owner == server]
                if len(own):
                    ended = tuple(r for r in plan.finishing if (r.serial - self._base) % servers == server)
                    self._push(at, partial(self._output, server, own, ended))

    def _emitting(self, seat: int, plan: StepPlan) -> _Serials:
        """Serials of the requests that got a token; the decoding part is kept while the batch does not change."""
        known, serials = self._batch[seat]
        if plan.decoding is not known:
            serials = np.array([r.serial for r in plan.decoding], dtype=np.int64)
            self._batch[seat] = (plan.decoding, serials)
        if not plan.finished_prefill:
            return serials
        return np.append(serials, [r.serial for r in plan.finished_prefill])

    def _output(self, server: int, serials: _Serials, finishing: tuple[SimRequest, ...], now: float) -> None:
        self._servers[server].emit(now, serials, finishing)
        self._next_job(server, now)

    def _give_up(self) -> None:
        """The level's time is up: the clients hang up, and the engine forgets their requests."""
        for request in self._sims:
            for replica in self._replicas:
                for scheduler in replica.schedulers:
                    scheduler.abort(request)
        self._open = 0


def _ranks(replica: Replica) -> range:
    return range(len(replica.schedulers))
