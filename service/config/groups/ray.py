"""How a Ray cluster is reached."""

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from service.config.kinds import Folder

_ADDRESS = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})")
_PORT_MAX = 65_535


def _host_and_port(value: str) -> str:
    found = _ADDRESS.fullmatch(value)
    if found is None or not 1 <= int(found[1]) <= _PORT_MAX:
        raise ValueError(f"must be host:port with a port from 1 to {_PORT_MAX}, as `ray start` printed it")
    return value


class RayCluster(BaseModel):
    """What ``executor=ray`` needs beside the settings of all engines."""

    ray_address: Annotated[str, AfterValidator(_host_and_port)] | None = Field(
        None,
        description="Address of the head of the Ray cluster, as host:port. For executor=ray, which needs it. A node of that "
        "cluster, such as its head, must run on the machine of the service.",
    )
    ray_token_file: Folder | None = Field(
        None,
        description="File with the token of the Ray cluster. Default: RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH in the environment, "
        "else ~/.ray/auth_token.",
    )
