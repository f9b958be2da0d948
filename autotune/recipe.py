"""What a study is asked to do: a study file (`studies/*.yaml`) with the command line's words laid over it."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from autotune.errors import InvalidFile, InvalidOption, UnknownName
from autotune.life import FIRST_PAUSE_S, LONGEST_PAUSE_S
from autotune.records import Config, Objective, QualityThresholds
from autotune.store.folder import DATABASE_NAME
from autotune.webhook_url import parsed as parsed_url
from autotune.yaml_input import existing_file, read_yaml

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Study names become folder names and Optuna study names."""


AUTO_SPACE, WIDE_SPACE = "auto", "auto-wide"
"""Spaces that are made for the node, the model and the workload; the wide one is not held to a few thousand configs."""


AUTO_CHECKPOINTS = "auto"
"""Among a recipe's checkpoints: every quantised one of the model that the catalogue knows."""


EXPECTING_SAMPLER = "prior"
"""The one that knows how much it expects of a proposal."""
AUTO_PARALLEL, MOST_PARALLEL = 0, 64
"""As a number of trials at once: as many as the node carries; and more than any node has GPUs."""


class EngineChoice(StrEnum):
    """`auto` takes real servers where there is a GPU, the simulation where there is none."""

    AUTO = "auto"
    SIMULATED = "simulated"
    PROCESS = "process"


class ExecutorChoice(StrEnum):
    """Where trials run: on this machine, or each on a node of a Ray cluster (docs/nodes.md)."""

    LOCAL = "local"
    RAY = "ray"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadChoice:
    """How the two load levels are set; all None is `auto`: found on the baseline.

    Attributes:
        concurrency: closed loop of the throughput level, per GPU used.
        rate_rps: Poisson rate of the TTFT level, per GPU used.
        requests: requests of each level, per GPU used.
    """

    concurrency: int | None = None
    rate_rps: float | None = None
    requests: int | None = None

    @property
    def fixed(self) -> bool:
        """Whether the operator fixed both levels, so that no ramp is needed."""
        return self.concurrency is not None and self.rate_rps is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestNumbers:
    """A workload straight from four numbers of real traffic (G40): lengths in tokens, requests at once per GPU.

    Attributes:
        prompt_p95: None for the mean, i.e. prompts of one length.
        concurrency: where the baseline's ramp ends at the latest; None for the workload's default.
    """

    prompt_mean: float
    output_mean: float
    prompt_p95: float | None = None
    concurrency: int | None = None


ABANDON_CONFIDENCE = 0.99
"""Of each single trial: a study has a few dozen."""

LEAST_CONFIDENCE, MOST_CONFIDENCE = 0.8, 0.9999


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityChoice:
    """How the quality guard asks; it does so only where a study tries what changes a model's numbers.

    Attributes:
        prompts: path of a file; None for the shipped ones.
    """

    enabled: bool = True
    prompts: str | None = None
    thresholds: QualityThresholds = field(default_factory=QualityThresholds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One study as asked for; `planning.py` turns it into a plan for a node.

    Attributes:
        gpus: physical indices to use (`--gpus 0,1`); None for all visible ones.
        node: a named node to simulate; None for this machine.
        default_node: the node to simulate where this machine has no GPU; a recipe names the one it was written for.
        checkpoints: quantised checkpoints of the same model that a generated space compares.
        numbers: the workload from four numbers, instead of `workload`.
        min_model_len: no config may admit fewer tokens per request than this.
        trials: counted trials, the baseline included.
        max_time_s: of one run of the study, its launches again included; None for no limit.
        max_gpu_s: seconds times GPUs used, of all runs of the study; None for no limit.
        min_gain: the study ends when no config is expected to add this share to the front's hypervolume; None for
            never. Only the sampler `prior` expects anything.
        notify_command: told of the end, see `notify.py`; empty for nobody.
        notify_url: the same; it may hold a secret.
        abandon: confidence with which a trial must be shown to be dominated to be ended early; 0 for never.
        objective: what is maximised; the goodput needs an SLO, here or in the workload.
        repeats: how often the baseline and the pick are launched again at the end, to see drift and noise.
        start_deadline_s: a server that is not ready by then is stopped.
        stall_deadline_s: a start without a new milestone for this long counts as hung.
        level_deadline_s: one load level may take this long.
        attempts: launches of one trial when the environment is at fault.
        retry_pause_s: before a spoilt trial is launched again; doubled each time, up to a minute.
        stop_grace_s: what a server gets from TERM to KILL.
        gpu_busy_s: how long GPUs that somebody else uses are waited for; 0 stops the study at once, inf never does.
        parallel: trials at once on the node; AUTO_PARALLEL for as many as it carries.
        executor: where trials run.
        ray_address: of the cluster, HOST:PORT; None for the one that this machine is part of.
        ray_nodes: its nodes to use, by host name, address or kind; empty for all with GPUs.
        starting_points: configs tried right after the baseline, before the sampler's own.
        today: what runs today, as it is; tried before those, in the space or not, where it can start.
        quality: how it is seen whether configs that change numerics still answer alike.
    """

    name: str
    model: str
    workload: str = "chat"
    numbers: RequestNumbers | None = None
    space: str = AUTO_SPACE
    checkpoints: tuple[str, ...] = ()
    engine: EngineChoice = EngineChoice.AUTO
    node: str | None = None
    default_node: str | None = None
    min_model_len: int | None = None
    gpus: tuple[int, ...] | None = None
    vllm_command: str | None = None
    extra_args: tuple[str, ...] = ()
    trials: int = 24
    max_time_s: float | None = None
    max_gpu_s: float | None = None
    min_gain: float | None = None
    notify_command: tuple[str, ...] = field(default=(), repr=False)
    notify_url: str | None = field(default=None, repr=False)
    repeats: int = 1
    sampler: str = "prior"
    seed: int = 0
    load: LoadChoice = LoadChoice()
    objective: Objective = Objective.THROUGHPUT
    abandon: float = ABANDON_CONFIDENCE
    slo: str | None = None
    start_deadline_s: float = 1200.0
    stall_deadline_s: float = 600.0
    level_deadline_s: float = 600.0
    attempts: int = 2
    retry_pause_s: float = FIRST_PAUSE_S
    stop_grace_s: float = 20.0
    gpu_busy_s: float = math.inf
    parallel: int = 1
    executor: ExecutorChoice = ExecutorChoice.LOCAL
    ray_address: str | None = None
    ray_nodes: tuple[str, ...] = ()
    starting_points: tuple[Config, ...] = ()
    today: Config | None = None
    quality: QualityChoice = field(default_factory=QualityChoice)


ADDRESS = r"^(auto|[A-Za-z0-9.-]{1,253}:[0-9]{1,5}|\[[0-9A-Fa-f:]{2,45}\]:[0-9]{1,5})$"

MOST_CONCURRENCY, MOST_RATE_RPS, MOST_REQUESTS = 65_536, 1e6, 10_000_000
"""Of one level and GPU: far above what a server takes, low enough not to exhaust the machine that sends them."""


class _LoadFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    concurrency: Annotated[int, Field(ge=1, le=MOST_CONCURRENCY)] | None = None
    rate_rps: Annotated[float, Field(gt=0, le=MOST_RATE_RPS)] | None = None
    requests: Annotated[int, Field(ge=1, le=MOST_REQUESTS)] | None = None


_Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
_MeanTokens = Annotated[float, Field(ge=1, le=10_000_000)]


class _NumbersFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    prompt_mean: _MeanTokens
    output_mean: _MeanTokens
    prompt_p95: _MeanTokens | None = None
    concurrency: Annotated[int, Field(ge=1, le=MOST_CONCURRENCY)] | None = None


class _QualityFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    enabled: bool = True
    prompts: str | None = None
    perplexity_ratio: Annotated[float, Field(ge=1, le=100)] | None = None
    logprob_gap: Annotated[float, Field(gt=0, le=100)] | None = None
    agreement: Annotated[float, Field(ge=0, le=1)] | None = None


MOST_TIME_S = 90 * 86400.0
MOST_GPU_HOURS = 1e6
LEAST_GAIN, MOST_GAIN = 1e-6, 1.0


def _check_busy(text: str) -> str:
    try:
        parse_busy(text, "gpu_busy")
    except InvalidOption as error:
        raise ValueError(error.allowed) from None
    return text


Seconds = Annotated[float, Field(gt=0, le=7 * 86400)]
_Never = Annotated[float, Field(ge=0, le=0)]
"""No `Literal[0]`, which takes False for it: `abandon: no` is more likely to mean something else."""


class _StudyFile(BaseModel):
    """The border: what a study file may say. Keys mirror `Recipe`, which explains them."""

    model_config = ConfigDict(extra="forbid", strict=True)
    description: str | None = None
    name: str | None = None
    model: str | None = None
    workload: str | None = None
    numbers: _NumbersFile | None = None
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
    load: _LoadFile | None = None
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
    ray_address: Annotated[str, Field(pattern=ADDRESS)] | None = None
    ray_nodes: Annotated[list[str], Field(min_length=1)] | None = None
    gpu_busy: Annotated[str, Field(pattern=r"^(wait|stop|[0-9.dhms]{2,40})$"), AfterValidator(_check_busy)] | None = (
        None
    )
    starting_points: list[dict[str, bool | int | float | str | None]] | None = None
    quality: _QualityFile | None = None


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
        raise InvalidFile(source, "", raw, f"a mapping with keys among {', '.join(_StudyFile.model_fields)}")
    try:
        parsed = _StudyFile.model_validate(raw)
    except ValidationError as error:
        raise _as_invalid_file(source, error) from None
    if parsed.numbers is not None and parsed.workload is not None:
        raise InvalidFile(source, "numbers", parsed.workload, "either numbers or workload, which says what is sent")
    return _as_arguments(parsed)


def _as_invalid_file(source: str, error: ValidationError) -> InvalidFile:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        inner: dict[str, type[BaseModel]] = {"load": _LoadFile, "numbers": _NumbersFile, "quality": _QualityFile}
        found = inner.get(str(first["loc"][0]), _StudyFile) if len(first["loc"]) > 1 else _StudyFile
        fields = found.model_fields
        return InvalidFile(source, key, str(first["loc"][-1]), f"keys {', '.join(fields)}")
    seen = "(not shown)" if key.startswith("notify_") else first.get("input")
    return InvalidFile(source, key, seen, first["msg"])


_CONVERTED = frozenset(
    {"description", "load", "numbers", "gpus", "extra_args", "checkpoints", "starting_points", "quality"}
    | {"gpu_busy", "max_gpu_hours", "notify_command", "parallel", "ray_nodes"}
)


def _as_arguments(parsed: _StudyFile) -> dict[str, Any]:
    values: dict[str, Any] = {
        key: getattr(parsed, key)
        for key in _StudyFile.model_fields
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


def compose(from_file: Mapping[str, Any], from_command_line: Mapping[str, Any]) -> Recipe:
    """A recipe from both sources; the command line wins, None there means not said.

    Raises:
        InvalidOption: the model is missing, or the name cannot be a folder name.
    """
    values = {**from_file, **{key: value for key, value in from_command_line.items() if value is not None}}
    if "load" in from_file and isinstance(from_command_line.get("load"), LoadChoice):
        values["load"] = _overlay(from_file["load"], from_command_line["load"])
    if from_command_line.get("workload") is not None and "numbers" in from_file:
        values["numbers"] = None  # the command line named another workload
    if not values.get("model"):
        raise InvalidOption("--model", "", "a folder with config.json, or a model name such as meta-llama/Llama-3.1-8B")
    if "name" not in values:
        workload = "numbers" if values.get("numbers") else values.get("workload", "chat")
        values["name"] = default_name(values["model"], workload, values.get("node"))
    check_name(values["name"])
    recipe = Recipe(**values)
    _check_ends(recipe)
    _check_executor(recipe)
    return recipe


def _check_ends(recipe: Recipe) -> None:
    """What says when a study ends, and who is told.

    Raises:
        InvalidOption: a gain that nobody expects, or no URL.
    """
    if recipe.min_gain is not None and recipe.sampler != EXPECTING_SAMPLER:
        raise InvalidOption(
            "--min-gain",
            f"{recipe.min_gain:g} with --sampler {recipe.sampler}",
            f"the sampler {EXPECTING_SAMPLER} alone: no other says what it expects",
        )
    # Never shown: webhooks have their secret in the path.
    if recipe.notify_url is not None and parsed_url(recipe.notify_url) is None:
        raise InvalidOption("--notify-url", "(not shown)", "an http or https URL in ASCII, without spaces")


def _check_executor(recipe: Recipe) -> None:
    """What a cluster's nodes decide cannot be asked for beside it.

    Raises:
        InvalidOption: it was.
    """
    if recipe.executor is ExecutorChoice.LOCAL:
        said = {"--ray-address": recipe.ray_address, "--ray-nodes": ",".join(recipe.ray_nodes)}
        found = next(((option, value) for option, value in said.items() if value), None)
        if found is not None:
            raise InvalidOption(*found, "nothing without --executor ray")
        return
    if recipe.gpus is not None:
        raise InvalidOption("--gpus", ",".join(map(str, recipe.gpus)), "nothing with --executor ray: see --ray-nodes")
    if recipe.parallel != 1:
        shown = "auto" if recipe.parallel == AUTO_PARALLEL else str(recipe.parallel)
        raise InvalidOption("--parallel", shown, "1 with --executor ray: each trial has a node to itself")


def check_name(name: str) -> None:
    """Whether a study may have this name.

    Raises:
        InvalidOption: it cannot be a folder's name, or is taken by the database.
    """
    if not NAME_PATTERN.fullmatch(name):
        raise InvalidOption("--name", name, "1-64 letters, digits, '.', '_' and '-', not starting with a sign")
    if name.startswith(DATABASE_NAME):
        raise InvalidOption("--name", name, f"any name that is not taken by the database {DATABASE_NAME}")


def _overlay(below: LoadChoice, above: LoadChoice) -> LoadChoice:
    said = {
        key: getattr(above, key) for key in ("concurrency", "rate_rps", "requests") if getattr(above, key) is not None
    }
    return replace(below, **said)


def default_name(model: str, workload: str, node: str | None) -> str:
    """`llama-3.1-8b-instruct-chat` and the like: readable, stable, a valid folder name."""
    parts = [Path(model.rstrip("/")).name, Path(workload).stem, *([node] if node else [])]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(parts)).strip("-._").lower()
    return name[:64] or "study"


def parse_gpus(text: str) -> tuple[int, ...]:
    """`0,1` as indices.

    Raises:
        InvalidOption: not a comma-separated list of different non-negative integers.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts) or len(set(parts)) != len(parts):
        raise InvalidOption("--gpus", text, "different GPU indices separated by commas, such as 0,1")
    return tuple(int(part) for part in parts)


def parse_names(text: str, option: str) -> tuple[str, ...]:
    """`a,b` as names.

    Raises:
        InvalidOption: an empty name, or one that is there twice.
    """
    names = tuple(part.strip() for part in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise InvalidOption(option, text, "different names separated by commas")
    return names


def parse_trials(text: str) -> tuple[int, bool]:
    """`24` as (24, False); `+10` as (10, True): ten more than the study has.

    Raises:
        InvalidOption: neither.
    """
    match = re.fullmatch(r"(\+?)(\d{1,6})", text.strip())
    if not match or int(match[2]) < 1:
        raise InvalidOption("--trials", text, "a positive number, or +N to extend a finished study by N")
    return int(match[2]), bool(match[1])


def parse_time(text: str, option: str) -> float:
    """`90s`, `18m`, `1.5h`, `2d` or `1h30m` as seconds; a bare number has no unit and is refused.

    Raises:
        InvalidOption: none of them, or more than 90 days.
    """
    units = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
    match = re.fullmatch("".join(rf"(?:(\d{{1,9}}(?:\.\d{{1,6}})?){unit})?" for unit in units), text.strip(), re.ASCII)
    seconds = sum(float(n) * size for n, size in zip(match.groups(), units.values(), strict=True) if n) if match else 0
    if not 0 < seconds <= MOST_TIME_S:
        raise InvalidOption(option, text, "a duration such as 90s, 18m, 1h30m or 2d, at most 90d")
    return seconds


def parse_busy(text: str, option: str) -> float:
    """`wait`, `stop` or a duration, as seconds that GPUs in use are waited for.

    Raises:
        InvalidOption: none of them.
    """
    known = {"wait": math.inf, "stop": 0.0}
    if text.strip() in known:
        return known[text.strip()]
    try:
        return parse_time(text, option)
    except InvalidOption:
        raise InvalidOption(option, text, "wait, stop, or how long to wait, such as 30m or 2h") from None


def parse_gpu_hours(text: str) -> float:
    """`20` or `1.5` GPU hours as seconds.

    Raises:
        InvalidOption: no number above 0, or more than a million.
    """
    match = re.fullmatch(r"\d{1,9}(?:\.\d{1,6})?|\.\d{1,6}", text.strip(), re.ASCII)
    hours = float(match[0]) if match else 0.0
    if not 0 < hours <= MOST_GPU_HOURS:
        raise InvalidOption("--max-gpu-hours", text, f"a number above 0, at most {MOST_GPU_HOURS:,.0f}")
    return hours * 3600.0


def parse_command(text: str, option: str) -> tuple[str, ...]:
    """`prog 'an argument'` as an argument list, split as a shell would; no shell runs it.

    Raises:
        InvalidOption: empty, or an open quote. The text may hold a secret and is not shown.
    """
    try:
        words = tuple(shlex.split(text))
    except ValueError:
        words = ()
    if not words or not words[0] or "\0" in text:
        raise InvalidOption(option, "(not shown)", "a command and its arguments, quotes closed")
    return words


def parse_share(text: str, option: str, *, least: float, most: float, off: bool = False) -> float:
    """`1%`, `99.5 %` or `0.01` as a share; with `off`, that word as 0.

    Raises:
        InvalidOption: none of them, or not within the bounds.
    """
    word = text.strip()
    if off and word == "off":
        return 0.0
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?|\.\d{1,9})\s*(%?)", word, re.ASCII)
    share = (float(match[1]) / (100 if match[2] else 1)) if match else -1.0
    if not least <= share <= most:
        allowed = f"a share from {100 * least:g}% to {100 * most:g}%, with or without the sign"
        raise InvalidOption(option, text, f"off, or {allowed}" if off else allowed)
    return share


def parse_parallel(text: str) -> int:
    """`auto` or a number of trials at once.

    Raises:
        InvalidOption: neither.
    """
    word = text.strip()
    if word == "auto":
        return AUTO_PARALLEL
    if not (word.isascii() and word.isdigit() and 1 <= int(word[:4]) <= MOST_PARALLEL and len(word) <= 4):
        raise InvalidOption("--parallel", text, f"auto, or a number from 1 to {MOST_PARALLEL}")
    return int(word)


def parse_address(text: str) -> str | None:
    """`auto` as None, or `HOST:PORT` of a cluster's head.

    Raises:
        InvalidOption: neither; `ray://` is Ray's client, whose jobs do not end with it.
    """
    word = text.strip()
    if not re.fullmatch(ADDRESS, word, re.ASCII):
        raise InvalidOption("--ray-address", text, "auto, or HOST:PORT of the cluster's head, such as gpu01:6379")
    return None if word == "auto" else word


def parse_load(text: str) -> LoadChoice:
    """`auto`, or `concurrency=64,rate=12,requests=200` (any subset), per GPU used.

    Raises:
        InvalidOption: an unknown key, or a value that is not a positive number.
    """
    most = {"concurrency": MOST_CONCURRENCY, "rate": MOST_RATE_RPS, "requests": MOST_REQUESTS}
    limits = ", ".join(f"{key} up to {limit:,.0f}" for key, limit in most.items())
    allowed = f"auto, or concurrency=N, rate=R, requests=N separated by commas ({limits})"
    if text.strip() == "auto":
        return LoadChoice()
    found: dict[str, float] = {}
    for part in text.split(","):
        key, _, value = part.strip().partition("=")
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if key in found or not 0 < number <= most.get(key, 0):
            raise InvalidOption("--load", text, allowed)
        if key != "rate" and number != int(number):
            raise InvalidOption("--load", text, allowed)
        found[key] = number
    return LoadChoice(
        concurrency=int(found["concurrency"]) if "concurrency" in found else None,
        rate_rps=found.get("rate"),
        requests=int(found["requests"]) if "requests" in found else None,
    )


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
    package = Path(__file__).resolve().parent
    installed = package / "_shipped" / "studies"
    return installed if installed.is_dir() else package.parent / "studies"
