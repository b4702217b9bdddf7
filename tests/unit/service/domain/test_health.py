"""Which servers and attempts are conspicuous, for any sequence of ends and reports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.health import FailurePattern, HangWatch, Program

BERT, GPT, VIT = Program("ada", "bert"), Program("ben", "gpt"), Program("ada", "vit")


class TestFailurePattern:
    def test_different_programs_that_fail_on_one_server(self) -> None:
        pattern: FailurePattern[str] = FailurePattern(3, 600.0)
        assert pattern.failed("a", BERT, 0.0, "exit code 1") is None
        assert pattern.failed("a", GPT, 10.0, "exit code 2") is None
        reason = pattern.failed("a", VIT, 600.0, "exit code 139")
        assert reason == ("3 programs failed within 600 s, the last of them: exit code 1, exit code 2, exit code 139")
        assert pattern.failed("a", BERT, 601.0, "exit code 1") is None, "the count begins anew"

    def test_one_bad_program_is_no_pattern(self) -> None:
        pattern: FailurePattern[str] = FailurePattern(2, 600.0)
        assert all(pattern.failed("a", BERT, float(at_s), "exit code 1") is None for at_s in range(100))

    def test_failures_on_different_servers_are_no_pattern(self) -> None:
        pattern: FailurePattern[int] = FailurePattern(2, 600.0)
        assert [pattern.failed(server, Program("ada", str(server)), 0.0, "") for server in range(50)] == [None] * 50

    def test_old_failures_do_not_count(self) -> None:
        pattern: FailurePattern[str] = FailurePattern(2, 600.0)
        pattern.failed("a", BERT, 0.0, "")
        assert pattern.failed("a", GPT, 600.1, "") is None
        assert pattern.failed("a", VIT, 1200.0, "") is not None

    def test_a_success_shows_that_the_server_works(self) -> None:
        pattern: FailurePattern[str] = FailurePattern(2, 600.0)
        pattern.failed("a", BERT, 0.0, "")
        pattern.succeeded("a")
        pattern.succeeded("never seen")
        assert pattern.failed("a", GPT, 1.0, "") is None

    @given(
        st.lists(
            st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.floats(0.0, 50.0), st.booleans()),
            max_size=60,
        ),
        st.integers(1, 4),
    )
    def test_exactly_so_many_different_programs_within_the_window_are_a_pattern(
        self, ends: list[tuple[str, int, float, bool]], programs_max: int
    ) -> None:
        """The same as a look at all past ends of the server since its last success or pattern."""
        pattern: FailurePattern[str] = FailurePattern(programs_max, 100.0)
        past: dict[str, list[tuple[float, int]]] = {"a": [], "b": []}
        now_s = 0.0
        for server, program, later_s, good in ends:
            now_s += later_s
            if good:
                pattern.succeeded(server)
                past[server] = []
                continue
            past[server].append((now_s, program))
            different = {each for at_s, each in past[server] if at_s >= now_s - 100.0}
            found = pattern.failed(server, Program("u", str(program)), now_s, "")
            assert (found is not None) == (len(different) >= programs_max)
            if found is not None:
                past[server] = []


def watch(factor: float = 10.0, least_s: float = 60.0) -> HangWatch[str]:
    return HangWatch(factor, least_s)


def feed(
    hangs: HangWatch[str], attempt: str = "1.1", steps: int = 5, step_s: float = 10.0, total: float | None = None
) -> None:
    """Reports at a steady pace from time 0 on."""
    for number in range(steps + 1):
        hangs.progressed(attempt, float(number), total, number * step_s)


class TestHangWatch:
    def test_no_progress_for_the_factor_times_the_usual_time(self) -> None:
        hangs = watch()
        feed(hangs)
        assert hangs.hanging(50.0 + 100.0) == []
        (hang,) = hangs.hanging(50.0 + 101.0)
        assert (hang.attempt, hang.iteration, hang.silent_s, hang.usual_s) == ("1.1", 5.0, 101.0, 10.0)
        assert hang.reason == ("an attempt has been at iteration 5 for 101 s; it usually reports progress every 10 s")
        assert hangs.hanging(1e6) == [], "each hang is reported once"

    def test_a_report_without_a_new_iteration_is_no_progress(self) -> None:
        hangs = watch()
        feed(hangs)
        for at_s in range(60, 200, 10):
            hangs.progressed("1.1", 5.0, None, float(at_s))
        assert len(hangs.hanging(200.0)) == 1

    def test_progress_ends_a_hang_and_another_one_is_reported(self) -> None:
        hangs = watch()
        feed(hangs)
        assert len(hangs.hanging(1000.0)) == 1
        hangs.progressed("1.1", 6.0, None, 1000.0)
        assert hangs.hanging(1010.0) == []
        assert len(hangs.hanging(1e5)) == 1

    @pytest.mark.parametrize("steps", [0, 1, 2])
    def test_too_few_reports_to_judge_by(self, steps: int) -> None:
        hangs = watch()
        feed(hangs, steps=steps)
        assert hangs.hanging(1e9) == []

    def test_never_without_reports_and_never_after_the_end(self) -> None:
        hangs = watch()
        assert hangs.hanging(1e9) == []
        feed(hangs)
        hangs.ended(["1.1", "2.1"])
        assert hangs.hanging(1e9) == []

    def test_fast_programs_have_the_least_time(self) -> None:
        hangs = watch(least_s=600.0)
        feed(hangs, step_s=0.01)
        assert hangs.hanging(600.0) == []
        assert len(hangs.hanging(600.1)) == 1

    def test_after_the_last_iteration_nothing_is_expected(self) -> None:
        hangs = watch()
        feed(hangs, total=5.0)
        assert hangs.hanging(1e9) == []

    @given(
        gaps=st.lists(st.floats(0.1, 100.0), min_size=3, max_size=30),
        factor=st.floats(1.0, 100.0),
        least_s=st.floats(0.0, 1000.0),
        silent_s=st.floats(0.0, 20_000.0),
    )
    def test_the_limit_follows_the_pace_of_each_attempt(
        self, gaps: list[float], factor: float, least_s: float, silent_s: float
    ) -> None:
        hangs = watch(factor, least_s)
        at_s = 0.0
        hangs.progressed("1.1", 0.0, None, at_s)
        for number, gap in enumerate(gaps, start=1):
            at_s += gap
            hangs.progressed("1.1", float(number), None, at_s)
        limit_s = max(factor * at_s / len(gaps), least_s)
        now_s = at_s + silent_s
        found = hangs.hanging(now_s)
        if abs(silent_s - limit_s) > 1e-6 * (1.0 + limit_s):
            assert bool(found) == (silent_s > limit_s)
