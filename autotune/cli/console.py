"""Where tables and progress go: a terminal at its own width, pipes and files at one that fits a line of settings."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 140


def output_console(*, stderr: bool = False) -> Console:
    """A console on standard output, or on standard error. A reader of the latter that goes away ends no study."""
    from rich.console import Console

    class Pipe(Console):
        """Rich would end the program with status 1, whichever stream it was."""

        def on_broken_pipe(self) -> None:
            if not self.stderr:
                raise  # the BrokenPipeError being handled, on which the command line ends quietly
            self.quiet = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())

    stream = sys.stderr if stderr else sys.stdout
    return Pipe(stderr=stderr, width=None if stream.isatty() else PIPE_WIDTH)
