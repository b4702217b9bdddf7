"""The real service dies by SIGKILL at each named point, while real jobs run: what was promised to a client holds afterwards."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.engine.crash_points import CrashPoint
from tests.crash.mortal import MortalService
from tests.crash.storm import storm

pytestmark = [pytest.mark.slow, pytest.mark.services]

IN_A_SERVICE = [
    (CrashPoint.LOADED, 1),
    (CrashPoint.DECIDED, 2),
    (CrashPoint.WRITTEN, 2),
    (CrashPoint.COMMITTED, 1),
    (CrashPoint.SETTLED, 1),
    (CrashPoint.ACKNOWLEDGED, 1),
    (CrashPoint.SPAWNED, 1),
    (CrashPoint.COMMANDED, 3),
    (CrashPoint.SENT, 2),
    (CrashPoint.REQUEST_WRITTEN, 2),
    (CrashPoint.REQUEST_COMMITTED, 2),
]


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[MortalService]:
    made = MortalService.on(tmp_path / "service")
    yield made
    made.live.close()


@pytest.mark.parametrize(("point", "passage"), IN_A_SERVICE)
def test_death_at_a_named_point(mortal: MortalService, point: CrashPoint, passage: int) -> None:
    mortal.launch_dying(point, passage)
    submit_some(mortal)
    mortal.assert_sound()
    assert mortal.deaths == 1, f"it never came to {point}"


@pytest.mark.parametrize("point", [CrashPoint.RECONCILING, CrashPoint.COMMANDED, CrashPoint.RECONCILED])
def test_death_while_what_got_lost_is_repeated(mortal: MortalService, point: CrashPoint) -> None:
    """The first death is between commit and send, so the successor has something to repeat, and dies of it."""
    mortal.launch_dying(CrashPoint.COMMITTED, 1)
    mortal.submit("first", ("middle", 2))
    mortal.live.until(lambda: mortal.dead, 30.0, "the first death")
    mortal.deaths += 1
    mortal.launch_dying(point, 1)
    mortal.live.until(lambda: mortal.dead, 30.0, "the second death")
    submit_some(mortal)
    mortal.assert_sound()
    assert mortal.deaths == 2


def submit_some(mortal: MortalService) -> None:
    """A gang of all GPUs, then shorter jobs that displace it."""
    mortal.submit("long", ("long", 4))
    mortal.submit("middle", ("middle", 2))
    mortal.submit("short", ("short", 1))
    mortal.cancel(mortal.submit("unwanted", ("long", 4)))


def test_random_instants(tmp_path: Path) -> None:
    told = storm(tmp_path / "storm", kills=8, seed=5)
    assert told.kills == 8
