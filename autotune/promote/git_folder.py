"""Promotions as commits of a git folder, one each, so that what runs can be reviewed, diffed and reverted there.

git itself is asked; nothing is pushed. A promotion that was committed before is known by a trailer of its message, so
that an export can be repeated.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.errors import InvalidOption, StorageError
from autotune.promote.history import Entry
from autotune.promote.quoting import comment_text
from autotune.promote.rendering import NOBODY, gate_summary, unverified_mark
from autotune.promote.writing import write_files

TRAILER, FOLDER_TRAILER = "Autotune-Promotion", "Autotune-Folder"
DEADLINE_S = 60.0
"""Of one git command; a hook or a signing agent that asks something would wait for ever."""

_MISLEADING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX", "GIT_COMMON_DIR")
"""Set where we are run from one of git's own hooks; they would lead into that repository."""


def commit_promotions(
    entries: Sequence[Entry], folder: Path, *, environ: Mapping[str, str], overwrite: bool = False
) -> tuple[Entry, ...]:
    """Commit those of the promotions that are not there yet, oldest first; returns them.

    A folder that is in no repository becomes one. Only the files of each promotion are committed, nothing else that
    lies there; the author is the promotion's, the date its own.

    Raises:
        InvalidOption: a file there is somebody else's or was edited.
        StorageError: git is missing, refuses, or takes longer than DEADLINE_S.
        NotPromotable: a promotion was recorded without its files.
    """
    git = _Git(folder, environ)
    git.make_repository()
    known = git.committed()
    made = []
    for entry in entries:
        if entry.label in known:
            continue
        files = entry.promotion.rendered()
        paths = write_files(files, folder, deployment=entry.promotion.name, overwrite=overwrite)
        git.commit([str(path.relative_to(folder)) for path in paths], entry)
        made.append(entry)
    return tuple(made)


def message(entry: Entry) -> str:
    """The commit's message: what was promoted, why, on which evidence."""
    promotion = entry.promotion
    unverified = unverified_mark(promotion.gate)
    what = f"trial {promotion.trial} of study {comment_text(promotion.study)}"
    title = f"{comment_text(entry.label)}: {what}"
    if promotion.restores is not None:
        title = f"{comment_text(entry.label)}: back to version {promotion.restores}, {what}"
    facts = [
        f"model: {comment_text(promotion.model)}",
        f"vLLM: {comment_text(promotion.vllm_version)}",
        f"config: {promotion.config_hash}",
        f"gate: {gate_summary(promotion.gate)}",
        *(["SIMULATED: no server was measured"] if promotion.simulated else []),
        *([f"{unverified}: {NOBODY}"] if unverified else []),
        f"promoted: {promotion.created_at.isoformat(timespec='seconds')} by {comment_text(promotion.author) or '-'}",
    ]
    reason = [comment_text(promotion.reason), ""] if promotion.reason else []
    return "\n".join([title, "", *reason, *facts, "", f"{TRAILER}: {comment_text(entry.label)}", ""])


class _Git:
    """git in one folder, without a question and without a pager."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder = folder
        kept = {name: value for name, value in environ.items() if name not in _MISLEADING}
        self._environ = {**kept, "GIT_TERMINAL_PROMPT": "0", "GIT_PAGER": "cat", "LC_ALL": "C"}

    def make_repository(self) -> None:
        """The folder, inside a repository."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"{self._folder}: {error.strerror or error}", hint="Choose another --git folder."
            ) from None
        if self._run("rev-parse", "--is-inside-work-tree", check=False) != "true":
            self._run("init", "--quiet")

    def committed(self) -> frozenset[str]:
        """Labels of the promotions that were committed before."""
        if not self._run("rev-parse", "--verify", "--quiet", "HEAD", check=False):
            return frozenset()
        # Several folders of a repository may hold a name of their own. A commit that changed no file, as of a rollback
        # to what was there already, is none of a path: it is known by the folder that it tells. Older ones tell none.
        by_path = self._run("log", f"--format=%(trailers:key={TRAILER},valueonly)", "--", ".")
        known = {line.strip() for line in by_path.splitlines() if line.strip()}
        form = "%x09".join(f"%(trailers:key={key},valueonly,separator=%x20)" for key in (FOLDER_TRAILER, TRAILER))
        own = f"{self._place()}\t"
        told = self._run("log", f"--format={form}").splitlines()
        return frozenset(known | {line.removeprefix(own).strip() for line in told if line.startswith(own)})

    def _place(self) -> str:
        """The folder within its repository; `.` at the top."""
        return comment_text(self._run("rev-parse", "--show-prefix")).rstrip("/") or "."

    def commit(self, paths: Sequence[str], entry: Entry) -> None:
        """One commit of exactly these paths."""
        promotion = entry.promotion
        self._run("add", "--force", "--", *paths)
        self._run(
            *("commit", "--quiet", "--allow-empty", "--file=-"),
            *(f"--author={_signature(promotion.author)}", f"--date={promotion.created_at.isoformat()}"),
            *("--only", "--", *paths),
            text=f"{message(entry)}{FOLDER_TRAILER}: {self._place()}\n",
            environ=self._committer(),
        )

    def _run(self, *words: str, check: bool = True, text: str = "", environ: Mapping[str, str] | None = None) -> str:
        program = shutil.which("git", path=self._environ.get("PATH"))
        if program is None:
            raise StorageError("git is not installed", hint="Install it, or leave --git out.")
        try:
            done = subprocess.run(
                [program, "-C", str(self._folder), *words],
                input=text,
                capture_output=True,
                text=True,
                encoding="utf-8",
                errors="replace",
                timeout=DEADLINE_S,
                check=False,
                env={**(environ or {}), **self._environ},
            )
        except subprocess.TimeoutExpired:
            raise StorageError(f"{self._folder}: git {words[0]} took longer than {DEADLINE_S:g} s") from None
        if check and done.returncode != 0:
            said = comment_text(" ".join(done.stderr.split()))[:500]
            raise StorageError(f"{self._folder}: git refused: {said}", hint="Put that right, then export again.")
        return done.stdout.strip()

    def _committer(self) -> dict[str, str]:
        """A committer where neither git's settings nor the environment name one: a service's account has none."""
        named = self._run("-c", "user.useConfigOnly=true", "var", "GIT_COMMITTER_IDENT", check=False)
        return {} if named else {"GIT_COMMITTER_NAME": "autotune", "GIT_COMMITTER_EMAIL": "autotune@localhost"}


_SIGNED = re.compile(r"(?P<name>[^<>\n]*[^<>\s]) ?<(?P<mail>[^<>\s]+)>")


def _signature(author: str) -> str:
    """`Name <address>` as git wants it, of a name, an address, or both."""
    plain = "".join(char for char in author if char.isprintable())
    signed = _SIGNED.fullmatch(plain)
    if signed:
        return f"{signed['name']} <{signed['mail']}>"
    name = plain.replace("<", "").replace(">", "").strip() or "autotune"
    return f"{name} <{name if '@' in name and ' ' not in name else 'autotune@localhost'}>"


def check_folder(folder: Path) -> None:
    """Refuse, before anything is written, a folder that is a file.

    Raises:
        InvalidOption: it is.
    """
    if folder.exists() and not folder.is_dir():
        raise InvalidOption("--git", str(folder), "a folder")
