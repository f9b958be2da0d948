"""Load a server that somebody else started: the driver, figures and doubts of a study, with nothing launched.

Nothing is changed on the server. Its prefix cache is not emptied, so prompts must be new to it, which a seed of each
run's own sees to. Levels follow one another as they were given, each bounded in time and in requests.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from autotune import __version__
from autotune.engine.found_server import FoundServer, base_of, find_server, key_of, key_refused
from autotune.engine.metrics_text import delta, restarted
from autotune.engine.sampling import LevelSampler, read_cpu
from autotune.errors import InvalidOption, ServerUnusable, StorageError
from autotune.load.address import is_this_machine
from autotune.load.client import DriveOptions, drive
from autotune.load.measure import summarise
from autotune.load.preparing import PreparedPrompts, PromptSource, prepare_prompts
from autotune.load.reading import RequestError
from autotune.load.records_file import LevelFile, level_path, write_records
from autotune.load.requests import plan_caveats, plan_requests
from autotune.load.tokenizing import TextTokenizer, find_tokenizer
from autotune.load.workload import Workload, check_lengths
from autotune.measuring_order import MeasureOrder, level_seed, planned_levels
from autotune.records import (
    Arrivals,
    Caveat,
    ClockKind,
    LevelRole,
    LevelUse,
    LoadLevel,
    Measurement,
    PlannedRequest,
    RequestRecord,
    ServerDelta,
)
from autotune.report.bench_serve_json import bench_serve_document, bench_serve_path, write_bench_serve
from autotune.report.measured import MeasuredServer
from autotune.units import plural

WARMUP_S = 120.0


@dataclass(slots=True)
class Measuring:
    """What has been measured so far; complete levels, and at the end the part of one that was stopped."""

    server: FoundServer
    levels: int
    measurements: list[Measurement] = field(default_factory=list)
    caveats: tuple[Caveat, ...] = ()


async def measure(
    order: MeasureOrder, *, environ: Mapping[str, str], tell: Callable[[str], None], begun: Callable[[Measuring], None]
) -> None:
    """Find the server, warm it up, drive every level.

    Cancelled, it keeps what the running level has shown and passes the cancellation on.

    Args:
        tell: says to people what goes on, one line each.
        begun: given what fills up with figures, before the first request; it holds what there is when this raises.

    Raises:
        ServerUnusable: the server cannot be measured, or went away.
        InvalidOption: an option does not fit this server.
        StorageError: raw records cannot be written.
    """
    base = base_of(order.url)
    key = key_of(order.api_key_env, environ)
    server = await find_server(base, model=order.model, key=key)
    _check_fits(order.workload, server)
    tokenizer = await asyncio.to_thread(_tokenizer, order, server, environ)
    if order.out is not None:
        await asyncio.to_thread(_make_folder, order.out)
    measuring = Measuring(server=server, levels=len(order.concurrencies) + len(order.rates))
    begun(measuring)
    tell(_announcement(order, base, server))
    options = DriveOptions(
        api=order.workload.api,
        model=server.model,
        render=lambda _request: "",
        api_key_env=order.api_key_env,
        ignore_eos=server.is_vllm,
        allow_remote=True,
    )
    source = PromptSource(
        api=order.workload.api, study_salt=order.seed, tokenizer=tokenizer, texts=order.workload.texts
    )
    prompts = await prepare_prompts(base, source, options, may_request=True)
    measuring.caveats = prompts.caveats
    await _Session(order, measuring, prompts, options, base, tell).run()


def result_of(order: MeasureOrder, measuring: Measuring) -> MeasuredServer:
    """What is shown of it, complete or not."""
    return MeasuredServer(
        url=measuring.server.door.base_url,
        model=measuring.server.model,
        workload=order.workload.name,
        seed=order.seed,
        measurements=tuple(measuring.measurements),
        planned_levels=measuring.levels,
        facts=measuring.server.facts,
        gpus=order.gpus,
        slo=order.slo,
        caveats=measuring.caveats,
    )


class _Session:
    """The levels one after the other, and what the server was seen to do."""

    def __init__(
        self,
        order: MeasureOrder,
        measuring: Measuring,
        prompts: PreparedPrompts,
        options: DriveOptions,
        base: str,
        tell: Callable[[str], None],
    ) -> None:
        self._order, self._measuring, self._tell = order, measuring, tell
        self._options = prompts.over(options)
        self._base = base
        self._server = measuring.server
        self._served_rps: float | None = None

    async def run(self) -> None:
        levels = planned_levels(self._order)
        await self._warm_up(levels[0])
        for level in levels:
            measured = await self._level(self._shortened(level))
            if not measured.completed:
                raise _all_failed(self._base, measured, key_given=self._order.api_key_env is not None)

    async def _warm_up(self, first: LoadLevel) -> None:
        """As many requests as will run at once, of the workload's own shape; nothing of it is counted."""
        slots = first.concurrency or max(1, min(8, math.ceil(first.rate_rps or 1)))
        level = LoadLevel(
            name="warmup",
            role=LevelRole.WARMUP,
            arrivals=Arrivals.CLOSED,
            requests=slots,
            seed=level_seed(self._order, 0),
            concurrency=slots,
        )
        self._tell(f"warm-up: {slots} requests")
        options = replace(self._options, deadline_s=min(WARMUP_S, self._order.level_deadline_s))
        records, duration_s = await drive(self._base, level, self._requests(level), options=options)
        measured = await asyncio.to_thread(summarise, level, records, duration_s, ClockKind.WALL)
        if not measured.completed:
            message = next((record.message for record in records if record.message), "")
            raise _all_failed(
                self._base, measured, message=message or "", key_given=self._order.api_key_env is not None
            )
        self._note_speed(measured)

    async def _level(self, level: LoadLevel) -> Measurement:
        """One level, its counters beside it; stored and noted even when it is stopped half-way."""
        more = "" if level.most_requests is None else f" to {level.most_requests}"
        self._tell(f"{level.name}: {level.requests}{more} requests")
        requests = self._requests(level)
        ended: list[RequestRecord] = []
        started: list[float] = []
        # What the server runs on is not known here: its processes and GPUs may be anybody's.
        sampler = LevelSampler(metrics=self._server.door.metrics, cpu=lambda: read_cpu(None, 0), probe=None, indices=())

        async def start() -> None:
            await sampler.begin()
            started.append(time.monotonic())

        options = replace(
            self._options,
            deadline_s=self._order.level_deadline_s,
            on_record=ended.append,
            on_worker=sampler.worker_ended,
            before_start=start,
        )
        before = await self._server.metrics()
        try:
            records, duration_s = await drive(self._base, level, requests, options=options)
        except asyncio.CancelledError:
            if ended:
                self._note(level, ended, time.monotonic() - started[0], None, _stopped(level, len(ended)))
            raise
        finally:
            await sampler.close()
        use = await sampler.end()
        after = await self._server.metrics()
        if before is not None and after is not None and restarted(before, after):
            raise ServerUnusable(
                f"{self._base} restarted during {level.name}: its counters went back",
                hint="Look at the server's log for why it ended.",
            )
        measured = await asyncio.to_thread(
            self._note,
            level,
            records,
            duration_s,
            delta(before, after, sampler.gauges),
            plan_caveats(self._order.workload, level),
            use,
        )
        self._note_speed(measured)
        return measured

    def _note(
        self,
        level: LoadLevel,
        records: Sequence[RequestRecord],
        duration_s: float,
        server: ServerDelta | None,
        doubts: tuple[Caveat, ...],
        use: LevelUse | None = None,
    ) -> Measurement:
        """Figures of a level, kept; its raw records go to disk where that is wanted."""
        measured = summarise(
            level,
            records,
            duration_s,
            ClockKind.WALL,
            self._order.slo.ttft_p95_s if self._order.slo else None,
            server,
            shared_tokens_per_request=self._order.workload.shared_tokens_per_request,
            use=use,
        )
        measured = replace(measured, caveats=doubts + measured.caveats)
        self._measuring.measurements.append(measured)
        if self._order.out is not None:
            path = level_path(self._order.out, level)
            write_records(path, level, ClockKind.WALL, records, duration_s, server, use=use)
            self._export(path, level, records, duration_s)
        return measured

    def _export(self, path: Path, level: LoadLevel, records: Sequence[RequestRecord], duration_s: float) -> None:
        """The level in the JSON of `vllm bench serve`, beside its records."""
        facts = self._server.facts
        document = bench_serve_document(
            LevelFile(level=level, clock=ClockKind.WALL, records=tuple(records), duration_s=duration_s),
            model=self._server.model,
            api=self._options.api,
            at=datetime.now().astimezone(),
            metadata=(
                ("exported_by", f"autotune {__version__}"),
                ("level", level.name),
                *((("simulated", "true"),) if facts.simulated else ()),
            ),
        )
        write_bench_serve(bench_serve_path(path.parent, path), document)

    def _requests(self, level: LoadLevel) -> tuple[PlannedRequest, ...]:
        return plan_requests(self._order.workload, level, trial_salt=0)

    def _shortened(self, level: LoadLevel) -> LoadLevel:
        """A closed loop of no more requests than end in half its time at the speed seen so far, but two per slot."""
        if self._order.requests is not None or level.concurrency is None or not self._served_rps:
            return level
        served = math.floor(self._served_rps * self._order.level_deadline_s / 2)
        return replace(level, requests=max(2 * level.concurrency, min(level.requests, served)))

    def _note_speed(self, measured: Measurement) -> None:
        if measured.duration_s > 0 and measured.completed:
            self._served_rps = max(self._served_rps or 0.0, measured.completed / measured.duration_s)


def _check_fits(workload: Workload, server: FoundServer) -> None:
    length = server.facts.max_model_len
    problems = check_lengths(workload, [length]) if length is not None else ()
    if problems:
        raise InvalidOption(
            "--workload",
            workload.name,
            f"one whose requests fit {length:,} tokens; {problems[0].text}",
            hint="Choose shorter prompts or outputs, or start the server with a larger --max-model-len.",
        )


def _tokenizer(order: MeasureOrder, server: FoundServer, environ: Mapping[str, str]) -> TextTokenizer | None:
    """The one asked for, else what the model's name leads to without asking the hub."""
    if order.tokenizer is not None:
        found = find_tokenizer(order.tokenizer, environ=environ)
        if found.tokenizer is None:
            raise InvalidOption("--tokenizer", order.tokenizer, f"a tokenizer that can be read; {found.reason}")
        return found.tokenizer
    return find_tokenizer(server.root or server.model, environ={**environ, "HF_HUB_OFFLINE": "1"}).tokenizer


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        earlier = next(folder.glob("level-*.jsonl.gz"), None)
    except OSError as error:
        raise StorageError(f"{folder}: {error.strerror or error}", hint="Choose another --out.") from None
    if earlier is not None:
        raise InvalidOption(
            "--out", str(folder), f"a folder without records of an earlier run ({earlier.name} is there)"
        )


def _announcement(order: MeasureOrder, base: str, server: FoundServer) -> str:
    levels = planned_levels(order)
    total = sum(level.most_requests or level.requests for level in levels)
    where = "" if is_this_machine(base) else ", which is not this machine"
    return (
        f"sending up to {total:,} requests of workload {order.workload.name} in "
        f"{plural(len(levels), 'level')}, and a warm-up, to {base} ({server.model}){where}"
    )


def _stopped(level: LoadLevel, ended: int) -> tuple[Caveat, ...]:
    return (
        Caveat(
            code="aborted",
            text=f"the level was stopped by the operator when {ended} of {level.most_requests or level.requests} "
            "requests had ended",
            remedy="Let it run to its end, or send fewer requests.",
        ),
    )


def _all_failed(base: str, measured: Measurement, *, message: str = "", key_given: bool) -> ServerUnusable:
    kinds = [kind for kind, _ in measured.errors]
    if kinds == [str(RequestError.HTTP_AUTH)]:
        return key_refused(base, key_given=key_given)
    errors = ", ".join(f"{kind} x{count}" for kind, count in measured.errors) or "none ended"
    said = f": {message[:300]}" if message else ""
    return ServerUnusable(
        f"every request of {measured.level.name} to {base} failed ({errors}){said}",
        hint="Look at the server's log, and try one request by hand (curl).",
    )
