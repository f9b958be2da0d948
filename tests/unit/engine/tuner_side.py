"""A tuner in miniature that the tests kill with -9: starts a keeper and a server, says where it is, stays there.

    tuner_side.py PHASE LOG CHILD_ARGV...      PHASE: spawned, running, stopping

Prints one line of JSON with the identity when the phase is reached.
"""

import asyncio
import dataclasses
import json
import sys
import time
from pathlib import Path

from autotune.engine.keeper_client import Keeper, ServerOrder


async def main(phase: str, log: Path, argv: list[str]) -> None:
    keeper = await Keeper.spawn()
    say = Path(f"{log}.up")
    if phase != "spawned":
        await keeper.order(ServerOrder(argv=[*argv, f"say={say}"], log=log, env={}, grace_s=0.3))
        while not say.exists():  # noqa: ASYNC240 - another process makes the file
            await asyncio.sleep(0.01)
    if phase == "stopping":
        stopping = asyncio.create_task(keeper.stop(600.0))
        await asyncio.sleep(0.1)
        assert not stopping.done()
    sys.stdout.write(json.dumps(dataclasses.asdict(keeper.identity)) + "\n")
    sys.stdout.flush()
    time.sleep(600)  # noqa: ASYNC251 - deaf on purpose: it must not react to anything until it is killed


asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
