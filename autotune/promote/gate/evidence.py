"""What the gate decides from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from autotune.promote.gate.spending import ONLY, Look
from autotune.promote.gate.spread import Known, Launch
from autotune.records import Estimate, GateLaunch, GateLevel, GateSide, GateSideName, Quality, Slo
from autotune.search.noise import ASSUMED_THROUGHPUT_SD, ASSUMED_TTFT_SD, PRIOR_WEIGHT, RunNoise

THROUGHPUT, TTFT, OVERLOAD = "throughput", "ttft", "rate-plus"
"""Names of levels; further windows of the TTFT level are `ttft-2`, `ttft-3` and so on."""

KNEE_GAIN = 0.85 / (1 - 0.85)
"""By how much more a wait changes than the capacity, at 0.85 of it: waits go with 1/(1 - load), so that d ln W / d ln C
is load / (1 - load). Launches whose throughput differs by 1 % so differ by 5.7 % in TTFT at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that a verdict is made from.

    Attributes:
        noise: between launches of the study, its repeats and the assumption pooled.
        same_server: whether both sides end up as the same server, though they may be written otherwise.
        lossy: parameters by which the candidate computes other numbers than the one it is held against.
        studied: what the study's quality guard found of the candidate; None where it did not ask.
        look: which one of how many looks this is.
    """

    candidate: GateSide
    against: GateSide
    order: str
    launches: tuple[GateLaunch, ...]
    slo: Slo | None
    noise: RunNoise
    rate_factor: float
    same_server: bool = False
    lossy: tuple[str, ...] = ()
    studied: Quality | None = None
    simulated: bool = False
    look: Look = ONLY

    @property
    def same_config(self) -> bool:
        """Whether both sides are the same server."""
        written_alike = self.candidate.config.hash == self.against.config.hash
        return self.same_server or (written_alike and self.candidate.model == self.against.model)

    def of(self, side: GateSideName) -> tuple[GateLaunch, ...]:
        """Launches of one side, in order."""
        return tuple(one for one in self.launches if one.side is side)

    @property
    def throughput(self) -> tuple[Launch, ...]:
        """Output tokens/s per GPU; of launches that have it."""
        return tuple(_launches(self.launches, (THROUGHPUT,), lambda level: level.tok_s_per_gpu))

    @property
    def ttft(self) -> tuple[Launch, ...]:
        """p95 TTFT in the windows that all launches have; of launches that have one."""
        usable = [one for one in self.launches if _value(one.level(TTFT), _ttft) is not None]
        names = [level.level.name for level in usable[0].levels] if usable else []
        windows = [
            name
            for name in names
            if is_window(name) and all(_value(one.level(name), _ttft) is not None for one in usable)
        ]
        return tuple(_launches(usable, windows, _ttft))

    @property
    def overload(self) -> tuple[Launch, ...]:
        """p95 TTFT at the higher rate."""
        return tuple(_launches(self.launches, (OVERLOAD,), _ttft))

    @property
    def known_throughput(self) -> Known:
        """Of a launch's throughput."""
        assumed = ASSUMED_THROUGHPUT_SD**2
        seen = _seen(self.noise.throughput_sd, self.noise.repeats, assumed)
        return Known(assumed=assumed, assumed_between=assumed, seen=seen, repeats=self.noise.repeats)

    @property
    def known_ttft(self) -> Known:
        """Of a window's p95 TTFT."""
        assumed = ASSUMED_TTFT_SD**2
        return Known(
            assumed=assumed,
            assumed_between=(KNEE_GAIN * ASSUMED_THROUGHPUT_SD) ** 2,
            seen=_seen(self.noise.ttft_sd, self.noise.repeats, assumed),
            repeats=self.noise.repeats,
        )


def _seen(pooled_sd: float, repeats: int, assumed: float) -> float:
    """What the study's repeats alone say, of a deviation that `run_noise` pooled with its assumption."""
    if not repeats:
        return 0.0
    return max(0.0, ((PRIOR_WEIGHT + repeats) * pooled_sd**2 - PRIOR_WEIGHT * assumed) / repeats)


def is_window(name: str) -> bool:
    """Whether a level is the TTFT level or a further window of it."""
    return name == TTFT or (name.startswith(f"{TTFT}-") and name[len(TTFT) + 1 :].isdigit())


def _ttft(level: GateLevel) -> Estimate | None:
    return level.ttft_p95_s


def _launches(
    launches: Iterable[GateLaunch], names: Sequence[str], figure: Callable[[GateLevel], Estimate | None]
) -> Iterator[Launch]:
    """Those that have the figure in all the levels named."""
    for launch in launches:
        found = [_value(launch.level(name), figure) for name in names]
        values = [value for value in found if value is not None]
        if values and len(values) == len(found):
            yield Launch(side=launch.side, windows=tuple(math.log(value) for value in values))


def _value(level: GateLevel | None, figure: Callable[[GateLevel], Estimate | None]) -> float | None:
    """A figure that can be judged: there, above 0, and not the client's."""
    if level is None or any(caveat.void for caveat in level.caveats):
        return None
    found = figure(level)
    return found.value if found is not None and found.value > 0 else None
