"""How a level of a trial ends the trial: it is hopeless, or its figures are worthless."""

from __future__ import annotations

from autotune.load.reading import RequestError
from autotune.records import Caveat, Failure, FailureClass, Measurement


class Abandoned(Exception):
    """Nothing that the trial could still show would matter."""

    def __init__(self, caveat: Caveat) -> None:
        super().__init__(caveat.text)
        self.caveat = caveat


class LevelTooSlow(Abandoned):
    """A level did not end in its time, though the server kept answering."""


class LevelBeaten(Abandoned):
    """A level showed that another config is better in both objectives."""


class LevelFailed(Exception):
    """A level ended in a way that makes its figures worthless."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.line)
        self.failure = failure


def level_failure(measurement: Measurement) -> Exception:
    """What a level with too many failed requests says about the config."""
    errors = ", ".join(f"{kind} x{count}" for kind, count in measurement.errors)
    line = f"level {measurement.level.name}: {measurement.failed} of {measurement.planned} requests failed ({errors})"
    kinds = {kind for kind, _ in measurement.errors}
    if RequestError.DEADLINE in kinds and measurement.completed:
        return LevelTooSlow(
            Caveat(
                code="too_slow",
                text=f"level {measurement.level.name}: {measurement.completed} of {measurement.planned} requests had "
                f"ended after {measurement.duration_s:.0f} s, so the level was cut off and the trial abandoned",
                remedy="A config this slow is dominated; if all are, raise --level-deadline or lower --load.",
            )
        )
    if kinds and kinds <= {RequestError.HTTP_AUTH}:
        return LevelFailed(
            Failure(
                kind=FailureClass.MODEL_ACCESS,
                line=line,
                remedies=("The server asks for an API key; set VLLM_API_KEY to the one that it accepts.",),
            )
        )
    if kinds and kinds <= {RequestError.HTTP_4XX}:
        return LevelFailed(
            Failure(
                kind=FailureClass.INVALID_COMBINATION,
                line=line,
                remedies=("Raise --max-model-len (or leave it out): the server refuses requests of this workload.",),
            )
        )
    if kinds and kinds <= {RequestError.DEADLINE, RequestError.STALLED}:
        return LevelFailed(
            Failure(
                kind=FailureClass.HANG,
                line=line,
                remedies=("Look in server.log for where the server stopped answering.",),
            )
        )
    return LevelFailed(
        Failure(kind=FailureClass.CRASH, line=line, remedies=("Look in server.log for the first exception.",))
    )
