"""The border: what a study file (`studies/*.yaml`) may say, and where such files are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from autotune.complaints import Complaint, complaints
from autotune.errors import NOT_SHOWN, InvalidFile, InvalidOption, UnknownName
from autotune.life import LONGEST_PAUSE_S
from autotune.recipe.asked import (
    AUTO_PARALLEL,
    LEAST_CONFIDENCE,
    MOST_CONFIDENCE,
    MOST_PARALLEL,
    EngineChoice,
    ExecutorChoice,
    LoadChoice,
    QualityChoice,
    RequestNumbers,
)
from autotune.recipe.words import (
    ADDRESS,
    LEAST_GAIN,
    MOST_CONCURRENCY,
    MOST_GAIN,
    MOST_GPU_HOURS,
    MOST_RATE_RPS,
    MOST_REQUESTS,
    MOST_TIME_S,
    parse_address,
    parse_busy,
)
from autotune.records import Config, Objective, QualityThresholds
from autotune.yaml_input import existing_file, read_yaml


class LoadFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    concurrency: Annotated[int, Field(ge=1, le=MOST_CONCURRENCY)] | None = None
    rate_rps: Annotated[float, Field(gt=0, le=MOST_RATE_RPS)] | None = None
    requests: Annotated[int, Field(ge=1, le=MOST_REQUESTS)] | None = None


_Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
_MeanTokens = Annotated[float, Field(ge=1, le=10_000_000)]


class NumbersFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    prompt_mean: _MeanTokens
    output_mean: _MeanTokens
    prompt_p95: _MeanTokens | None = None
    concurrency: Annotated[int, Field(ge=1, le=MOST_CONCURRENCY)] | None = None


class QualityFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    enabled: bool = True
    prompts: str | None = None
    perplexity_ratio: Annotated[float, Field(ge=1, le=100)] | None = None
    logprob_gap: Annotated[float, Field(gt=0, le=100)] | None = None
    agreement: Annotated[float, Field(ge=0, le=1)] | None = None


def _check_address(text: str) -> str:
    try:
        parse_address(text)
    except InvalidOption as error:
        raise ValueError(error.allowed) from None
    return text


def _check_busy(text: str) -> str:
    try:
        parse_busy(text, "gpu_busy")
    except InvalidOption as error:
        raise ValueError(error.allowed) from None
    return text


Seconds = Annotated[float, Field(gt=0, le=7 * 86400)]
_Never = Annotated[float, Field(ge=0, le=0)]
"""No `Literal[0]`, which takes False for it: `abandon: no` is more likely to mean something else."""


class StudyFile(BaseModel):
    """The border: what a study file may say. Keys mirror `Recipe`, which explains them."""

    model_config = ConfigDict(extra="forbid", strict=True)
    description: str | None = None
    name: str | None = None
    model: str | None = None
    workload: str | None = None
    numbers: NumbersFile | None = None
    space: str | None = None
    checkpoints: list[str] | None = None
    engine: Annotated[EngineChoice, Field(strict=False)] | None = None
    node: str | None = None
    default_node: str | None = None
    min_model_len: _Tokens | None = None
    gpus: list[Annotated[int, Field(ge=0)]] | None = None
    vllm_command: str | None = None
    extra_args: list[str] | None = None
    trials: Annotated[int, Field(ge=1, le=100_000)] | None = None
    max_time_s: Annotated[float, Field(gt=0, le=MOST_TIME_S)] | None = None
    max_gpu_hours: Annotated[float, Field(gt=0, le=MOST_GPU_HOURS)] | None = None
    min_gain: Annotated[float, Field(ge=LEAST_GAIN, le=MOST_GAIN)] | None = None
    notify_command: Annotated[list[str], Field(min_length=1)] | None = None
    notify_url: str | None = None
    repeats: Annotated[int, Field(ge=0, le=100)] | None = None
    sampler: str | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None
    load: LoadFile | None = None
    objective: Annotated[Objective, Field(strict=False)] | None = None
    abandon: _Never | Annotated[float, Field(ge=LEAST_CONFIDENCE, le=MOST_CONFIDENCE)] | None = None
    slo: str | None = None
    start_deadline_s: Seconds | None = None
    stall_deadline_s: Seconds | None = None
    level_deadline_s: Seconds | None = None
    attempts: Annotated[int, Field(ge=1, le=20)] | None = None
    retry_pause_s: Annotated[float, Field(ge=0, le=LONGEST_PAUSE_S)] | None = None
    stop_grace_s: Annotated[float, Field(ge=0, le=600)] | None = None
    parallel: Literal["auto"] | Annotated[int, Field(ge=1, le=MOST_PARALLEL)] | None = None
    executor: Annotated[ExecutorChoice, Field(strict=False)] | None = None
    ray_address: (
        Annotated[str, Field(json_schema_extra={"pattern": ADDRESS}), AfterValidator(_check_address)] | None
    ) = None
    ray_nodes: Annotated[list[str], Field(min_length=1)] | None = None
    gpu_busy: Annotated[str, Field(pattern=r"^(wait|stop|[0-9.dhms]{2,40})$"), AfterValidator(_check_busy)] | None = (
        None
    )
    starting_points: list[dict[str, bool | int | float | str | None]] | None = None
    quality: QualityFile | None = None


def read_study_file(path: Path) -> dict[str, Any]:
    """The keys a study file sets, as keyword arguments for `compose`.

    Raises:
        InvalidFile: it cannot be read, is not YAML, or a key or value is not accepted.
    """
    return study_arguments(read_yaml(path), str(path))


def study_arguments(raw: object, source: str) -> dict[str, Any]:
    """The same of what such a file holds; `source` is what errors call it.

    Raises:
        InvalidFile: a key or value is not accepted.
    """
    if not isinstance(raw, dict):
        raise InvalidFile(source, "", raw, f"a mapping with keys among {', '.join(StudyFile.model_fields)}")
    try:
        parsed = StudyFile.model_validate(raw)
    except ValidationError as error:
        raise _as_invalid_file(source, complaints(error, raw, StudyFile)[0]) from None
    if parsed.numbers is not None and parsed.workload is not None:
        raise InvalidFile(source, "numbers", parsed.workload, "either numbers or workload, which says what is sent")
    return _as_arguments(parsed)


def _as_invalid_file(source: str, first: Complaint) -> InvalidFile:
    if first.kind == "extra_forbidden":
        return InvalidFile(source, first.key, str(first.place[-1]), first.allowed)
    seen = NOT_SHOWN if first.key.startswith("notify_") else first.seen
    return InvalidFile(source, first.key, seen, first.allowed)


_CONVERTED = frozenset(
    {"description", "load", "numbers", "gpus", "extra_args", "checkpoints", "starting_points", "quality"}
    | {"gpu_busy", "max_gpu_hours", "notify_command", "parallel", "ray_nodes"}
)


def _as_arguments(parsed: StudyFile) -> dict[str, Any]:
    values: dict[str, Any] = {
        key: getattr(parsed, key)
        for key in StudyFile.model_fields
        if key not in _CONVERTED and getattr(parsed, key) is not None
    }
    if parsed.load is not None:
        values["load"] = LoadChoice(**parsed.load.model_dump())
    if parsed.numbers is not None:
        values["numbers"] = RequestNumbers(**parsed.numbers.model_dump())
    if parsed.max_gpu_hours is not None:
        values["max_gpu_s"] = 3600.0 * parsed.max_gpu_hours
    for key in ("checkpoints", "gpus", "extra_args", "notify_command", "ray_nodes"):
        if (found := getattr(parsed, key)) is not None:
            values[key] = tuple(found)
    if parsed.gpu_busy is not None:
        values["gpu_busy_s"] = parse_busy(parsed.gpu_busy, "gpu_busy")
    if parsed.parallel is not None:
        values["parallel"] = AUTO_PARALLEL if parsed.parallel == "auto" else parsed.parallel
    if parsed.ray_address == "auto":
        values["ray_address"] = None
    if parsed.starting_points is not None:
        values["starting_points"] = tuple(Config.of(point) for point in parsed.starting_points)
    if parsed.quality is not None:
        said = parsed.quality.model_dump(exclude={"enabled", "prompts"}, exclude_none=True)
        values["quality"] = QualityChoice(
            enabled=parsed.quality.enabled, prompts=parsed.quality.prompts, thresholds=QualityThresholds(**said)
        )
    return values


def find_study_file(name: str, folders: tuple[Path, ...]) -> Path:
    """A study file by path, or by its stem in one of `folders`.

    Raises:
        UnknownName: neither exists.
    """
    direct = existing_file(name)
    if direct is not None and direct.suffix in {".yaml", ".yml"}:
        return direct
    known: dict[str, Path] = {}
    for folder in folders:
        known.update({path.stem: path for path in sorted(folder.glob("*.yaml"))})
    if name in known:
        return known[name]
    raise UnknownName("study", name, sorted(known), source="--file")


def shipped_studies() -> Path:
    """Folder of the study files that ship with the program: in the wheel, else in the source tree."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_shipped" / "studies"
    return installed if installed.is_dir() else package.parent / "studies"
