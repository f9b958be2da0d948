"""What every database must do for us: SQLite, and PostgreSQL where it is installed."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from autotune.engine.base import ServerIdentity
from autotune.errors import ExitCode, StorageError, StudyBusy, StudyMismatch, UnknownName
from autotune.life import Event, State, Transition
from autotune.records import (
    Arrivals,
    ClockKind,
    Config,
    EngineKind,
    Estimate,
    Failure,
    FailureClass,
    Latency,
    LevelRole,
    Limit,
    LoadLevel,
    LoadPlan,
    Measurement,
    Origin,
    Outcome,
    Phase,
    SloMetric,
    Trial,
    TrialResult,
)
from autotune.store.archive import export_study, import_study
from autotune.store.archive_file import open_archive
from autotune.store.listing import Tally
from autotune.store.projection import sync
from autotune.store.repository import Store
from autotune.store.study_record import (
    AttemptState,
    PromotionRecord,
    StudySpec,
    StudyState,
    TransitionRecord,
)

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

SPEC = StudySpec(
    name="chat-h100",
    seed=2**40,
    engine=EngineKind.PROCESS,
    simulated=False,
    clock=ClockKind.WALL,
    target_trials=20,
    identity={"model": "llama", "workload": "chat", "space": "aa", "node": "1xH100", "vllm_version": "0.32.0"},
    choices=(("a", (1, 2.0, True, None, "x")),),
    spec={"nested": {"list": [1, 2.5, None, True]}},
)
IDENTITY = ServerIdentity(pid=4711, started=1772366400.25, pgid=4712, marker="m-1")
CONFIG = Config.of({"max-num-seqs": 128, "enable-prefix-caching": True, "ratio": 1.0, "dtype": None})


class Ticks:
    """A clock that moves one second each time it is read."""

    def __init__(self) -> None:
        self.seconds = 0

    def __call__(self) -> datetime:
        self.seconds += 1
        return START + timedelta(seconds=self.seconds)


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, tmp_path):
    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else tmp_path / "a.db"
    with Store.open(url, now=Ticks()) as opened:
        yield opened
        if request.param == "postgresql":
            with opened._writer.begin() as connection:
                connection.exec_driver_sql("TRUNCATE autotune_studies CASCADE")


def latency(p95: float) -> Latency:
    estimate = Estimate(value=p95, low=p95 - 0.01, high=None)
    return Latency(count=9, mean=estimate, p50=estimate.times(0.5), p90=estimate, p95=estimate, p99=estimate.times(2.0))


def level(role: LevelRole) -> Measurement:
    return Measurement(
        level=LoadLevel(name=role.value, role=role, arrivals=Arrivals.POISSON, requests=9, seed=1, rate_rps=2.5),
        clock=ClockKind.WALL,
        duration_s=61.0,
        steady_s=50.0,
        planned=9,
        completed=9,
        failed=0,
        errors=(),
        prompt_tokens=None,
        output_tokens=100,
        output_tok_s=Estimate(value=900.0),
        total_tok_s=None,
        request_rps=None,
        goodput_rps=None,
        ttft_s=latency(0.3),
        ttft_from_send_s=None,
        tpot_s=latency(0.04),
        itl_s=None,
        e2e_s=latency(3.0),
    )


MEASURED = TrialResult(
    outcome=Outcome.MEASURED,
    clock=ClockKind.WALL,
    simulated=False,
    measurements=(level(LevelRole.THROUGHPUT), level(LevelRole.TTFT), level(LevelRole.EXTRA)),
    phase_seconds=((Phase.LAUNCHING, 40.0),),
)
FAULT = TrialResult(
    outcome=Outcome.FAULTED,
    clock=ClockKind.WALL,
    simulated=False,
    failure=Failure(kind=FailureClass.PORT_IN_USE, line="address in use", facts=(("port", 8000),)),
)


@pytest.fixture
def study(store) -> str:
    return store.create_or_resume_study(SPEC).name


def begin(store, study, number: int | None, config=CONFIG, **more) -> Trial:
    return store.begin_trial(study, number=number, config=config, origin=Origin.SAMPLER, gpus=2, **more)


def test_study_is_made_once_and_resumed(store):
    made = store.create_or_resume_study(SPEC)
    assert made.state is StudyState.RUNNING
    assert made.created_at == START + timedelta(seconds=1)
    assert {name: getattr(made, name) for name in ("seed", "identity", "choices", "spec")} == {
        "seed": 2**40,
        "identity": SPEC.identity,
        "choices": SPEC.choices,
        "spec": SPEC.spec,
    }
    assert [type(value) for value in made.choices[0][1]] == [int, float, bool, type(None), str]
    store.set_target("chat-h100", 30)
    store.set_study_state("chat-h100", StudyState.FINISHED)
    again = store.create_or_resume_study(replace(SPEC, target_trials=5, spec={}))
    assert again == replace(made, target_trials=30, state=StudyState.FINISHED) == store.study("chat-h100")
    store.create_or_resume_study(replace(SPEC, name="another"))
    assert [one.name for one in store.studies()] == ["chat-h100", "another"]


def test_another_question_under_the_same_name_lists_every_difference(store, study):
    other = replace(
        SPEC,
        engine=EngineKind.SIMULATED,
        seed=1,
        identity={**SPEC.identity, "model": "qwen", "load": "rate=3"} | {"node": "4xA100"},
    )
    with pytest.raises(StudyMismatch) as caught:
        store.create_or_resume_study(other)
    assert caught.value.differences == (
        ("engine", "process", "simulated"),
        ("seed", str(2**40), "1"),
        ("model", "llama", "qwen"),
        ("node", "1xH100", "4xA100"),
        ("load", "nothing", "rate=3"),
    )
    assert caught.value.exit_code is ExitCode.STUDY_MISMATCH
    assert store.study(study).identity == SPEC.identity


def test_unknown_names_say_what_there_is(store, study):
    with pytest.raises(UnknownName, match="chat-h100") as caught:
        store.study("chat-h10")
    assert caught.value.exit_code is ExitCode.UNKNOWN_STUDY
    begin(store, study, 0)
    with pytest.raises(UnknownName) as caught:
        store.attempts(study, 5)
    assert caught.value.exit_code is ExitCode.UNKNOWN_TRIAL
    for huge in (2**31, 2**63, 10**30):  # no database's column holds them
        with pytest.raises(UnknownName, match=f"unknown trial '{huge}'"):
            store.trial(study, huge)
    with pytest.raises(UnknownName, match="unknown trial '5'") as caught:
        store.trial(study, 5)
    assert caught.value.hint == f"Study {study!r} has trials 0..0."
    assert store.trial(study, 0) == store.trials(study)[0]
    for verb in (store.trials, store.promotions, store.get_load_plan, store.unfinished_attempts):
        with pytest.raises(UnknownName):
            verb("nobody")


def test_a_trial_from_begin_to_end(store, study):
    begun = begin(store, study, 0)
    assert (begun.number, begun.attempts, begun.result, begun.argv, begun.directory) == (0, 0, None, (), None)
    assert store.begin_attempt(study, 0, directory="t/0", argv=["vllm", "serve"]) == 1
    store.record_identity(study, 0, 1, IDENTITY)
    moves = []
    for second, event in enumerate((Event.LAUNCH, Event.READY, Event.WARM)):
        at = START + timedelta(seconds=second)
        moves.append(Transition(before=State.WAITING, event=event, after=State.WARMING))
        store.record_phase(study, 0, 1, moves[-1], at_utc=at, elapsed_s=float(second), clock=ClockKind.WALL)
    store.record_argv(study, 0, 1, ["vllm", "serve", "--port", "8001"])
    (open_one,) = store.unfinished_attempts()
    assert (open_one.study, open_one.trial, open_one.number, open_one.state) == (study, 0, 1, AttemptState.OPEN)
    assert (open_one.identity, open_one.ended_at, open_one.result) == (IDENTITY, None, None)
    assert open_one.transitions == tuple(
        TransitionRecord(
            move=move, at_utc=START + timedelta(seconds=second), elapsed_s=float(second), clock=ClockKind.WALL
        )
        for second, move in enumerate(moves)
    )
    finished = store.finish_trial(study, 0, MEASURED)
    assert store.trials(study) == (finished,)
    assert finished == replace(
        begun, attempts=1, result=MEASURED, argv=("vllm", "serve", "--port", "8001"), directory="t/0"
    )
    assert store.unfinished_attempts() == ()
    (attempt,) = store.attempts(study, 0)
    assert (attempt.state, attempt.result) == (AttemptState.ENDED, MEASURED)
    assert attempt.ended_at is not None
    assert attempt.ended_at > attempt.started_at
    ((begun_at, finished_at),) = store.trial_times(study)
    assert begun_at < attempt.started_at < finished_at == attempt.ended_at


def test_a_finished_trial_never_changes(store, study):
    begin(store, study, 0)
    store.begin_attempt(study, 0, directory="t/0")
    store.finish_trial(study, 0, FAULT)
    with pytest.raises(StudyBusy, match="finished already"):
        store.finish_trial(study, 0, MEASURED)
    with pytest.raises(StudyBusy, match="finished already"):
        store.begin_attempt(study, 0, directory="t/1")
    assert [trial.result for trial in store.trials(study)] == [FAULT]


def test_numbers_have_no_gaps_and_are_given_once(store, study):
    begin(store, study, 0)
    for number in (0, 2, -1):
        with pytest.raises(StudyBusy):
            begin(store, study, number)
    begin(store, study, 1, repeat_of=0)
    begin(store, study, None)
    assert [(trial.number, trial.repeat_of) for trial in store.trials(study)] == [(0, None), (1, 0), (2, None)]


def test_faulted_and_interrupted_attempts_leave_the_trial_open(store, study):
    begin(store, study, 0)
    store.begin_attempt(study, 0, directory="t/0/1")
    store.fault_attempt(study, 0, 1, FAULT)
    assert store.begin_attempt(study, 0, directory="t/0/2") == 2
    store.interrupt_attempt(study, 0, 2)
    (trial,) = store.trials(study)
    assert (trial.result, trial.attempts, trial.directory) == (None, 2, "t/0/2")
    assert [(one.state, one.result) for one in store.attempts(study, 0)] == [
        (AttemptState.FAULTED, FAULT),
        (AttemptState.INTERRUPTED, None),
    ]
    assert store.unfinished_attempts() == ()
    with pytest.raises(StudyBusy, match="ended already"):
        store.interrupt_attempt(study, 0, 1)
    with pytest.raises(StorageError, match="no attempt 9"):
        store.interrupt_attempt(study, 0, 9)


def test_unfinished_attempts_of_one_study_or_of_all(store, study):
    store.create_or_resume_study(replace(SPEC, name="another"))
    for name in (study, "another"):
        begin(store, name, 0)
        store.begin_attempt(name, 0, directory=f"{name}/0", identity=IDENTITY)
    assert [one.study for one in store.unfinished_attempts()] == [study, "another"]
    assert [one.identity for one in store.unfinished_attempts("another")] == [IDENTITY]


def test_load_plan_is_fixed_once(store, study):
    plan = LoadPlan(
        concurrency_per_gpu=64,
        rate_rps_per_gpu=8.5,
        throughput_requests_per_gpu=400,
        ttft_requests_per_gpu=300,
        warmup_requests_per_gpu=64,
        capacity_rps_per_gpu=10.0,
    )
    assert store.get_load_plan(study) is None
    store.set_load_plan(study, plan)
    store.set_load_plan(study, plan)
    with pytest.raises(StorageError, match="cannot change"):
        store.set_load_plan(study, replace(plan, rate_rps_per_gpu=9.0))
    assert store.get_load_plan(study) == plan


def test_promotions_are_a_history(store, study):
    begin(store, study, 0)
    store.finish_trial(study, 0, MEASURED)
    first = PromotionRecord(
        study=study,
        trial=0,
        created_at=START,
        targets=("compose", "systemd"),
        directory="out",
        simulated=False,
        details={"argv": ["vllm", "serve"], "gain": 1.25},
    )
    second = replace(first, created_at=START + timedelta(days=1), targets=("shell",), details={})
    store.add_promotion(first)
    store.add_promotion(second)
    assert store.promotions(study) == (first, second)
    with pytest.raises(UnknownName):
        store.add_promotion(replace(first, trial=3))


def test_what_is_stored_is_there_for_another_program(store, study):
    begin(store, study, 0)
    with Store.open(store.location.url.render_as_string(hide_password=False), create=False) as other:
        assert other.trials(study) == store.trials(study)
        other.begin_attempt(study, 0, directory="t")
    assert len(store.unfinished_attempts(study)) == 1


def test_a_failed_verb_leaves_no_half(store, study):
    begin(store, study, 0)
    broken = replace(MEASURED, measurements=(*MEASURED.measurements, object()))
    with pytest.raises((AttributeError, TypeError)):
        store.finish_trial(study, 0, broken)
    (trial,) = store.trials(study)
    assert trial.result is None
    store.finish_trial(study, 0, MEASURED)


def test_what_is_read_in_brief_is_what_is_read_in_full(store, study):
    for number in range(3):
        begin(store, study, number, config=Config.of({"x": number, "odd": "é"}))
        store.begin_attempt(study, number, directory=f"t/{number}")
        if number < 2:
            store.finish_trial(study, number, MEASURED)
    full, brief = store.trials(study), store.outlines(study, metrics=SloMetric, phases=True)
    assert [trial.result and trial.result.phase_seconds for trial in brief] == [
        trial.result and trial.result.phase_seconds for trial in full
    ]
    for metric in SloMetric:
        limit = Limit(metric=metric, bound=1.0)
        figures = [
            [limit.figure(level) for trial in some if trial.result for level in [trial.result.of_role(LevelRole.TTFT)]]
            for some in (brief, full)
        ]
        assert figures[0] == figures[1]
        assert (None in figures[0]) == metric.value.startswith("itl")  # which the level has not
    assert [trial.objectives for trial in brief] == [trial.objectives for trial in full]
    assert [(trial.config, trial.attempts) for trial in brief] == [(trial.config, trial.attempts) for trial in full]
    assert store.trials_of(study, [2, 0]) == (full[0], full[2])
    assert store.tallies() == {study: Tally(counted=2, measured=2, waiting=2)}


def test_several_writers_number_their_trials_without_gaps(store, study):
    failures = []

    def write(writer):
        try:
            with Store.open(store.location.url.render_as_string(hide_password=False), create=False) as own:
                for index in range(5):
                    trial = begin(own, study, None, config=Config.of({"writer": writer, "index": index}))
                    own.begin_attempt(study, trial.number, directory="t")
                    own.finish_trial(study, trial.number, MEASURED)
        except Exception as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    trials = store.trials(study)
    assert [trial.number for trial in trials] == list(range(20))
    assert {trial.result for trial in trials} == {MEASURED}


def test_a_postgresql_database_of_no_encoding_is_read_and_written(postgres_url):
    """As `initdb` makes them where no locale is set; the driver answers with bytes there unless it is told."""
    import psycopg

    url = f"{postgres_url.rpartition('/')[0]}/of_no_encoding"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE of_no_encoding TEMPLATE template0 ENCODING 'SQL_ASCII'")
    try:
        with Store.open(url, now=Ticks()) as store:
            name = store.create_or_resume_study(replace(SPEC, name="naïve-学习")).name
            trial = begin(store, name, None)
            store.finish_trial(name, trial.number, MEASURED)
            assert sync(store, name) == 1
        with Store.open(url) as store:
            assert [one.name for one in store.studies()] == ["naïve-学习"]
            assert store.trials(name)[0].result == MEASURED
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("DROP DATABASE of_no_encoding WITH (FORCE)")


def test_a_study_goes_from_one_database_to_the_other(store, study, tmp_path):
    begin(store, study, 0)
    store.begin_attempt(study, 0, directory="t/trial-0000", identity=IDENTITY)
    store.fault_attempt(study, 0, 1, FAULT)
    store.begin_attempt(study, 0, directory="t/trial-0000-attempt-2")
    store.finish_trial(study, 0, MEASURED)
    export_study(store, tmp_path, study, tmp_path / "a.zip")
    with Store.open(tmp_path / "other.db") as other, open_archive(tmp_path / "a.zip") as archive:
        import_study(other, tmp_path, archive, "copy")
        assert [trial.result for trial in other.trials("copy")] == [trial.result for trial in store.trials(study)]
        export_study(other, tmp_path, "copy", tmp_path / "b.zip")
    with open_archive(tmp_path / "b.zip") as archive:
        import_study(store, tmp_path / "there", archive, "back")
        assert [trial.result for trial in store.trials("back")] == [trial.result for trial in store.trials(study)]
    assert [one.name for one in store.studies()] == [study, "back"]
