"""What was promoted, when, by whom, why and from what: the record that the history keeps. Pure.

`store/` lies below this room and cannot import it, so what crosses is `Promotion.as_document()`: JSON-able, versioned,
and never changed once it is stored. Versions are places in the history of a name, from 1 on: `prod-chat@3`. A rollback
is a version of its own that holds an earlier one's files again, so that the history only ever grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from autotune.errors import NotPromotable, UnknownName
from autotune.promote.manifest import Deployment
from autotune.promote.rendering import RenderedFile, checksum
from autotune.records import Config, Estimate, GateRecord, ServerFacts, Value
from autotune.store.codec import decode, encode
from autotune.store.study_record import PromotionRecord

DOCUMENT_VERSION = 2

CURRENT, PREVIOUS = "current", "previous"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotedFile:
    """A file that a promotion wrote.

    Attributes:
        path: relative to the output folder.
        sha256: of its whole text.
        text: None in records of older versions, which cannot be rolled back to.
    """

    path: str
    sha256: str
    text: str | None = None
    mode: int = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """One promotion; immutable once stored.

    Attributes:
        name: the deployment, e.g. `prod-chat`; several promotions of one name are its history.
        created_at: UTC-aware.
        simulated: the figures come from the simulated engine, which somebody allowed by `simulated_allowed`.
        argv: the server command line, without secrets.
        gate: None in records of older versions.
        restores: the version whose files a rollback wrote again; the other fields, but `created_at`, `author` and
            `reason`, are that one's.
        version_measured: False where the vLLM version was assumed or given by hand.
        flags, environment: what the server was rendered with; secrets are in neither.
        workload: of the study; a name, or a file's path.
        slo: that the pick was made under, as text.
        resolved: what the measured server said of itself.
        rate_rps_per_gpu, prompt_tokens_mean, output_tokens_mean, prefix_hit_share: of the study's level of fixed rate.
    """

    name: str
    created_at: datetime
    study: str
    trial: int
    config_hash: str
    model: str
    vllm_version: str
    targets: tuple[str, ...]
    files: tuple[PromotedFile, ...]
    argv: tuple[str, ...]
    simulated: bool
    simulated_allowed: bool
    gate: GateRecord | None = None
    author: str = ""
    reason: str = ""
    restores: int | None = None
    version_measured: bool = True
    flags: tuple[tuple[str, Value], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    gpus: int = 0
    node: str = ""
    workload: str = ""
    slo: str | None = None
    resolved: ServerFacts | None = None
    runs: int = 0
    output_tok_s: Estimate | None = None
    output_tok_s_per_gpu: Estimate | None = None
    ttft_p95_s: Estimate | None = None
    rate_rps_per_gpu: float | None = None
    prompt_tokens_mean: float | None = None
    output_tokens_mean: float | None = None
    prefix_hit_share: float | None = None

    @classmethod
    def of(
        cls,
        deployment: Deployment,
        files: Sequence[RenderedFile],
        *,
        targets: Sequence[str],
        argv: Sequence[str],
        simulated_allowed: bool,
        slo: str | None = None,
        offered: Offered | None = None,
    ) -> Promotion:
        """The record of rendering `deployment` into `files`."""
        facts, load = deployment.provenance, offered or Offered()
        return cls(
            name=deployment.name,
            created_at=facts.created_at,
            study=facts.study,
            trial=facts.trial,
            config_hash=facts.config_hash,
            model=deployment.model,
            vllm_version=deployment.vllm_version,
            targets=tuple(targets),
            files=tuple(
                PromotedFile(path=file.path, sha256=checksum(file.text), text=file.text, mode=file.mode)
                for file in files
            ),
            argv=tuple(argv),
            simulated=facts.simulated,
            simulated_allowed=simulated_allowed,
            gate=facts.gate,
            author=facts.author,
            reason=facts.reason,
            version_measured=facts.version_measured,
            flags=deployment.flags,
            environment=deployment.environment,
            gpus=deployment.gpus,
            node=facts.node,
            workload=facts.workload,
            slo=slo,
            resolved=facts.resolved,
            runs=facts.runs,
            output_tok_s=facts.output_tok_s,
            output_tok_s_per_gpu=facts.output_tok_s_per_gpu,
            ttft_p95_s=facts.ttft_p95_s,
            rate_rps_per_gpu=load.rate_rps_per_gpu,
            prompt_tokens_mean=load.prompt_tokens_mean,
            output_tokens_mean=load.output_tokens_mean,
            prefix_hit_share=load.prefix_hit_share,
        )

    @property
    def config(self) -> Config:
        """Flags and variables as a config, fixed ones among them."""
        return Config.of({**dict(self.flags), **{f"env:{name}": value for name, value in self.environment}})

    def restored(self, version: int, *, created_at: datetime, author: str, reason: str) -> Promotion:
        """The record of going back to this one, which is `version` of its name."""
        return replace(self, restores=version, created_at=created_at, author=author, reason=reason)

    def rendered(self) -> tuple[RenderedFile, ...]:
        """Its files, byte for byte.

        Raises:
            NotPromotable: the record is of an older version, which kept checksums only.
        """
        lost = [file.path for file in self.files if file.text is None]
        if lost:
            raise NotPromotable(
                f"the promotion of trial {self.trial} of study {self.study!r} was recorded without its files "
                f"({', '.join(lost)})",
                hint=f"Promote that trial again: `autotune promote {self.study} --trial {self.trial} ...`.",
            )
        return tuple(RenderedFile(path=file.path, text=file.text or "", mode=file.mode) for file in self.files)

    def as_document(self) -> dict[str, Any]:
        """The record as JSON-able values, for the store and `--json`."""
        found = encode(self)
        assert isinstance(found, dict)  # a record's JSON is an object
        return {"schema": DOCUMENT_VERSION, **found}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Promotion:
        """The record back from `as_document`, also of the first version.

        Raises:
            ValueError: for a document of another schema.
        """
        schema = document.get("schema")
        if schema not in (1, DOCUMENT_VERSION):
            raise ValueError(f"promotion document of schema {schema!r}, expected {DOCUMENT_VERSION}")
        fields = {key: value for key, value in document.items() if key != "schema"}
        if schema == 1:
            del fields["gate"]  # `not run`, in all of them
        return decode(cls, fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """What the promoted trial was offered at its level of fixed rate; None where that is not known."""

    rate_rps_per_gpu: float | None = None
    prompt_tokens_mean: float | None = None
    output_tokens_mean: float | None = None
    prefix_hit_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A promotion in its place.

    Attributes:
        version: 1-based, within its name.
        directory: where its files were written.
    """

    version: int
    directory: str
    promotion: Promotion

    @property
    def label(self) -> str:
        """`prod-chat@3`."""
        return f"{self.promotion.name}@{self.version}"

    @property
    def effective(self) -> int:
        """The version whose files these are."""
        return self.promotion.restores or self.version


def entries(records: Iterable[PromotionRecord]) -> tuple[Entry, ...]:
    """The whole history, oldest first, each promotion with its version.

    Raises:
        ValueError: a stored document of a schema that this version does not know.
    """
    counts: dict[str, int] = {}
    found = []
    for record in records:
        promotion = Promotion.from_document(record.details)
        counts[promotion.name] = counts.get(promotion.name, 0) + 1
        found.append(Entry(version=counts[promotion.name], directory=record.directory, promotion=promotion))
    return tuple(found)


def current_of(history: Sequence[Entry]) -> tuple[Entry, ...]:
    """The latest promotion of each name, in the order of their first ones."""
    latest = {entry.promotion.name: entry for entry in history}
    return tuple(latest.values())


def named(history: Sequence[Entry], text: str) -> Entry:
    """The promotion that `NAME`, `NAME@3`, `NAME@current` or `NAME@previous` stands for.

    Raises:
        UnknownName: there is none.
    """
    # A name may hold an @ of its own.
    name, which = (text, CURRENT) if any(entry.promotion.name == text for entry in history) else _split(text)
    found = [entry for entry in history if entry.promotion.name == name]
    if not found:
        raise UnknownName("promotion", name, sorted({entry.promotion.name for entry in history}))
    if which == CURRENT:
        return found[-1]
    if which == PREVIOUS:
        return before(found)
    if which.isascii() and which.isdecimal() and 1 <= int(which) <= len(found):
        return found[int(which) - 1]
    raise UnknownName(
        "promotion",
        text,
        (),
        hint=f"{name!r} has versions 1 to {len(found)}, current and previous: {name}@{len(found)}.",
    )


def before(own: Sequence[Entry]) -> Entry:
    """The promotion that a rollback of the latest goes to: the last one older than what is in effect.

    After a rollback to version 2 that is version 1, not the one that was rolled back from.

    Raises:
        NotPromotable: there is nothing before it.
    """
    latest = own[-1]
    older = [entry for entry in own if entry.promotion.restores is None and entry.version < latest.effective]
    if not older:
        name = latest.promotion.name
        listed = f"`autotune promotions {name}` lists its versions"
        raise NotPromotable(
            f"{latest.label} is in effect as version {latest.effective}, and there is no earlier one to go back to",
            hint=f"{listed}; a rollback reaches a later one by --to VERSION, a diff as {name}@VERSION."
            if latest.version > 1
            else f"{listed}: it was promoted once. Another trial is promoted by `autotune promote`.",
        )
    return older[-1]


def _split(text: str) -> tuple[str, str]:
    name, at, which = text.rpartition("@")
    return (name, which) if at else (text, CURRENT)
