"""Live services that leave nothing behind."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import LiveService

MakeService = Callable[..., LiveService]


_ALONE = {"demo", "forecast_record", "forecasts", "profile", "several_servers"}
"""What they assert depends on how long something took."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole services and their programs are kept away from tests that compute."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            alone = item.path.stem.removeprefix("test_") in _ALONE
            item.add_marker(pytest.mark.alone if alone else pytest.mark.services)


@pytest.fixture
def make_service(tmp_path: Path) -> Iterator[MakeService]:
    """Makes services that are ended with the test, and everything that they started with them."""
    made: list[LiveService] = []

    def make(servers: int = 1, gpus: int = 4, **settings: str) -> LiveService:
        folder = tmp_path / f"service{len(made)}"
        folder.mkdir()
        service = LiveService(folder, [{"count": servers, "gpus": gpus, "gpu_type": "V100", "rack": "r1"}], **settings)
        made.append(service)
        return service

    yield make
    for service in made:
        service.close()
