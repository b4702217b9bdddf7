"""The table of job states, written down a second time by hand: code and table must say the same."""

import pytest

from policies.lifecycle import (
    ATTEMPT_OPEN,
    ATTEMPT_TRANSITIONS,
    HOLDS_GPUS,
    TERMINAL,
    TRANSITIONS,
    AttemptState,
    Cause,
    ImpossibleTransition,
    JobState,
    check_attempt_transition,
    check_transition,
)

TABLE = """
queued                        | starting   | start_decided
queued                        | cancelled  | cancel_requested dependency_failed
starting                      | running    | started
starting running              | succeeded  | exited_zero
starting running              | queued     | retryable_failure yielded
starting running              | failed     | fatal_failure yielded
running                       | cancelling | walltime
cancelling                    | failed     | walltime
starting running              | preempting | preempt_decided
starting running preempting   | cancelling | cancel_requested
preempting                    | queued     | stopped retryable_failure
preempting                    | failed     | fatal_failure
preempting cancelling         | succeeded  | finished_first
cancelling                    | cancelled  | stopped
"""


def _rows() -> set[tuple[str, str, str]]:
    rows = set()
    for line in TABLE.strip().splitlines():
        sources, target, causes = (column.split() for column in line.split("|"))
        rows.update((source, target[0], cause) for source in sources for cause in causes)
    return rows


def test_the_transition_table_equals_the_documented_states() -> None:
    assert {(str(t.source), str(t.target), str(t.cause)) for t in TRANSITIONS} == _rows()


def test_terminal_states_are_final_and_all_others_can_end() -> None:
    assert not {t.source for t in TRANSITIONS} & TERMINAL
    reach = {state: {t.target for t in TRANSITIONS if t.source is state} for state in JobState}
    for state in set(JobState) - TERMINAL:
        seen, border = {state}, [state]
        while border:
            border = [target for source in border for target in reach[source] if target not in seen]
            seen.update(border)
        assert seen >= TERMINAL


def test_gpus_are_held_from_the_start_to_the_end_of_an_attempt() -> None:
    for transition in TRANSITIONS:
        if transition.source not in HOLDS_GPUS and transition.target in HOLDS_GPUS:
            assert transition.cause is Cause.START_DECIDED
    assert {JobState.STARTING, JobState.RUNNING, JobState.PREEMPTING, JobState.CANCELLING} == HOLDS_GPUS


def test_an_ended_attempt_never_opens_again() -> None:
    assert all(source in ATTEMPT_OPEN for source, _ in ATTEMPT_TRANSITIONS)
    assert not any(target is AttemptState.LAUNCHING for _, target in ATTEMPT_TRANSITIONS)


def test_an_impossible_transition_raises_with_its_details() -> None:
    with pytest.raises(
        ImpossibleTransition, match=r"job 7: succeeded -> running because of started.*history: was here"
    ):
        check_transition("7", JobState.SUCCEEDED, JobState.RUNNING, Cause.STARTED, "was here")
    check_transition("7", JobState.STARTING, JobState.RUNNING, Cause.STARTED)
    with pytest.raises(ImpossibleTransition, match=r"attempt 7\.1: failed -> running"):
        check_attempt_transition("7.1", AttemptState.FAILED, AttemptState.RUNNING)
