"""Jobs as documents."""

from __future__ import annotations

from typing import Any

from autotune.web.job import OPEN, Job
from autotune.web.queue import Queue


def job_document(queue: Queue, job: Job) -> dict[str, Any]:
    """A job as it is shown: not how it is found again."""
    waiting = [one.id for one in queue.jobs.waiting()]
    return {
        "id": job.id,
        "kind": str(job.kind),
        "study": job.study,
        "state": str(job.state),
        "position": waiting.index(job.id) + 1 if job.id in waiting else None,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
        "exit_code": job.exit_code,
        "message": job.message,
        "trial": job.trial,
        "deployment": job.deployment,
    }


def queue_document(queue: Queue, *, most_ended: int | None = None) -> dict[str, Any]:
    """Jobs, newest first; of those that have ended `most_ended`, None for all."""
    running = queue.jobs.running()
    shown = list(reversed(queue.jobs.jobs))
    if most_ended is not None:
        ended = {job.id for job in [job for job in shown if job.state not in OPEN][:most_ended]}
        shown = [job for job in shown if job.state in OPEN or job.id in ended]
    return {
        "jobs": [job_document(queue, job) for job in shown],
        "running": running.id if running else None,
        "waiting_for": queue.waiting_for,
    }
