"""A tuner that test_process_engine kills with -9: brings an engine into a phase, prints the marker, goes on.

tuner_process.py launching|measuring|stopping DIRECTORY
"""

import asyncio
import shlex
import sys
from pathlib import Path

from autotune.engine.base import LaunchPlan, ServerIdentity
from autotune.engine.command import parse_command
from autotune.engine.process import ProcessEngine, ProcessSettings
from autotune.engine.process_server import LoadSettings
from autotune.load.workloads import Api
from autotune.records import Arrivals, Config, LevelRole, LoadLevel, PlannedRequest

FAKE_VLLM = Path(__file__).parent / "fake_vllm.py"
MISBEHAVIOUR = ("--fake-ignore-term", "--fake-worker", "same", "--fake-worker", "new", "--fake-stall-stream")


def engine(grace_s: float) -> ProcessEngine:
    command = parse_command(shlex.join([sys.executable, "-I", "-S", str(FAKE_VLLM), "serve"]), source="test")
    return ProcessEngine(ProcessSettings(command=command, load=LoadSettings(api=Api.CHAT), grace_s=grace_s))


async def main(phase: str, directory: Path) -> None:
    identities: list[ServerIdentity] = []
    reached = asyncio.Event()
    plan = LaunchPlan(
        model="tiny",
        config=Config.of({}),
        gpu_indices=(),
        extra_args=(*MISBEHAVIOUR, "--fake-hang-at", "3" if phase == "launching" else "99"),
        directory=directory,
        start_deadline_s=600.0,
        stall_deadline_s=600.0,
    )

    async def work() -> None:
        server = await engine(1.0).launch(
            plan, on_identity=identities.append, on_milestone=lambda milestone: reached.set()
        )
        request = PlannedRequest(index=0, prompt_tokens=5, output_tokens=5, content_seed=0)
        level = LoadLevel(
            name="x", role=LevelRole.EXTRA, arrivals=Arrivals.CLOSED, requests=1, seed=0, concurrency=1
        )  # fmt: skip
        # A stop that lasts until this tuner is killed: with the patience that the keeper has then, it might be over.
        doing = (
            server.drive(level, [request], deadline_s=600.0) if phase == "measuring" else server._running.stop(600.0)
        )
        asyncio.get_running_loop().call_later(0.3, tell)
        await doing

    def tell() -> None:
        sys.stdout.write(identities[-1].marker + "\n")
        sys.stdout.flush()

    working = asyncio.create_task(work())
    if phase == "launching":
        await reached.wait()
        tell()
    await working


asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
