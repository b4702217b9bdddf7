"""The files that the nodes of an attempt share: made once, sealed, and read as one attempt."""

import json
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from service.executors import folder as names
from service.executors.cluster import folder as shared
from service.executors.files import write_json
from service.executors.seal import Seal

SEAL = Seal("key")
HALT = shared.Halt(1, 12.5, False, "rank 1: exit code 3", None, 5.0)


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    return shared.make_inbox(tmp_path / "attempts", "7.1")


def end(outcome: str = "exited", at_s: float = 10.0, code: int | None = 0, **more: Any) -> dict[str, Any]:
    """A node's record of its end."""
    halted_by = more.pop("halted_by", None)
    record = names.end_record(outcome, at_s, exit_code=code, **more)
    return record if halted_by is None else record | {"halted_by": halted_by}


class TestInbox:
    def test_only_the_service_can_read_it(self, inbox: Path) -> None:
        assert inbox.name == "nodes"
        assert stat.S_IMODE(inbox.stat().st_mode) == 0o700
        assert shared.make_inbox(inbox.parent.parent, "7.1") == inbox

    def test_users_find_theirs_by_its_name_alone(self, tmp_path: Path) -> None:
        inbox = shared.make_inbox(tmp_path, "7.1", "c0ffee")
        assert stat.S_IMODE(inbox.stat().st_mode) == 0o1777
        assert stat.S_IMODE(inbox.parent.stat().st_mode) == 0o711


class TestClaim:
    def test_the_first_word_stays(self, inbox: Path) -> None:
        assert shared.claimed(inbox) is None
        assert shared.claim(inbox, "first") == "first"
        assert shared.claim(inbox, "second") == "first"
        assert shared.claim(inbox, shared.STOPPED) == "first"
        assert shared.claimed(inbox) == "first"
        assert [path.name for path in inbox.iterdir()] == [shared.CLAIM]

    def test_a_stop_that_comes_first_stays(self, inbox: Path) -> None:
        assert shared.claim(inbox, shared.STOPPED) == shared.STOPPED
        assert shared.claim(inbox, "launch") == shared.STOPPED

    def test_of_many_at_once_exactly_one_wins(self, tmp_path: Path) -> None:
        for round_ in range(20):
            inbox = shared.make_inbox(tmp_path, f"{round_}.1")
            begin = threading.Barrier(8)
            answers: dict[str, str] = {}

            def take(word: str, inbox: Path = inbox, begin: Any = begin, answers: dict[str, str] = answers) -> None:
                begin.wait()
                answers[word] = shared.claim(inbox, word)

            threads = [threading.Thread(target=take, args=(f"launch {number}",)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            (winner,) = set(answers.values())
            assert winner in answers

    def test_no_inbox(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            shared.claim(tmp_path / "gone", "word")


class TestRecords:
    def test_stop(self, inbox: Path) -> None:
        assert shared.read_stop(inbox, SEAL) is None
        shared.write_stop(inbox, "SIGUSR1", 3.0, SEAL)
        assert shared.read_stop(inbox, SEAL) == ("SIGUSR1", 3.0)
        shared.write_stop(inbox, None, 1.0, SEAL)
        shared.write_stop(inbox, "SIGUSR1", 3.0, SEAL)
        assert shared.read_stop(inbox, SEAL) == (None, 1.0)

    def test_a_stop_changes_no_file_that_its_user_puts_in_its_place(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = tmp_path / "executor.key"
        key.touch(0o600)
        inbox = shared.make_inbox(tmp_path / "attempts", "7.1", "c0ffee")

        def read_then_replaced(folder: Path, seal: Seal) -> tuple[str | None, float]:
            (folder / names.STOP).symlink_to(key)
            return None, 1.0

        monkeypatch.setattr(names, "read_stop", read_then_replaced)
        shared.write_stop(inbox, None, 1.0, SEAL)
        assert stat.S_IMODE(key.stat().st_mode) == 0o600

    def test_a_stop_can_be_read_by_the_user_of_the_job(self, inbox: Path) -> None:
        shared.write_stop(inbox, None, 1.0, SEAL)
        assert stat.S_IMODE((inbox / names.STOP).stat().st_mode) == 0o644

    def test_the_first_halt_stays(self, inbox: Path) -> None:
        assert shared.read_halt(inbox, SEAL) is None
        assert shared.write_halt(inbox, HALT, SEAL)
        assert not shared.write_halt(inbox, HALT._replace(node=0), SEAL)
        assert shared.read_halt(inbox, SEAL) == HALT

    def test_rendezvous(self, inbox: Path) -> None:
        assert shared.read_rendezvous(inbox, SEAL) is None
        shared.write_rendezvous(inbox, 20001, SEAL)
        assert shared.read_rendezvous(inbox, SEAL) == 20001

    def test_records_of_others_are_ignored(self, inbox: Path) -> None:
        other = Seal("other")
        shared.write_stop(inbox, None, 3.0, other)
        shared.write_halt(inbox, HALT, other)
        shared.write_rendezvous(inbox, 1, other)
        assert shared.read_stop(inbox, SEAL) is None
        assert shared.read_halt(inbox, SEAL) is None
        assert shared.read_rendezvous(inbox, SEAL) is None

    def test_an_incomplete_halt_is_ignored(self, inbox: Path) -> None:
        (inbox / shared.HALT).write_text(json.dumps(SEAL.sealed(shared.HALT, {"node": 1})))
        assert shared.read_halt(inbox, SEAL) is None


class TestNode:
    def test_not_begun(self, inbox: Path) -> None:
        assert shared.read_node(inbox, 0, SEAL) == shared.NodeRecord(exists=False)

    def test_all_it_has_written(self, inbox: Path) -> None:
        folder = shared.node_folder(inbox, 2)
        folder.mkdir()
        ended = end(at_s=9.0, code=75, stop_signalled=True)
        write_json(folder / names.SUPERVISOR, SEAL.sealed(names.SUPERVISOR, {"gpus": ["1", "GPU-ab"]}))
        write_json(folder / names.STARTED, SEAL.sealed(names.STARTED, {"at_s": 5.5}))
        names.mark_signalled(folder)
        write_json(folder / names.EXIT, SEAL.sealed(names.EXIT, ended))
        assert shared.read_node(inbox, 2, SEAL) == shared.NodeRecord(True, ("1", "GPU-ab"), 5.5, True, ended)
        assert shared.read_node(inbox, 2, Seal("other")) == shared.NodeRecord(exists=True, signalled=True)


class TestCombinedEnd:
    @pytest.mark.parametrize(
        ("codes", "expected"), [((0, 0), 0), ((0, 75), 75), ((75, 75), 75), ((75, 1), 1), ((0, 143), 143)]
    )
    def test_codes(self, codes: tuple[int, ...], expected: int) -> None:
        found = shared.combined_end([end(at_s=1.0 + node, code=code) for node, code in enumerate(codes)])
        assert (found["outcome"], found["exit_code"], found["at_s"]) == ("exited", expected, 2.0)

    @pytest.mark.parametrize("code", [0, 1, 75])
    @pytest.mark.parametrize(
        ("warnings", "expected"),
        [
            ((None, None), None),
            (("not_delivered", None), "not_delivered"),
            (("not_delivered", "delivered"), "delivered"),
            (("delivered", None), "delivered"),
        ],
    )
    def test_a_warning_is_delivered_if_it_is_on_any_node(
        self, warnings: tuple[str | None, ...], expected: str | None, code: int
    ) -> None:
        found = shared.combined_end([end(code=code, warning=warning) for warning in warnings])
        assert (found["exit_code"], found["warning"]) == (code, expected)

    def test_the_earliest_failure_decides(self) -> None:
        ends = [end(at_s=3.0, code=4, detail="later"), end(at_s=2.0, code=3, detail="first"), end(at_s=5.0)]
        found = shared.combined_end(ends)
        assert (found["exit_code"], found["detail"], found["at_s"]) == (3, "node 1: first", 5.0)

    def test_the_halted_node_decides_whatever_the_clocks_say(self) -> None:
        ends = [end(at_s=3.0, code=4), end(at_s=2.0, code=3)]
        assert shared.combined_end(ends, halted=0)["exit_code"] == 4

    def test_who_stopped_for_another_does_not_decide(self) -> None:
        ends = [end(at_s=1.0, code=143, halted_by=1), end("launch_failed", 2.0, None, reason="command_not_found")]
        found = shared.combined_end(ends)
        assert (found["outcome"], found["reason"], found["at_s"]) == ("launch_failed", "command_not_found", 2.0)
        assert "halted_by" not in found

    def test_a_part_that_never_ran_says_nothing_of_the_others(self) -> None:
        unstarted = end(code=None, detail=names.STOPPED_FIRST, stop_signalled=True)
        found = shared.combined_end([unstarted, end(code=75)])
        assert (found["exit_code"], found["stop_signalled"]) == (75, True)
        both = shared.combined_end([unstarted, unstarted])
        assert (both["outcome"], both["exit_code"], both["stop_signalled"]) == ("exited", None, True)

    def test_one_node(self) -> None:
        assert shared.combined_end([end(code=3, detail="rank 0: exit code 3")])["detail"] == "rank 0: exit code 3"
