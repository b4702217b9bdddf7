"""Reads of pages: how many at a time, and which documents pages share."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from service.domain.access import LOCAL, Identity, Role
from service.web import reader
from service.web.reader import Reader, SharedDocuments, Unavailable

ADA = Identity("ada", Role.VIEWER, frozenset({"vision"}), "key")


class Api:
    """Answers with the number of the answer, and counts those that are under way."""

    def __init__(self, status: int = 200) -> None:
        self.state = SimpleNamespace(shared_documents=SharedDocuments(), reads=self)
        self.status = status
        self.answers = self.under_way = self.most = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.answers += 1
        body = json.dumps({"number": self.answers, "path": scope["path"]}).encode()
        self.under_way -= 1
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    found = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(reader, "time", SimpleNamespace(monotonic=lambda: found.now_s))
    return found


def reader_of(api: Api, caller: Identity = LOCAL) -> Reader:
    scope: dict[str, Any] = {"type": "http", "app": api, "headers": [(b"host", b"here")], "state": {"identity": caller}}
    return Reader(Request(scope))


async def number(api: Api, path: str = "v1/jobs", caller: Identity = LOCAL) -> int:
    return int((await reader_of(api, caller).get(path))["number"])


@pytest.mark.usefixtures("clock")
def test_the_reads_of_a_page_are_made_one_after_the_other() -> None:
    async def page(api: Api) -> None:
        one = reader_of(api)
        await asyncio.gather(*(one.get(f"v1/jobs/{job}") for job in range(5)))

    async def pages(api: Api) -> None:
        await asyncio.gather(page(api), page(api))

    api = Api()
    asyncio.run(pages(api))
    assert (api.answers, api.most) == (5, 1), "the second page has the documents of the first"


def test_a_document_serves_pages_of_its_caller_for_a_second(clock: SimpleNamespace) -> None:
    async def check(api: Api) -> None:
        assert [await number(api), await number(api), await number(api, caller=ADA)] == [1, 1, 2]
        clock.now_s += 0.9
        assert await number(api) == 1
        clock.now_s += 0.2
        assert await number(api) == 3

    asyncio.run(check(Api()))


def test_a_change_of_the_caller_ends_it(clock: SimpleNamespace) -> None:
    async def check(api: Api) -> None:
        assert [await number(api), await number(api, caller=ADA)] == [1, 2]
        api.state.shared_documents.forget(ADA)
        assert [await number(api), await number(api, caller=ADA)] == [1, 3]

    asyncio.run(check(Api()))


def test_old_documents_take_no_memory(clock: SimpleNamespace) -> None:
    async def check(api: Api) -> None:
        for job in range(300):
            await number(api, f"v1/jobs/{job}")
        assert len(api.state.shared_documents) == reader.SHARED_MAX
        clock.now_s += 1.1
        await number(api)
        assert len(api.state.shared_documents) == 1

    asyncio.run(check(Api()))


@pytest.mark.usefixtures("clock")
def test_a_read_that_was_given_up_is_made_again() -> None:
    async def given_up(api: Api) -> None:
        waiting.append(asyncio.ensure_future(number(api)))
        await asyncio.sleep(0)

    async def again(api: Api) -> None:
        assert await number(api) == 1

    api, waiting = Api(), list[asyncio.Future[int]]()
    # The end of the first loop cancels what is under way.
    asyncio.run(given_up(api))
    asyncio.run(again(api))


@pytest.mark.usefixtures("clock")
def test_a_problem_of_the_api_is_raised_or_replaced() -> None:
    async def check(api: Api) -> None:
        with pytest.raises(Unavailable) as raised:
            await number(api)
        assert raised.value.status == 503
        assert await reader_of(api).get_or(7, "v1/jobs") == 7

    asyncio.run(check(Api(status=503)))


def test_what_is_made_for_all_callers_is_made_once_in_its_time(clock: SimpleNamespace) -> None:
    async def made(api: Api, caller: Identity) -> int:
        one = reader_of(api, caller)

        async def make() -> int:
            return int((await one.get_alone("v1/jobs"))["number"])

        return int(await one.for_all("a chart", 60.0, make))

    async def check(api: Api) -> None:
        assert await asyncio.gather(made(api, LOCAL), made(api, ADA)) == [1, 1]
        clock.now_s += 59.0
        assert [await number(api), await made(api, ADA)] == [2, 1], "another document does not end it"
        api.state.shared_documents.forget(LOCAL)
        assert await made(api, LOCAL) == 1
        clock.now_s += 2.0
        assert await made(api, LOCAL) == 3

    asyncio.run(check(Api()))


@pytest.mark.usefixtures("clock")
def test_what_could_not_be_made_is_made_again() -> None:
    async def check(api: Api) -> None:
        one = reader_of(api)

        async def found() -> Any:
            return await one.for_all("a chart", 60.0, lambda: one.get_alone("v1/jobs"))

        with pytest.raises(Unavailable):
            await found()
        api.status = 200
        assert (await found())["number"] == 2

    asyncio.run(check(Api(status=503)))


@pytest.mark.usefixtures("clock")
def test_callers_who_see_the_same_share_what_depends_on_that_alone() -> None:
    """Members of projects share nothing, because some documents name limits of their own users."""
    everything = [Identity(name, Role.VIEWER, None, name) for name in ("ada", "bob")]
    members = [Identity(name, Role.VIEWER, frozenset({"vision"}), name) for name in ("ada", "bob")]

    async def numbers(api: Api, callers: list[Identity], *, by_sight: bool) -> list[int]:
        found = [await reader_of(api, caller).get("v1/jobs", by_sight=by_sight) for caller in callers]
        return [int(each["number"]) for each in found]

    async def check(api: Api) -> None:
        operator = Identity("eve", Role.OPERATOR, None, "eve")
        assert await numbers(api, [*everything, *members, operator], by_sight=True) == [1, 1, 2, 3, 4]
        assert await numbers(api, [*everything, *members], by_sight=False) == [5, 6, 2, 3]
        api.state.shared_documents.forget(everything[1])
        assert await numbers(api, everything, by_sight=True) == [7, 7], "a change of one is shown to all"

    asyncio.run(check(Api()))
