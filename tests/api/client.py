"""A synchronous httpx client of an ASGI application, without a socket.

Every request runs in an event loop of its own, so clients may be used from several threads at once.
"""

import asyncio

import httpx
from starlette.types import ASGIApp

BASE_URL = "http://127.0.0.1:8765"


class AppTransport(httpx.BaseTransport):
    """Calls the application; errors that it lets escape become answers of status 500 without a body."""

    def __init__(self, app: ASGIApp) -> None:
        self._transport = httpx.ASGITransport(app, raise_app_exceptions=False)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        async def call() -> httpx.Response:
            answer = await self._transport.handle_async_request(request)
            content = httpx.ByteStream(b"".join([part async for part in answer.aiter_raw()]))
            return httpx.Response(answer.status_code, headers=answer.headers, stream=content, request=request)

        return asyncio.run(call())


def client_of(app: ASGIApp, token: str | None) -> httpx.Client:
    """A client with this bearer token, or without any."""
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    return httpx.Client(transport=AppTransport(app), base_url=BASE_URL, headers=headers)
