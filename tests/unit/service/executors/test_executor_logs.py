"""A bounded log that keeps its head and its tail."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.executors.logs import LogChunk, LogWriter, read_log


def read_all(folder: Path, limit_bytes: int) -> list[LogChunk]:
    """Page through the whole log."""
    chunks, offset = [], 0
    while (chunk := read_log(folder, offset, limit_bytes)).data:
        chunks.append(chunk)
        offset = chunk.next_offset
    return chunks


@given(
    writes=st.lists(st.integers(1, 300), max_size=30),
    bytes_max=st.integers(4, 400),
    page=st.integers(1, 200),
)
@settings(max_examples=40, deadline=None)
def test_offsets_stay_true(
    tmp_path_factory: pytest.TempPathFactory, writes: list[int], bytes_max: int, page: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    whole = bytes(i % 251 for i in range(sum(writes)))
    writer, position = LogWriter(folder, bytes_max), 0
    for size in writes:
        writer.write(whole[position : position + size])
        position += size
    writer.close()
    chunks = read_all(folder, page)
    kept = 0
    expected_offset = 0
    for chunk in chunks:
        assert chunk.offset == expected_offset + chunk.cut_bytes
        assert chunk.data == whole[chunk.offset : chunk.next_offset]
        assert chunk.size_bytes == len(whole)
        expected_offset = chunk.next_offset
        kept += len(chunk.data)
    assert expected_offset == len(whole)
    assert kept <= bytes_max
    assert kept >= min(len(whole), bytes_max // 2 + bytes_max // 4)


def test_head_middle_and_tail_by_hand(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, 8)
    for letter in b"abcdefghijk":
        writer.write(bytes([letter]))
    writer.close()
    # Head abcd; tail segments ef, gh, ij, k: the two newest stay.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "10", "8"]
    assert read_log(tmp_path, 0, 100) == LogChunk(b"abcd", 0, 4, 0, 11)
    assert read_log(tmp_path, 4, 100) == LogChunk(b"ij", 8, 10, 4, 11)
    assert read_log(tmp_path, -1, 100) == LogChunk(b"k", 10, 11, 0, 11)
    assert read_log(tmp_path, 11, 100) == LogChunk(b"", 11, 11, 0, 11)
    assert read_log(tmp_path, 99, 100).data == b""


def test_no_log_is_an_empty_log(tmp_path: Path) -> None:
    assert read_log(tmp_path / "none", 0, 10) == LogChunk(b"", 0, 0, 0, 0)
