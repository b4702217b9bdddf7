"""A service whose queue is forecast."""

import pytest

from tests.unit.service.forecast.test_forecasting import Live, living


@pytest.fixture
def live() -> Live:
    """Nothing is submitted yet."""
    return living()
