"""What verifications before promotions left in a study's folder: `gate-<trial>-<n>/launch-<place>-<side>/`.

As with the raw files of trials only names that this program writes count, and no link is followed. `gate.json`, the
record of a verification, is never listed: of one that did not pass it is all there is.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from autotune.store.raw_files import (
    folders_like,
    is_raw_file_name,
    names_in,
    opened_below,
    opened_folder,
    remove_if_empty,
    unlinked,
)

GATE_FOLDER = re.compile(r"gate-(\d{4,9})-([1-9]\d{0,8})", re.ASCII)
"""Name of a verification's folder: the candidate's trial, and which verification of it, 1 for the first."""

RECORD_FILE = "gate.json"

RECORD_LIMIT_BYTES = 16 << 20
"""A record of forty launches takes a few hundred kilobytes; what is larger was not written by this program."""

_LAUNCH = re.compile(r"launch-[1-9]\d{0,3}-(?:against|candidate)", re.ASCII)
_IDENTITY = "server.json"
"""There while the server of a launch runs, or after whoever watched it was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFile:
    """One file of one launch of a verification.

    Attributes:
        trial: the candidate.
        gate: name of the verification's folder.
        launch: name of the launch's folder.
        modified_at: UTC.
        open: whether a server of the verification may still run.
    """

    study: str
    trial: int
    gate: str
    launch: str
    name: str
    size_bytes: int
    modified_at: datetime
    open: bool = False

    @property
    def path(self) -> str:
        """Below the folder of all studies."""
        return f"{self.study}/{self.gate}/{self.launch}/{self.name}"


def gate_folder_name(trial: int, count: int) -> str:
    """Of the verification `count` of a trial, 1 for the first."""
    return f"gate-{trial:04d}-{count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFound:
    """One verification of a trial.

    Attributes:
        count: 1 for the first of the trial.
        launches: that were begun.
        record: text of its record; None where it has none, or one that cannot be read.
    """

    count: int
    launches: int
    record: str | None


def gates_of(root: Path, study: str, trial: int) -> tuple[GateFound, ...]:
    """The verifications of one trial, the first one first; empty where the study's folder is missing.

    Raises:
        StorageError: a folder cannot be read.
    """
    found = []
    for match, gate in folders_like(GATE_FOLDER, root, study):
        if int(match[1]) == trial:
            launches = sum(1 for name in names_in(gate, root / study / match[0]) if _LAUNCH.fullmatch(name))
            found.append(GateFound(count=int(match[2]), launches=launches, record=_record_text(gate)))
    return tuple(sorted(found, key=lambda one: one.count))


def _record_text(gate: int) -> str | None:
    try:
        handle = os.open(RECORD_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=gate)
    except OSError:
        return None
    try:
        said = os.fstat(handle)
        if not stat.S_ISREG(said.st_mode) or said.st_size > RECORD_LIMIT_BYTES:
            return None
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(RECORD_LIMIT_BYTES).decode("utf-8")
    except (OSError, ValueError):
        return None
    finally:
        os.close(handle)


def list_gate_files(root: Path, study: str) -> tuple[GateFile, ...]:
    """The files of a study's verifications, by path; empty where its folder is missing.

    Raises:
        StorageError: a folder cannot be read.
    """
    found: list[GateFile] = []
    for match, gate in folders_like(GATE_FOLDER, root, study):
        found += _of_gate(gate, root, study, match[0], int(match[1]))
    return tuple(found)


def _of_gate(gate: int, root: Path, study: str, name: str, trial: int) -> list[GateFile]:
    files: list[GateFile] = []
    running = False
    for launch in sorted(names_in(gate, root / study / name)):
        if _LAUNCH.fullmatch(launch) is None:
            continue
        with opened_below(gate, launch, root / study / name / launch) as folder:
            if folder is not None:
                names = names_in(folder, root / study / name / launch)
                running = running or _IDENTITY in names
                files += _of_launch(folder, sorted(names), study, name, launch, trial)
    if not running:
        return files
    return [replace(file, open=True) for file in files]


def _of_launch(folder: int, names: list[str], study: str, gate: str, launch: str, trial: int) -> Iterator[GateFile]:
    for name in names:
        if not is_raw_file_name(name):
            continue
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            continue  # gone meanwhile
        if stat.S_ISREG(found.st_mode):
            yield GateFile(
                study=study,
                trial=trial,
                gate=gate,
                launch=launch,
                name=name,
                size_bytes=found.st_size,
                modified_at=datetime.fromtimestamp(found.st_mtime, UTC),
            )


def delete_gate_file(root: Path, file: GateFile) -> bool:
    """Delete one file, and the folders of its launch and verification where those are empty then.

    False where it is gone already.

    Raises:
        StorageError: it may not be deleted, or is no regular file any more.
    """
    path = root / file.path
    with opened_folder(root, file.study) as study:
        if study is None:
            return False
        with opened_below(study, file.gate, path.parent.parent) as gate:
            if gate is None:
                return False
            with opened_below(gate, file.launch, path.parent) as launch:
                if launch is None or not unlinked(launch, file.name, path):
                    return False
                empty = not names_in(launch, path.parent)
            if empty:
                remove_if_empty(gate, file.launch)
            empty = not names_in(gate, path.parent.parent)
        if empty:
            remove_if_empty(study, file.gate)
    return True
