"""A story that the tests of changing estimates share."""

import pytest

from service.db.session import Database
from tests.parity.test_engine_story import in_both
from tests.scenarios.dsl import Story, cluster, policy


@pytest.fixture(params=["memory", "both"])
def story(request: pytest.FixtureRequest, database: Database) -> Story:
    """One server with a GPU, kept in memory or in the database as well."""
    made = cluster("1x1", policy("asrpt"))
    if request.param == "both":
        in_both(made, database)
    return made
