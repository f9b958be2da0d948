"""What the tests of a study's page share."""

from __future__ import annotations

from autotune.report.page import Facts

FACTS = Facts(
    state="finished",
    target=24,
    created_at="2026-11-30T11:00:00+00:00",
    seed=0,
    sampler="prior",
    objective="throughput",
    vllm_version="0.32.0",
    load="64 requests in flight for throughput, 4.25 requests/s Poisson for TTFT, per GPU used",
)
