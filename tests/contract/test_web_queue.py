"""The queue over HTTP: one job at a time on the node, on disk before it happens, and nothing that was not allowed."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from aiohttp import web
from web_service import DEPLOYMENT, STUDY, Client, serving, studies_in

from autotune.errors import StudyBusy
from autotune.store.folder import LockHolder
from autotune.store.places import Places
from autotune.store.study_record import StudyState
from autotune.web.app import make_app
from autotune.web.policy import Policy
from autotune.web.settings import Limits, ServeSettings

API = "/api/v1"
PROGRAM = (sys.executable, str(Path(__file__).with_name("web_program.py")))
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def study(name: str, does: str = "quick", **more: Any) -> dict[str, Any]:
    return {"model": LLAMA, "workload": "tiny", "name": name, "description": does, **more}


async def until(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not look():
            await asyncio.sleep(0.02)


def state_of(client: Client, job: dict[str, Any]) -> str:
    return str(client.service.queue.found(job["id"]).state)


async def has_state(client: Client, job: dict[str, Any], *states: str) -> None:
    await until(lambda: state_of(client, job) in states)


async def is_ready(client: Client, job: dict[str, Any]) -> None:
    """Its process runs and minds signals."""
    log = client.service.queue.log_file(job["id"])
    await until(lambda: log.exists() and "ready" in log.read_text() and job["id"] in client.service.queue._watchers)


def settings_in(folder: Path, **more: Any) -> ServeSettings:
    return ServeSettings(places=Places(root=folder / "studies"), **more)


async def test_one_job_has_the_node_and_the_others_wait_in_order(tmp_path: Path) -> None:
    async with serving(settings_in(tmp_path), program=PROGRAM) as client:
        jobs = []
        for name in ("a", "b", "c"):
            status, job = await client.post(f"{API}/studies", study(name, "long" if name == "a" else "quick"))
            assert status == 202
            jobs.append(job)
        await is_ready(client, jobs[0])
        _, queue = await client.get(f"{API}/jobs")
        assert [(job["study"], job["state"], job["position"]) for job in reversed(queue["jobs"])] == [
            ("a", "running", None),
            ("b", "queued", 1),
            ("c", "queued", 2),
        ]
        assert queue["running"] == jobs[0]["id"]
        path = f"{API}/jobs/{jobs[1]['id']}"
        status, stopped = await client.send("DELETE", path, headers={"X-Autotune": "1"})
        assert (status, stopped["state"], stopped["position"]) == (202, "stopped", None)
        assert (await client.post(f"{API}/studies/a/stop"))[1] == {"study": "a", "state": "stopping"}
        await has_state(client, jobs[0], "stopped")
        await has_state(client, jobs[2], "finished")
        assert state_of(client, jobs[1]) == "stopped"
        _, ended = await client.get(f"{API}/jobs/{jobs[0]['id']}")
        assert (ended["exit_code"], ended["position"]) == (130, None)


async def test_what_a_job_runs_is_the_study_command_with_a_checked_file(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, vllm_command="/opt/vllm/bin/vllm")
    async with serving(settings, program=PROGRAM) as client:
        body = study("x", trials=7, load={"concurrency": 4}, slo="ttft_p95<=500ms")
        _, job = await client.post(f"{API}/studies", body)
        await has_state(client, job, "finished")
        file = settings.folder / "studies" / "x.yaml"
        assert yaml.safe_load(file.read_text()) == body
        words = ["study", "--file", str(file), "--name", "x", "--vllm-command", "/opt/vllm/bin/vllm"]
        assert list(client.service.queue.found(job["id"]).words) == words
        _, log = await client.get(f"{API}/jobs/{job['id']}/log?offset=0")
        assert log["text"].splitlines()[1] == " ".join(["words", *words])


async def test_a_job_that_fails_says_why_in_the_command_lines_words(tmp_path: Path) -> None:
    async with serving(settings_in(tmp_path), program=PROGRAM) as client:
        _, job = await client.post(f"{API}/studies", study("x", "fail"))
        await has_state(client, job, "failed")
        _, ended = await client.get(f"{API}/jobs/{job['id']}")
    assert (ended["exit_code"], ended["message"]) == (24, "--model: 'x' is not accepted; allowed: a model")


async def test_a_service_that_ends_leaves_its_study_to_the_next_one(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with serving(settings, program=PROGRAM) as client:
        _, job = await client.post(f"{API}/studies", study("x", "long"))
        await is_ready(client, job)
        pid = client.service.queue.found(job["id"]).pid
        assert pid is not None
    assert not psutil.pid_exists(pid)
    (kept,) = json.loads((settings.folder / "jobs.json").read_text())["jobs"]
    assert kept["state"] == "interrupted"
    async with serving(settings, program=PROGRAM) as client:
        await has_state(client, job, "running")
        await until(lambda: client.service.queue.found(job["id"]).pid is not None)
        assert client.service.queue.found(job["id"]).pid != pid


async def test_a_service_that_ends_as_a_job_begins_leaves_no_process(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    for name in ("a", "b", "c"):
        async with serving(settings, program=PROGRAM) as client:
            await client.post(f"{API}/studies", study(name, "long"))
            await asyncio.sleep(0)  # it is being launched, or not yet
    left = [one.pid for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(one.info["cmdline"] or ())]
    assert left == []
    kept = json.loads((settings.folder / "jobs.json").read_text())["jobs"]
    assert {job["state"] for job in kept} <= {"interrupted", "queued"}


@pytest.mark.parametrize("known", [True, False], ids=["its pid was kept", "killed before its pid was kept"])
async def test_the_study_of_a_killed_service_is_found_again(tmp_path: Path, known: bool) -> None:
    settings = settings_in(tmp_path)
    file = settings.folder / "jobs.json"
    async with serving(settings, program=PROGRAM) as client:
        _, job = await client.post(f"{API}/studies", study("x", "long"))
        await is_ready(client, job)
        left = json.loads(file.read_text())
        pid = left["jobs"][0]["pid"]
        client.service.queue._watchers.pop(job["id"]).cancel()  # as if killed: nobody waits for it or signals it
        client.service.queue._jobs = client.service.queue._jobs.changed(job["id"], pid=None)
    if not known:
        left["jobs"][0] |= {"pid": None, "pid_started": None}
    file.write_text(json.dumps(left))
    assert psutil.pid_exists(pid)
    async with serving(settings, program=PROGRAM) as client:
        found = client.service.queue.found(job["id"])
        assert (found.state, found.pid) == ("running", pid)
        await client.post(f"{API}/studies/x/stop")
        await has_state(client, job, "stopped")


async def test_what_was_begun_and_is_nowhere_is_begun_again(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with serving(settings, program=PROGRAM) as client:
        _, job = await client.post(f"{API}/studies", study("x"))
        await has_state(client, job, "finished")
    file = settings.folder / "jobs.json"
    left = json.loads(file.read_text())
    left["jobs"][0] |= {"state": "running", "ended_at": None, "exit_code": None, "pid": None}
    file.write_text(json.dumps(left))
    async with serving(settings, program=PROGRAM) as client:
        await has_state(client, job, "finished")
        log = client.service.queue.log_file(job["id"]).read_text()
    assert log.count("--- begun at") == 2


async def test_a_disk_that_was_full_for_a_while_loses_nothing_and_holds_nothing_up(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    file = settings.folder / "jobs.json"
    async with serving(settings, program=PROGRAM) as client:
        _, first = await client.post(f"{API}/studies", study("a", "long"))
        _, second = await client.post(f"{API}/studies", study("b"))
        await is_ready(client, first)
        full = file.with_name("jobs.json.part")
        full.mkdir()  # as a full disk: nothing can be written there
        status, refused = await client.post(f"{API}/studies", study("c"))
        assert (status, refused["type"]) == (500, "urn:autotune:problem:storage")
        assert (await client.post(f"{API}/studies/a/stop"))[0] == 202
        await has_state(client, first, "stopped")
        await until(lambda: "jobs.json" in (client.service.queue.waiting_for or ""))
        assert state_of(client, second) == "queued"
        assert [one["state"] for one in json.loads(file.read_text())["jobs"]] == ["running", "queued"]
        full.rmdir()
        await has_state(client, second, "finished")
        assert client.service.queue.waiting_for is None
        assert [one["state"] for one in json.loads(file.read_text())["jobs"]] == ["stopped", "finished"]


async def test_a_second_service_is_refused(tmp_path: Path) -> None:
    async with serving(settings_in(tmp_path)):
        second = web.AppRunner(make_app(settings_in(tmp_path)))
        with pytest.raises(StudyBusy, match="another `autotune serve`"):
            await second.setup()
        await second.cleanup()


async def test_the_queue_waits_for_a_study_of_the_command_line(tmp_path: Path) -> None:
    places = studies_in(tmp_path)
    async with serving(ServeSettings(places=places), program=PROGRAM) as client:
        await client.service.ask(lambda store: store.set_study_state(STUDY, StudyState.RUNNING))
        me = LockHolder(pid=os.getpid(), started=psutil.Process().create_time())
        with places.folder(STUDY).locked(me):
            _, job = await client.post(f"{API}/studies", study("x"))
            await until(lambda: client.service.queue.waiting_for is not None)
            _, queue = await client.get(f"{API}/jobs")
            assert queue["waiting_for"] == f"study {STUDY} is being run by process {os.getpid()}"
            assert state_of(client, job) == "queued"
        await has_state(client, job, "finished")


async def test_a_study_is_asked_for_once(tmp_path: Path) -> None:
    places = studies_in(tmp_path)
    async with serving(ServeSettings(places=places, limits=Limits(queued=2)), program=PROGRAM) as client:
        status, found = await client.post(f"{API}/studies", study(STUDY))
        assert (status, found["type"]) == (409, "urn:autotune:problem:study-exists")
        _, job = await client.post(f"{API}/studies", study("x", "long"))
        await is_ready(client, job)
        answers = await asyncio.gather(*(client.post(f"{API}/studies", study("y", trials=n)) for n in (3, 4)))
        assert sorted(status for status, _ in answers) == [202, 409]
        (accepted,) = [n for n, (status, _) in zip((3, 4), answers, strict=True) if status == 202]
        kept = client.service.settings.folder / "studies" / "y.yaml"
        assert yaml.safe_load(kept.read_text())["trials"] == accepted
        assert (await client.post(f"{API}/studies", study("z")))[0] == 202
        status, full = await client.post(f"{API}/studies", study("more"))
        assert (status, full["type"]) == (503, "urn:autotune:problem:queue-full")


async def test_a_study_goes_on_with_more_trials_and_never_twice(tmp_path: Path) -> None:
    places = studies_in(tmp_path)
    async with serving(ServeSettings(places=places), program=PROGRAM) as client:
        status, found = await client.post(f"{API}/studies/{STUDY}/start")
        assert (status, found["type"]) == (409, "urn:autotune:problem:not-ours")
        assert (await client.post(f"{API}/studies/none/start"))[0] == 404
        folder = client.service.settings.folder / "studies"
        folder.mkdir()
        (folder / f"{STUDY}.yaml").write_text(yaml.safe_dump(study(STUDY)))
        status, job = await client.post(f"{API}/studies/{STUDY}/start", {"trials": "+3"})
        assert status == 202
        words = client.service.queue.found(job["id"]).words
        assert words[-2:] == ("--trials", "7")  # four and three, as a number: a second run adds nothing


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vllm_command", "/bin/sh -c x"),
        ("notify_command", ["/bin/sh", "-c", "x"]),
        ("notify_url", "http://127.0.0.1/"),
        ("ray_address", "127.0.0.1:6379"),
        ("ray_address", "gpu01:99999"),
        ("ray_nodes", ["gpu01"]),
        ("executor", "slurm"),
        ("description", "a\ud800"),
        ("description", "a\x00"),
        ("extra_args", ["--trust-remote-code"]),
        ("extra_args", ["--chat-template=/etc/passwd"]),
        ("model", "/etc"),
        ("model", "../models/x"),
        ("model", "~/x"),
        ("model", "-x"),
        ("checkpoints", ["org/x", "/tmp/x"]),
        ("space", "/tmp/space.yaml"),
        ("space", "space.yaml"),
        ("workload", "../log.jsonl"),
        ("workload", "requests.jsonl"),
        ("quality", {"prompts": "/etc/passwd"}),
        ("starting_points", [{"env:LD_PRELOAD": "/tmp/x.so"}]),
        ("starting_points", [{"trust-remote-code": True}]),
        ("starting_points", [{"speculative-config": '{"model": "/tmp/x"}'}]),
        ("name", "../x"),
        ("name", "autotune.db"),
        ("sampler", "best"),
        ("node", "9xB900"),
        ("slo", "soon"),
        ("min_gain", 0.1),
        ("trials", "24"),
        ("env", {"LD_PRELOAD": "x"}),
    ],
)
async def test_a_request_runs_reads_and_sets_nothing_that_the_operator_did_not_allow(
    tmp_path: Path, key: str, value: object
) -> None:
    body = {"model": LLAMA, "workload": "tiny", "name": "x", "sampler": "tpe", key: value}
    async with serving(settings_in(tmp_path), program=PROGRAM) as client:
        status, found = await client.post(f"{API}/studies", body)
        assert (status, found["type"].rpartition(":")[2]) in {
            (422, "invalid-value"), (422, "unknown-search-space"), (422, "unknown-workload"), (422, "unknown-node"),
        }  # fmt: skip
        assert client.service.queue.jobs.jobs == ()
    if key.startswith("notify"):
        assert "127.0.0.1" not in json.dumps(found)


async def test_what_the_operator_allowed_is_taken(tmp_path: Path) -> None:
    files, models = tmp_path / "files", tmp_path / "models"
    files.mkdir()
    (models / "mine").mkdir(parents=True)
    (files / "space.yaml").write_text("x")
    (models / "out").symlink_to("/etc")
    policy = Policy(
        files=files,
        model_folders=(models,),
        server_flags=("trust-remote-code",),
        models=("org/*",),
        simulated_only=True,
    )
    async with serving(settings_in(tmp_path, policy=policy), program=PROGRAM) as client:
        body = {
            "model": str(models / "mine"), "name": "x", "space": "space", "extra_args": ["--trust-remote-code"],
        }  # fmt: skip
        _, job = await client.post(f"{API}/studies", body)
        await has_state(client, job, "finished")
        written = yaml.safe_load((client.service.settings.folder / "studies" / "x.yaml").read_text())
        assert written == {**body, "space": str(files / "space.yaml"), "engine": "simulated"}
        for wrong in ({"model": LLAMA}, {"model": str(models / "out")}, {"model": "org/x", "engine": "process"}):
            assert (await client.post(f"{API}/studies", {"name": "y", **wrong}))[0] == 422
        assert (await client.post(f"{API}/studies", {"name": "y", "model": "org/x"}))[0] == 202


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra [ray] is not installed")
async def test_a_cluster_that_the_operator_allowed_is_joined(tmp_path: Path) -> None:
    policy = Policy(ray_addresses=("gpu01:6379",))
    async with serving(settings_in(tmp_path, policy=policy), program=PROGRAM) as client:
        _, told = await client.get(f"{API}/service")
        assert told["policy"]["executors"] == ["local", "ray"]
        assert told["policy"]["ray_addresses"] == ["auto", "gpu01:6379"]
        on_ray = {"model": LLAMA, "name": "x", "executor": "ray"}
        for body in ({**on_ray, "ray_address": "gpu01:6379"}, {**on_ray, "name": "y"}):
            status, job = await client.post(f"{API}/studies", body)
            assert status == 202, job
            written = yaml.safe_load(
                (client.service.settings.folder / "studies" / f"{body['name']}.yaml").read_text()
            )  # fmt: skip
            assert written == body
        for key, wrong in (("ray_address", "gpu02:6379"), ("ray_address", "gpu01:0"), ("gpus", [0])):
            status, found = await client.post(f"{API}/studies", {**on_ray, "name": "z", key: wrong})
            assert (status, found["exit_code"], [one["key"] for one in found["errors"]]) == (422, 24, [key])


class TestPromotions:
    async def test_a_simulated_one_needs_leave(self, tmp_path: Path) -> None:
        async with serving(ServeSettings(places=studies_in(tmp_path)), program=PROGRAM) as client:
            for path in ("promotions", "previews"):
                status, found = await client.post(f"{API}/{path}", {"study": STUDY, "targets": ["compose"]})
                assert (status, found["exit_code"]) == (409, 26)
            assert client.service.queue.jobs.jobs == ()

    async def test_it_is_a_job_that_waits_for_the_node(self, tmp_path: Path) -> None:
        settings = ServeSettings(places=studies_in(tmp_path))
        async with serving(settings, program=PROGRAM) as client:
            body = {
                "study": STUDY, "targets": ["compose", "shell"], "trial": 1, "allow_simulated": True, "name": "chat",
                "reason": "-x; $(y)", "against": "baseline",
            }  # fmt: skip
            status, job = await client.post(f"{API}/promotions", body)
            assert (status, job["kind"], job["trial"], job["deployment"]) == (202, "promotion", 1, "chat")
            assert list(client.service.queue.found(job["id"]).words) == [
                "promote", STUDY, "--target", "compose,shell", "--name", "chat",
                "--out", str(settings.promotions / "chat"), "--author", "the service", "--trial", "1",
                "--against", "baseline", "--gate-launches", "4", "--port", "8000", "--reason=-x; $(y)",
                "--allow-simulated",
            ]  # fmt: skip
            assert client.service.queue.found(job["id"]).needs_node

    async def test_a_preview_shows_files_and_what_changes_and_writes_nothing(self, tmp_path: Path) -> None:
        settings = ServeSettings(places=studies_in(tmp_path))
        async with serving(settings) as client:
            body = {
                "study": STUDY, "targets": ["vllm-config"], "trial": 1, "allow_simulated": True, "name": DEPLOYMENT,
            }  # fmt: skip
            status, found = await client.post(f"{API}/previews", body)
            _, history = await client.get(f"{API}/promotions")
        assert status == 200
        assert (found["trial"], found["current"]) == (1, f"{DEPLOYMENT}@1")
        assert all(file["text"] for file in found["files"])
        assert (found["diff"]["a"], found["diff"]["b"]) == (f"{DEPLOYMENT}@1", f"{DEPLOYMENT}@2")
        assert len(history["promotions"]) == 1
        assert not settings.promotions.exists()

    async def test_a_secret_in_a_reason_is_neither_kept_nor_rendered(self, tmp_path: Path) -> None:
        secret = "hf_" + "Q7" * 17
        settings = ServeSettings(places=studies_in(tmp_path))
        async with serving(settings, program=PROGRAM) as client:
            body = {
                "study": STUDY, "targets": ["compose"], "trial": 1, "allow_simulated": True, "name": "chat",
                "reason": f"with {secret}", "author": f"me {secret}",
            }  # fmt: skip
            _, preview = await client.post(f"{API}/previews", body)
            _, job = await client.post(f"{API}/promotions", body)
            words = client.service.queue.found(job["id"]).words
        assert "with <redacted>" in preview["files"][0]["text"]
        assert {"--reason=with <redacted>", "me <redacted>"} <= set(words)
        assert "Q7" not in json.dumps(preview) + (settings.folder / "jobs.json").read_text()

    async def test_files_outside_the_services_folder_are_not_rolled_back(self, tmp_path: Path) -> None:
        async with serving(ServeSettings(places=studies_in(tmp_path))) as client:
            status, found = await client.post(f"{API}/promotions/{DEPLOYMENT}/rollback")
        assert (status, found["exit_code"]) == (409, 26)
        assert "where no request may write" in found["detail"]

    @pytest.mark.parametrize(
        "wrong",
        [
            {"targets": []},
            {"targets": ["nomad"]},
            {"name": "../x"},
            {"name": "-x"},
            {"reason": "a\nb"},
            {"gate_launches": 3},
            {"against": "/etc/passwd"},
            {"image": "evil/image"},
            {"trial": 1, "pick": "knee"},
            {"slo": "soon"},
        ],
    )
    async def test_what_it_may_not_say(self, tmp_path: Path, wrong: dict[str, Any]) -> None:
        body = {"study": STUDY, "targets": ["compose"], "allow_simulated": True, **wrong}
        async with serving(ServeSettings(places=studies_in(tmp_path)), program=PROGRAM) as client:
            assert (await client.post(f"{API}/promotions", body))[0] == 422
            assert client.service.queue.jobs.jobs == ()


def test_signals_reach_only_the_process_that_was_started() -> None:
    from autotune.web.job import Job, JobKind, JobState
    from autotune.web.job_process import ask_to_end

    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        job = Job(
            id="j-1", kind=JobKind.STUDY, study="x", words=(), created_at="", marker="", state=JobState.RUNNING,
            pid=os.getpid(), pid_started=psutil.Process().create_time() - 100,
        )  # fmt: skip
        ask_to_end(job)  # this process has its number, and is another one
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == []


async def test_a_job_that_is_given_up_before_it_was_waited_for_is_waited_for_by_nobody(tmp_path: Path) -> None:
    waits: list[str] = []

    async def end() -> int:
        waits.append("begun")
        return 0

    async with serving(settings_in(tmp_path), program=PROGRAM) as client:
        queue = client.service.queue
        queue._watch("j-none", end)
        queue._watchers.pop("j-none").cancel()
        await asyncio.sleep(0)
    assert waits == []  # a coroutine made beforehand would have been left there, which Python warns of
