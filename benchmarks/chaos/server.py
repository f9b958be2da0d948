"""The simulated server, with the fault that the round has dealt to this very attempt.

Started as the study's `vllm_command`, in the round's folder, on the GPUs that it was given (driver/). Which attempt it
is, it reads from where its output goes:
`.../trial-0001-attempt-2/server.log`. The environment is passed on as it came.

However it ends, it leaves what a vLLM leaves that is killed: its sockets in VLLM_RPC_BASE_PATH, and the file at which
its workers met in the temporary directory.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import tempfile
import uuid
from pathlib import Path

from autotune.simulator.server import main
from benchmarks.chaos.driver import pynvml

PLAN = "deal.json"
_ATTEMPT = re.compile(r"trial-(\d+)(?:-attempt-(\d+))?/server\.log$")


def faults_of(output: str, plan: dict[str, str]) -> str:
    """AUTOTUNE_SIM_FAULT of the attempt whose log is `output`; empty when it is none."""
    found = _ATTEMPT.search(output)
    return plan.get(f"{int(found[1])}/{int(found[2] or 1)}", "") if found else ""


def leave_files(temporary: str) -> None:
    """What vLLM makes at its start (vllm/utils/network_utils.py 0.32)."""
    for _ in range(2):
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"{os.environ.get('VLLM_RPC_BASE_PATH', temporary)}/{uuid.uuid4()}")
    Path(temporary, f"vllm_dist_{uuid.uuid4().hex}").touch()


if __name__ == "__main__":
    if "--port" in sys.argv:  # it is not only asked for its flags
        leave_files(tempfile.gettempdir())
    dealt = faults_of(str(Path("/proc/self/fd/1").readlink()), json.loads(Path(PLAN).read_text(encoding="utf-8")))
    pynvml.hold()
    sys.exit(main(sys.argv[1:], {**os.environ, "AUTOTUNE_SIM_FAULT": dealt}))
