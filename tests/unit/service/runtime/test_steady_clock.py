"""Time goes on as it does, whoever sets the machine's clock."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.runtime.steady_clock import SLEW, SteadyClock

HOUR_S = 3600.0


class Machine:
    """A wall clock that can be set, and the time since boot."""

    def __init__(self) -> None:
        self.wall_s = 1_800_000_000.0
        self.boot_s = 500.0
        self.clock = SteadyClock(lambda: self.wall_s, lambda: self.boot_s)

    def wait(self, seconds: float) -> None:
        self.wall_s += seconds
        self.boot_s += seconds


def test_it_shows_the_machines_time() -> None:
    machine = Machine()
    machine.wait(12.5)
    assert machine.clock.now_s() == machine.wall_s


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
def test_a_jump_of_an_hour_is_not_followed_but_caught_up_with(jump_s: float) -> None:
    machine = Machine()
    before_s = machine.clock.now_s()
    machine.wall_s += jump_s
    assert machine.clock.now_s() == before_s
    machine.wait(60.0)
    passed_s = machine.clock.now_s() - before_s
    assert passed_s == pytest.approx(60.0 * (1 + SLEW if jump_s > 0 else 1 - SLEW))
    machine.wait(HOUR_S / SLEW)
    assert machine.clock.now_s() == pytest.approx(machine.wall_s)


def test_it_is_not_set_back_while_nobody_serves(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.clock.at_least(machine.wall_s + HOUR_S)
    assert "3600 s behind what is stored" in caplog.text
    assert machine.clock.now_s() == machine.wall_s + HOUR_S
    machine.clock.at_least(machine.wall_s)
    assert machine.clock.now_s() == machine.wall_s + HOUR_S


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 1e4), st.one_of(st.just(0.0), st.floats(-1e6, 1e6))), min_size=1, max_size=30))
def test_it_never_runs_backwards_and_never_far_from_real_seconds(steps: list[tuple[float, float]]) -> None:
    machine = Machine()
    for wait_s, jump_s in steps:
        before_s = machine.clock.now_s()
        machine.wait(wait_s)
        machine.wall_s += jump_s
        passed_s = machine.clock.now_s() - before_s
        assert (1 - SLEW) * wait_s - 1e-6 <= passed_s <= (1 + SLEW) * wait_s + 1e-6
