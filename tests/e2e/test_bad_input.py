"""Bad input: one clear message, its own exit code, nothing written, no process left."""

from __future__ import annotations

import fcntl
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from autotune_command import LIGHT, LLAMA, SIMULATED_SERVER, TINY, TRACE, Ended, rows, run, wait_for
from bad_input_cases import CASES, CONFIG, REAL, Case, case

from autotune.errors import ExitCode

WORKERS = 2


def prepare(folder: Path, case: Case) -> None:
    folder.mkdir()
    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir()
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            path.chmod(0o755 if path.suffix == ".sh" else 0o644)


@pytest.fixture(scope="module")
def endings(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[Path, Future[Ended]]]]:
    """The table's commands, a few at a time: each spends a second on importing."""
    root = tmp_path_factory.mktemp("bad-input")
    chosen = {
        item.callspec.params["case"].name
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec") and "case" in item.callspec.params
    }
    with ThreadPoolExecutor(WORKERS) as pool:
        found = {}
        for case in CASES:
            if case.name in chosen:
                folder = root / case.name
                prepare(folder, case)
                words = tuple(os.fsencode(word).decode("utf-8", "surrogateescape") for word in case.words)
                found[case.name] = (folder, pool.submit(run, folder, *words, env=case.env))
        yield found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_refused(case: Case, endings: dict[str, tuple[Path, Future[Ended]]]) -> None:
    folder, future = endings[case.name]
    ended = future.result(120)
    assert ended.code == case.code, ended.err
    for words in case.says:
        assert words in ended.err
    assert TRACE not in ended.err + ended.out
    assert "hunter2" not in ended.err + ended.out
    assert len(ended.err) < 4000
    assert [path for path in (folder / "studies").rglob("*") if path.is_file()] == []
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        {*(Path(n).parts[0] for n in case.files), *kept(folder)}
    )


def kept(folder: Path) -> set[str]:
    """What a refused command may leave: empty folders, and the cache of the flags question."""
    return {name for name in ("studies", ".cache") if (folder / name).exists()}


def test_case_names_differ() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))


def mentioning(text: str) -> list[int]:
    """Pids whose command line holds `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_a_command_that_hangs_is_given_up_with_all_its_children(tmp_path: Path) -> None:
    script = tmp_path / "hangs.sh"
    seconds = f"654.{os.getpid()}321"  # which nobody else's sleep lasts
    script.write_text(f"#!/bin/sh\nsleep {seconds} & sleep {seconds}\n")
    script.chmod(0o755)
    ended = run(tmp_path, *REAL, "--start-deadline", "2", "--vllm-command", str(script))
    assert ended.code == ExitCode.VLLM_COMMAND
    assert "no answer within 2 s" in ended.err
    wait_for(lambda: mentioning(seconds) == [], "the end of its children")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished simulated study `s`, not to be written to."""
    folder = tmp_path_factory.mktemp("finished")
    ended = run(folder, "study", *TINY, *LIGHT, "--trials", "2", "--name", "s")
    assert ended.code == 0, ended.err
    return folder


def copy_of(finished: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    subprocess.run(["cp", "-a", str(finished), str(folder)], check=True)
    return folder


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("show", "t", "0"), ExitCode.UNKNOWN_STUDY, "known: s"),
        (("show", "a\udcffb", "0"), ExitCode.UNKNOWN_STUDY, "known: s"),
        (("gc", "a\udcffb"), ExitCode.UNKNOWN_STUDY, "known: s"),
        (("show", "s", "9"), ExitCode.UNKNOWN_TRIAL, "0..1"),
        (("show", "s", "--", "-1"), ExitCode.UNKNOWN_TRIAL, "0..1"),
        (("logs", "s", "9"), ExitCode.UNKNOWN_TRIAL, "0..1"),
        (("promote", "s", "--trial", "9", "--target", "shell", "--out", "o"), ExitCode.UNKNOWN_TRIAL, "0..1"),
        (("promote", "s", "--target", "shell", "--out", "o"), ExitCode.NOT_PROMOTABLE, "--allow-simulated"),
        (
            ("promote", "s", "--target", "shell", "--out", "o", "--slo", "0.001ms"),
            ExitCode.NOT_PROMOTABLE,
            "no trial to recommend",
        ),
        (("promote", "s", "--target", "shell", "--out", "/proc/o", "--allow-simulated"), ExitCode.STORAGE, "--out"),
        (
            ("promote", "s", "--target", "shell", "--out", "o", "--allow-simulated", "--port", "99999"),
            ExitCode.INVALID_OPTION,
            "99999",
        ),
        (
            ("promote", "s", "--target", "shell", "--out", "o", "--allow-simulated", "--gpus", "²"),
            ExitCode.INVALID_OPTION,
            "--gpus",
        ),
        (
            ("promote", "s", "--target", "shell", "--out", "o", "--allow-simulated", "--pick", "best"),
            ExitCode.INVALID_OPTION,
            "knee, throughput, latency",
        ),
        (
            ("promote", "s", "--target", "shell", "--out", "o", "--pick", "knee", "--trial", "1"),
            ExitCode.INVALID_OPTION,
            "either",
        ),
        (("promote", "s", "--target", "shell", "--allow-simulated"), ExitCode.INVALID_OPTION, "--git"),
        (
            ("promote", "s", "--target", "shell", "--allow-simulated", "--out", "o", "--git", "studies/autotune.db"),
            ExitCode.INVALID_OPTION,
            "--git",
        ),
        *(
            (
                (
                    "promote",
                    "s",
                    "--target",
                    "shell",
                    "--out",
                    "o",
                    "--allow-simulated",
                    "--skip-gate",
                    f"--name={name}",
                ),
                ExitCode.INVALID_OPTION,
                f"--name: {name!r} is not accepted; allowed: 1-64 letters, digits",
            )
            for name in ("../x", "", "-x", "a\nb", "\u0430dmin", "a" * 65)
        ),
        (("promotions", "../x"), ExitCode.UNKNOWN_PROMOTION, "unknown promotion '../x'"),
        (("rollback", "../x\x1b[31m"), ExitCode.UNKNOWN_PROMOTION, "unknown promotion '../x\\x1b[31m'"),
        (("promotions", "prod"), ExitCode.UNKNOWN_PROMOTION, "unknown promotion 'prod'"),
        (("promotions", "--git", "g"), ExitCode.INVALID_OPTION, "name of a deployment"),
        (("diff", "prod@1", "prod@2"), ExitCode.UNKNOWN_PROMOTION, "prod"),
        (("rollback", "a\udcffb"), ExitCode.UNKNOWN_PROMOTION, "unknown promotion"),
        (("pareto", "s", "--slo", "soon"), ExitCode.INVALID_OPTION, "--slo"),
        (("pareto", "s", "--csv", "--json"), ExitCode.INVALID_OPTION, "--csv"),
        (("pareto", "s", "--json", "--all"), ExitCode.INVALID_OPTION, "--all"),
        (("pareto", "s", "--picture", "/proc/front.svg"), ExitCode.STORAGE, "/proc/front.svg"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else None,
)
def test_reviewing_a_study_that_is_there(finished: Path, words: tuple[str, ...], code: ExitCode, says: str) -> None:
    ended = run(finished, *words)
    assert ended.code == code, ended.err
    assert says in ended.err
    assert TRACE not in ended.err
    assert not (finished / "o").exists()


DIFFERENT = {
    "model": ("--model", "Qwen/Qwen2.5-7B-Instruct"),
    "workload": ("--workload", "chat"),
    "space": ("--space", "default"),
    "node": ("--node", "1xA100-80GB"),
    "load": ("--load", "concurrency=5,rate=20,requests=24"),
    "seed": ("--seed", "7"),
    "fixed flags": ("--", "--max-model-len", "4096"),
}


def test_another_question_under_the_same_name_is_refused_with_what_differs(finished: Path) -> None:
    before = (finished / "studies" / "autotune.db").read_bytes()

    def other(words: tuple[str, ...]) -> Ended:
        return run(finished, "study", *TINY, *LIGHT, "--trials", "3", "--name", "s", *words)

    with ThreadPoolExecutor(WORKERS) as pool:
        endings = dict(zip(DIFFERENT, pool.map(other, DIFFERENT.values()), strict=True))
    for what, ended in endings.items():
        assert ended.code == ExitCode.STUDY_MISMATCH, (what, ended.err)
        told = [line for line in ended.err.splitlines() if "the study has" in line]
        assert any(line.strip().startswith(f"{what}:") for line in told), (what, told)
        assert "--name" in ended.err
    real = run(
        finished, "study", *TINY, *LIGHT, "--name", "s", "--engine", "process", "--vllm-command", SIMULATED_SERVER
    )
    assert real.code == ExitCode.STUDY_MISMATCH
    assert "engine: the study has 'simulated', this command has 'process'" in real.err
    assert "node: the study has '1xH100-80GB', this command has 'cpu'" in real.err
    assert (finished / "studies" / "autotune.db").read_bytes() == before


def test_a_truncated_database(finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path)
    database = folder / "studies" / "autotune.db"
    content = database.read_bytes()
    database.write_bytes(content[: len(content) // 2])
    for words in (("list",), ("study", *TINY, *LIGHT, "--name", "s")):
        ended = run(folder, *words)
        assert ended.code == ExitCode.STORAGE, ended.err
        assert "autotune.db" in ended.err
        assert TRACE not in ended.err


def test_a_record_that_cannot_be_read(finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path)
    with sqlite3.connect(folder / "studies" / "autotune.db") as connection:
        connection.execute('UPDATE autotune_trials SET result = \'{"outcome": "glorious"}\' WHERE number = 1')
    connection.close()
    ended = run(folder, "pareto", "s")
    assert ended.code == ExitCode.STORAGE, ended.err
    assert "cannot be read" in ended.err


@pytest.mark.parametrize("table", ["autotune_alembic_version", "alembic_version"])
def test_a_database_of_a_newer_version(finished: Path, tmp_path: Path, table: str) -> None:
    folder = copy_of(finished, tmp_path)
    with sqlite3.connect(folder / "studies" / "autotune.db") as connection:
        connection.execute(f"UPDATE {table} SET version_num = 'v99'")
    connection.close()
    ended = run(folder, "study", *TINY, *LIGHT, "--name", "s", "--trials", "3")
    assert ended.code == ExitCode.SCHEMA_MISMATCH, ended.err
    assert "v99" in ended.err
    assert rows(folder / "studies" / "autotune.db", "SELECT count(*) FROM autotune_trials") == [(2,)]


HOLDER = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
time.sleep(1200)
"""


def test_a_database_that_another_program_holds(finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path)
    database = folder / "studies" / "autotune.db"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(database)], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            env = {"AUTOTUNE_BUSY_TIMEOUT_S": "0.5"}
            ended = run(folder, "study", *TINY, *LIGHT, "--name", "s", "--trials", "3", env=env)
        finally:
            holder.kill()
    assert ended.code == ExitCode.STORAGE_LOCKED, ended.err
    assert str(Path("studies/autotune.db")) in ended.err
    assert run(folder, "study", *TINY, *LIGHT, "--name", "s", "--trials", "3").code == 0


def test_a_study_that_another_tuner_holds(finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path)
    with (folder / "studies" / "s" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = run(folder, "study", *TINY, *LIGHT, "--name", "s", "--trials", "3")
    assert ended.code == ExitCode.STUDY_BUSY
    assert "autotune stop s" in ended.err


def test_a_file_size_limit_ends_the_study_with_its_reason_and_it_goes_on_without(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (180_000, 180_000))

    words = ("study", *TINY, *LIGHT, "--name", "s", "--trials", "6")
    ended = run(tmp_path, *words, preexec_fn=limit)
    assert ended.code == ExitCode.STORAGE, ended.err
    assert "studies" in ended.err
    assert TRACE not in ended.err
    goes_on(tmp_path, words)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few hundred kilobytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here; the file size limit covers the same path")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_ends_the_study_with_its_reason_and_it_goes_on_with_more_room(full_disk: Path) -> None:
    words = ("study", *TINY, *LIGHT, "--name", "s", "--trials", "6")
    ended = run(full_disk, *words)
    assert ended.code == ExitCode.STORAGE, ended.err
    assert "full" in ended.err or "No space left" in ended.err
    assert TRACE not in ended.err
    subprocess.run(["mount", "-o", "remount,size=20m", str(full_disk)], check=True)
    goes_on(full_disk, words)


def test_a_read_only_folder(finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path)
    studies = folder / "studies"
    bound = subprocess.run(["mount", "--bind", str(studies), str(studies)], capture_output=True, check=False)
    if bound.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(studies)], check=True)
        ended = run(folder, "study", *TINY, *LIGHT, "--name", "s", "--trials", "3")
        assert ended.code == ExitCode.STORAGE, ended.err
        assert TRACE not in ended.err
    finally:
        subprocess.run(["umount", str(studies)], check=True)


def goes_on(folder: Path, words: tuple[str, ...]) -> None:
    ended = run(folder, *words)
    assert ended.code == 0, ended.err
    database = folder / "studies" / "autotune.db"
    assert rows(database, "PRAGMA integrity_check") == [("ok",)]
    assert rows(database, "SELECT number FROM autotune_trials WHERE outcome = 'measured' ORDER BY number") == [
        (n,) for n in range(6)
    ]


@pytest.mark.parametrize("encoding", ["ascii:strict", "utf-8:strict"])
def test_a_terminal_that_cannot_show_every_character(tmp_path: Path, encoding: str) -> None:
    hostile = "a\x1b[31m\udcff"
    prepare(
        tmp_path / "f", case("", (), ExitCode.OK, files={f"{hostile}/config.json": CONFIG.format(hidden=64, heads=4)})
    )
    for words in (("plan", "--workload", "chat"), ("capacity",)):
        env = {"PYTHONIOENCODING": encoding}
        ended = run(tmp_path / "f", *words, "--model", hostile, "--node", "2xL40S-48GB-PCIe", env=env)
        assert ended.code == 0, ended.err
        assert "a\\x1b[31m\\udcff" in ended.out
        assert "\x1b" not in ended.out + ended.err


def test_an_output_that_takes_nothing(tmp_path: Path) -> None:
    command = f"{sys.executable} -m autotune capacity --model {LLAMA} --node 1xH100"
    for where, code in ((">/dev/full", ExitCode.STORAGE), (">&-", ExitCode.OK), (">&- 2>&-", ExitCode.OK)):
        done = subprocess.run(["sh", "-c", f"{command} {where}"], cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == code, done.stderr
        assert b"internal" not in done.stderr


def test_nothing_measured_has_its_own_code(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        *REAL,
        *LIGHT,
        "--repeats",
        "0",
        "--trials",
        "1",
        "--name",
        "s",
        "--vllm-command",
        SIMULATED_SERVER,
        "--",
        "--sim-fault",
        "oom-at-load",
    )
    assert ended.code == ExitCode.NOTHING_MEASURED, ended.err
    assert "autotune show s 0" in ended.err
    promoted = run(tmp_path, "promote", "s", "--trial", "0", "--target", "shell", "--out", "o")
    assert promoted.code == ExitCode.NOT_PROMOTABLE
    assert LLAMA in run(tmp_path, "show", "s", "0").out
