"""Recorded surfaces: real launches of configs, one JSON object a line; docs/search-benchmark.md states the format."""

from __future__ import annotations

import math
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autotune.bench.surfaces import Noise, Surface, SurfaceKind
from autotune.bench.truth import compile_keys
from autotune.errors import InvalidFile
from autotune.records import Config, FailureClass, Value
from autotune.search.noise import ASSUMED_THROUGHPUT_SD, ASSUMED_TTFT_SD, PRIOR_WEIGHT
from autotune.search.parameter import Parameter, is_number, value_key
from autotune.search.space import SearchSpace

MAX_FILE_BYTES = 64 << 20
MAX_CONFIGS = 100_000

_Positive = Annotated[float, Field(gt=0, lt=1e12, allow_inf_nan=False)]
_Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9:._-]*$")]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Params = Annotated[dict[_Name, bool | int | _Finite | str | None], Field(max_length=64)]


_Model = TypeVar("_Model", bound=BaseModel)


class _Header(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    format: Literal["autotune-surface"]
    version: Literal[1]
    name: _Name
    baseline: _Params
    about: str = ""
    node: str | None = None
    model: str | None = None
    workload: str | None = None
    concurrency_per_gpu: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None
    rate_rps_per_gpu: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None
    throughput_sd: Annotated[float, Field(ge=0, le=1)] | None = None
    ttft_sd: Annotated[float, Field(ge=0, le=1)] | None = None


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    config: _Params
    outcome: Literal["measured", "infeasible"]
    output_tok_s_per_gpu: _Positive | None = None
    ttft_p95_s: _Positive | None = None
    failure: str | None = None
    gpus: Annotated[int, Field(ge=1, le=1024)] = 1
    start_s: _Positive
    warm_start_s: _Positive | None = None
    measuring_s: _Positive | None = None
    kv_tokens: Annotated[int, Field(ge=0, lt=10**15)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLaunch:
    """One real launch.

    Attributes:
        config: what it does not name was vLLM's default.
        output_tok_s_per_gpu, ttft_p95_s: of a measured one; None otherwise.
        failure: of an infeasible one; None otherwise.
        warm_start_s: until ready with a warm compile cache; None where it was not measured: as `start_s`.
        measuring_s: of both load levels.
    """

    config: Config
    start_s: float
    output_tok_s_per_gpu: float | None = None
    ttft_p95_s: float | None = None
    failure: FailureClass | None = None
    gpus: int = 1
    warm_start_s: float | None = None
    measuring_s: float | None = None
    kv_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStudy:
    """A recorded study.

    Attributes:
        baseline: its config; at least one launch of it was measured.
        node, model, workload: by the names that `autotune plan` takes; None where a prior cannot be made.
        concurrency_per_gpu: of the closed loop; None likewise.
        rate_rps_per_gpu: of the Poisson level that TTFT is of; None where it is that of the closed loop.
        noise: between launches of one config; None where the repeats are to say, or what is usual.
    """

    name: str
    baseline: Config
    launches: tuple[RecordedLaunch, ...]
    about: str = ""
    node: str | None = None
    model: str | None = None
    workload: str | None = None
    concurrency_per_gpu: float | None = None
    rate_rps_per_gpu: float | None = None
    noise: Noise | None = None


def read_recorded(path: Path) -> RecordedStudy:
    """The recorded study of a file.

    Raises:
        InvalidFile: cannot be read, or line, key, value and what is allowed.
    """
    file = str(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InvalidFile(file, "", "a folder or a device", "a regular JSONL file")
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
        text = content.decode("utf-8")
    except (OSError, ValueError) as error:
        seen = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InvalidFile(file, "", seen, "a readable JSONL file in UTF-8") from None
    if len(content) > MAX_FILE_BYTES:
        raise InvalidFile(file, "", f"more than {MAX_FILE_BYTES} bytes", f"at most {MAX_FILE_BYTES} bytes")
    return parse_recorded(text, file=file)


def parse_recorded(text: str, *, file: str) -> RecordedStudy:
    """The recorded study that a text describes; `file` is named in errors.

    Raises:
        InvalidFile: with line, key, value and what is allowed.
    """
    # Not splitlines(): JSON texts may hold U+2028 and its like within a line.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise InvalidFile(file, "line 1", "nothing", "a header with format autotune-surface")
    header = _checked(_Header, lines[0][1], file, lines[0][0])
    launches = tuple(_launch(line, file, number) for number, line in lines[1:])
    study = RecordedStudy(
        name=header.name,
        baseline=_config(header.baseline),
        launches=launches,
        about=header.about,
        node=header.node,
        model=header.model,
        workload=header.workload,
        concurrency_per_gpu=header.concurrency_per_gpu,
        rate_rps_per_gpu=header.rate_rps_per_gpu,
        noise=_noise(header),
    )
    if not any(one.config == study.baseline and one.failure is None for one in launches):
        raise InvalidFile(file, "baseline", header.baseline, "a config with at least one measured launch in the file")
    if len({one.config for one in launches}) > MAX_CONFIGS:
        raise InvalidFile(file, "", f"more than {MAX_CONFIGS} configs", f"at most {MAX_CONFIGS}")
    return study


def recorded_surface(study: RecordedStudy) -> Surface:
    """The surface of a recorded study: means of the logarithms of each config's launches.

    A config that was measured at least once is feasible. The space is every combination of the values that were seen;
    only the configs that were launched are allowed.
    """
    space = _space(study)
    names = [parameter.name for parameter in space.parameters]
    by_config: dict[Config, list[RecordedLaunch]] = {}
    for one in study.launches:
        by_config.setdefault(_complete(one.config, names), []).append(one)
    configs = tuple(by_config)
    groups = [by_config[config] for config in configs]
    measured = [[one for one in group if one.failure is None] for group in groups]
    starts = [(_mean(one.start_s for one in group), _mean(_warm_s(one) for one in group)) for group in groups]
    noise = study.noise or _repeats_noise(measured)
    return Surface(
        name=study.name,
        kind=SurfaceKind.RECORDED,
        space=space,
        configs=configs,
        baseline=configs.index(_complete(study.baseline, names)),
        gpus=np.array([group[0].gpus for group in groups], dtype=np.int64),
        log_throughput=np.array([_mean_log(one.output_tok_s_per_gpu for one in group) for group in measured]),
        log_ttft=np.array([_mean_log(one.ttft_p95_s for one in group) for group in measured]),
        feasible=np.array([bool(group) for group in measured]),
        failures=tuple(group[0].failure or FailureClass.CRASH for group in groups),
        missing_bytes=np.zeros(len(groups)),
        kv_tokens=np.array([group[0].kv_tokens or 0 for group in groups], dtype=np.float64),
        cold_s=np.array([cold for cold, _ in starts]),
        warm_s=np.array([warm for _, warm in starts]),
        measuring_s=np.array([_mean(one.measuring_s or 0.0 for one in group) if group else 0.0 for group in measured]),
        compiled=compile_keys(configs),
        noise=noise,
    )


def shipped_recorded() -> tuple[Path, ...]:
    """Files of the recorded studies that come with the program."""
    return tuple(sorted((Path(__file__).resolve().parent / "recorded_surfaces").glob("*.jsonl")))


def _launch(line: str, file: str, number: int) -> RecordedLaunch:
    row = _checked(_Row, line, file, number)
    where = f"line {number}"
    if row.outcome == "measured":
        for key, value in (("output_tok_s_per_gpu", row.output_tok_s_per_gpu), ("ttft_p95_s", row.ttft_p95_s)):
            if value is None:
                raise InvalidFile(file, f"{where}: {key}", "missing", "a number above 0 for a measured launch")
        if row.failure is not None:
            raise InvalidFile(file, f"{where}: failure", row.failure, "none for a measured launch")
    elif row.failure not in set(FailureClass):
        raise InvalidFile(file, f"{where}: failure", row.failure, ", ".join(FailureClass))
    return RecordedLaunch(
        config=_config(row.config),
        start_s=row.start_s,
        output_tok_s_per_gpu=row.output_tok_s_per_gpu,
        ttft_p95_s=row.ttft_p95_s,
        failure=None if row.failure is None else FailureClass(row.failure),
        gpus=row.gpus,
        warm_start_s=row.warm_start_s,
        measuring_s=row.measuring_s,
        kv_tokens=row.kv_tokens,
    )


def _checked(model: type[_Model], line: str, file: str, number: int) -> _Model:
    try:
        return model.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        seen = first.get("input")
        raise InvalidFile(file, f"line {number}: {path}" if path else f"line {number}", seen, first["msg"]) from None


def _config(params: Mapping[str, Value]) -> Config:
    return Config.of({name: value for name, value in params.items() if value is not None})


def _complete(config: Config, names: Sequence[str]) -> Config:
    return Config.of({name: config.get(name) for name in names})


def _noise(header: _Header) -> Noise | None:
    if header.throughput_sd is None or header.ttft_sd is None:
        return None
    return Noise(throughput_sd=header.throughput_sd, ttft_sd=header.ttft_sd)


def _space(study: RecordedStudy) -> SearchSpace:
    """Every parameter that any launch names, with every value seen; None, vLLM's default, where one names none."""
    names = sorted({name for one in study.launches for name, _ in one.config})
    parameters = []
    for name in names:
        seen = {value_key(value): value for one in study.launches for value in (one.config.get(name),)}
        numbers = sorted(value for value in seen.values() if is_number(value))
        others = sorted(
            (value for value in seen.values() if not is_number(value)), key=lambda one: (one is not None, str(one))
        )
        parameters.append(Parameter(name=name, choices=(*others, *numbers), why="recorded"))
    return SearchSpace(name=study.name, parameters=tuple(parameters), description=study.about)


def _repeats_noise(groups: Sequence[Sequence[RecordedLaunch]]) -> Noise:
    """Pooled over configs launched more than once, together with what is usual, as `search.noise` does."""
    return Noise(
        throughput_sd=_pooled([[one.output_tok_s_per_gpu for one in group] for group in groups], ASSUMED_THROUGHPUT_SD),
        ttft_sd=_pooled([[one.ttft_p95_s for one in group] for group in groups], ASSUMED_TTFT_SD),
    )


def _pooled(groups: Sequence[Sequence[float | None]], assumed: float) -> float:
    squares, freedom = 0.0, 0
    for group in groups:
        logs = [math.log(value) for value in group if value is not None]
        if len(logs) > 1:
            mean = math.fsum(logs) / len(logs)
            squares += math.fsum((one - mean) ** 2 for one in logs)
            freedom += len(logs) - 1
    return math.sqrt((PRIOR_WEIGHT * assumed**2 + squares) / (PRIOR_WEIGHT + freedom))


def _warm_s(one: RecordedLaunch) -> float:
    return one.start_s if one.warm_start_s is None else one.warm_start_s


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found)


def _mean_log(values: Iterable[float | None]) -> float:
    """0 for a config without a measured launch, where it means nothing."""
    found = [math.log(value) for value in values if value is not None]
    return math.fsum(found) / len(found) if found else 0.0
