"""The seam's fake: a scripted engine in virtual time, for tests of what sits above the seam."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from autotune.engine.base import DriveResult, LaunchFailed, LaunchPlan, Milestone, ServerDied, ServerIdentity
from autotune.engine.virtual_time import VirtualTime
from autotune.load.growing import Looks, Waits, growth_of
from autotune.quality.answers import Answer, Answers
from autotune.quality.prompts import QualityPrompt
from autotune.records import (
    Caveat,
    ClockKind,
    Config,
    EngineKind,
    Failure,
    LevelRole,
    LevelUse,
    LoadLevel,
    PlannedRequest,
    RequestRecord,
    ServerDelta,
    ServerFacts,
)

FAKE_ARGV = ("fake-server",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How a config behaves.

    Attributes:
        launch_failure: raised by the launch.
        dies_at: role of the level under which the server dies with `death`.
        ttft_s: every request's time to its first token.
        token_s: every gap between tokens.
        error: every request ends with this error kind instead of tokens.
        error_after: (role, count, kind): from the count-th request of that level on, requests end so.
        blocks_at: the level of this role never ends by itself.
        stop_gate: a stop takes until this is set.
        caveats: what the server says against its own figures.
        compiles: kernels compiled during each level, in the order driven; such a level's tokens take twice as long.
        stalls_s: how long everything stands still in the middle of each level, in the order driven.
        late_s: every request leaves so much after it was due, for want of the client's CPU.
        max_model_len: that the server tells; None where it does not.
        preemptions: of each level, by its counters; None where it has none.
        logprob: of every prompt token; None for a server that tells none.
        greedy: what follows each prompt.
    """

    launch_failure: Failure | None = None
    dies_at: LevelRole | None = None
    death: Failure | None = None
    ttft_s: float = 0.1
    token_s: float = 0.01
    start_s: float = 30.0
    error: str | None = None
    error_after: tuple[LevelRole, int, str] | None = None
    blocks_at: LevelRole | None = None
    stop_gate: asyncio.Event | None = None
    caveats: tuple[Caveat, ...] = ()
    compiles: tuple[int, ...] = ()
    stalls_s: tuple[float, ...] = ()
    late_s: float = 0.0
    slower_beside: float = 0.0
    max_model_len: int | None = None
    preemptions: int | None = None
    logprob: float | None = None
    greedy: tuple[str, ...] = ("a", "b", "c", "d")


@dataclass
class FakeEngine:
    """Launches `FakeServer`s as `script` says; counts what it started and stopped."""

    script: Callable[[Config, int], Script]
    kind: EngineKind = EngineKind.SIMULATED
    clock: ClockKind = ClockKind.VIRTUAL
    time: VirtualTime = field(default_factory=VirtualTime)
    version: str = "fake"
    launched: list[Config] = field(default_factory=list)
    stopped: int = 0
    running: int = 0
    leased: list[tuple[int, ...]] = field(default_factory=list)

    def now(self) -> float:
        """Seconds on the virtual clock."""
        return self.time.now()

    async def launch(
        self,
        plan: LaunchPlan,
        *,
        on_identity: Callable[[ServerIdentity], None],
        on_milestone: Callable[[Milestone], None],
    ) -> FakeServer:
        """Follow the script; `script` is told how many launches of this config there were before."""
        script = self.script(plan.config, self.launched.count(plan.config))
        self.launched.append(plan.config)
        self.leased.append(plan.gpu_indices)
        on_identity(ServerIdentity(pid=1, started=0.0, pgid=None, marker="fake"))
        await asyncio.sleep(0)
        await self.time.sleep(script.start_s)
        if script.launch_failure is not None:
            raise LaunchFailed(script.launch_failure, argv=FAKE_ARGV)
        on_milestone(Milestone(name="server ready", at_s=script.start_s))
        self.running += 1
        facts = ServerFacts(vllm_version=self.version, max_model_len=script.max_model_len, simulated=True)
        return FakeServer(engine=self, script=script, facts=facts)


@dataclass
class FakeServer:
    """Answers every request in the scripted time, in virtual time."""

    engine: FakeEngine
    script: Script
    facts: ServerFacts
    argv: tuple[str, ...] = FAKE_ARGV
    driven: int = 0

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """As the script says."""
        return self.script.caveats

    async def drive(
        self,
        level: LoadLevel,
        requests: Sequence[PlannedRequest],
        *,
        deadline_s: float,
        looks: Looks | None = None,
    ) -> DriveResult:
        """Closed loops refill a slot when it comes free; open loops keep their schedule."""
        del deadline_s
        await asyncio.sleep(0)
        if self.script.dies_at is level.role and self.script.death is not None:
            raise ServerDied(self.script.death)
        if self.script.blocks_at is level.role:
            await asyncio.Event().wait()
        compiles = next(iter(self.script.compiles[self.driven :]), 0)
        stall_s = next(iter(self.script.stalls_s[self.driven :]), 0.0)
        self.driven += 1
        slower = 1.0 + (self.script.slower_beside if self.engine.running > 1 else 0.0)
        token_s, ttft_s = slower * self.script.token_s * (2 if compiles else 1), slower * self.script.ttft_s
        slots = [0.0] * (level.concurrency or 1)
        records = []
        if looks is not None:
            requests = self._looked_at(requests, level, looks)
        if growth_of(level) is not None:
            requests = requests[: level.requests]  # every first token comes alike: a growing level knows enough at once
        for request in requests:
            if request.scheduled_s is not None:
                due = request.scheduled_s
            else:
                slot = min(range(len(slots)), key=slots.__getitem__)
                due = slots[slot]
                slots[slot] = due + self.script.late_s + ttft_s + token_s * (request.output_tokens - 1)
            records.append(self._record(request, due, ttft_s, token_s, self._error_of(level, request.index)))
        if stall_s:
            middle = max(r.scheduled_s for r in records) / 2
            records = [_later(record, middle, stall_s) for record in records]
        duration = max((r.done_s for r in records if r.done_s is not None), default=0.0)
        await self.engine.time.sleep(duration)
        use = LevelUse(jit_compiles=compiles) if self.script.compiles else None
        told = None if self.script.preemptions is None else ServerDelta(preemptions=self.script.preemptions)
        return DriveResult(records=tuple(records), server=told, duration_s=duration, use=use)

    def _looked_at(
        self, requests: Sequence[PlannedRequest], level: LoadLevel, looks: Looks
    ) -> Sequence[PlannedRequest]:
        """Those that were sent when the looks had enough, at the level's own requests at the latest."""
        first_s = self.script.late_s + self.script.ttft_s
        for count in (count for count in looks.looks if count <= level.requests):
            due = [request.scheduled_s or 0.0 for request in requests[:count]]
            waits: Waits = [(at, at + first_s if at + first_s <= due[-1] else None) for at in due]
            if looks.enough(waits):
                return requests[:count]
        return requests

    def _error_of(self, level: LoadLevel, index: int) -> str | None:
        after = self.script.error_after
        if after is not None and after[0] is level.role and index >= after[1]:
            return after[2]
        return self.script.error

    def _record(
        self, request: PlannedRequest, due_s: float, ttft_s: float, token_s: float, error: str | None
    ) -> RequestRecord:
        sent_s = due_s + self.script.late_s
        first = sent_s + ttft_s
        times = tuple(first + token_s * i for i in range(request.output_tokens))
        failed = error is not None
        return RequestRecord(
            index=request.index,
            scheduled_s=due_s,
            sent_s=sent_s,
            first_byte_s=None if failed else first,
            first_token_s=None if failed else first,
            last_token_s=None if failed else times[-1],
            done_s=first if failed else times[-1],
            token_times_s=() if failed else times,
            prompt_tokens=None if failed else request.prompt_tokens,
            output_tokens=None if failed else request.output_tokens,
            counted_tokens=0 if failed else request.output_tokens,
            wanted_output_tokens=request.output_tokens,
            finish_reason=None if failed else "length",
            status=500 if failed else 200,
            error=error,
        )

    async def ask(self, prompts: Sequence[QualityPrompt], *, output_tokens: int, deadline_s: float) -> Answers:
        """A token a word, all with the scripted probability."""
        del deadline_s
        logprob = self.script.logprob
        if logprob is None:
            return Answers(problem="a scripted server computes no tokens")
        counts = [max(1, len(prompt.text.split())) for prompt in prompts]
        return Answers(
            answers=tuple(
                Answer(
                    name=prompt.name,
                    prompt_ids=tuple(range(count)),
                    logprobs=(logprob,) * count,
                    greedy=self.script.greedy[:output_tokens],
                )
                for prompt, count in zip(prompts, counts, strict=True)
            ),
            seconds=0.0,
        )

    async def stop(self) -> float:
        """Nothing to stop; counted."""
        if self.script.stop_gate is not None:
            await self.script.stop_gate.wait()
        self.engine.stopped += 1
        self.engine.running -= 1
        await self.engine.time.sleep(0.6)
        return 0.6


def _later(record: RequestRecord, after_s: float, by_s: float) -> RequestRecord:
    """The record with everything that happens after a moment happening later."""

    def moved(at_s: float | None) -> float | None:
        return at_s + by_s if at_s is not None and at_s > after_s else at_s

    return replace(
        record,
        scheduled_s=moved(record.scheduled_s) or 0.0,
        sent_s=moved(record.sent_s),
        first_byte_s=moved(record.first_byte_s),
        first_token_s=moved(record.first_token_s),
        last_token_s=moved(record.last_token_s),
        done_s=moved(record.done_s),
        token_times_s=tuple(moved(at_s) or 0.0 for at_s in record.token_times_s),
    )
