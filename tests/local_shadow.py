"""A shadow policy that decides in the calling thread, without a time limit, so that no clock counts."""

from concurrent.futures import Future
from typing import Any

from policies.base import Policy
from service.shadow.decider import Decider, DeciderFailed, Request
from service.shadow.shadow import Shadow


class LocalWorker:
    """Implements :class:`service.shadow.decider.Worker` in the calling thread."""

    def __init__(self) -> None:
        self._decider = Decider()

    def submit(self, request: Request, timeout_s: float) -> Future[Any]:
        """The answer, at once."""
        future: Future[Any] = Future()
        try:
            future.set_result(self._decider.answer(request))
        except DeciderFailed as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Nothing is ever under way."""


def local_shadow(inner: Policy[Any], other: Policy[Any], *args: Any, **options: Any) -> Shadow:
    """``other`` beside ``inner``, in the calling thread."""
    return Shadow(inner, other, *args, worker=LocalWorker(), **options)
