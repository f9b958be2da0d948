"""What a target hands back, and the provenance that opens every rendered file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from autotune.promote.manifest import Deployment, Provenance
from autotune.promote.quoting import comment_text
from autotune.records import CriterionState, Estimate, GateRecord, GateVerdict
from autotune.units import format_bytes, format_seconds, plural

MARKER = "# Rendered by autotune "
"""Opens the first comment line of every file; `writing` knows its own files by it."""

CHECKSUM = "# sha256 of the lines below: "
"""Ends the header; a file whose checksum does not fit was edited by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedFile:
    """One file of a target.

    Attributes:
        path: relative to the output folder, never leaving it.
        mode: permission bits, 0o755 for scripts.
    """

    path: str
    text: str
    mode: int = 0o644


def checksum(body: str) -> str:
    """Hex SHA-256 of the text below the header."""
    return hashlib.sha256(body.encode()).hexdigest()


def stamped(deployment: Deployment, body: str, *, usage: tuple[str, ...] = (), shebang: bool = False) -> str:
    """`body` under its provenance comments.

    Args:
        deployment: where the provenance comes from.
        body: what the target's parser reads; every target's comment sign is `#`.
        usage: lines that say how to run the file, already safe on one line.
        shebang: open with the bash line.
    """
    lines = list(provenance_lines(deployment))
    if usage:
        lines += ["", *usage]
    head = "".join(f"# {line}".rstrip() + "\n" for line in lines)
    first = "#!/usr/bin/env bash\n" if shebang else ""
    return f"{first}{head}{CHECKSUM}{checksum(body)}\n{body}"


def provenance_lines(deployment: Deployment) -> tuple[str, ...]:
    """Where this came from, one printable line each; the first is the marker."""
    facts = deployment.provenance
    lines = [
        f"{MARKER.removeprefix('# ')}{facts.autotune_version} for deployment {comment_text(deployment.name)}",
    ]
    if facts.simulated:
        lines += [
            "!!! SIMULATED: no server was measured. These settings come from a model of vLLM on a model of the node,",
            "!!! and were rendered because --allow-simulated was given. Measure on the real node before serving.",
        ]
    assumed = "" if facts.version_measured else " (assumed, not measured)"
    lines += [
        f"study       {comment_text(facts.study)}, trial {facts.trial}, config {facts.config_hash}",
        f"model       {comment_text(deployment.model)}",
        f"node        {comment_text(facts.node)}; GPUs used: {deployment.gpus}",
        f"vLLM        {comment_text(deployment.vllm_version)}{assumed}",
        f"created     {facts.created_at.isoformat(timespec='seconds')}",
        *_promoted_lines(facts),
        *gate_lines(facts),
        *figure_lines(deployment),
    ]
    if deployment.environment or deployment.secret_names:
        names = [name for name, _ in deployment.environment]
        lines.append(f"environment {', '.join([*names, *(f'{name} (secret)' for name in deployment.secret_names)])}")
    lines += [f"doubt       {comment_text(text)}" for text in facts.caveats]
    return tuple(lines)


def gate_text(facts: Provenance) -> str:
    """What the verification before the promotion said, on one line."""
    return gate_summary(facts.gate)


def gate_summary(gate: GateRecord | None) -> str:
    """A verification on one line: `pass, with 1 doubt: throughput ...`; `not run` of none."""
    if gate is None:
        return "not run"
    if gate.verdict is GateVerdict.SKIPPED:
        return f"SKIPPED, nobody verified it: {comment_text(gate.reason)}"
    simulated = " (simulated)" if gate.simulated else ""
    count = len(gate.doubts)
    doubts = f", with {plural(count, 'doubt')}" if count else ""
    return f"{gate.verdict}{simulated}{doubts}: {comment_text(gate.reason)}"


NOBODY = "nobody verified this config against what runs today"


def unverified_mark(gate: GateRecord | None) -> str | None:
    """What is said loudly of a promotion that was not verified; None of one that was."""
    if gate is None:
        return "GATE NOT RUN"
    return "GATE SKIPPED" if gate.verdict is GateVerdict.SKIPPED else None


def gate_lines(facts: Provenance) -> tuple[str, ...]:
    """The verdict with each criterion that counted; a gate that nobody ran is no quiet line."""
    gate = facts.gate
    if gate is None:
        return (f"!!! {unverified_mark(gate)}: {NOBODY}.",)
    if gate.verdict is GateVerdict.SKIPPED:
        return (
            f"!!! {unverified_mark(gate)}: {NOBODY}.",
            f"gate        {gate_text(facts)}",
        )
    lines = [f"gate        {gate_text(facts)}"]
    against = f" against {comment_text(gate.against.label)}" if gate.against else ""
    lines.append(f"gate        order {gate.order}{against}, prompts of seed {gate.gate_seed}, {gate.clock} clock")
    lines += [
        f"gate        {one.state} {comment_text(one.name)}: {comment_text(one.found)}"
        for one in gate.criteria
        if one.state is not CriterionState.NOT_APPLICABLE
    ]
    lines += [f"gate        doubt: {comment_text(doubt)}" for doubt in gate.doubts]
    return tuple(lines)


def _promoted_lines(facts: Provenance) -> tuple[str, ...]:
    by = [f"promoted    by {comment_text(facts.author)}"] if facts.author else []
    return (*by, *([f"reason      {comment_text(facts.reason)}"] if facts.reason else []))


def figure_lines(deployment: Deployment) -> tuple[str, ...]:
    """The measured figures with their 95 % intervals; a figure that is missing is `-`."""
    facts = deployment.provenance
    mark = "simulated" if facts.simulated else "measured"
    lines = [
        f"{mark:<11} output {rate_text(facts.output_tok_s)}, per GPU {rate_text(facts.output_tok_s_per_gpu)}",
        f"{mark:<11} TTFT p95 {seconds_text(facts.ttft_p95_s)}",
    ]
    if facts.runs > 1:
        lines.append(f"{mark:<11} {facts.runs} runs; the figures are their means, the intervals span all of them")
    if deployment.startup_s is not None:
        lines.append(f"{mark:<11} start {format_seconds(deployment.startup_s)}")
    resolved = facts.resolved
    if resolved is not None:
        said = [
            ("max-model-len", resolved.max_model_len),
            ("max-num-seqs", resolved.max_num_seqs),
            ("max-num-batched-tokens", resolved.max_num_batched_tokens),
            ("gpu-memory-utilization", resolved.gpu_memory_utilization),
            ("KV cache tokens", resolved.kv_cache_tokens),
        ]
        known = [f"{name} {value}" for name, value in said if value is not None]
        if resolved.weights_bytes is not None:
            known.append(f"weights {format_bytes(resolved.weights_bytes)}")
        if known:
            lines.append(f"resolved    {', '.join(known)}")
    return tuple(lines)


def rate_text(figure: Estimate | None) -> str:
    """`2,400.0 tok/s [2,300.0 .. 2,500.0]`; a missing figure is `-`."""
    if figure is None:
        return "-"
    return f"{figure.value:,.1f} tok/s{_between(figure, lambda value: f'{value:,.1f}')}"


def seconds_text(figure: Estimate | None) -> str:
    """`250 ms [225 ms .. 275 ms]`; a missing figure is `-`."""
    if figure is None:
        return "-"
    return f"{format_seconds(figure.value)}{_between(figure, format_seconds)}"


def _between(figure: Estimate, pretty: Callable[[float], str]) -> str:
    if figure.low is None or figure.high is None:
        return " (no interval: too few samples)"
    return f" [{pretty(figure.low)} .. {pretty(figure.high)}]"
