"""Crash points tell whoever listens, and nobody else can make the service listen."""

from collections.abc import Iterator

import pytest

from service.engine.crash_points import CrashPoint, on_reached, reached


@pytest.fixture(autouse=True)
def _quiet_afterwards() -> Iterator[None]:
    yield
    on_reached(None)


def test_without_a_handler_crash_points_do_nothing() -> None:
    for point in CrashPoint:
        reached(point)


def test_a_handler_is_called_at_every_point_until_it_is_removed() -> None:
    heard: list[CrashPoint] = []
    on_reached(heard.append)
    reached(CrashPoint.COMMITTED)
    reached(CrashPoint.SENT)
    reached(CrashPoint.COMMITTED)
    on_reached(None)
    reached(CrashPoint.SENT)
    assert heard == [CrashPoint.COMMITTED, CrashPoint.SENT, CrashPoint.COMMITTED]
