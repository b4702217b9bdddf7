"""A client of the HTTP API in two forms, for the command line, notebooks, the demo and scripts.

Answers are the plain JSON objects of :mod:`service.wire`, which is imported for the types alone: the only dependency is httpx.
A newer service may add keys.
"""

from service.client.client import AsyncClient, Client
from service.client.errors import ApiError, ClientError, Unreachable, Unsendable
from service.client.events import StreamEvent
from service.client.frames import frame
from service.client.jobs import TERMINAL_STATES, UNFINISHED_STATES, LogChunk

__all__ = [
    "TERMINAL_STATES",
    "UNFINISHED_STATES",
    "ApiError",
    "AsyncClient",
    "Client",
    "ClientError",
    "LogChunk",
    "StreamEvent",
    "Unreachable",
    "Unsendable",
    "frame",
]
