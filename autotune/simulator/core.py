"""Which core runs a level: machine code or its plain twin. Both answer the same, to the last bit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autotune.simulator.compiled import compiling

TWIN_TOKEN_S = 1.2e-6
"""What an output token costs in the plain twin, measured on a chat load."""

LOADING_S = 0.5
"""Importing numba and loading what an earlier process compiled."""

COMPILING_S = 20.0
"""The same when nothing was kept."""


class Core(StrEnum):
    """AUTO takes the compiled one as soon as it pays; COMPILED means it where numba is installed."""

    AUTO = "auto"
    COMPILED = "compiled"
    PYTHON = "python"


@dataclass(slots=True)
class Patience:
    """When the compiled core pays: once the twin has worked for as long as loading it takes, as one rents skis.

    So a process that simulates a few levels never waits for a compiler, and one that simulates thousands loses at most
    as much again as compiling costs.
    """

    spent_s: float = 0.0
    loaded: bool = False

    def compiled(self, core: Core, tokens: int) -> bool:
        """Whether a level of so many output tokens is for the compiled core; counts it as run."""
        if core is Core.PYTHON or not compiling.installed():
            return False
        if core is Core.AUTO and not self.loaded:
            self.spent_s += tokens * TWIN_TOKEN_S
            if self.spent_s < LOADING_S or (self.spent_s < COMPILING_S and not compiling.kept()):
                return False
        self.loaded = True
        return True


PATIENCE = Patience()
"""Of this process: what was loaded once costs nothing again."""
