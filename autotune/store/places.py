"""Where results go: one database for all studies, one folder for each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotune.store.connection import BUSY_TIMEOUT_S, locate
from autotune.store.folder import DATABASE_NAME, StudyFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where results go.

    Attributes:
        root: folder of all studies; raw files of a study are in `root/<name>/`.
        storage: database URL or path; None for `root/autotune.db`.
        busy_timeout_s: how long another program that holds the database is waited for.
    """

    root: Path
    storage: str | None = None
    busy_timeout_s: float = BUSY_TIMEOUT_S

    @property
    def database(self) -> str:
        """What `Store.open` is given."""
        return self.storage or str(self.root / DATABASE_NAME)

    def folder(self, study: str) -> StudyFolder:
        """The folder of one study."""
        return StudyFolder(root=self.root, name=study)

    def is_left(self, study: str) -> bool:
        """Whether nobody works on a study, by its lock.

        A database server's studies may be run on other machines, whose folders, and locks, are not here: of those
        nothing is known, and none is taken for left.
        """
        held = self.folder(study).is_held()
        return not held if held is not None else locate(self.database).path is not None
