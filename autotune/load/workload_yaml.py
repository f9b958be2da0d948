"""Workloads in YAML, read once at this border; a frozen record inside. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from autotune.complaints import model_in
from autotune.errors import InvalidFile, InvalidOption
from autotune.load.lengths import MAX_P95_OVER_MEAN, Lengths
from autotune.load.workload import Api, RequestCounts, SharedPrefixes, Turns, Workload
from autotune.records import ArrivalProcess, Arrivals, Slo
from autotune.slo_text import parse_slo

MAX_TURNS = 200
"""Of one conversation; agents' longest have about as many."""


def workload_of(raw: object, *, file: str, name: str) -> Workload:
    """The workload that parsed YAML describes; `file` is what errors call it, `name` the default name.

    Raises:
        InvalidFile: with the key path, the value seen and what is allowed.
    """
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
    ttft_most_s: Annotated[float, Field(ge=0, le=3600)] = 40.0
    warmup_per_slot: Annotated[int, Field(ge=1, le=100)] = 1


class _ConcurrencyYaml(_Yaml):
    start: Annotated[int, Field(ge=1, le=65_536)] = 8
    max: Annotated[int, Field(ge=1, le=65_536)] = 512

    @model_validator(mode="after")
    def _ordered(self) -> _ConcurrencyYaml:
        if self.start > self.max:
            raise ValueError("start no greater than max")
        return self


class _TurnsYaml(_Yaml):
    count: _LengthsYaml
    think_s: Annotated[float, Field(gt=0, le=3600)] = 5.0
    longest_tokens: _Tokens

    @model_validator(mode="after")
    def _bounded(self) -> _TurnsYaml:
        if self.count.lengths().high > MAX_TURNS:
            raise ValueError(f"a count of at most {MAX_TURNS} turns")
        return self


_Rate = Annotated[float, Field(ge=0, le=1_000_000)]
_ARRIVAL_FORMS = "process constant or poisson alone | process gamma and cv | process ramp and from and to, not both 0"


class _ArrivalsYaml(_Yaml):
    # `from` is a word of Python's own; its alias is the key.
    process: Literal["constant", "poisson", "gamma", "ramp"]
    cv: Annotated[float, Field(ge=0.01, le=10)] | None = None
    from_: Annotated[_Rate | None, Field(alias="from")] = None
    to: _Rate | None = None

    @model_validator(mode="after")
    def _one_form(self) -> _ArrivalsYaml:
        given = {name for name in ("cv", "from_", "to") if getattr(self, name) is not None}
        needed = {"gamma": {"cv"}, "ramp": {"from_", "to"}}.get(self.process, set())
        if given != needed or (self.process == "ramp" and not self.from_ and not self.to):
            raise ValueError(_ARRIVAL_FORMS)
        return self

    def record(self) -> ArrivalProcess:
        return ArrivalProcess(kind=Arrivals(self.process), cv=self.cv, ramp_from=self.from_, ramp_to=self.to)


class _SloYaml(_Yaml):
    ttft_p95_ms: Annotated[float, Field(gt=0)]


def _readable_slo(text: str) -> str:
    try:
        parse_slo(text, option="slo")
    except InvalidOption as error:
        raise ValueError(error.allowed) from None
    return text


_SLO_TEXT, _SLO_MAPPING = "slo as text", "slo as mapping"


def _slo_form(value: object) -> str:
    return _SLO_TEXT if isinstance(value, str) else _SLO_MAPPING


_SloForms = Annotated[
    Annotated[str, AfterValidator(_readable_slo), Tag(_SLO_TEXT)] | Annotated[_SloYaml, Tag(_SLO_MAPPING)],
    Discriminator(_slo_form),
]
"""`ttft_p95<=500ms,tpot_p95<=50ms`, or the mapping of versions that knew one limit."""


class _WorkloadYaml(_Yaml):
    name: str | None = None
    description: str = ""
    api: Annotated[Api, Field(strict=False)] = Api.CHAT
    prompt_tokens: _LengthsYaml
    output_tokens: _LengthsYaml
    shared_prefixes: _PrefixesYaml | None = None
    turns: _TurnsYaml | None = None
    arrivals: _ArrivalsYaml | None = None
    requests: _RequestsYaml = _RequestsYaml()
    concurrency: _ConcurrencyYaml = _ConcurrencyYaml()
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    longest_request_tokens: _Tokens | None = None
    slo: _SloForms | None = None

    @model_validator(mode="after")
    def _first_turn_fits(self) -> _WorkloadYaml:
        if self.turns is not None:
            prefix = self.shared_prefixes.tokens if self.shared_prefixes else 0
            first = prefix + self.prompt_tokens.lengths().high + self.output_tokens.lengths().high
            if first > self.turns.longest_tokens:
                raise ValueError(
                    f"turns.longest_tokens of at least {first}, so that the longest first turn (prefix, prompt and "
                    "output) fits"
                )
        return self

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
            turns=self._turns(),
            arrivals=self.arrivals.record() if self.arrivals else None,
            slo=self._limits(),
        )

    def _limits(self) -> Slo | None:
        match self.slo:
            case None:
                return None
            case str():
                return parse_slo(self.slo, option="slo")
            case _SloYaml():
                return Slo.of(ttft_p95=self.slo.ttft_p95_ms / 1000)

    def _turns(self) -> Turns | None:
        if self.turns is None:
            return None
        return Turns(
            count=self.turns.count.lengths(),
            think_s=self.turns.think_s,
            longest_tokens=self.turns.longest_tokens,
        )


def _invalid(file: str, error: ValidationError) -> InvalidFile:
    """The first complaint of pydantic in our words: file, key path, value seen, what is allowed."""
    # An unknown key before a missing one: the first is usually the misspelling of the second.
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    place = tuple(part for part in first["loc"] if part not in (_SLO_TEXT, _SLO_MAPPING))
    key = ".".join(str(part) for part in place)
    if first["type"] == "extra_forbidden":
        return InvalidFile(file, key, place[-1], f"the keys {', '.join(_keys_at(place[:-1]))}")
    if key == "slo":
        return InvalidFile(file, key, first["input"], _slo_allowed(first["msg"], first["type"]))
    if first["type"] == "missing":
        return InvalidFile(file, key, None, "this key must be given")
    allowed = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return InvalidFile(file, key, first["input"], allowed)


def _slo_allowed(message: str, kind: str) -> str:
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    return 'a text such as "ttft_p95<=500ms,tpot_p95<=50ms,error_rate<=0", or {ttft_p95_ms: 500}'


def _keys_at(location: tuple[Any, ...]) -> list[str]:
    """Keys that the mapping at `location` may have."""
    model: Any = _WorkloadYaml
    for part in location:
        model = model_in(model.model_fields[part].annotation)
    return [field.alias or name for name, field in model.model_fields.items()]
