"""Programs that all need vLLM's benchmark client, run without importing it anew for each."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
from pathlib import Path

PROGRAM_S = 1500.0
"""Beside other tests a minute takes many."""


class Imported:
    """A Python that has imported vLLM's benchmark client, for programs that would all import it."""

    def __init__(self, python: str, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name("importing.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        )

    def run(self, program: str, *arguments: str, given: str = "") -> str:
        """What a program prints that is run as `python -c PROGRAM ARGUMENTS`; it has to end with 0."""
        stdin, stdout, output = self._process.stdin, self._process.stdout, self._folder / "output.txt"
        assert stdin is not None
        assert stdout is not None
        order = {"program": program, "arguments": arguments, "input": given, "output": str(output)}
        stdin.write(json.dumps(order).encode() + b"\n")
        stdin.flush()
        with selectors.DefaultSelector() as waiting:
            waiting.register(stdout, selectors.EVENT_READ)
            ended = waiting.select(PROGRAM_S)
        if not ended:
            self.close()  # its late answer would be taken for the next program's
            raise TimeoutError(f"the program did not end in {PROGRAM_S:g} s")
        status = stdout.readline().strip()
        said = output.read_text(encoding="utf-8") if output.exists() else ""
        assert status == b"0", said[-3000:]
        return said

    def close(self) -> None:
        """End it, with a program that does not end by itself."""
        self._process.kill()
        self._process.communicate()
