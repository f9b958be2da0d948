"""What the chaos harness deals, and that each of its checks can fail."""

from __future__ import annotations

import fcntl
import os
import random
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.life import OUTCOMES, Event, Life, State, advance, next_event, verdict
from autotune.records import INFEASIBLE_CLASSES, ClockKind, Failure, FailureClass, Outcome, TrialResult
from autotune.simulator.server_faults import parse_faults
from autotune.simulator.server_start import leave_worker
from benchmarks.chaos.__main__ import VIOLATIONS, summary
from benchmarks.chaos.dealing import ATTEMPTS, FAULTS, HEALTHY, KILLED_IN, Deal, Seen, deal, wrong
from benchmarks.chaos.driver import pynvml
from benchmarks.chaos.processes import Computing, Strangers, left_in, locked_files, wait_until_left
from benchmarks.chaos.rounds import Report
from benchmarks.chaos.server import faults_of, leave_files


def test_every_fault_and_every_phase_come_by_turns() -> None:
    rounds = [deal(7, number) for number in range(2 * len(FAULTS))]
    for part in (rounds[: len(FAULTS)], rounds[len(FAULTS) :]):
        assert {fault for one in part for trial in one.faults for fault in trial} >= set(FAULTS)
    assert {kill.phase for one in rounds for kill in one.kills} == set(KILLED_IN)
    assert rounds == [deal(7, number) for number in range(2 * len(FAULTS))]
    assert rounds != [deal(8, number) for number in range(2 * len(FAULTS))]
    assert max(sum(fault.tight for trial in one.faults for fault in trial) for one in rounds) == 1
    for fault in FAULTS:
        parse_faults([text.format(socket="/s") for text in fault.faults])


def lived(dealt: Deal, trial: int, chance: random.Random) -> tuple[list[Seen], str, str | None]:
    """A trial's attempts as the program's own table makes them, with kills at random."""
    life, seen = Life(), []
    while life.state is not State.DONE:
        life = advance(life, next_event(life)).life
        if chance.random() < 0.2:
            life = advance(life, Event.LOST).life
            seen.append(Seen(state="interrupted", reason=None))
            continue
        end = sorted(dealt.fault(trial, life.attempts).ends)[0]
        kind = None if end == "measured" else FailureClass(end)
        outcome = Outcome.MEASURED if kind is None else Outcome.FAULTED
        outcome = Outcome.INFEASIBLE if kind in INFEASIBLE_CLASSES else outcome
        failure = Failure(kind=kind, line="") if kind else None
        result = TrialResult(outcome=outcome, clock=ClockKind.WALL, simulated=True, failure=failure)
        event = verdict(life, result, most_attempts=ATTEMPTS, cured=False, proven=False)
        life = advance(replace(life, state=State.ENDED), event, kind).life
        ended = life.state is State.DONE
        seen.append(Seen(state="ended" if ended else "faulted", reason=None if ended or kind is None else str(kind)))
    return seen, str(OUTCOMES[event]), str(kind) if kind else None


def test_the_oracle_agrees_with_the_table_and_notices_every_other_end() -> None:
    chance = random.Random(1)
    for number in range(3 * len(FAULTS)):
        dealt = deal(3, number)
        for trial in range(2):
            seen, outcome, reason = lived(dealt, trial, chance)
            assert wrong(dealt, trial, seen, outcome, reason) == [], (dealt, seen)
            others = {"measured", "infeasible", "faulted", "abandoned"} - {outcome}
            assert all(wrong(dealt, trial, seen, other, reason) for other in others)
            assert wrong(dealt, trial, seen, outcome, "invalid_flag")
            assert wrong(dealt, trial, [*seen, Seen(state="ended", reason=None)], outcome, reason)


def test_a_server_knows_which_attempt_it_is() -> None:
    plan = {"1/2": "nccl", "3/1": "gated"}
    assert faults_of("/x/studies/s/trial-0001-attempt-2/server.log", plan) == "nccl"
    assert faults_of("/x/studies/s/trial-0003/server.log", plan) == "gated"
    assert faults_of("/x/studies/s/trial-0001/server.log", plan) == ""
    assert faults_of("pipe:[4711]", plan) == ""


def test_a_server_leaves_what_a_killed_vllm_leaves(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_RPC_BASE_PATH", raising=False)
    leave_files(str(short_tmp))
    assert sorted(path.is_socket() for path in short_tmp.iterdir()) == [False, True, True]


def test_whoever_is_left_is_found_though_re_titled_and_without_an_environment(tmp_path: Path) -> None:
    here = Path.cwd()
    noenv = os.environ.pop("SPT_NOENV", None)
    os.chdir(tmp_path)
    try:
        pid = leave_worker(new_session=True)
    finally:
        os.chdir(here)
        if noenv is not None:
            os.environ["SPT_NOENV"] = noenv
    try:
        assert left_in(tmp_path, "mark") == [pid]
        assert left_in(tmp_path / "other", "mark") == []
        assert wait_until_left(tmp_path, "mark", 0.1) == [pid]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert left_in(tmp_path, "mark") == []


def test_locks_that_are_held_are_found(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with (tmp_path / "a" / "port-1.lock").open("w") as held, (tmp_path / "free.lock").open("w"):
        fcntl.flock(held, fcntl.LOCK_EX)
        assert locked_files(tmp_path) == ["port-1.lock"]
    assert locked_files(tmp_path) == []


def test_strangers_that_were_ended_are_missed(tmp_path: Path) -> None:
    strangers = Strangers(tmp_path / "door")
    try:
        assert strangers.hit() == 0
        os.kill(strangers.pids[1], signal.SIGKILL)
        os.waitid(os.P_PID, strangers.pids[1], os.WEXITED | os.WNOWAIT)
        assert strangers.hit() == 1
    finally:
        strangers.close()


@pytest.mark.parametrize("name", VIOLATIONS)
def test_every_violation_is_counted_and_told(name: str) -> None:
    well = Report(number=0, seconds=2.0, attempts=["healthy"], kills=["warming"])
    bad = replace(well, number=1, **{name: ["so it was"]})
    found = summary(5, [well, bad])
    assert {key: found[key] for key in VIOLATIONS} == {key: int(key == name) for key in VIOLATIONS}
    assert found["told"] == [f"round 1, {name}: so it was"]
    assert (found["rounds"], found["by_kind"], found["kills"]) == (2, {"healthy": 2}, {"warming": 2})
    assert summary(5, [well], missing=1)["hangs"] == 1


def test_attempts_beyond_the_deal_are_healthy() -> None:
    dealt = deal(0, 0)
    assert dealt.fault(0, 9) is HEALTHY
    assert dealt.fault(5, 1) is HEALTHY


def test_a_gpu_is_used_by_whoever_has_it_open_and_two_servers_on_it_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(2):
        (tmp_path / f"nvidia{index}").touch()
    monkeypatch.setenv(pynvml.FOLDER, str(tmp_path))
    assert pynvml.nvmlDeviceGetCount() == 2
    assert pynvml.holders() == {}
    assert pynvml.nvmlDeviceGetMemoryInfo(0).used == pynvml.IDLE_BYTES
    device = os.open(tmp_path / "nvidia1", os.O_RDONLY)
    worker = leave_worker(new_session=True)  # forked, re-titled, in a session of its own
    os.close(device)
    try:
        assert pynvml.holders() == {str(tmp_path / "nvidia1"): [worker]}
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        (held,) = pynvml.hold()
        assert sorted(pynvml.holders()[str(tmp_path / "nvidia1")]) == sorted([worker, os.getpid()])
        os.close(held)
        (line,) = (tmp_path / pynvml.COLLISIONS).read_text().splitlines()
        assert line == f"GPU 1 has [{worker}], and {os.getpid()} comes"
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


def test_a_stranger_who_computes_ends_by_himself_or_was_hit(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    calm = Computing(tmp_path / "nvidia0", 0.05)
    while calm.running():
        assert not calm.hit()
    assert not calm.hit()
    struck = Computing(tmp_path / "nvidia0", 60.0)
    os.kill(struck.pid, signal.SIGKILL)
    while not struck.hit():
        pass
    calm.close()
    struck.close()
