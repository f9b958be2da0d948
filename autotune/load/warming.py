"""When a server has been warmed up enough: pure policy, passes in, verdict out.

Quiet: in the last pass no kernel was compiled, as far as the log tells, and its requests were no faster than those of
the pass before. What is compiled later, by a batch of a size not met before, is felt by the level that meets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.load.measure import token_pace_s
from autotune.records import Arrivals, Caveat, LevelRole, LoadLevel, RequestRecord
from autotune.units import plural

MOST_PASSES = 6
MOST_WARMUP_S = 180.0
"""Of warm-up on one concurrency; a server that is still not quiet then is measured, with a caveat."""

STILL_FALLING = 0.05
"""Share by which the median latency of a pass must stay below the pass before, to be called still falling."""


@dataclass(slots=True, kw_only=True)
class Warming:
    """The passes of one warm-up.

    Attributes:
        concurrency: requests in flight of every pass.
        first_requests: of the first pass; further ones have one request per slot.
        longest_s: no pass is begun that would end later, by what the last one took.
        passes: seen so far.
    """

    concurrency: int
    first_requests: int
    longest_s: float = MOST_WARMUP_S
    passes: int = 0
    _spent_s: float = 0.0
    _last_s: float = 0.0
    _pace_s: float | None = None
    _doubt: str = ""

    def level(self, seed: int) -> LoadLevel:
        """The next pass."""
        return LoadLevel(
            name=f"warmup-{self.passes + 1}" if self.passes else "warmup",
            role=LevelRole.WARMUP,
            arrivals=Arrivals.CLOSED,
            concurrency=self.concurrency,
            requests=self.concurrency if self.passes else max(self.concurrency, self.first_requests),
            seed=seed,
        )

    def see(self, records: Sequence[RequestRecord], duration_s: float, jit_compiles: int | None) -> None:
        """Take in what a pass showed."""
        before_s, self._pace_s = self._pace_s, token_pace_s(records)
        self.passes += 1
        self._spent_s, self._last_s = self._spent_s + duration_s, duration_s
        self._doubt = ""
        if jit_compiles:
            self._doubt = f"the server compiled {plural(jit_compiles, 'kernel')}"
        elif before_s is not None and self._pace_s is not None and self._pace_s < (1 - STILL_FALLING) * before_s:
            self._doubt = "requests were still getting faster"

    @property
    def over(self) -> bool:
        """Whether the server is quiet, or the passes or their time are used up. One pass has nothing to be held to."""
        quiet = self.passes > 1 and not self._doubt
        return quiet or self.passes >= MOST_PASSES or self._spent_s + self._last_s > self.longest_s

    @property
    def caveat(self) -> Caveat | None:
        """The doubt that is left when it is over."""
        if not self._doubt:
            return None
        return Caveat(
            code="never_quiet",
            text=f"{self.concurrency} in flight: {self._doubt} in the last of {self.passes} warm-up passes "
            f"({self._spent_s:.0f} s)",
            remedy="Repeat the trial: its kernels are in the compile cache then, unless that is not kept.",
        )
