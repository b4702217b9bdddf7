"""Where the service of this machine is reached."""

import pytest

from service.config.environment import service_url


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", "http://127.0.0.1:8765"),
        ("0.0.0.0", "http://127.0.0.1:8765"),
        ("::", "http://127.0.0.1:8765"),
        ("::1", "http://[::1]:8765"),
        ("gpu-head", "http://gpu-head:8765"),
        ("10.0.0.5", "http://10.0.0.5:8765"),
    ],
)
def test_where_a_service_is_reached(host: str, expected: str) -> None:
    assert service_url(host, 8765) == expected
