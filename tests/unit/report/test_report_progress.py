import io
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from report_cases import failed, measured, study
from rich.console import Console

from autotune.records import FailureClass, Origin, Outcome, Phase
from autotune.report.progress import (
    Event,
    LiveProgress,
    PhaseBegan,
    PlainProgress,
    Progress,
    Said,
    StudyBegan,
    TrialBegan,
    TrialEnded,
    advance,
    best_lines,
    headline,
    line_of,
    progress_view,
)

BASE = measured(0, 1500.0, 0.9, {})
BETTER = measured(1, 2100.0, 0.41, {"max-num-seqs": 128})
BAD = failed(2, Outcome.INFEASIBLE, FailureClass.KV_CACHE_TOO_SMALL, "no")


def after(*events: Event) -> Progress:
    state = Progress()
    for event in events:
        state = advance(state, event)
    return state


def story() -> list[Event]:
    return [
        StudyBegan(at_s=100.0, study="s", total=4, simulated=False),
        TrialBegan(at_s=100.0, number=0),
        PhaseBegan(at_s=101.0, number=0, phase=Phase.LAUNCHING),
        PhaseBegan(at_s=131.0, number=0, phase=Phase.MEASURING, detail="throughput"),
        TrialEnded(at_s=160.0, trial=BASE, front=(BASE,)),
        TrialBegan(at_s=160.0, number=1, settings="--max-num-seqs 128"),
        PhaseBegan(at_s=162.0, number=1, phase=Phase.LAUNCHING),
    ]


def test_the_headline_counts_and_estimates() -> None:
    state = after(*story())
    # one trial took 60 s; three are left, the running one is 20 s old
    assert headline(state, 180.0) == "trial 2 of 4 (number 1) · launching 18.0 s · elapsed 1 min 20 s · ETA 2 min 40 s"


def test_nothing_is_estimated_from_nothing() -> None:
    state = after(*story()[:3])
    assert headline(state, 105.0) == "trial 1 of 4 (number 0) · launching 4.0 s · elapsed 5.0 s · ETA -"
    unlimited = after(replace(story()[0], total=None), *story()[1:])
    assert "ETA -" in headline(unlimited, 180.0)
    assert "trial 2 (number 1) ·" in headline(unlimited, 180.0)


def test_a_slow_trial_does_not_eat_the_estimate_of_the_others() -> None:
    state = after(*story())
    assert state.remaining_s(160.0 + 59.0) == 3 * 60 - 59
    assert state.remaining_s(160.0 + 1000.0) == 2 * 60


def test_several_trials_at_once_share_the_time_that_is_left() -> None:
    state = after(
        *story()[:5],
        TrialBegan(at_s=160.0, number=1, settings="--max-num-seqs 128"),
        TrialBegan(at_s=170.0, number=2, settings="--max-num-seqs 256"),
        PhaseBegan(at_s=175.0, number=1, phase=Phase.LAUNCHING),
    )
    # Three trials of 60 s are left, 20 s and 10 s of two of them are over, and two run at a time.
    assert headline(state, 180.0) == (
        "trials 2-3 of 4, 2 at once (number 1) · launching 5.0 s · elapsed 1 min 20 s · ETA 1 min 15 s"
    )
    assert state.settings == "--max-num-seqs 128"
    state = advance(state, TrialEnded(at_s=200.0, trial=BETTER))
    assert state.paces_s == (60.0, 40.0)
    assert [one.number for one in state.running] == [2]
    state = advance(state, PhaseBegan(at_s=201.0, number=2, phase=Phase.MEASURING))
    assert headline(state, 203.0).startswith("trial 3 of 4 (number 2) · measuring 2.0 s")
    assert state.settings == "--max-num-seqs 256"


def test_an_infeasible_trial_counts_and_sets_the_pace() -> None:
    state = advance(after(*story()), TrialEnded(at_s=200.0, trial=replace(BAD, number=1)))
    assert (state.counted, state.measured, state.infeasible, state.paces_s) == (2, 1, 1, (60.0, 40.0))


def test_repeats_are_in_the_estimate_and_count_for_themselves() -> None:
    again = replace(measured(2, 1490.0, 0.9, {}), origin=Origin.REPEAT, repeat_of=0)
    state = after(
        StudyBegan(at_s=0.0, study="s", total=2, simulated=False),
        TrialBegan(at_s=0.0, number=0),
        TrialEnded(at_s=60.0, trial=BASE),
        TrialBegan(at_s=60.0, number=1, repeats_left=2),
    )
    # one trial and two repeats, 60 s each
    assert headline(state, 60.0) == "trial 2 of 2 (number 1) · waiting · elapsed 1 min 00 s · ETA 3 min 00 s"
    state = advance(state, TrialEnded(at_s=120.0, trial=BETTER))
    state = advance(state, TrialBegan(at_s=120.0, number=2, repeat=True, repeats_left=2))
    assert headline(state, 130.0) == ("repeat 1 of 2 (number 2) · waiting 10.0 s · elapsed 2 min 10 s · ETA 1 min 50 s")
    state = advance(state, TrialEnded(at_s=180.0, trial=again))
    assert (state.counted, state.measured, state.repeats_done, state.repeats_left) == (2, 2, 1, 1)
    state = advance(state, TrialBegan(at_s=180.0, number=3, repeat=True, repeats_left=1))
    assert headline(state, 180.0).startswith("repeat 2 of 2 (number 3)")
    state = advance(state, TrialEnded(at_s=240.0, trial=replace(again, number=3)))
    assert headline(state, 240.0) == "repeat 2 of 2 · elapsed 4 min 00 s · ETA 0 ms"


def test_a_spent_space_leaves_only_the_repeats_to_wait_for() -> None:
    state = after(*story()[:5], TrialBegan(at_s=160.0, number=1, repeat=True, repeats_left=1))
    assert state.remaining_s(160.0) == 60.0


def test_a_resumed_study_counts_on() -> None:
    state = after(StudyBegan(at_s=0.0, study="s", total=24, simulated=False, done=7, front=(BASE,)))
    assert headline(state, 3.0).startswith("trial 8 of 24")
    assert state.front == (BASE,)


def test_a_retry_keeps_the_clock_of_its_trial() -> None:
    state = after(*story(), TrialBegan(at_s=190.0, number=1))
    assert state.trial_began_s == 160.0


def test_the_best_come_first_and_are_few() -> None:
    trials = tuple(measured(n, 1000.0 + n, 0.5, {}) for n in range(5))
    lines = best_lines(Progress(front=trials, simulated=True))
    assert [line.split(":")[0] for line in lines] == ["trial 4", "trial 3", "trial 2", "and 2 more"]
    assert all("(simulated)" in line for line in lines[:3])


def test_plain_lines_tell_the_story() -> None:
    lines: list[str] = []
    with PlainProgress(lines.append) as view:
        for event in (
            *story(),
            TrialEnded(at_s=200.0, trial=BETTER, front=(BETTER,)),
            Said(at_s=201.0, text="bye\x1b"),
        ):
            view.tell(event)
    assert lines == [
        "study s: 4 trials",
        "trial 1 of 4 (number 0) · waiting · elapsed 0 ms · ETA -",
        "trial 1 of 4 (number 0) · measuring (throughput) · elapsed 31.0 s · ETA -",
        "trial 0 measured, 1,500 ±5 % tok/s per GPU, TTFT p95 900 ms ±15 %; front: 0",
        "trial 2 of 4 (number 1) · waiting · elapsed 1 min 00 s · ETA 3 min 00 s: --max-num-seqs 128",
        "trial 1 measured, 2,100 ±5 % tok/s per GPU, TTFT p95 410 ms ±15 %; front: 1",
        "bye\\x1b",
    ]


def test_failures_are_told_with_their_class() -> None:
    assert line_of(Progress(), TrialEnded(at_s=0.0, trial=BAD)) == "trial 2 infeasible: kv_cache_too_small"


def test_simulated_figures_are_marked() -> None:
    state = after(StudyBegan(at_s=0.0, study="s", total=4, simulated=True))
    line = line_of(state, TrialEnded(at_s=1.0, trial=BASE, front=(BASE,)))
    assert line is not None
    assert "(simulated)" in line


def test_the_live_block_shows_the_moment() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    with LiveProgress(console, clock=lambda: 180.0) as view:
        for event in story():
            view.tell(event)
        block = Console(file=io.StringIO(), width=100, record=True)
        block.print(view.block())
    shown = block.export_text()
    assert "trial 2 of 4 (number 1) · launching 18.0 s" in shown
    assert "--max-num-seqs 128" in shown
    assert "best trial 0: 1,500 ±5 % tok/s per GPU" in shown


def test_a_pipe_gets_lines_and_a_terminal_the_block() -> None:
    pipe = io.StringIO()
    view = progress_view(Console(file=pipe, width=20), clock=lambda: 0.0)
    assert isinstance(view, PlainProgress)
    view.tell(StudyBegan(at_s=0.0, study="[bold]a long name of a study[/]", total=4, simulated=False))
    assert pipe.getvalue() == "study [bold]a long name of a study[/]: 4 trials\n"
    terminal = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "xterm"})
    assert isinstance(progress_view(terminal, clock=lambda: 0.0), LiveProgress)


times = st.floats(0, 1e6)
events = st.one_of(
    st.builds(StudyBegan, at_s=times, study=st.text(), total=st.none() | st.integers(0, 50), simulated=st.booleans()),
    st.builds(TrialBegan, at_s=times, number=st.integers(0, 5), settings=st.text()),
    st.builds(PhaseBegan, at_s=times, number=st.integers(0, 5), phase=st.sampled_from(Phase), detail=st.text()),
    st.builds(TrialEnded, at_s=times, trial=st.sampled_from(study().trials), front=st.just(())),
    st.builds(Said, at_s=times, text=st.text()),
)


@given(st.lists(events, max_size=12), times)
def test_no_order_of_events_breaks_the_view(told: list[Event], now_s: float) -> None:
    lines: list[str] = []
    view = PlainProgress(lines.append)
    for event in told:
        view.tell(event)
    remaining = view.state.remaining_s(now_s)
    assert remaining is None or remaining >= 0
    assert all(len(line.splitlines()) <= 1 for line in (*lines, headline(view.state, now_s)))


def test_the_estimate_ends_with_the_time_that_the_run_may_take() -> None:
    state = after(
        StudyBegan(at_s=0.0, study="s", total=40, simulated=False, limit_s=300.0),
        TrialBegan(at_s=0.0, number=0),
        TrialEnded(at_s=100.0, trial=BASE),
    )
    assert state.remaining_s(100.0) == 200.0  # 39 trials of 100 s would take an hour
    assert state.remaining_s(310.0) == 0.0
