"""The virtual machine's mechanics; that it is optimal is tests/golden/test_srpt.py."""

import pytest

from policies.model.ids import JobId
from policies.relaxation import VirtualMachine

A, B, C = JobId(1), JobId(2), JobId(3)


def test_the_virtual_machine_works_on_the_shortest_job() -> None:
    machine = VirtualMachine(100.0)
    machine.add(A, 10.0, 90.0)
    machine.add(B, 4.0, 95.0)
    assert machine.advance(102.0) == []
    assert (machine.remaining_s(A), machine.remaining_s(B)) == (10.0, 2.0)
    assert machine.next_completion_s() == 104.0
    assert machine.advance(104.0) == [(104.0, B)]
    assert machine.next_completion_s() == 114.0
    assert B not in machine
    assert len(machine) == 1


def test_several_complete_in_one_advance_in_their_order() -> None:
    machine = VirtualMachine()
    for job, work_s in ((A, 3.0), (B, 1.0), (C, 2.0)):
        machine.add(job, work_s, 0.0)
    assert machine.advance(6.0) == [(1.0, B), (3.0, C), (6.0, A)]
    assert machine.next_completion_s() is None


def test_removing_or_changing_a_job_drops_its_former_state() -> None:
    machine = VirtualMachine()
    machine.add(A, 5.0, 0.0)
    machine.add(B, 6.0, 0.0)
    machine.remove(A)
    machine.remove(A)
    machine.remove(B)
    machine.add(B, 2.0, 0.0)
    assert machine.advance(10.0) == [(2.0, B)]
    machine.add(A, 1.0, 0.0)
    assert machine.next_completion_s() == 11.0


def test_rescaling_changes_all_work_and_keeps_the_order() -> None:
    machine = VirtualMachine()
    machine.add(A, 8.0, 0.0)
    machine.add(B, 4.0, 0.0)
    machine.advance(2.0)
    machine.rescale(0.5)
    assert (machine.remaining_s(A), machine.remaining_s(B)) == (4.0, 1.0)
    assert machine.advance(20.0) == [(3.0, B), (7.0, A)]


def test_adding_twice_and_going_back_in_time_are_errors() -> None:
    machine = VirtualMachine(5.0)
    machine.add(A, 1.0, 0.0)
    with pytest.raises(ValueError, match="on the virtual machine already"):
        machine.add(A, 1.0, 0.0)
    with pytest.raises(ValueError, match="cannot go back"):
        machine.advance(4.0)
    with pytest.raises(KeyError):
        machine.remaining_s(B)


def test_a_job_without_work_completes_at_once() -> None:
    machine = VirtualMachine()
    machine.add(A, -3.0, 0.0)
    assert machine.advance(0.0) == [(0.0, A)]
