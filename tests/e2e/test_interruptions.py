"""Whatever ends a study, and in whichever phase: no process left, nothing lost, the same command goes on.

Scenarios spend their time waiting for servers, so several go on at once, each in a folder of its own. A server goes no
step further than its study's door lets it, so that no phase is over before it was interrupted.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from autotune_command import (
    LIGHT,
    SIMULATED_SERVER,
    TINY,
    TRACE,
    Ended,
    Running,
    clean_environ,
    rows,
    run,
    wait_for,
)
from door import Door

from autotune.errors import ExitCode

AT_ONCE = 4
TRIES = 3
"""Of a scenario whose figures were void as the load client was late: the machine was busy with other things."""

PROCESS = (
    *("study", *TINY, "--engine", "process", "--vllm-command", SIMULATED_SERVER, "--name", "s"),
    *("--load", "concurrency=4,rate=30,requests=16"),
)
PHASES = ("launching", "warming", "measuring", "stopping")

OPEN = "FROM autotune_attempts WHERE state = 'open'"
LATEST_PHASE = """
SELECT t.after FROM autotune_transitions t JOIN autotune_attempts a ON a.id = t.attempt_id
WHERE a.state = 'open' ORDER BY t.id DESC LIMIT 1
"""


class Study:
    """The folder of one study, what is stored in it, and the door of its servers."""

    def __init__(
        self, folder: Path, door: Door, carrying: Callable[[str], list[int]], nothing_left: Callable[..., bool]
    ) -> None:
        self.folder, self.door = folder, door
        self.database = folder / "studies" / "autotune.db"
        self.carrying, self.nothing_left = carrying, nothing_left
        self.tuners: list[Running] = []

    def start(self, *words: str, faults: str = "", env: dict[str, str] | None = None) -> Running:
        asking = ",".join(filter(None, [self.door.fault, faults]))
        self.tuners.append(Running(self.folder, *words, env={"AUTOTUNE_SIM_FAULT": asking} | (env or {})))
        return self.tuners[-1]

    def hold(self, phase: str) -> None:
        """From now on no server takes a step in this phase."""
        self.door.holds = lambda _step: self.ask(LATEST_PHASE) == [(phase,)]

    def held(self, phase: str, *words: str, **more: Any) -> tuple[Running, str]:
        """A tuner that stays in a phase, and the marker of its processes."""
        self.hold(phase)
        tuner = self.start(*words, **more)
        return tuner, self.until(phase, tuner)

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        return rows(self.database, query)

    def until(self, phase: str, tuner: Running) -> str:
        """Wait until the open attempt is in a phase and its server runs; the marker of its processes."""

        def there() -> bool:
            assert tuner.process.poll() is None, tuner.err
            return self.ask(LATEST_PHASE) == [(phase,)] and self.marker() is not None

        wait_for(there, f"phase {phase}")
        return str(self.marker())

    def marker(self) -> str | None:
        """Of the open attempt, once its server was started."""
        found = self.ask(f"SELECT identity {OPEN}")
        identity = json.loads(found[0][0]) if found and found[0][0] else {}
        return identity["marker"] if identity.get("pgid") else None

    def listed(self) -> dict[str, Any]:
        ended = run(self.folder, "list", "--json")
        assert ended.code == 0, ended.err
        (row,) = ended.document["studies"]
        return dict(row)

    def sound(self) -> bool:
        return self.ask("PRAGMA integrity_check") == [("ok",)] and self.ask("PRAGMA foreign_key_check") == []

    def trials(self) -> list[tuple[Any, ...]]:
        """(number, outcome, attempts' states in order) of every trial."""
        return self.ask(
            "SELECT t.number, t.outcome, (SELECT group_concat(state) FROM "
            "(SELECT state FROM autotune_attempts a WHERE a.trial_id = t.id ORDER BY a.number)) "
            "FROM autotune_trials t ORDER BY t.number"
        )

    def finish(self, *words: str) -> dict[str, Any]:
        """The same command once more, this time to its end."""
        ended = run(self.folder, *words, "--json")
        assert went_well(ended), ended.err
        return dict(ended.document)

    def faulty(self, fault: str, *words: str, trials: int = 1) -> Ended:
        """A study whose every server misbehaves."""
        env = {"AUTOTUNE_SIM_FAULT": fault}
        more = ("--trials", str(trials), "--json", *words, "--", "--sim-start-s", "0.1")
        return run(self.folder, *PROCESS, *more, env=env)


def went_well(ended: Ended) -> bool:
    """Whether a study came to its end; that its client was late, as on a busy machine, says nothing about its life."""
    void = "measured, void: client_late" in ended.err
    return ended.code == ExitCode.OK or (ended.code == ExitCode.NOTHING_MEASURED and void)


def signalled(tuner: Running, number: int) -> None:
    """Send a signal, and wait until it was taken: whatever the tuner hears of from then on comes after it."""
    tuner.signal(number)

    def pending() -> int:
        try:
            status = Path(f"/proc/{tuner.process.pid}/status").read_text()
        except OSError:
            return 0
        return sum(int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd")))

    wait_for(lambda: tuner.process.poll() is not None or not pending() >> (number - 1) & 1, "the signal's delivery")


# --- the tuner is ended ---------------------------------------------------------------------------------------------


def kill_9_in_each_phase(study: Study) -> None:
    words = (*PROCESS, "--trials", "2")
    for phase in PHASES:
        tuner, marker = study.held(phase, *words)
        tuner.kill()
        assert study.ask(LATEST_PHASE) == [(phase,)]
        study.door.let_all()
        assert study.nothing_left(marker), phase
        assert study.sound()
        listed = study.listed()
        assert (listed["state"], listed["pid"], listed["done"]) == ("interrupted", None, 0)
    assert "No study is running" in run(study.folder, "status").out
    document = study.finish(*words)
    # Trial 0 was interrupted four times and then measured; trial 1 came after it.
    assert study.trials() == [(0, "measured", "interrupted," * 4 + "ended"), (1, "measured", "ended")]
    assert [trial["attempts"] for trial in document["trials"]] == [5, 1]
    assert study.listed()["state"] == "finished"
    assert study.sound()


def kill_9_of_tuner_and_keeper(study: Study) -> None:
    words = (*PROCESS, "--trials", "1")
    tuner, marker = study.held("measuring", *words, faults="orphan-session")
    keeper = json.loads(study.ask(f"SELECT identity {OPEN}")[0][0])["pid"]
    assert "keeper.py" in Path(f"/proc/{keeper}/cmdline").read_text()
    handle = os.pidfd_open(keeper)
    tuner.process.send_signal(signal.SIGSTOP)  # so that the keeper dies first and the tuner cannot clear up after it
    signal.pidfd_send_signal(handle, signal.SIGKILL)
    os.close(handle)
    tuner.kill()
    study.door.let_all()
    assert study.carrying(marker), "nothing was left to clear up, so this shows nothing"
    ended = run(study.folder, *words)
    assert went_well(ended), ended.err
    assert "stopped what trial 0 of an ended tuner left running" in ended.err
    assert study.carrying(marker) == []


def _signalled_in_each_phase(study: Study, number: int) -> None:
    words = (*PROCESS, "--trials", "2")
    for phase in PHASES:
        tuner, marker = study.held(phase, *words)
        signalled(tuner, number)
        if phase in PHASES[2:]:  # a measurement is finished, and so is a stop; whatever goes before is not
            study.door.let_all()
        assert tuner.end() == ExitCode.INTERRUPTED, (phase, tuner.err)
        assert study.nothing_left(marker, 0.2), phase
        assert "everything measured is stored" in tuner.err
        assert TRACE not in tuner.err
        assert study.ask("SELECT state FROM autotune_studies") == [("stopped",)]
    assert study.sound()
    study.finish(*words)
    # Only the two phases before a measurement cost an attempt; trial 0 was measured to its end, and so was trial 1.
    assert PHASES[2:] == ("measuring", "stopping")
    assert study.trials() == [(0, "measured", "interrupted," * 2 + "ended"), (1, "measured", "ended")]


def ctrl_c_in_each_phase(study: Study) -> None:
    _signalled_in_each_phase(study, signal.SIGINT)


def term_in_each_phase(study: Study) -> None:
    _signalled_in_each_phase(study, signal.SIGTERM)


def ctrl_c_twice_ends_a_measurement(study: Study) -> None:
    tuner, marker = study.held("measuring", *PROCESS, "--trials", "1")
    tuner.signal(signal.SIGINT)
    wait_for(lambda: "when trial 0 has been measured" in tuner.err, "the word that it goes on")
    assert study.carrying(marker)
    tuner.signal(signal.SIGINT)
    assert tuner.end() == ExitCode.INTERRUPTED
    assert study.nothing_left(marker, 0.2)
    assert study.trials() == [(0, None, "interrupted")]


def second_ctrl_c_hurries_a_server_that_does_not_go(study: Study) -> None:
    (study.folder / "patient.yaml").write_text("stop_grace_s: 600\n")
    words = (*PROCESS, "--trials", "1", "--file", "patient.yaml")
    tuner, marker = study.held("measuring", *words, faults="ignore-term,orphan")
    signalled(tuner, signal.SIGINT)
    study.door.let_all()
    study.until("stopping", tuner)
    assert study.carrying(marker)
    tuner.signal(signal.SIGINT)
    assert tuner.end(300) == ExitCode.INTERRUPTED  # without it the server has 600 s
    assert study.nothing_left(marker, 0.2)


def term_while_the_command_is_asked_for_its_flags(study: Study) -> None:
    script = study.folder / "slow.sh"
    script.write_text("#!/bin/sh\necho $$ > asked\nexec sleep 987.654\n")
    script.chmod(0o755)
    command = PROCESS.index("--vllm-command")
    tuner = study.start(*PROCESS[: command + 1], str(script))
    pid = int(
        wait_for(lambda: (study.folder / "asked").exists() and (study.folder / "asked").read_text(), "the question")
    )
    tuner.signal(signal.SIGTERM)
    assert tuner.end() == ExitCode.INTERRUPTED
    assert "stopped by the operator" in tuner.err
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the end of the question")


def stop_ends_a_study_and_a_second_tuner_is_kept_out(study: Study) -> None:
    words = (*PROCESS, "--trials", "2")
    tuner, marker = study.held("launching", *PROCESS, "--trials", "20")
    pid = tuner.process.pid
    second = run(study.folder, *words)
    assert second.code == ExitCode.STUDY_BUSY, second.err
    assert f"process {pid}" in second.err
    status = run(study.folder, "status", "--json").document["studies"]
    assert [(row["name"], row["pid"], row["state"]) for row in status] == [("s", pid, "running")]
    stopped = run(study.folder, "stop", "s")
    assert stopped.code == 0, stopped.err
    assert "is stopped" in stopped.out
    assert tuner.end() == ExitCode.INTERRUPTED
    study.door.let_all()
    assert study.nothing_left(marker, 0.2)
    assert study.listed()["state"] == "stopped"
    assert "not running" in run(study.folder, "stop", "s").out
    study.finish(*words)
    assert {outcome for _, outcome, _ in study.trials()} == {"measured"}


def a_database_that_locks_up_under_way(study: Study) -> None:
    words = (*PROCESS, "--trials", "1")
    tuner, marker = study.held("measuring", *words, env={"AUTOTUNE_BUSY_TIMEOUT_S": "0.5"})
    holder = sqlite3.connect(study.database, isolation_level=None, timeout=60)
    try:
        holder.execute("BEGIN IMMEDIATE")
        study.door.let_all()
        assert tuner.end() == ExitCode.STORAGE_LOCKED, tuner.err
    finally:
        holder.close()
    assert study.nothing_left(marker, 0.2)  # stopped by the tuner itself, before it ended
    assert TRACE not in tuner.err
    study.finish(*words)
    assert study.trials() == [(0, "measured", "interrupted,ended")]


def a_command_that_goes_missing_after_it_was_asked(study: Study) -> None:
    script = study.folder / "once.sh"
    script.write_text(f'#!/bin/sh\nrm "$0"; exec {SIMULATED_SERVER} "$@"\n')
    script.chmod(0o755)
    at = PROCESS.index(SIMULATED_SERVER)
    ended = run(study.folder, *PROCESS[:at], str(script), *PROCESS[at + 1 :], "--trials", "1")
    assert ended.code == ExitCode.VLLM_COMMAND, ended.err
    assert "cannot run" in ended.err
    assert "once.sh" in ended.err
    told = study.ask("SELECT before, event, after FROM autotune_transitions ORDER BY id DESC LIMIT 1")
    assert told == [("launching", "refused", "halted")]
    assert study.listed()["state"] == "stopped"


def a_server_that_is_not_vllm(study: Study) -> None:
    script = study.folder / "other.py"
    script.write_text(OTHER_SERVER)
    at = PROCESS.index(SIMULATED_SERVER)
    words = (*PROCESS[:at], f"{sys.executable} other.py serve", *PROCESS[at + 1 :], "--trials", "1")
    ended = run(study.folder, *words)
    assert ended.code == ExitCode.VLLM_COMMAND, ended.err
    assert "/v1/models" in ended.err
    assert study.nothing_left(json.loads(study.ask("SELECT identity FROM autotune_attempts")[0][0])["marker"], 0.2)


OTHER_SERVER = """
import http.server, sys
if "--help=all" in sys.argv:
    from autotune.simulator.server import main
    sys.exit(main(sys.argv[1:]))
class Fine(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Fine).serve_forever()
"""


# --- the server misbehaves ------------------------------------------------------------------------------------------


def results_of_a_simulated_server_are_marked_and_not_promoted(study: Study) -> None:
    ended = study.faulty("")
    assert ended.code == 0, ended.err
    document = ended.document
    assert (document["engine"], document["simulated"], document["trials"][0]["simulated"]) == ("process", True, True)
    assert "(simulated)" in ended.err
    assert study.listed()["simulated"] is True
    for words in (("pareto", "s"), ("show", "s", "0"), ("list",)):
        assert "simulated" in run(study.folder, *words).out.lower(), words
    refused = run(study.folder, "promote", "s", "--target", "shell", "--out", "out")
    assert refused.code == ExitCode.NOT_PROMOTABLE
    assert "simulated" in refused.err
    assert not (study.folder / "out").exists()
    allowed = run(
        study.folder, "promote", "s", "--target", "shell", "--out", "out", "--allow-simulated", "--skip-gate", "--json"
    )
    assert allowed.code == 0, allowed.err
    assert allowed.document["simulated"] is True
    assert run(study.folder, "pareto", "s", "--csv").out.splitlines()[1].split(",")[2].lower() == "true"


def out_of_memory_under_load_is_infeasible(study: Study) -> None:
    ended = study.faulty("oom-under-load:20")
    assert ended.code == ExitCode.NOTHING_MEASURED
    (trial,) = ended.document["infeasible"]
    assert (trial["outcome"], trial["reason"], trial["attempts"]) == ("infeasible", "oom_under_load", 1)
    assert trial["simulated"] is True
    shown = run(study.folder, "show", "s", "0", "--json").document["failure"]
    assert "OutOfMemoryError" in shown["line"]
    assert shown["remedies"]


def a_busy_gpu_is_tried_again_and_then_faulted(study: Study) -> None:
    ended = study.faulty("gpu-busy")
    assert ended.code == ExitCode.NOTHING_MEASURED
    (trial,) = ended.document["trials"]
    assert (trial["outcome"], trial["reason"], trial["attempts"]) == ("faulted", "gpu_busy", 2)
    assert ended.document["infeasible"] == []
    assert "launched again" in ended.err
    life = run(study.folder, "show", "s", "0", "--json").document["life"]
    assert [[move["event"] for move in attempt["moves"]] for attempt in life] == [
        ["attempt", "launch", "end", "spoilt"], ["attempt", "launch", "end", "exhausted"]
    ]  # fmt: skip
    assert [attempt["moves"][-1]["reason"] for attempt in life] == ["gpu_busy", "gpu_busy"]
    text = run(study.folder, "show", "s", "0").out
    assert "spoilt (gpu_busy)" in text
    assert "exhausted (gpu_busy)" in text
    assert study.trials() == [(0, "faulted", "faulted,ended")]


def a_crash_on_every_attempt_is_the_configs_own(study: Study) -> None:
    ended = study.faulty("crash-under-load:3")
    assert ended.code == ExitCode.NOTHING_MEASURED
    (trial,) = ended.document["infeasible"]
    assert (trial["outcome"], trial["reason"]) == ("infeasible", "crash")
    assert run(study.folder, "show", "s", "0", "--json").document["failure"]["exit_status"] == 1


def a_gated_model_stops_the_study_which_goes_on_once_it_is_cured(study: Study) -> None:
    gated = study.faulty("gated", trials=2)
    assert gated.code == ExitCode.STUDY_FATAL, gated.err
    assert "model_access" in gated.err
    assert "HF_TOKEN" in gated.err
    assert study.listed()["state"] == "failed"
    assert run(study.folder, "show", "s", "0", "--json").document["failure"]["class"] == "model_access"
    cured = study.faulty("", trials=2)
    assert cured.code == 0, cured.err
    assert study.trials() == [(0, "measured", "faulted,ended"), (1, "measured", "ended")]
    assert cured.document["baseline"]["number"] == 0


def a_start_that_hangs_meets_its_deadline(study: Study) -> None:
    (study.folder / "once.yaml").write_text("attempts: 1\n")
    ended = study.faulty("hang-at:weights", "--file", "once.yaml", "--start-deadline", "3")
    assert ended.code == ExitCode.NOTHING_MEASURED, ended.err
    (trial,) = ended.document["trials"]
    assert trial["reason"] == "hang"
    facts = run(study.folder, "show", "s", "0", "--json").document["failure"]["facts"]
    assert "start deadline" in facts["overdue"]
    assert 3 <= facts["waited_s"] < 1200  # which it would be by default


# --- simulated studies ----------------------------------------------------------------------------------------------

SIMULATED = ("study", *TINY, *LIGHT, "--name", "s", "--trials", "14", "--seed", "3", "--json")


def figures(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """What each trial found, without how often it was started for it."""
    names = ("number", "config_hash", "origin", "outcome", "output_tok_s", "output_tok_s_interval", "ttft_p95_s")
    return [tuple(json.dumps(trial[name]) for name in names) for trial in document["trials"]]


DOOMED = """
import os, runpy, sqlite3, sys, threading, time
folder, attempts, pause_s, number = sys.argv.pop(1), *map(float, (sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)))
def begun():
    connection = sqlite3.connect(f"file:{folder}/studies/autotune.db?mode=ro", uri=True, timeout=60)
    try:
        return connection.execute("SELECT count(*) FROM autotune_attempts").fetchone()[0]
    finally:
        connection.close()
def before():
    try:
        return begun()
    except sqlite3.OperationalError:
        return 0
def end(at):
    while before() < at:
        time.sleep(0.002)
    time.sleep(pause_s)
    os.kill(os.getpid(), int(number))
threading.Thread(target=end, args=(before() + attempts,), daemon=True).start()
runpy.run_module("autotune", run_name="__main__", alter_sys=True)
"""
"""Ends itself: an end from outside would come when the machine lets it, and the study might be over by then."""


def _doomed(study: Study, *, attempts: int, pause_s: float, number: int) -> Running:
    """The tuner of a simulated study that gets a signal a while after it has begun so many attempts."""
    words = ("-c", DOOMED, str(study.folder), str(attempts), str(pause_s), str(int(number)), *SIMULATED)
    study.tuners.append(Running(study.folder, *words, program=()))
    return study.tuners[-1]


def a_study_killed_five_times_finds_what_an_undisturbed_one_finds(study: Study) -> None:
    quiet = study.folder / "undisturbed"
    quiet.mkdir()
    undisturbed = run(quiet, *SIMULATED)
    assert undisturbed.code == 0, undisturbed.err
    moments = random.Random(20_261)
    for _ in range(5):
        assert _doomed(study, attempts=1, pause_s=moments.uniform(0.0, 0.4), number=signal.SIGKILL).end() == -9
        assert study.sound()
    assert study.listed()["state"] == "interrupted"
    ended = run(study.folder, *SIMULATED)
    assert ended.code == 0, ended.err
    assert figures(ended.document) == figures(undisturbed.document)
    assert ended.document["pick"]["number"] == undisturbed.document["pick"]["number"]
    assert len({trial["config_hash"] for trial in ended.document["trials"]}) == 14


def ctrl_c_of_a_simulated_study(study: Study) -> None:
    tuner = _doomed(study, attempts=2, pause_s=0.0, number=signal.SIGINT)
    assert tuner.end() == ExitCode.INTERRUPTED, tuner.err
    assert study.listed()["state"] == "stopped"
    assert tuner.out == ""


def plus_two_extends_a_finished_study(study: Study) -> None:
    words = ("study", *TINY, *LIGHT, "--name", "s", "--json")
    first, again, longer = (run(study.folder, *words, "--trials", trials) for trials in ("2", "2", "+2"))
    assert (first.code, again.code, longer.code) == (0, 0, 0), longer.err
    assert figures(again.document) == figures(first.document)
    assert figures(longer.document)[:2] == figures(first.document)
    assert [trial["number"] for trial in longer.document["trials"]] == [0, 1, 2, 3]


def the_reader_of_the_progress_may_go_away(study: Study) -> None:
    words = (sys.executable, "-m", "autotune", "study", *TINY, *LIGHT, "--name", "s", "--trials", "3")
    script = f"{shlex.join(words)} 2>&1 >/dev/null | head -1; exit ${{PIPESTATUS[0]}}"
    environ = clean_environ(study.folder)
    done = subprocess.run(["bash", "-c", script], cwd=study.folder, env=environ, timeout=300, check=False)
    assert done.returncode == 0
    assert [trial[:2] for trial in study.trials()] == [(0, "measured"), (1, "measured"), (2, "measured")]


SCENARIOS: tuple[Callable[[Study], None], ...] = (  # longest first
    kill_9_in_each_phase,
    ctrl_c_in_each_phase,
    term_in_each_phase,
    a_study_killed_five_times_finds_what_an_undisturbed_one_finds,
    stop_ends_a_study_and_a_second_tuner_is_kept_out,
    results_of_a_simulated_server_are_marked_and_not_promoted,
    a_gated_model_stops_the_study_which_goes_on_once_it_is_cured,
    kill_9_of_tuner_and_keeper,
    a_busy_gpu_is_tried_again_and_then_faulted,
    a_crash_on_every_attempt_is_the_configs_own,
    a_start_that_hangs_meets_its_deadline,
    second_ctrl_c_hurries_a_server_that_does_not_go,
    ctrl_c_twice_ends_a_measurement,
    plus_two_extends_a_finished_study,
    out_of_memory_under_load_is_infeasible,
    a_database_that_locks_up_under_way,
    a_server_that_is_not_vllm,
    a_command_that_goes_missing_after_it_was_asked,
    ctrl_c_of_a_simulated_study,
    term_while_the_command_is_asked_for_its_flags,
    the_reader_of_the_progress_may_go_away,
)


@pytest.fixture(scope="module")
def started(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    carrying: Callable[[str], list[int]],
    nothing_left: Callable[..., bool],
) -> Iterator[dict[str, Future[None]]]:
    """The scenarios that were selected, on their way."""
    names = {item.callspec.id for item in request.session.items if getattr(item, "function", None) is test_scenario}
    root = tmp_path_factory.mktemp("scenarios")

    def perform(scenario: Callable[[Study], None], tries: int = TRIES) -> None:
        folder = root / f"{scenario.__name__[:30]}-{tries}"
        folder.mkdir()
        study = Study(folder, Door(Path(doors) / f"{SCENARIOS.index(scenario)}-{tries}"), carrying, nothing_left)
        try:
            scenario(study)
        except AssertionError as error:
            if tries == 1 or "measured, void: client_late" not in str(error):
                raise
        else:
            return
        finally:
            study.door.let_all()
            for tuner in study.tuners:
                tuner.give_up()
            study.door.close()
        perform(scenario, tries - 1)

    # A path short enough for sockets.
    with tempfile.TemporaryDirectory(prefix="at-", dir="/tmp") as doors, ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            scenario.__name__: pool.submit(perform, scenario) for scenario in SCENARIOS if scenario.__name__ in names
        }


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_scenario(scenario: Callable[[Study], None], started: dict[str, Future[None]]) -> None:
    started[scenario.__name__].result(900)
