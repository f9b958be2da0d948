"""`autotune serve` as an operator runs it: told where it is, killed, stopped, started again."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from autotune_command import LIGHT, TINY, TRACE, rows, run, wait_for
from served_command import STUDY, Service

from autotune.errors import ExitCode


@pytest.fixture
def services() -> Iterator[list[Service]]:
    begun: list[Service] = []
    yield begun
    for one in begun:
        one.running.give_up()


def measured(folder: Path) -> int:
    found = rows(folder / "studies" / "autotune.db", "SELECT count(*) FROM autotune_trials WHERE outcome = 'measured'")
    return int(found[0][0]) if found else 0


def test_a_study_outlives_a_killed_service_and_goes_on_after_a_stopped_one(
    tmp_path: Path, services: list[Service], alive: Callable[[int], bool]
) -> None:
    services.append(first := Service(tmp_path))
    # As many as there are configs, so that the study is not over before the service has come again.
    status, job = first.ask("/api/v1/studies", STUDY | {"trials": 1000})
    assert status == 202
    wait_for(lambda: measured(tmp_path) >= 1, "the first trial")
    pid = json.loads((tmp_path / "studies/.service/jobs.json").read_text())["jobs"][0]["pid"]
    os.kill(pid, signal.SIGSTOP)  # whenever the study could get to its end before it is needed again
    first.running.kill()
    before = measured(tmp_path)
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: measured(tmp_path) > before, "a trial that ends without the service")

    os.kill(pid, signal.SIGSTOP)
    services.append(second := Service(tmp_path))
    assert (second.job()["id"], second.job()["state"]) == (job["id"], "running")
    os.kill(pid, signal.SIGCONT)
    second.running.signal(signal.SIGTERM)
    assert second.running.end() == 0
    assert not alive(pid)
    kept = json.loads((tmp_path / "studies/.service/jobs.json").read_text())["jobs"][0]
    assert kept["state"] == "interrupted"
    done = measured(tmp_path)
    assert done < 1000

    services.append(third := Service(tmp_path))
    wait_for(lambda: third.job()["state"] == "finished", "the end of the study")
    numbers = rows(tmp_path / "studies/autotune.db", "SELECT number, outcome FROM autotune_trials ORDER BY number")
    assert len(numbers) > done
    assert numbers == [(number, "measured") for number in range(len(numbers))]
    assert "Traceback" not in "".join(one.running.err for one in services)


def test_beyond_the_loopback_it_wants_a_token_that_is_shown_once(tmp_path: Path, services: list[Service]) -> None:
    refused = run(tmp_path, "serve", "--host", "0.0.0.0")
    assert refused.code == 24
    assert "--host: '0.0.0.0' is not accepted" in refused.err
    made = run(tmp_path, "serve", "--new-token")
    token = made.out.strip()
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and token in path.read_text(errors="replace")]
    assert kept == []
    services.append(service := Service(tmp_path, "--host", "0.0.0.0", env={"AUTOTUNE_TOKEN": "e" * 40}))
    service.url = service.url.replace("0.0.0.0", "127.0.0.1")
    assert [service.ask("/api/v1/studies", token=one)[0] for one in (None, "x" * 40, token, "e" * 40)] == [
        401,
        401,
        200,
        200,
    ]


def test_it_speaks_tls(tmp_path: Path, services: list[Service]) -> None:
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days",
         "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=tmp_path, capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("no openssl to make a certificate with")
    services.append(service := Service(tmp_path, "--tls-cert", "cert.pem", "--tls-key", "key.pem"))
    assert service.url.startswith("https://")
    trusted = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    assert service.ask("/api/v1/studies", context=trusted) == (200, {"schema": 1, "studies": []})
    alone = run(tmp_path, "serve", "--tls-cert", "cert.pem")
    assert (alone.code, "--tls-cert and --tls-key together" in alone.err) == (24, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--models-dir", "nowhere"), "--models-dir: 'nowhere'"),
        (("--files-dir", "nowhere"), "--files-dir: 'nowhere'"),
        (("--token-file", "nowhere"), "nowhere: 'no file'"),
        (("--host", "256.0.0.1"), "--host"),
        (("--tls-cert", "x", "--tls-key", "y"), "--tls-cert: 'x'"),
    ],
)
def test_what_it_cannot_use_it_says(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    ended = run(tmp_path, "serve", *words, env={"AUTOTUNE_TOKEN": "t" * 40})
    assert ended.code in (15, 24)
    assert said in ended.err


def test_a_port_that_is_taken_is_said(tmp_path: Path, services: list[Service]) -> None:
    services.append(service := Service(tmp_path))
    port = service.url.rpartition(":")[2]
    second = run(tmp_path, "serve", "--port", port, "--studies-dir", "other")
    assert (second.code, "--port" in second.err) == (ExitCode.INVALID_OPTION, True)
    other = run(tmp_path, "serve", "--port", "0")
    assert (other.code, "another `autotune serve` runs" in other.err) == (ExitCode.STUDY_BUSY, True)


def test_a_folder_that_cannot_be_written_is_one_error_and_can_still_be_looked_at(
    tmp_path: Path, services: list[Service]
) -> None:
    words = ("--engine", "simulated", "--trials", "1", "--name", "s")
    assert run(tmp_path, "study", *TINY, *LIGHT, *words).code == 0
    studies = tmp_path / "studies"
    bound = subprocess.run(["mount", "--bind", str(studies), str(studies)], capture_output=True, check=False)
    if bound.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(studies)], check=True)
        refused = run(tmp_path, "serve", "--port", "0")
        assert refused.code == ExitCode.STORAGE
        assert [("Read-only file system" in refused.err), ("--look-only" in refused.err)] == [True, True]
        services.append(looking := Service(tmp_path, "--look-only"))
        assert [study["name"] for study in looking.ask("/api/v1/studies")[1]["studies"]] == ["s"]
        assert looking.ask("/api/v1/studies/s/front")[1]["baseline"]["number"] == 0
        assert looking.ask("/api/v1/studies/s/page/evidence")[0] == 200
        assert looking.ask("/api/v1/nodes")[0] == 200
        assert looking.ask("/api/v1/studies", STUDY)[0] == 403
        looking.running.signal(signal.SIGTERM)
        assert looking.running.end() == 0
        assert TRACE not in looking.running.err + refused.err
    finally:
        for one in services:
            one.running.give_up()
        subprocess.run(["umount", str(studies)], check=True)
