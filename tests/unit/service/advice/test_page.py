"""The page with the newest advice: for reading only, on this machine, and safe against odd names of jobs."""

from collections.abc import Iterator

import httpx
import pytest

from service.advice.page import AdvicePage


@pytest.fixture
def page() -> Iterator[AdvicePage]:
    found = AdvicePage(0)
    yield found
    found.close()


def _publish(page: AdvicePage, name: str = "train") -> None:
    page.publish({"schema": "sooner.advice/1", "jobs": []}, lead="lead", columns=["NAME"], rows=[[name]], tail="tail")


def test_before_the_first_advice(page: AdvicePage) -> None:
    assert httpx.get(page.url).status_code == 503


def test_the_document_and_the_page(page: AdvicePage) -> None:
    _publish(page)
    assert httpx.get(f"{page.url}advice.json").json() == {"schema": "sooner.advice/1", "jobs": []}
    answer = httpx.get(page.url)
    assert "<td>train</td>" in answer.text and "lead" in answer.text and "tail" in answer.text
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_names_of_jobs_are_text(page: AdvicePage) -> None:
    _publish(page, "<script>alert(1)</script>")
    assert "<script>" not in httpx.get(page.url).text


def test_other_paths_methods_and_hosts_get_nothing(page: AdvicePage) -> None:
    _publish(page)
    assert httpx.get(f"{page.url}jobs").status_code == 404
    assert httpx.post(page.url).status_code == 501
    assert httpx.get(page.url, headers={"Host": "evil.example:80"}).status_code == 421
    assert httpx.get(page.url, headers={"Host": "evil.example"}).status_code == 421
    assert page.url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "localhost:8080"])
def test_a_browser_leaves_out_the_port_80(page: AdvicePage, host: str) -> None:
    _publish(page)
    assert httpx.get(page.url, headers={"Host": host}).status_code == 200
