"""What was promoted, when and from what: the record the history keeps. Pure; the store writes its document.

`store/` lies below this room and cannot import it, so what crosses is `Promotion.as_document()`: JSON-able, versioned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from autotune.promote.manifest import Deployment, Gate
from autotune.promote.rendering import RenderedFile, checksum

DOCUMENT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotedFile:
    """A file that a promotion wrote: path relative to the output folder, SHA-256 of its whole text."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """One promotion; immutable once stored.

    Attributes:
        name: the deployment, e.g. `prod-chat`; several promotions of one name are its history.
        created_at: UTC-aware.
        simulated: the figures come from the simulated engine, which somebody allowed by `simulated_allowed`.
        argv: the server command line, without secrets.
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
    gate: Gate = Gate.NOT_RUN

    @classmethod
    def of(
        cls,
        deployment: Deployment,
        files: Sequence[RenderedFile],
        *,
        targets: Sequence[str],
        argv: Sequence[str],
        simulated_allowed: bool,
    ) -> Promotion:
        """The record of rendering `deployment` into `files`."""
        facts = deployment.provenance
        return cls(
            name=deployment.name,
            created_at=facts.created_at,
            study=facts.study,
            trial=facts.trial,
            config_hash=facts.config_hash,
            model=deployment.model,
            vllm_version=deployment.vllm_version,
            targets=tuple(targets),
            files=tuple(PromotedFile(path=file.path, sha256=checksum(file.text)) for file in files),
            argv=tuple(argv),
            simulated=facts.simulated,
            simulated_allowed=simulated_allowed,
        )

    def as_document(self) -> dict[str, Any]:
        """The record as JSON-able values, for the store and `--json`."""
        return {
            "schema": DOCUMENT_VERSION,
            "name": self.name,
            "created_at": self.created_at.isoformat(),
            "study": self.study,
            "trial": self.trial,
            "config_hash": self.config_hash,
            "model": self.model,
            "vllm_version": self.vllm_version,
            "targets": list(self.targets),
            "files": [{"path": file.path, "sha256": file.sha256} for file in self.files],
            "argv": list(self.argv),
            "simulated": self.simulated,
            "simulated_allowed": self.simulated_allowed,
            "gate": str(self.gate),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Promotion:
        """The record back from `as_document`.

        Raises:
            ValueError: for a document of another schema.
        """
        if document.get("schema") != DOCUMENT_VERSION:
            raise ValueError(f"promotion document of schema {document.get('schema')!r}, expected {DOCUMENT_VERSION}")
        return cls(
            name=document["name"],
            created_at=datetime.fromisoformat(document["created_at"]),
            study=document["study"],
            trial=document["trial"],
            config_hash=document["config_hash"],
            model=document["model"],
            vllm_version=document["vllm_version"],
            targets=tuple(document["targets"]),
            files=tuple(PromotedFile(path=file["path"], sha256=file["sha256"]) for file in document["files"]),
            argv=tuple(document["argv"]),
            simulated=document["simulated"],
            simulated_allowed=document["simulated_allowed"],
            gate=Gate(document["gate"]),
        )
