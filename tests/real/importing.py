"""An interpreter that has imported vLLM's benchmark client, which takes many seconds, and forks for each program.

Run by the interpreter that has vLLM. Each line of its input is an order as JSON: the program's text, its arguments, its
input, and the file for its output. Each answer is a line with the status it ended with.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from typing import Any


def become(order: dict[str, Any]) -> None:
    """Take over input, output and arguments, as `python -c PROGRAM ARGUMENTS` finds them."""
    with tempfile.TemporaryFile() as given:
        given.write(order["input"].encode())
        given.seek(0)
        os.dup2(given.fileno(), 0)
    written = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(written, 1)
    os.dup2(written, 2)
    os.close(written)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - until the process ends
    sys.argv = ["-c", *order["arguments"]]


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever libraries print
    import vllm.benchmarks.serve  # noqa: F401 - what programs find imported

    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        if not (child := os.fork()):
            become(order)
            exec(compile(order["program"], "<program>", "exec"), {"__name__": "__main__"})
            sys.exit()
        answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
