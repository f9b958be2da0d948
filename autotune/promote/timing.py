"""How long to wait: for a start, for a drain, for the kill. Seconds, all derived from the trial's own figures."""

from __future__ import annotations

import math

from autotune.promote.manifest import Deployment

START_FACTOR = 2.0
"""A start in production finds colder page and compile caches than the study's; 1.5-2 x is what operators report."""

DOWNLOAD_BYTES_PER_S = 100e6
"""A first start on a fresh volume downloads the weights; a slow but usual rate for a cluster behind a proxy."""

SHORTEST_START_S = 600
"""No start is given less, whatever was measured: killing a slow load loops for ever."""

UNKNOWN_START_S = 3600
"""When the study could not tell how long a start takes."""

PRESTOP_S = 15
"""Endpoints take seconds to leave the load balancers; new requests still arrive until then."""

KILL_MARGIN_S = 15
"""After the drain the server frees its GPUs; the grace period must be longer than pre-stop and drain together."""


def start_budget_s(deployment: Deployment) -> int:
    """The longest time from the start of the process to ready that is still no failure."""
    if deployment.startup_s is None:
        return UNKNOWN_START_S
    return max(SHORTEST_START_S, math.ceil(START_FACTOR * deployment.startup_s + _download_s(deployment)))


def prestop_s(deployment: Deployment) -> int:
    """Sleep before TERM. A vLLM that cannot drain aborts on TERM, so requests in flight must end in the sleep."""
    return PRESTOP_S if deployment.drains else PRESTOP_S + deployment.drain_s


def stop_budget_s(deployment: Deployment) -> int:
    """From TERM to KILL without a pre-stop sleep (Docker, Compose, systemd)."""
    return (deployment.drain_s if deployment.drains else 0) + 2 * KILL_MARGIN_S


def grace_period_s(deployment: Deployment) -> int:
    """Kubernetes' terminationGracePeriodSeconds, counted from before the pre-stop sleep; strictly above the sum."""
    return prestop_s(deployment) + (deployment.drain_s if deployment.drains else 0) + KILL_MARGIN_S


def _download_s(deployment: Deployment) -> float:
    resolved = deployment.provenance.resolved
    if deployment.local_model or resolved is None or resolved.weights_bytes is None:
        return 0.0
    # vLLM logs the weights of one worker; counting every worker overestimates replicas, which only waits longer.
    return resolved.weights_bytes * deployment.workers / DOWNLOAD_BYTES_PER_S
