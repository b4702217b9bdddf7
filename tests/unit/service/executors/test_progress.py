"""Progress lines are written by programs that nobody vouches for."""

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.executors.progress import Ignored, Progress, ProgressFile, ProgressLine, RateLimit, parse_line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"iteration": 3}', ProgressLine(3.0)),
        (
            b'{"iteration": 1200, "total_iterations": 5000, "checkpoint_iteration": 1000, "loss": 0.31}',
            ProgressLine(1200.0, 5000.0, 1000.0, 0.31),
        ),
        (b'{"iteration": 3, "loss": NaN}', ProgressLine(3.0)),
        (b'{"iteration": 3, "loss": "low"}', ProgressLine(3.0)),
        (b'{"iteration": 3, "loss": 1' + b"0" * 400 + b"}", ProgressLine(3.0)),
        (b'{"iteration": 3, "input_s": 1.5}', ProgressLine(3.0, input_s=1.5)),
        (b'{"iteration": 3, "input_s": -1}', ProgressLine(3.0)),
        (b'{"iteration": 3, "input_s": "long", "loss": Infinity}', ProgressLine(3.0)),
        (b'{"iteration": 3, "total_iterations": null}', ProgressLine(3.0)),
        (b'{"iteration": NaN}', Ignored.NOT_FINITE),
        (b'{"iteration": 3, "total_iterations": Infinity}', Ignored.NOT_FINITE),
        (b'{"iteration": 1' + b"0" * 400 + b"}", Ignored.NOT_FINITE),
        (b'{"iteration": -1}', Ignored.NEGATIVE),
        (b'{"iteration": 3, "checkpoint_iteration": -2}', Ignored.NEGATIVE),
        (b'{"iteration": 3, "checkpoint_iteration": 4}', Ignored.MALFORMED),
        (b'{"iteration": true}', Ignored.MALFORMED),
        (b'{"iteration": "3"}', Ignored.MALFORMED),
        (b'{"checkpoint_iteration": 3}', Ignored.MALFORMED),
        (b"3", Ignored.MALFORMED),
        (b'{"iteration": 3', Ignored.MALFORMED),
        (b"\xff\xfe", Ignored.MALFORMED),
        (b"[" * 60000, Ignored.MALFORMED),
        (b'{"iteration": 3, "x": "' + b"y" * 70000 + b'"}', Ignored.TOO_LONG),
    ],
)
def test_one_line(line: bytes, expected: ProgressLine | Ignored) -> None:
    assert parse_line(line) == expected


@given(
    st.binary(max_size=200)
    | st.text(max_size=50).map(str.encode)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["iteration", "total_iterations", "x"]), inner)
        ),
        max_leaves=6,
    ).map(lambda value: json.dumps(value).encode())
)
@settings(max_examples=300, deadline=None)
def test_no_line_raises_and_what_is_taken_is_a_number(line: bytes) -> None:
    found = parse_line(line)
    if isinstance(found, ProgressLine):
        assert math.isfinite(found.iteration)
        assert found.iteration >= 0


@given(st.lists(st.tuples(st.integers(0, 20), st.none() | st.integers(0, 20)), max_size=30))
@settings(max_examples=200, deadline=None)
def test_what_was_told_never_falls(lines: list[tuple[int, int | None]]) -> None:
    progress, seen = Progress(), [(0.0, 0.0)]
    for iteration, checkpoint in lines:
        line = {"iteration": iteration} | ({"checkpoint_iteration": checkpoint} if checkpoint is not None else {})
        progress.take(parse_line(json.dumps(line).encode()))
        seen.append((progress.iteration or 0.0, progress.checkpoint_iteration or 0.0))
    assert seen == sorted(seen)
    assert all(checkpoint <= iteration for iteration, checkpoint in seen)
    assert progress.accepted + sum(progress.ignored.values()) == len(lines)


def test_falling_is_counted_and_equal_is_not_falling() -> None:
    progress = Progress()
    assert progress.take(ProgressLine(5.0, None, 5.0))
    assert progress.take(ProgressLine(5.0, None, 5.0))
    assert not progress.take(ProgressLine(4.0))
    assert not progress.take(ProgressLine(6.0, None, 4.0))
    assert progress.ignored == {Ignored.FALLING: 2}
    assert (progress.iteration, progress.checkpoint_iteration, progress.accepted) == (5.0, 5.0, 2)


class Tail:
    """A file that grows, and a reader whose clock moves a second a reading."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "progress.jsonl"
        self.path.touch()
        self.file = ProgressFile(self.path, 0.0)
        self.now_s = 0.0

    def write(self, data: bytes) -> None:
        with self.path.open("ab") as stream:
            stream.write(data)

    def read(self, final: bool = False) -> float | None:
        self.now_s += 1.0
        self.file.read(self.now_s, final)
        return self.file.progress.iteration


def line(iteration: int) -> bytes:
    return b'{"iteration": %d}\n' % iteration


class TestFile:
    @given(st.lists(st.integers(1, 30), max_size=20))
    @settings(max_examples=50, deadline=None)
    def test_any_chunking_reads_the_same(self, tmp_path_factory: pytest.TempPathFactory, cuts: list[int]) -> None:
        tail = Tail(tmp_path_factory.mktemp("progress"))
        data = b"".join(line(i) for i in range(8)) + b"nonsense\n" + line(9)
        for cut in cuts:
            tail.write(data[:cut])
            data = data[cut:]
            tail.read()
        tail.write(data)
        assert tail.read() == 9.0
        assert tail.file.progress.ignored == {Ignored.MALFORMED: 1}
        assert tail.file.progress.accepted == 9

    def test_a_partial_line_waits(self, tmp_path: Path) -> None:
        tail = Tail(tmp_path)
        tail.write(b'{"iteration": 1')
        assert tail.read() is None
        tail.write(b"2}\n")
        assert tail.read() == 12.0

    def test_nothing_new_is_no_change(self, tmp_path: Path) -> None:
        tail = Tail(tmp_path)
        tail.write(line(1))
        assert tail.file.read(1.0)
        assert not tail.file.read(2.0)

    def test_ten_lines_a_second_and_the_newest_of_them(self, tmp_path: Path) -> None:
        tail = Tail(tmp_path)
        tail.write(b"".join(line(i) for i in range(100)))
        assert tail.read() == 99.0
        assert tail.file.progress.accepted == 20, "ten for the second, ten for the burst"
        assert tail.file.progress.ignored == {Ignored.TOO_FAST: 80}
        tail.write(b"".join(line(i) for i in range(100, 150)))
        assert tail.read() == 149.0
        assert tail.file.progress.accepted == 30
        tail.write(line(150))
        tail.file.read(tail.now_s)
        assert tail.file.progress.iteration == 149.0, "no time has passed"

    def test_the_newest_line_is_only_late(self, tmp_path: Path) -> None:
        tail = Tail(tmp_path)
        tail.write(b"".join(line(i) for i in range(100)))
        tail.read()
        tail.write(line(200) + line(201))
        assert not tail.file.read(tail.now_s), "no time has passed"
        assert tail.file.progress.ignored == {Ignored.TOO_FAST: 81}
        assert tail.read() == 201.0
        assert tail.file.progress.ignored == {Ignored.TOO_FAST: 81}

    def test_the_last_line_counts_however_fast_it_came(self, tmp_path: Path) -> None:
        tail = Tail(tmp_path)
        tail.write(b"".join(line(i) for i in range(100)))
        tail.read()
        tail.write(line(200) + line(201))
        tail.file.read(tail.now_s)
        tail.file.read(tail.now_s, final=True)
        assert tail.file.progress.iteration == 201.0

    def test_a_line_of_64_kib_counts_and_a_longer_one_does_not(self, tmp_path: Path) -> None:
        tail = Tail(tmp_path)
        filler = 64 * 1024 - len(b'{"iteration": 1, "x": ""}')
        tail.write(b'{"iteration": 1, "x": "' + b"y" * filler + b'"}\n')
        assert tail.read() == 1.0
        tail.write(b'{"iteration": 2, "x": "' + b"y" * (filler + 1) + b'"}\n')
        assert tail.read() == 1.0
        assert tail.file.progress.ignored == {Ignored.TOO_LONG: 1}

    def test_a_line_without_end_costs_no_memory_and_counts_once(self, tmp_path: Path) -> None:
        tail = Tail(tmp_path)
        for _ in range(5):
            tail.write(b"z" * 50_000)
            tail.read()
            assert len(tail.file._partial) <= 64 * 1024
        tail.write(b"\n" + line(3))
        assert tail.read() == 3.0
        assert tail.file.progress.ignored == {Ignored.TOO_LONG: 1}

    def test_a_flood_is_skipped_to_its_end(self, tmp_path: Path) -> None:
        tail = Tail(tmp_path)
        tail.write(b"".join(line(i) for i in range(200_000)))
        assert tail.read() == 199_999.0
        assert tail.file.progress.ignored[Ignored.SKIPPED] == 1
        assert Ignored.MALFORMED not in tail.file.progress.ignored

    def test_a_file_that_is_replaced_or_cut_is_read_from_its_beginning(self, tmp_path: Path) -> None:
        tail = Tail(tmp_path)
        tail.write(line(1) + line(2))
        tail.read()
        tail.path.write_bytes(line(3))
        assert tail.read() == 3.0
        tail.path.unlink()
        assert tail.read() == 3.0
        tail.path.write_bytes(line(1) + line(2) + line(4) * 3)
        assert tail.read() == 4.0

    @pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
    def test_only_a_plain_file_is_read(self, tmp_path: Path, kind: str) -> None:
        tail = Tail(tmp_path)
        tail.path.unlink()
        (tmp_path / "other").write_bytes(line(5))
        if kind == "link":
            tail.path.symlink_to(tmp_path / "other")
        elif kind == "fifo":
            os.mkfifo(tail.path)
        else:
            tail.path.mkdir()
        assert tail.read() is None
        assert tail.file.progress.ignored == {Ignored.NOT_A_FILE: 1}


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(0, 60)), max_size=40))
@settings(max_examples=100, deadline=None)
def test_no_window_passes_more_than_its_share(steps: list[tuple[float, int]]) -> None:
    limit, now_s, passed = RateLimit(0.0), 0.0, 0
    for elapsed_s, lines in steps:
        now_s += elapsed_s
        admitted = limit.admit(lines, now_s)
        assert 0 <= admitted <= lines
        passed += admitted
        assert passed <= 10.0 * now_s + 10.0 + 1e-6
