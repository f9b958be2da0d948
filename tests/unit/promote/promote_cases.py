"""Deployments for the tests of this folder, and slow readers of the syntaxes that the targets write."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autotune.promote import Deployment, Story, StudyFacts, Wishes, deployment_from
from autotune.records import (
    Arrivals,
    ClockKind,
    Config,
    CriterionState,
    EngineKind,
    Estimate,
    GateCriterion,
    GateRecord,
    GateSide,
    GateVerdict,
    Gpu,
    Latency,
    LevelRole,
    Link,
    LoadLevel,
    Measurement,
    Node,
    Origin,
    Outcome,
    Phase,
    ServerFacts,
    Trial,
    TrialResult,
)

CREATED = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
NODE = Node(
    name="2xH100-80GB",
    gpus=tuple(Gpu(index=i, name="H100", memory_bytes=80 * 1024**3) for i in range(4)),
    link=Link.NVLINK,
    simulated=False,
)


def latency(value_s: float, *, p99_s: float | None = None) -> Latency:
    at = Estimate(value=value_s, low=value_s * 0.9, high=value_s * 1.1)
    return Latency(count=200, mean=at, p50=at, p90=at, p95=at, p99=Estimate(value=p99_s or value_s))


def measurement(
    role: LevelRole, *, tok_s: float | None = 2400.0, ttft_s: float = 0.25, e2e_p99_s: float = 20.0
) -> Measurement:
    return Measurement(
        level=LoadLevel(name=str(role), role=role, arrivals=Arrivals.POISSON, requests=200, seed=1, rate_rps=4.0),
        clock=ClockKind.WALL,
        duration_s=60.0,
        steady_s=50.0,
        planned=200,
        completed=200,
        failed=0,
        errors=(),
        prompt_tokens=1000,
        output_tokens=1000,
        output_tok_s=None if tok_s is None else Estimate(value=tok_s, low=tok_s - 100, high=tok_s + 100),
        total_tok_s=None,
        request_rps=None,
        goodput_rps=None,
        ttft_s=latency(ttft_s),
        ttft_from_send_s=None,
        tpot_s=None,
        itl_s=None,
        e2e_s=latency(5.0, p99_s=e2e_p99_s),
    )


def trial(
    values: Mapping[str, Any] | None = None,
    *,
    outcome: Outcome = Outcome.MEASURED,
    simulated: bool = False,
    gpus: int = 2,
    facts: ServerFacts | None = None,
    e2e_p99_s: float = 20.0,
) -> Trial:
    given = (
        {"tensor-parallel-size": 2, "max-num-seqs": 128, "enable-prefix-caching": False} if values is None else values
    )
    return Trial(
        number=7,
        config=Config.of(given),
        origin=Origin.SAMPLER,
        gpus=gpus,
        attempts=1,
        result=TrialResult(
            outcome=outcome,
            clock=ClockKind.WALL,
            simulated=simulated,
            facts=ServerFacts(vllm_version="0.32.0", startup_s=130.0, max_num_seqs=128) if facts is None else facts,
            measurements=(
                measurement(LevelRole.THROUGHPUT),
                measurement(LevelRole.TTFT, e2e_p99_s=e2e_p99_s),
            ),
            phase_seconds=((Phase.LAUNCHING, 99.0),),
        ),
    )


def deployment(
    of: Trial | None = None,
    *,
    name: str = "prod-chat",
    study: str = "llama-chat",
    model: str = "meta-llama/Llama-3.1-8B-Instruct",
    extra_args: Sequence[str] = (),
    command: Sequence[str] = ("vllm", "serve"),
    node: Node = NODE,
    **options: Any,
) -> Deployment:
    facts = StudyFacts(
        name=study, model=model, workload="chat", node=node, extra_args=tuple(extra_args), command=tuple(command)
    )
    wished = {key: options.pop(key) for key in Wishes.__dataclass_fields__ if key in options}
    story = Story(created_at=CREATED, autotune_version="9.9.9", **options)
    return deployment_from(facts, of or trial(), name=name, story=story, wishes=Wishes(**wished))


def gate_record(verdict: GateVerdict = GateVerdict.PASSED, *, simulated: bool = False) -> GateRecord:
    """A verification of `trial()`; its figures stand in sentences, as the gate writes them."""
    side = GateSide(label="trial 7 of study llama-chat", config=trial().config, model="m", gpus=2)
    return GateRecord(
        verdict=verdict,
        reason="every criterion holds",
        study="llama-chat",
        candidate=side,
        against=GateSide(label="baseline", config=Config.of({}), model="m", gpus=2),
        engine=EngineKind.PROCESS,
        clock=ClockKind.WALL,
        simulated=simulated,
        started_at=CREATED,
        ended_at=CREATED,
        order="ABBA",
        gate_seed=99,
        criteria=(
            GateCriterion(name="slo", asked="", state=CriterionState.HELD, found="p95 TTFT 240 ms <= 500 ms"),
            GateCriterion(name="memory", asked="", state=CriterionState.NOT_APPLICABLE, found="no GPU"),
        ),
        doubts=("the node is shared",),
    )


def run_with_stub(script: str, stub: str, folder: Path, *, environment: Mapping[str, str] | None = None) -> list[str]:
    """Run a bash script with a program `stub` first in PATH that prints its own argv; the argv it got."""
    (folder / "script.sh").write_text(script, encoding="utf-8")
    fake = folder / stub
    fake.write_text('#!/bin/bash\nprintf "%s\\0" "$@"\n', encoding="utf-8")
    fake.chmod(0o755)
    done = subprocess.run(
        ["bash", str(folder / "script.sh")],
        capture_output=True,
        check=True,
        env={"PATH": f"{folder}:/usr/bin:/bin", "LC_ALL": "C.UTF-8", **(environment or {})},
    )
    assert done.stderr == b""
    return done.stdout.decode().split("\0")[:-1]


def bash_words(line: str) -> list[str]:
    """How bash itself splits a line."""
    done = subprocess.run(
        ["bash", "-c", f'printf "%s\\0" {line}'],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
    )
    return done.stdout.decode().split("\0")[:-1]


def undollared(text: str, variables: Mapping[str, str]) -> str:
    """Kubernetes' expansion rules, from its API reference: `$$` is `$`, `$(NAME)` a known variable, else unchanged."""
    out, i = [], 0
    while i < len(text):
        if text[i] == "$" and text[i + 1 : i + 2] == "$":
            out.append("$")
            i += 2
        elif text[i] == "$" and text[i + 1 : i + 2] == "(" and ")" in text[i:]:
            end = text.index(")", i)
            out.append(variables.get(text[i + 2 : end], text[i : end + 1]))
            i = end + 1
        else:
            out.append(text[i])
            i += 1
    return "".join(out)


def systemd_words(line: str, *, dollars: bool) -> list[str]:
    """Double-quoted words by systemd.syntax(7) and systemd.service(5); anything else is an error."""
    simple = {"n": "\n", "t": "\t", "\\": "\\", '"': '"', "'": "'", "s": " "}
    words, i = [], 0
    while i < len(line):
        assert line[i] == '"', f"expected a quoted word at {line[i:]!r}"
        i += 1
        raw = bytearray()
        while line[i] != '"':
            char = line[i]
            if char == "\\":
                if line[i + 1] == "x":
                    raw.append(int(line[i + 2 : i + 4], 16))
                    i += 4
                else:
                    raw += simple[line[i + 1]].encode()
                    i += 2
                continue
            assert char.isprintable()
            if char == "%" or (dollars and char == "$"):
                assert line[i + 1] == char, f"{char} would be expanded in {line!r}"
                i += 1
            raw += char.encode()
            i += 1
        words.append(raw.decode())
        i += 1
        assert line[i : i + 1] in ("", " ")
        i += 1
    return words
