"""A lease that cannot be renewed ends all attempts, so the log says it, once."""

from pathlib import Path

import pytest

from service.executors import folder as names
from service.executors.renewal import Renewal


def test_a_lease_that_cannot_be_renewed_is_logged_once_until_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "lease"
    renewal = Renewal(file, 60.0)
    renewal.renew()
    assert names.lease_used_s(file, 60.0) < 60.0
    assert not caplog.records
    file.unlink()
    file.mkdir()
    for _ in range(3):
        renewal.renew()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "stop after 60 s" in caplog.text
    file.rmdir()
    renewal.renew()
    renewal.renew()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert file.is_file()
