"""A machine's clock that is set by an hour while the service runs: nobody notices, not even jobs with a walltime."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.mortal import MortalService

pytestmark = [pytest.mark.slow, pytest.mark.services]


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[MortalService]:
    made = MortalService.on(tmp_path / "service")
    yield made
    made.live.close()


@pytest.mark.parametrize("first", [signal.SIGUSR1, signal.SIGUSR2], ids=["forward", "back"])
def test_an_hour_forward_and_back_costs_no_job_anything(mortal: MortalService, first: signal.Signals) -> None:
    """What runs is not ended by its walltime, what comes in starts at once, and a restart does not go back in time."""
    second = signal.SIGUSR2 if first is signal.SIGUSR1 else signal.SIGUSR1
    live = mortal.live
    live.start("-m", "tests.crash.jump")
    assert live.process is not None
    long = mortal.submit("before", ("long", 4), walltime_s=1800)
    live.until_state(long, "running")
    live.process.send_signal(first)
    during = mortal.submit("during", ("short", 1), walltime_s=600)
    live.until_state(during, "succeeded", timeout_s=60.0)
    live.process.send_signal(second)
    after = mortal.submit("after", ("short", 1), walltime_s=600)
    live.until_state(after, "succeeded", timeout_s=60.0)
    live.process.send_signal(first)
    mortal.submit("killed", ("short", 1), walltime_s=600)
    live.kill()
    mortal.assert_sound()
    events = [event for job in (long, during, after) for event in live.get(f"/v1/jobs/{job}/events")["items"]]
    assert not [event for event in events if event["reason"] == "walltime"]
