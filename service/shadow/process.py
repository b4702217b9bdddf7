"""The process in which the shadow policy decides. It may hang, crash or exceed its memory without harm to the service.

A thread sends the requests one by one, so the scheduling loop never waits for the process. A process that exceeds its time
limit is killed; the next request starts a new one.
"""

import pickle
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from service.runtime.child import Child, ChildClosed, ChildLost, ChildTimeout, serve
from service.runtime.limited_process import limited_command
from service.shadow.decider import Decider, DeciderFailed, NoAnswer, Request


class ShadowProcess:
    """Implements :class:`service.shadow.decider.Worker`. ``memory_bytes`` limits the address space of the process."""

    def __init__(self, memory_bytes: int) -> None:
        self._child = Child(limited_command(__name__, memory_bytes=memory_bytes))
        self._thread = ThreadPoolExecutor(1, "shadow")

    def submit(self, request: Request, timeout_s: float) -> Future[Any]:
        """Return the future answer. The request is copied before this returns."""
        return self._thread.submit(self._ask, pickle.dumps(request), timeout_s)

    def close(self) -> None:
        """End the process and the thread."""
        self._child.close()
        self._thread.shutdown(cancel_futures=True)

    def _ask(self, message: bytes, timeout_s: float) -> Any:
        try:
            return self._child.ask(message, timeout_s)
        except ChildTimeout:
            raise NoAnswer(f"it took longer than {timeout_s:g} s") from None
        except ChildLost as error:
            raise NoAnswer(f"its process ended ({error})") from None
        except ChildClosed:
            raise NoAnswer("the service is shutting down") from None


if __name__ == "__main__":
    serve(Decider().answer, DeciderFailed)
