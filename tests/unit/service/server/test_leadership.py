"""Taking the lead, losing it, taking it again: what runs when, and what an error leaves behind."""

import gc
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy.exc import OperationalError

from service.config.settings import load_settings
from service.db.servers import ServerInUse
from service.db.session import Database
from service.server.agent import Agent
from service.server.leadership import Leadership


class FakeLead:
    """A lease that somebody else may hold, and that the database may not tell of."""

    def __init__(self) -> None:
        self.taken_by_another = False
        self.away = False
        self.token: int | None = None
        self.tokens = 0

    def take(self) -> bool:
        if self.taken_by_another:
            return False
        self.tokens += 1
        self.token = self.tokens
        return True

    def renew(self) -> bool:
        if self.away:
            raise OperationalError("BEGIN", None, Exception("the database is away"))
        if self.taken_by_another:
            self.token = None
        return self.token is not None

    def still_leads(self) -> bool:
        return self.token is not None

    def release(self) -> None:
        self.token = None
        if self.away:
            raise OperationalError("BEGIN", None, Exception("the database is away"))


class FakeAgent:
    def __init__(self) -> None:
        self.sound = False
        self.attended = 0

    def beat(self) -> None:
        self.sound = True

    def attend(self, leads: Callable[[], bool]) -> None:
        self.attended += not leads()

    def pause(self) -> threading.Lock:
        return threading.Lock()


class FakeLeading:
    def __init__(self, log: list[str], fails: bool) -> None:
        self._log = log
        self._fails = fails

    def start(self) -> None:
        if self._fails:
            raise OperationalError("BEGIN", None, Exception("the database is away"))
        self._log.append("starts")

    def close(self) -> None:
        self._log.append("ends")


class House:
    """A leadership among fakes, whose timers are called by hand."""

    def __init__(self, folder: Path) -> None:
        self.lead, self.agent, self.log = FakeLead(), FakeAgent(), list[str]()
        self.in_use = self.start_fails = False
        self.settings = load_settings({"data_dir": folder})
        self.leadership = Leadership(cast(Any, self.lead), cast(Any, self.agent), self.settings, self._build)
        self.jobs: dict[str, Any] = {}
        self.leadership.schedule(cast(Any, self))

    def _build(self) -> Any:
        if self.in_use:
            raise ServerInUse("server 'a' has other GPUs now")
        return FakeLeading(self.log, self.start_fails)

    def add_job(self, work: Any, trigger: str, *, id: str, **_: Any) -> None:
        self.jobs[id] = work


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_it_leads_loses_the_lead_and_leads_again(house: House) -> None:
    assert house.leadership.begin()
    house.jobs["attend"]()
    house.jobs["turn_over"]()
    assert (house.log, house.agent.attended) == (["starts"], 0)
    house.lead.taken_by_another = True
    house.jobs["renew"]()
    house.jobs["turn_over"]()
    assert house.log == ["starts", "ends"]
    house.jobs["attend"]()
    assert house.agent.attended == 1
    house.lead.taken_by_another = False
    house.jobs["turn_over"]()
    assert house.log == ["starts", "ends", "starts"]
    house.leadership.close()
    house.jobs["turn_over"]()
    assert house.log == ["starts", "ends", "starts", "ends"]
    assert house.lead.token is None


def test_a_database_that_is_away_costs_a_warning_and_nothing_else(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.leadership.begin()
    house.lead.away = True
    with caplog.at_level(logging.WARNING):
        house.jobs["renew"]()
    assert "renew" in caplog.text
    assert "Traceback" not in caplog.text
    assert (house.lead.token, house.log) == (1, ["starts"])


def test_who_cannot_lead_lets_another_one_and_says_why(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """At the start it is the user's to mend; later it is tried again."""
    house.in_use = True
    with pytest.raises(ServerInUse):
        house.leadership.begin()
    assert house.lead.token is None
    house.jobs["turn_over"]()
    assert "cannot lead" in caplog.text
    assert house.lead.token is None
    house.in_use = False
    house.jobs["turn_over"]()
    assert house.log == ["starts"]


def test_what_does_not_start_is_taken_down_and_tried_again(house: House) -> None:
    house.start_fails = True
    house.agent.beat()
    house.jobs["turn_over"]()
    assert house.lead.token is None
    assert gc.get_freeze_count() == 0, "nothing of it is set aside"
    house.start_fails = False
    house.jobs["turn_over"]()
    assert house.log == ["ends", "starts"]


def test_who_cannot_give_the_lead_back_ends_all_the_same_and_hides_no_other_error(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.lead.away = True
    house.in_use = True
    with pytest.raises(ServerInUse):
        house.leadership.begin()
    house.in_use = False
    assert house.leadership.begin()
    house.leadership.close()
    assert house.log == ["starts", "ends"]
    assert caplog.text.count("the leader lease could not be released") == 2


def test_whoever_was_given_up_does_not_lead(house: House) -> None:
    house.jobs["turn_over"]()
    assert house.lead.token is None
    house.agent.beat()
    house.jobs["turn_over"]()
    assert house.lead.token == 1


class _LateAgent(Agent):
    """Says when it is called: by then it has been seen that nobody leads here."""

    called = threading.Event()

    def attend(self, leads: Callable[[], bool] = lambda: False) -> None:
        self.called.set()
        super().attend(leads)


def test_who_was_about_to_look_after_the_attempts_leaves_them_to_a_lead_that_was_taken_meanwhile(
    house: House, database: Database
) -> None:
    """What the agent acknowledges the loop is not told again, and it has looked for the last time at what the agent told."""
    polls: list[int] = []

    def poll() -> tuple[()]:
        polls.append(1)
        return ()

    executor: Any = SimpleNamespace(poll=poll, observed=dict)
    agent = _LateAgent(database, "here", executor, lambda: None, cast(Any, None))
    agent.sound = True
    waiting: list[threading.Thread] = []

    def build() -> Any:
        waiting.append(threading.Thread(target=house.jobs["attend"], daemon=True))
        waiting[0].start()
        assert agent.called.wait(60.0)
        return FakeLeading([], fails=False)

    leadership = Leadership(cast(Any, house.lead), agent, house.settings, build)
    leadership.schedule(cast(Any, house))
    house.jobs["turn_over"]()
    waiting[0].join(60.0)
    assert not waiting[0].is_alive()
    assert (leadership.leading is not None, polls) == (True, [])
    leadership.close()
    house.jobs["attend"]()
    assert polls == [1], "and takes them up again"
