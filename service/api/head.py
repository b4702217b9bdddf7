"""``HEAD``: answered as ``GET`` is, without the body."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadAsGet:
    """ASGI middleware around all others: what they and the routes see is a ``GET``, so that it needs the same permission."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        ended = False

        async def answer(message: Message) -> None:
            # A stream has no end of its own: it ends when the server says that the answer is complete.
            nonlocal ended
            if message["type"] == "http.response.start":
                await send(message)
            elif not ended:
                ended = True
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        as_get = {**scope, "method": "GET"}
        try:
            await self._app(as_get, receive, answer)
        finally:
            if "route" in as_get:
                # For those who count requests by route.
                scope["route"] = as_get["route"]
