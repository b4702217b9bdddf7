"""What is answered quickly is answered as by the route's function: status, headers and body."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from httpx import Client

from service.api.app import create_app
from service.api.quick import QuickRoutes
from service.api.rates import Buckets
from service.api.routers import jobs
from service.domain.access import Role
from tests.api.client import client_of
from tests.api.conftest import make_world
from tests.api.helpers import graph_job, plain_job
from tests.api.people import person, submitted

PATHS = ("/v1/jobs/1", "/v1/jobs/2", "/v1/jobs/3", "/v1/jobs/01", "/v1/jobs/1?x=1", "/v1/jobs/1/", "/v1/jobs/", "/v1/jobs/x",
         "/v1/jobs/-1", "/v1/jobs/%31", "/v1/jobs/1%2F2", "/v1/jobs/" + "9" * 30, "/v1/jobs/1%20")  # fmt: skip
TAGS = ([], ["*"], ["{tag}"], ['"other"'], ['"other", {tag}'], ["{tag}", '"other"'], ["x" * 1025], ["x" * 1024], [""])


class Counting(ThreadPoolExecutor):
    """Counts the jobs that are shown quickly."""

    calls = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls += 1
        return super().submit(fn, *args, **kwargs)


def seen(client: Client, method: str, path: str, tags: list[str]) -> tuple[int, dict[str, str], bytes]:
    """The answer but for the id of the request."""
    found = client.request(method, path, headers=[("if-none-match", tag) for tag in tags] + [("x-request-id", "same")])
    return found.status_code, dict(found.headers), found.content


@pytest.mark.parametrize("in_loop", [True, False])
def test_a_job_is_shown_as_by_the_routes_function(
    in_loop: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the event loop, and by a thread where the database cannot be looked at from there."""
    world = make_world(tmp_path)
    if not in_loop:
        monkeypatch.setattr(world.database, "at_once", lambda: nullcontext(None))
    quick, slow = (create_app(world.dependencies()) for _ in range(2))
    slow.state.quick_routes = QuickRoutes([])
    for app in (quick, slow):
        # The 429s after too many wrong tokens say equal times, however slow the machine is.
        app.state.failed_logins = Buckets(1.0, 20, now_s=lambda: 0.0)
    threads = Counting()
    monkeypatch.setattr(jobs, "_SHOWING", threads)
    with closing(world.database):
        ann = person(world, "ann", Role.SUBMITTER, "nlp").key
        eve = person(world, "eve", Role.VIEWER).key
        assert submitted(quick, world, graph_job(user="ann"), plain_job(user="bob")) == [1, 2]
        with client_of(quick, ann) as client:
            tag = client.get("/v1/jobs/1").headers["etag"]
        for key in (world.token, ann, eve, "wrong", None):
            with client_of(quick, key) as one, client_of(slow, key) as other:
                for method in ("GET", "HEAD", "PUT"):
                    for path in PATHS:
                        assert seen(one, method, path, []) == seen(other, method, path, [])
                for tags in TAGS:
                    sent = [each.replace("{tag}", tag) for each in tags]
                    assert seen(one, "GET", "/v1/jobs/1", sent) == seen(other, "GET", "/v1/jobs/1", sent)
    threads.shutdown()
    assert threads.calls < 5 if in_loop else threads.calls > 20, "the usual ones are answered quickly"
