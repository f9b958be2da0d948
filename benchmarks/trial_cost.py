"""What a trial costs beside its launch and its measured windows, and what the driver alone costs to start and report.

`python -m benchmarks.trial_cost [--vllm-python PYTHON --model FOLDER] [--trials N] [--json]`

A study of N trials runs as `autotune study` runs it, against our simulated server in a process of its own or, with
--vllm-python, against a real vLLM. Around the engine and its servers stands a stopwatch:

| part | what |
|---|---|
| launch | the server's own start, from the order to readiness |
| prepare | the rest of the launch: free GPUs, the compile cache, how prompts are written |
| warm-up | its levels |
| windows | the levels that are measured, from their first request to their last |
| around | per level: prefix cache emptied, prompts rendered, connections opened, counters read before and after |
| figures | figures computed, raw requests written |
| stop | TERM to exit and to memory free |
| between | from one trial's end to the next one's launch: the store, Optuna's projection, the next proposal |

Overhead is what is neither launch, warm-up nor windows; its share is told of these trials as they were, and of a trial
as a real GPU has it (50 s of launch, 60 s of windows, this warm-up).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from autotune.engine.base import DriveResult, Engine, LaunchPlan, Milestone, Server, ServerIdentity
from autotune.engine.gpu_memory import GpuGuard
from autotune.engine.holding import NodeHold
from autotune.engine.ports import free_port
from autotune.executor.base import Floor
from autotune.executor.building import make_engine
from autotune.executor.local import LocalExecutor
from autotune.load.growing import Looks
from autotune.load.loops import new_loop
from autotune.planning import Surroundings, make_plan
from autotune.quality.answers import Answers
from autotune.quality.prompts import QualityPrompt
from autotune.recipe import EngineChoice, LoadChoice, Recipe
from autotune.records import Caveat, ClockKind, EngineKind, LevelRole, LoadLevel, PlannedRequest, ServerFacts, Trial
from autotune.scheduling.seats import Seats
from autotune.search.proposer import Proposer
from autotune.session import spec_of
from autotune.store.folder import StudyFolder
from autotune.store.projection import Projection
from autotune.store.repository import Store
from autotune.study import StudyRun

FORMAT = 1
LAUNCH_S, WINDOWS_S = 50.0, 60.0
"""Of a trial on a real GPU: a start with a warm compile cache, and two levels."""

ROOT = Path(__file__).parent.parent
EMPTY_PYTHON = (sys.executable, "-c", "from benchmarks.measure_once import most_bytes; print(most_bytes())")
READY_WITHIN_S = 60.0
CPU_FLAGS = (
    "--load-format",
    "dummy",
    "--dtype",
    "bfloat16",
    "--max-model-len",
    "2048",
    "--gpu-memory-utilization",
    "0.5",
)
SPACE = """
name: cost
parameters:
  max-num-seqs: {choices: [16, 32, 48, 64], why: different enough for a study}
"""


@dataclass(kw_only=True)
class Parts:
    """Seconds of one trial, by part."""

    launch: float = 0.0
    prepare: float = 0.0
    warm_up: float = 0.0
    windows: float = 0.0
    around: float = 0.0
    figures: float = 0.0
    stop: float = 0.0
    between: float = 0.0

    @property
    def overhead_s(self) -> float:
        """Neither launch, nor warm-up, nor windows."""
        return self.prepare + self.around + self.figures + self.stop + self.between

    @property
    def share(self) -> float:
        """Of this trial."""
        return self.overhead_s / (self.overhead_s + self.launch + self.warm_up + self.windows)

    @property
    def real_share(self) -> float:
        """Of a trial on a real GPU."""
        return self.overhead_s / (self.overhead_s + LAUNCH_S + self.warm_up + WINDOWS_S)


@dataclass
class Watch:
    """Of a study: what its trials spent."""

    trials: list[Parts] = field(default_factory=list)
    free_since_s: float = field(default_factory=time.monotonic)
    busy_s: float = 0.0
    ready_at_s: float = 0.0


class TimedServer:
    """The server seam with a stopwatch."""

    def __init__(self, server: Server, watch: Watch) -> None:
        self._server, self._watch = server, watch

    @property
    def facts(self) -> ServerFacts:
        return self._server.facts

    @property
    def argv(self) -> tuple[str, ...]:
        return self._server.argv

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        return self._server.caveats

    async def drive(
        self,
        level: LoadLevel,
        requests: Sequence[PlannedRequest],
        *,
        deadline_s: float,
        looks: Looks | None = None,
    ) -> DriveResult:
        begun = time.monotonic()
        found = await self._server.drive(level, requests, deadline_s=deadline_s, looks=looks)
        parts, took = self._watch.trials[-1], time.monotonic() - begun
        if level.role is LevelRole.WARMUP:
            parts.warm_up += found.duration_s
        else:
            parts.windows += found.duration_s
        parts.around += took - found.duration_s
        self._watch.busy_s += took
        return found

    async def ask(self, prompts: Sequence[QualityPrompt], *, output_tokens: int, deadline_s: float) -> Answers:
        return await self._server.ask(prompts, output_tokens=output_tokens, deadline_s=deadline_s)

    async def stop(self) -> float:
        begun, parts = time.monotonic(), self._watch.trials[-1]
        parts.figures = begun - self._watch.ready_at_s - self._watch.busy_s
        try:
            return await self._server.stop()
        finally:
            self._watch.free_since_s = time.monotonic()
            parts.stop = self._watch.free_since_s - begun


class TimedEngine:
    """The engine seam with a stopwatch."""

    def __init__(self, engine: Engine, watch: Watch) -> None:
        self._engine, self._watch = engine, watch

    @property
    def kind(self) -> EngineKind:
        return self._engine.kind

    @property
    def clock(self) -> ClockKind:
        return self._engine.clock

    async def launch(
        self,
        plan: LaunchPlan,
        *,
        on_identity: Callable[[ServerIdentity], None],
        on_milestone: Callable[[Milestone], None],
    ) -> Server:
        watch, begun = self._watch, time.monotonic()
        parts = Parts(between=begun - watch.free_since_s)
        server = await self._engine.launch(plan, on_identity=on_identity, on_milestone=on_milestone)
        watch.ready_at_s, watch.busy_s = time.monotonic(), 0.0
        parts.launch = server.facts.startup_s or 0.0
        parts.prepare = watch.ready_at_s - begun - parts.launch
        watch.trials.append(parts)
        return TimedServer(server, watch)


class Quiet:
    """An observer that shows nothing."""

    def trial_started(self, trial: Trial, *, counted: int, target: int, repeats_left: int) -> None: ...

    def phase(self, phase: object, detail: str, *, number: int) -> None: ...

    def trial_ended(self, trial: Trial, trials: Sequence[Trial]) -> None: ...

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)


class CostError(Exception):
    """The benchmark cannot run; the text is for people."""


def main() -> int:
    """Measure, print; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--vllm-python", help="an interpreter with vLLM, for real servers")
    parser.add_argument("--model", help="what they serve: a folder with config and tokenizer; weights are made up")
    parser.add_argument("--trials", type=int, default=3)
    args = parser.parse_args()
    if args.trials < 2 or bool(args.vllm_python) != bool(args.model):
        parser.error("--trials takes 2 or more; --vllm-python and --model come together")
    with tempfile.TemporaryDirectory(prefix="trial-cost-") as name:
        try:
            trials = run_trials(Path(name), args.vllm_python, args.model, args.trials)
            driver = driver_cost(Path(name))
        except CostError as error:
            print(f"trial cost benchmark: {error}", file=sys.stderr)
            return 1
    show(trials, driver, as_json=args.json)
    return 0


def show(trials: list[Parts], driver: dict[str, float], *, as_json: bool) -> None:
    """The table, or the JSON object."""
    rows = [asdict(one) | {"overhead_s": one.overhead_s, "overhead_share": one.share} for one in trials]
    # The first trial waits for what is asked once in a study; the others are what a long study consists of.
    later = trials[1:]
    found = {
        "overhead_share": sum(one.share for one in later) / len(later),
        "real_overhead_share": sum(one.real_share for one in later) / len(later),
        "first_overhead_s": trials[0].overhead_s,
        **driver,
    }
    if as_json:
        print(json.dumps({"format": FORMAT, "trials": rows, **found}))
        return
    names = list(rows[0])
    print("trial" + "".join(f"{name.replace('_', ' '):>16}" for name in names))
    for number, row in enumerate(rows):
        print(f"{number:>5}" + "".join(f"{row[name]:>16.3f}" for name in names))
    these, real = found["overhead_share"], found["real_overhead_share"]
    print(f"overhead of later trials: {these:.1%} of these, {real:.1%} of real ones")
    print(
        f"driver: starts in {driver['driver_start_s']:.2f} s, reports in {driver['driver_report_s']:.2f} s "
        f"({driver['driver_cpu_s']:.2f} s of CPU together), "
        f"{driver['driver_mb']:.0f} MB more than an empty Python"
    )


def run_trials(folder: Path, vllm_python: str | None, model: str | None, trials: int) -> list[Parts]:
    """The parts of every trial of one study."""
    space = folder / "space.yaml"
    space.write_text(SPACE, encoding="utf-8")
    if vllm_python is None:
        command = f"{shlex.quote(sys.executable)} -m autotune simulate-server"
        extra: tuple[str, ...] = ("--sim-start-s", "1")
    else:
        command = f"{shlex.quote(vllm_python)} -m vllm.entrypoints.openai.api_server"
        extra = CPU_FLAGS
    environ = dict(os.environ) | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    recipe = Recipe(
        name="cost",
        model=model or "meta-llama/Llama-3.1-8B-Instruct",
        workload="tiny",
        space=str(space),
        engine=EngineChoice.PROCESS,
        trials=trials,
        repeats=0,
        sampler="random",
        load=LoadChoice(concurrency=16, rate_rps=8.0, requests=160),
        extra_args=extra,
    )
    here = Surroundings(
        environ=environ, home=Path.home(), probe=None, shm_bytes=None, has_kfd=False, cache_dir=folder / "cache"
    )
    plan = make_plan(recipe, here, vllm_command=command)
    watch = Watch()
    with Store.open(str(folder / "autotune.db")) as store, Projection.open(store) as projection:
        study = store.create_or_resume_study(spec_of(plan))
        watch.free_since_s = time.monotonic()
        engine, clock, sleep = make_engine(plan, GpuGuard(None), NodeHold())
        run = StudyRun(
            plan=plan,
            study=study,
            store=store,
            folder=StudyFolder(root=folder, name="cost"),
            executor=LocalExecutor(
                engine=TimedEngine(engine, watch), floor=Floor(seats=Seats(plan.node)), clock_s=clock, wait=sleep
            ),
            proposer=Proposer(plan.space, recipe.sampler, recipe.seed),
            projection=projection,
            observer=Quiet(),
        )
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(run.run())
        ended = store.trials("cost")
    bad = [trial for trial in ended if not trial.result or trial.result.failure is not None]
    if bad or len(watch.trials) != len(ended):
        failure = bad[0].result.failure if bad and bad[0].result else None
        raise CostError(f"a trial failed: {failure.line if failure else 'it was launched more than once'}")
    return watch.trials


def driver_cost(folder: Path) -> dict[str, float]:
    """Seconds that `autotune measure` needs before its first request and after its last, and its memory."""
    port = free_port()
    server = [sys.executable, "-m", "autotune", "simulate-server", "meta-llama/Llama-3.1-8B-Instruct"]
    log = folder / "driver-server.log"
    with (
        log.open("wb") as out,
        subprocess.Popen([*server, "--port", str(port)], stdout=out, stderr=out, cwd=ROOT) as running,
    ):
        try:
            _until_ready(log, running)
            words = [
                "--url",
                f"http://127.0.0.1:{port}",
                "--concurrency",
                "8",
                "--requests",
                "40",
                "--workload",
                "tiny",
            ]
            costs = [_once(folder, words) for _ in range(3)]
        finally:
            running.terminate()
    empty = int(subprocess.run(EMPTY_PYTHON, capture_output=True, check=True, cwd=ROOT).stdout)
    start, report, cpu, most = (sorted(cost[place] for cost in costs)[1] for place in range(4))
    return {
        "driver_start_s": start,
        "driver_report_s": report,
        "driver_cpu_s": cpu,
        "driver_mb": (most - empty) / 1e6,
    }


def _once(folder: Path, words: list[str]) -> tuple[float, float, float, float]:
    result = folder / "measured.json"
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.measure_once", str(result), *words],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    ended = time.monotonic()
    if done.returncode:
        raise CostError(f"autotune measure ended with {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}")
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found["first_s"] - begun, ended - found["last_s"], found["cpu_s"], found["most_bytes"]


def _until_ready(log: Path, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + READY_WITHIN_S
    while "startup complete" not in log.read_text(encoding="utf-8", errors="replace"):
        if server.poll() is not None or time.monotonic() > until:
            raise CostError("the simulated server does not start")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
