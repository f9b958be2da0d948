"""Workloads: which requests arrive. Read from YAML at this border, a frozen record inside."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.resources import files
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from autotune.errors import InvalidFile, UnknownName
from autotune.load.lengths import MAX_P95_OVER_MEAN, Lengths
from autotune.records import Slo
from autotune.yaml_input import existing_file, parse_yaml, read_yaml

TEMPLATE_TOKENS = 64
"""Room for what a chat template adds around a prompt: a few dozen tokens for Llama 3.1, which states two dates."""


class Api(StrEnum):
    """Which OpenAI endpoint the requests go to."""

    CHAT = "chat"
    COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixes:
    """Openings that several requests share (a system prompt, a document), on top of their own prompt.

    Attributes:
        count: different prefixes.
        tokens: length of each.
        share: of the requests that open with one, 0..1.
    """

    count: int
    tokens: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """How many requests make a level, per GPU; ramp.load_plan turns them into numbers.

    Attributes:
        per_slot: the throughput level sends at least this many per concurrent slot.
        ttft: the Poisson level sends at least this many (a p95 with an interval needs 100).
        level_s: levels are lengthened to about this many seconds at the baseline's capacity.
        most: no level is lengthened beyond this.
        warmup_per_slot: warm-up requests per concurrent slot.
    """

    per_slot: int
    ttft: int
    level_s: float
    most: int
    warmup_per_slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Which requests arrive, whatever the config that serves them.

    Attributes:
        prompt_tokens: length of the part of the prompt that no other request shares.
        output_tokens: generated tokens.
        seed: of lengths, prefixes and their order: the same in every trial and level of one size.
        start_concurrency, max_concurrency: where the baseline's ramp begins and ends, per GPU.
        longest_request_tokens: what the operator must admit beyond what is sent here; None for what is sent.
    """

    name: str
    description: str
    api: Api
    prompt_tokens: Lengths
    output_tokens: Lengths
    prefixes: SharedPrefixes | None
    requests: RequestCounts
    start_concurrency: int
    max_concurrency: int
    seed: int = 0
    longest_request_tokens: int | None = None
    slo: Slo | None = None

    @property
    def max_model_len_needed(self) -> int:
        """Tokens that one sequence must be able to hold: longest prompt (2 % over, see datasets.render_prompt), its
        chat template and its output, or `longest_request_tokens` where that is more."""
        prompt = self.prompt_tokens.high + (self.prefixes.tokens if self.prefixes else 0)
        template = TEMPLATE_TOKENS if self.api is Api.CHAT else 0
        sent = math.ceil(prompt * 1.02) + template + self.output_tokens.high
        return max(sent, self.longest_request_tokens or 0)

    @property
    def shared_tokens_per_request(self) -> float | None:
        """Prompt tokens per request that the prefix cache may rightly serve when the workload shares nothing.

        The chat template's opening, which every prompt has in common; None where prefixes are shared on purpose and
        cache hits say nothing about the client.
        """
        if self.prefixes is not None:
            return None
        return float(TEMPLATE_TOKENS) if self.api is Api.CHAT else 0.0


def workload_fingerprint(workload: Workload) -> str:
    """Twelve hex digits that change when the offered requests change; name, description and SLO do not count."""
    offered = {k: v for k, v in asdict(workload).items() if k not in {"name", "description", "slo"}}
    return hashlib.sha256(json.dumps(offered, sort_keys=True, default=str).encode()).hexdigest()[:12]


def builtin_workloads() -> tuple[str, ...]:
    """Names of the workloads that ship with the program, sorted."""
    folder = files("autotune.load") / "workloads"
    return tuple(sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")))


def load_workload(name_or_path: str) -> Workload:
    """A built-in workload by name, or one read from a YAML file.

    What ends in .yaml or .yml or holds a slash is a path, everything else a name.

    Raises:
        UnknownName: no such built-in, or no such file.
        InvalidFile: the file cannot be read, is not YAML, or says something that is not accepted.
    """
    known = builtin_workloads()
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        path = existing_file(name_or_path)
        if path is None:
            hint = f"There is no such file; give a YAML file that exists or one of: {', '.join(known)}."
            raise UnknownName("workload", name_or_path, known, hint=hint)
        return _as_workload(read_yaml(path), file=str(path), name=path.stem)
    if name_or_path not in known:
        raise UnknownName("workload", name_or_path, known, hint="A workload of your own is given as a path to a file.")
    shipped = files("autotune.load") / "workloads" / f"{name_or_path}.yaml"
    return parse_workload(shipped.read_text("utf-8"), file=f"{name_or_path}.yaml", name=name_or_path)


def parse_workload(text: str, *, file: str, name: str) -> Workload:
    """A workload from YAML text; `file` is what errors call it, `name` the default name.

    Raises:
        InvalidFile: with the key path, the value seen and what is allowed.
    """
    return _as_workload(parse_yaml(text, file=file), file=file, name=name)


def _as_workload(raw: object, *, file: str, name: str) -> Workload:
    if not isinstance(raw, dict):
        raise InvalidFile(file, "", raw, f"a YAML mapping with the keys {', '.join(_WorkloadYaml.model_fields)}")
    try:
        read = _WorkloadYaml.model_validate(raw)
    except ValidationError as error:
        raise _invalid(file, error) from error
    return read.record(name)


class _Yaml(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


_Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
_LENGTH_FORMS = "one of: fixed | min and max | mean and spread (0..1) | mean and p95 (and max)"


class _LengthsYaml(_Yaml):
    fixed: _Tokens | None = None
    min: _Tokens | None = None
    max: _Tokens | None = None
    mean: Annotated[float, Field(ge=1, le=10_000_000)] | None = None
    spread: Annotated[float, Field(ge=0, lt=1)] | None = None
    p95: Annotated[float, Field(ge=1, le=10_000_000)] | None = None

    @model_validator(mode="after")
    def _one_form(self) -> _LengthsYaml:
        given = {key for key in type(self).model_fields if getattr(self, key) is not None}
        forms = [{"fixed"}, {"min", "max"}, {"mean", "spread"}, {"mean", "p95"}, {"mean", "p95", "max"}]
        if given not in forms:
            raise ValueError(_LENGTH_FORMS)
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("min no greater than max")
        if self.mean is not None and self.p95 is not None:
            if not 1 <= self.p95 / self.mean <= MAX_P95_OVER_MEAN:
                raise ValueError(f"p95 between 1 and {MAX_P95_OVER_MEAN:.2f} times mean (a log-normal has no other)")
            if self.max is not None and self.max < self.p95:
                raise ValueError("max no less than p95")
        return self

    def lengths(self) -> Lengths:
        if self.fixed is not None:
            return Lengths.fixed(self.fixed)
        if self.min is not None and self.max is not None:
            return Lengths.uniform(self.min, self.max)
        if self.mean is None:  # _one_form left no other form
            raise ValueError(_LENGTH_FORMS)
        if self.p95 is not None:
            return Lengths.lognormal(self.mean, self.p95, self.max)
        spread = self.spread or 0.0
        return Lengths.uniform(max(1, round(self.mean * (1 - spread))), max(1, round(self.mean * (1 + spread))))


class _PrefixesYaml(_Yaml):
    count: Annotated[int, Field(ge=1, le=100_000)]
    tokens: _Tokens
    share: Annotated[float, Field(gt=0, le=1)] = 1.0


class _RequestsYaml(_Yaml):
    per_slot: Annotated[int, Field(ge=2, le=1000)] = 4
    ttft: Annotated[int, Field(ge=1, le=1_000_000)] = 300
    level_s: Annotated[float, Field(ge=0, le=3600)] = 20.0
    most: Annotated[int, Field(ge=1, le=1_000_000)] = 4096
    warmup_per_slot: Annotated[int, Field(ge=1, le=100)] = 1


class _ConcurrencyYaml(_Yaml):
    start: Annotated[int, Field(ge=1, le=65_536)] = 8
    max: Annotated[int, Field(ge=1, le=65_536)] = 512

    @model_validator(mode="after")
    def _ordered(self) -> _ConcurrencyYaml:
        if self.start > self.max:
            raise ValueError("start no greater than max")
        return self


class _SloYaml(_Yaml):
    ttft_p95_ms: Annotated[float, Field(gt=0)]


class _WorkloadYaml(_Yaml):
    name: str | None = None
    description: str = ""
    api: Annotated[Api, Field(strict=False)] = Api.CHAT
    prompt_tokens: _LengthsYaml
    output_tokens: _LengthsYaml
    shared_prefixes: _PrefixesYaml | None = None
    requests: _RequestsYaml = _RequestsYaml()
    concurrency: _ConcurrencyYaml = _ConcurrencyYaml()
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    longest_request_tokens: _Tokens | None = None
    slo: _SloYaml | None = None

    def record(self, default_name: str) -> Workload:
        return Workload(
            name=self.name or default_name,
            description=" ".join(self.description.split()),
            api=self.api,
            prompt_tokens=self.prompt_tokens.lengths(),
            output_tokens=self.output_tokens.lengths(),
            prefixes=SharedPrefixes(**self.shared_prefixes.model_dump()) if self.shared_prefixes else None,
            requests=RequestCounts(**self.requests.model_dump()),
            start_concurrency=self.concurrency.start,
            max_concurrency=self.concurrency.max,
            seed=self.seed,
            longest_request_tokens=self.longest_request_tokens,
            slo=Slo(metric="ttft_p95", limit_s=self.slo.ttft_p95_ms / 1000) if self.slo else None,
        )


def _invalid(file: str, error: ValidationError) -> InvalidFile:
    """The first complaint of pydantic in our words: file, key path, value seen, what is allowed."""
    # An unknown key before a missing one: the first is usually the misspelling of the second.
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return InvalidFile(file, key, first["loc"][-1], f"the keys {', '.join(_keys_at(first['loc'][:-1]))}")
    if first["type"] == "missing":
        return InvalidFile(file, key, None, "this key must be given")
    allowed = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return InvalidFile(file, key, first["input"], allowed)


def _keys_at(location: tuple[Any, ...]) -> list[str]:
    """Keys that the mapping at `location` may have."""
    model: Any = _WorkloadYaml
    for part in location:
        annotation = model.model_fields[part].annotation
        options = getattr(annotation, "__args__", (annotation,))
        model = next(option for option in options if isinstance(option, type) and issubclass(option, BaseModel))
    return list(model.model_fields)
