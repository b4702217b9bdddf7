"""The fence between executors on one folder."""

import threading
from pathlib import Path

import pytest

from service.executors.fencing import Fence
from tests.local_executor import DEADLINE_S


def test_a_token_is_stored_before_the_command_so_that_a_leader_that_is_killed_leaves_it(tmp_path: Path) -> None:
    with Fence(tmp_path / "fence").held() as fence:
        assert fence.admits(7)
        assert (tmp_path / "fence").read_text().strip() == "7"
        assert fence.admits(7)


def test_a_fence_that_is_held_elsewhere_is_waited_for_a_limited_time(tmp_path: Path) -> None:
    holder, waiter = Fence(tmp_path / "fence"), Fence(tmp_path / "fence", 0.05)
    with holder.held() as fence:
        assert fence.admits(7)
        with pytest.raises(TimeoutError, match=r"locked for longer than 0\.05 s: '.*/fence'"), waiter.held():
            pass
    with waiter.held() as fence:
        assert not fence.admits(6)


def test_a_thread_that_hangs_with_the_fence_holds_up_others_for_a_limited_time(tmp_path: Path) -> None:
    fence, entered, gate = Fence(tmp_path / "fence", 0.05), threading.Event(), threading.Event()

    def hang() -> None:
        with fence.held():
            entered.set()
            gate.wait(DEADLINE_S)

    thread = threading.Thread(target=hang)
    thread.start()
    assert entered.wait(DEADLINE_S)
    with pytest.raises(TimeoutError), fence.held():
        pass
    gate.set()
    thread.join()
    with fence.held():
        pass


def test_without_a_limit_it_is_waited_for(tmp_path: Path) -> None:
    holder, waiter, done = Fence(tmp_path / "fence"), Fence(tmp_path / "fence"), threading.Event()

    def wait() -> None:
        with waiter.held() as fence:
            assert not fence.admits(6)
            done.set()

    thread = threading.Thread(target=wait)
    with holder.held() as fence:
        assert fence.admits(7)
        thread.start()
        assert not done.is_set()
    assert done.wait(DEADLINE_S)
    thread.join()
