"""`autotune measure` with the moments of its first and its last level, for benchmarks/trial_cost.py.

`python -m benchmarks.measure_once RESULT.json WORDS...`: what `autotune measure WORDS...` does, and into RESULT.json
when load began and ended, on the clock of the whole machine, the CPU time before and after it, and the most memory that
the process had.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def most_bytes() -> int:
    """The most memory that this process had: not `ru_maxrss`, which begins with that of whoever started it."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")


def main() -> None:
    """Run the command; its exit code is this process's."""
    result, *words = sys.argv[1:]
    from autotune import measuring
    from autotune.cli.main import command_line

    names = vars(measuring)
    drive = names["drive"]
    times: list[float] = []
    cpu: list[float] = []

    async def timed(*args: Any, **others: Any) -> Any:
        times.append(time.monotonic())
        cpu.append(time.process_time())
        try:
            return await drive(*args, **others)
        finally:
            times.append(time.monotonic())
            cpu.append(time.process_time())

    names["drive"] = timed
    try:
        command_line(["measure"])(["measure", *words], standalone_mode=False)
    finally:
        document = {}
        if times:
            spent_s = cpu[0] + time.process_time() - cpu[-1]
            document = {"first_s": times[0], "last_s": times[-1], "cpu_s": spent_s, "most_bytes": most_bytes()}
        Path(result).write_text(json.dumps(document), encoding="utf-8")


if __name__ == "__main__":
    main()
