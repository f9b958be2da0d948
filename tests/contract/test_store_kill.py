"""A tuner that is killed with -9 at any moment leaves a whole database with every finished trial."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time

from autotune.store.repository import Store
from autotune.store.study_record import AttemptState

TUNER = textwrap.dedent(
    """
    import sys
    sys.path[:0] = sys.argv[3:]
    import store_samples as samples
    from datetime import UTC, datetime
    from autotune.life import Event, State, Transition
    from autotune.records import ClockKind
    from autotune.store.repository import Store

    with Store.open(sys.argv[1]) as store, open(sys.argv[2], "a") as journal:
        store.create_or_resume_study(samples.spec())
        for attempt in store.unfinished_attempts("s"):
            store.interrupt_attempt("s", attempt.trial, attempt.number)
        trials = store.trials("s")
        waiting = [trial.number for trial in trials if trial.result is None]
        number = waiting[0] if waiting else len(trials)
        while True:
            if not waiting:
                samples.begin_trial(store, number)
            waiting = []
            attempt = store.begin_attempt("s", number, directory=f"t/{number}")
            for before, event, after in (
                (State.WAITING, Event.LAUNCH, State.LAUNCHING), (State.LAUNCHING, Event.READY, State.WARMING)
            ):
                at, move = datetime.now(UTC), Transition(before=before, event=event, after=after)
                store.record_phase("s", number, attempt, move, at_utc=at, elapsed_s=1.0, clock=ClockKind.VIRTUAL)
            store.finish_trial("s", number, samples.measured(1000.0 + number))
            journal.write(f"{number}\\n")
            journal.flush()
            number += 1
    """
)


def test_kill_at_random_moments(tmp_path, request):
    database, journal = tmp_path / "a.db", tmp_path / "journal"
    samples = str(request.config.rootpath / "tests" / "unit" / "store")
    chance = random.Random(20260301)
    seen = 0
    for _ in range(6):
        command = [sys.executable, "-c", TUNER, str(database), str(journal), samples, str(request.config.rootpath)]
        tuner = subprocess.Popen(command, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 300
        # Wait until this tuner has finished a trial, so that every round kills one at work, then a random moment more.
        while tuner.poll() is None and lines(journal) <= seen and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(chance.uniform(0.0, 0.08))
        tuner.send_signal(signal.SIGKILL)
        _, stderr = tuner.communicate()
        assert tuner.returncode == -signal.SIGKILL, stderr.decode()
        seen = lines(journal)

        raw = sqlite3.connect(database)
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
        raw.close()
        check(database, {int(line) for line in journal.read_text().split()})
    assert seen >= 6


def lines(journal) -> int:
    return journal.read_text().count("\n") if journal.exists() else 0


def check(database, reported: set[int]) -> None:
    with Store.open(database, create=False) as store:
        trials = store.trials("s")
        finished = {trial.number for trial in trials if trial.result is not None}
        # What was reported is there; at most the trial whose report was cut off is there as well.
        assert reported <= finished
        assert len(finished - reported) <= 6
        # Whole or not at all: every finished trial has all its evidence, every other one none.
        for trial in trials:
            if trial.result is not None:
                assert trial.measured
                assert len(trial.result.measurements) == 2
                assert trial.output_tok_s is not None
                assert trial.output_tok_s.value == 1000.0 + trial.number
            states = [attempt.state for attempt in store.attempts("s", trial.number)]
            assert states.count(AttemptState.ENDED) == (1 if trial.result else 0)
        assert len([trial for trial in trials if trial.result is None]) <= 1
        assert len(store.unfinished_attempts()) <= 1
