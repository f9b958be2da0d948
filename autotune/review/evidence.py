"""What lies beside a trial's figures: its command line, ready to paste, and its server's log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autotune.promote import serve_line

if TYPE_CHECKING:
    from autotune.records import Trial
    from autotune.store.study_record import StudyRecord


def serve_line_of(stored: StudyRecord, trial: Trial) -> str:
    """The server command of a trial, with what the study passes on after `--`."""
    extra = tuple(str(word) for word in stored.spec.get("extra_args", ()))
    return serve_line(stored.identity["model"], trial.config, extra_args=extra)


def log_path(trial: Trial) -> str | None:
    """The server's log of a trial's latest attempt; None where no server wrote one."""
    path = Path(trial.directory) / "server.log" if trial.directory else None
    return str(path) if path is not None and path.exists() else None
