"""One load level for many configs: what a search asks of the simulator."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.node.defaults import ResolvedSettings
from autotune.records import LoadLevel, ModelShape, Node, PlannedRequest
from autotune.simulator.coefficients import Coefficients
from autotune.simulator.core import Core
from autotune.simulator.engine_model import Simulation
from autotune.simulator.level_times import LevelFigures

if TYPE_CHECKING:
    from autotune.simulator.compiled.load import Load


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What a launch would run with.

    Attributes:
        kv_tokens: capacity of one replica's KV cache; the memory model knows it.
    """

    settings: ResolvedSettings
    kv_tokens: int


def simulate_many(
    node: Node,
    shape: ModelShape,
    servers: Iterable[Server],
    level: LoadLevel,
    requests: Sequence[PlannedRequest],
    coefficients: Coefficients | None = None,
    *,
    seed: int = 0,
    deadline_s: float = math.inf,
    core: Core = Core.AUTO,
) -> Iterator[LevelFigures]:
    """Figures of the level on a fresh launch of each server, in order and as they are asked for.

    All have the same noise, so that their differences are those of the configs (common random numbers).

    Raises:
        ValueError: as `Simulation` and its `run` do, when the server's turn has come.
    """
    load: Load | None = None
    for server in servers:
        simulation = Simulation(node, shape, server.settings, server.kv_tokens, coefficients, seed, core=core)
        if load is None:
            load = simulation.prepare(level, requests)
        yield simulation.figures(level, requests, deadline_s=deadline_s, load=load)
