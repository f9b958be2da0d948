"""The table of a trial's life: total, closed, bounded, and no path on which an attempt is lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.life import (
    BETWEEN,
    COUNTED,
    ENTERED,
    MOST_CURES,
    MOST_LOST,
    OUTCOMES,
    RUNNING,
    TABLE,
    Event,
    IllegalMove,
    Instruction,
    Life,
    State,
    advance,
    most_launches,
    next_event,
    verdict,
)
from autotune.records import (
    ENVIRONMENT_CLASSES,
    INFEASIBLE_CLASSES,
    STUDY_FATAL_CLASSES,
    ClockKind,
    Failure,
    FailureClass,
    Outcome,
    Phase,
    TrialResult,
)

ENDINGS = (
    Event.MEASURED, Event.INFEASIBLE, Event.ABANDONED, Event.SPOILT, Event.CURED, Event.REPEATED, Event.EXHAUSTED,
    Event.FATAL,
)  # fmt: skip
CUTS = (Event.REFUSED, Event.INTERRUPTED, Event.LOST)

# Written by hand, state by state: what may happen there. Everything else must be refused.
ALLOWED = {
    State.PROPOSED: {Event.ATTEMPT},
    State.WAITING: {Event.LAUNCH, Event.END, *CUTS},
    State.LAUNCHING: {Event.READY, Event.END, *CUTS},
    State.WARMING: {Event.WARM, Event.STOP, *CUTS},
    State.MEASURING: {Event.STOP, *CUTS},
    State.STOPPING: {Event.END, *CUTS},
    State.ENDED: {*ENDINGS, *CUTS},
    State.BACKING_OFF: {Event.ATTEMPT},
    State.INTERRUPTED: {Event.ATTEMPT, Event.FORSAKEN},
    State.HALTED: {Event.ATTEMPT},
    State.DONE: set(),
}


def result(outcome: Outcome, kind: FailureClass | None = None) -> TrialResult:
    failure = None if kind is None else Failure(kind=kind, line="l")
    return TrialResult(outcome=outcome, clock=ClockKind.WALL, simulated=False, failure=failure)


@pytest.mark.parametrize("state", State, ids=str)
def test_every_pair_of_state_and_event_is_a_move_or_is_refused_with_the_story(state: State) -> None:
    life = Life(state=state, story=advance(Life(), Event.ATTEMPT).life.story)
    for event in Event:
        if event in ALLOWED[state]:
            step = advance(life, event, FailureClass.CRASH)
            assert (step.move.before, step.move.event, step.move.after) == (state, event, step.life.state)
            assert step.life.story == (*life.story, step.move)
            assert step.move.reason is FailureClass.CRASH
        else:
            with pytest.raises(IllegalMove, match=f"{event} cannot happen to a trial that is {state}") as caught:
                advance(life, event)
            assert "proposed -attempt-> waiting" in str(caught.value)


def test_instructions_match_what_the_states_mean() -> None:
    for (state, event), move in TABLE.items():
        told = move.instructions
        assert (Instruction.RUN in told) is (move.after is State.WAITING)
        assert (Instruction.FINISH in told) is (move.after is State.DONE) is (event in OUTCOMES)
        assert (Instruction.STOP_STUDY in told) is (move.after is State.HALTED)
        assert (Instruction.BACK_OFF in told) is (move.after is State.BACKING_OFF)
        # An open attempt is closed by exactly one instruction, and is never left open on the way out of it.
        closes = [one for one in told if one in (Instruction.KEEP_FAULT, Instruction.KEEP_NOTHING, Instruction.FINISH)]
        leaves = state in RUNNING and move.after not in RUNNING
        assert len(closes) == (1 if leaves or event is Event.FORSAKEN else 0)
        # It is closed before anything else is done.
        assert not leaves or told[0] is closes[0]


def test_states_are_running_between_or_done() -> None:
    assert {*RUNNING, *BETWEEN, State.DONE} == set(State)
    assert len(RUNNING) + len(BETWEEN) + 1 == len(State)
    # Each phase of an attempt is a state of the same name, and begins with an event of its own.
    assert {str(phase) for phase in Phase} == {str(state) for state in RUNNING}
    assert set(ENTERED) == set(Phase) - {Phase.WAITING}
    for phase, event in ENTERED.items():
        assert {str(move.after) for (_, happened), move in TABLE.items() if happened is event} == {str(phase)}


def test_from_every_state_the_end_can_be_reached() -> None:
    reaches = {State.DONE}
    while more := {state for (state, _), move in TABLE.items() if move.after in reaches} - reaches:
        reaches |= more
    assert reaches == set(State)


@pytest.mark.parametrize("kind", FailureClass, ids=str)
@pytest.mark.parametrize("most", [1, 2, 3])
def test_the_verdict_on_every_class_of_failure(kind: FailureClass, most: int) -> None:
    """What each class does to a trial whose every attempt ends with it, from the groups of the records."""
    outcome = Outcome.INFEASIBLE if kind in INFEASIBLE_CLASSES else Outcome.FAULTED
    life, events = Life(state=State.ENDED), []
    while True:
        events.append(verdict(life, result(outcome, kind), most_attempts=most, cured=False, proven=False))
        life = advance(life, events[-1], kind).life
        if life.state is not State.BACKING_OFF:
            break
        life = Life(state=State.ENDED, faults=life.faults)
    if kind in INFEASIBLE_CLASSES:
        assert events == [Event.INFEASIBLE]
    elif kind in STUDY_FATAL_CLASSES:
        assert events == [Event.FATAL]
    else:
        assert kind in ENVIRONMENT_CLASSES | {FailureClass.HEALTHY}
        own = most > 1 and kind in {FailureClass.CRASH, FailureClass.HANG}
        assert events == [Event.SPOILT] * (most - 1) + [Event.REPEATED if own else Event.EXHAUSTED]


def test_different_faults_are_the_environments() -> None:
    life = Life(state=State.ENDED, faults=(FailureClass.HANG,))
    assert verdict(life, result(Outcome.FAULTED, FailureClass.CRASH), most_attempts=2, cured=False, proven=True) is (
        Event.EXHAUSTED
    )


def test_a_package_that_only_some_configs_need_does_not_stop_a_study_that_has_served() -> None:
    lacking = result(Outcome.FAULTED, FailureClass.MISSING_DEPENDENCY)
    for proven, event in ((False, Event.FATAL), (True, Event.INFEASIBLE)):
        assert verdict(Life(state=State.ENDED), lacking, most_attempts=2, cured=False, proven=proven) is event
    broken = result(Outcome.FAULTED, FailureClass.DRIVER)
    assert verdict(Life(state=State.ENDED), broken, most_attempts=2, cured=False, proven=True) is Event.FATAL


def test_pauses_double_up_to_a_minute() -> None:
    pauses = [Life(faults=(FailureClass.GPU_BUSY,) * count).pause_s() for count in (0, 1, 2, 3, 4, 5, 6, 500)]
    assert pauses == [5, 5, 10, 20, 40, 60, 60, 60]
    assert Life(faults=(FailureClass.GPU_BUSY,) * 3).pause_s(0.5) == 2.0


def test_the_docs_explain_every_state_and_event() -> None:
    page = (Path(__file__).parents[2] / "docs" / "trials.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\w+)[^|]*\|$", page, re.MULTILINE)
    assert {event for event, _ in rows} == {*ENDINGS, *CUTS, Event.FORSAKEN}
    for event, then in rows:
        after = {str(move.after).split("_")[0] for (_, happened), move in TABLE.items() if happened == event}
        assert after == {then}
    drawn = re.search(r"^proposed .*ended$", page, re.MULTILINE)
    assert drawn is not None
    words = re.findall(r"\w+", drawn.group())
    assert words[::2] == ["proposed", *map(str, RUNNING)]
    assert words[1::2] == [Event.ATTEMPT, *(ENTERED[phase] for phase in tuple(Phase)[1:])]


KINDS = st.sampled_from(sorted(STUDY_FATAL_CLASSES | ENVIRONMENT_CLASSES))
OUTCOME = st.one_of(
    st.just(result(Outcome.MEASURED)),
    st.just(result(Outcome.ABANDONED)),
    st.sampled_from(sorted(INFEASIBLE_CLASSES)).map(lambda kind: result(Outcome.INFEASIBLE, kind)),
    KINDS.map(lambda kind: result(Outcome.FAULTED, kind)),
)


@given(data=st.data(), most=st.integers(1, 5))
@settings(max_examples=300, deadline=None)
def test_any_life_is_bounded_and_loses_no_attempt(data: st.DataObject, most: int) -> None:
    """Whatever happens in whatever order: the shell's way through the table, with servers and tuners that fail."""
    life, by_hand, begun, closed = Life(), 0, 0, 0
    while life.state is not State.DONE and life.attempts < 40:
        event, reason = next_event(life), None
        if life.state in RUNNING:
            event = data.draw(st.sampled_from(sorted(ALLOWED[life.state] - set(ENDINGS) | {Event.LOST})))
            if life.state is State.ENDED and data.draw(st.booleans()):
                ended = data.draw(OUTCOME)
                reason = ended.failure.kind if ended.failure else None
                event = verdict(life, ended, most_attempts=most, cured=data.draw(st.booleans()), proven=False)
        step = advance(life, event, reason)
        begun += Instruction.RUN in step.instructions
        closed += bool({Instruction.KEEP_FAULT, Instruction.KEEP_NOTHING} & set(step.instructions))
        closed += Instruction.FINISH in step.instructions and event is not Event.FORSAKEN
        by_hand += event in {Event.INTERRUPTED, Event.REFUSED, Event.FATAL}
        life = step.life
        assert begun == life.attempts
        assert begun - closed == (life.state in RUNNING)
        # What a resumed tuner reads back is the same life.
        assert Life.of(life.story) == life
    assert len(life.faults) <= most
    assert life.cures <= MOST_CURES
    assert life.lost <= MOST_LOST
    assert life.attempts <= most_launches(most) + by_hand
    if life.state is State.DONE:
        last = life.story[-1].event
        assert last in OUTCOMES
        assert OUTCOMES[last] is not Outcome.INFEASIBLE or last in {Event.INFEASIBLE, Event.REPEATED}
        assert len(life.faults) == sum(move.event in COUNTED for move in life.story)


def test_a_trial_that_takes_its_tuner_along_each_time_is_given_up() -> None:
    life = Life()
    for _ in range(MOST_LOST):
        assert next_event(life) is Event.ATTEMPT
        life = advance(advance(life, Event.ATTEMPT).life, Event.LOST).life
    assert next_event(life) is Event.FORSAKEN
    step = advance(life, Event.FORSAKEN)
    assert (step.life.state, OUTCOMES[step.move.event], step.instructions) == (
        State.DONE, Outcome.FAULTED, (Instruction.FINISH,)
    )  # fmt: skip
