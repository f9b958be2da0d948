"""Where tables and progress go: a terminal at its own width, pipes and files at one that fits a line of settings."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 140


def output_console(*, stderr: bool = False) -> Console:
    """A console on standard output, or on standard error."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else PIPE_WIDTH)
