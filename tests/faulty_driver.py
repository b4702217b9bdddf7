"""Faults of single calls of an engine's driver, for tests over any engine."""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TypeVar

from service.engine.ports import Abilities
from service.executors.cluster.driver import (
    EngineDriver,
    EngineJob,
    EngineNode,
    EngineNotNow,
    EngineRefused,
    EngineUnavailable,
    NodeLaunch,
)

_T = TypeVar("_T")


class Fault(StrEnum):
    """What becomes of one call."""

    TIMES_OUT = "times_out"
    """It has no effect and no answer."""
    ANSWER_LOST = "answer_lost"
    """It has its effect and no answer."""
    LATE = "late"
    """It has no answer, and its effect comes when :meth:`Faults.catch_up` is called."""
    TWICE = "twice"
    """It has its effect twice."""
    HANGS = "hangs"
    """It returns, with its effect, only after :meth:`Faults.release` is called."""
    REFUSED = "refused"
    NOT_NOW = "not_now"


class Faults:
    """The faults of all drivers of one engine, as the network and the engine would cause them."""

    def __init__(self) -> None:
        self.silent = False
        """Whether no call is answered."""
        self.effects: Counter[str] = Counter()
        """Calls that had an effect, by name."""
        self._due: dict[str, list[Fault]] = defaultdict(list)
        self._late: list[Callable[[], object]] = []
        self.hanging = 0
        """Calls that hang now."""
        self._counting = threading.Lock()
        self._released = threading.Event()
        self._released.set()

    def next(self, call: str, *faults: Fault) -> None:
        """What becomes of the next calls of this name (submit, cancel, jobs or nodes), in order."""
        if Fault.HANGS in faults:
            self._released.clear()
        self._due[call] += faults

    def catch_up(self) -> None:
        """Let the effects of late calls come."""
        late, self._late = self._late, []
        for effect in late:
            effect()

    def hangs(self) -> bool:
        """Whether a call hangs now."""
        return self.hanging > 0

    def release(self) -> None:
        """Let calls that hang go on."""
        self._released.set()

    def clear(self) -> None:
        """No more faults."""
        self.silent = False
        self._due.clear()
        self.release()

    def call(self, name: str, effect: Callable[[], _T]) -> _T:
        """Carry out a call with the fault that is due."""
        fault = self._due[name].pop(0) if self._due[name] else None
        if fault is Fault.HANGS:
            with self._counting:
                self.hanging += 1
            self._released.wait()
            with self._counting:
                self.hanging -= 1
        if fault is Fault.REFUSED:
            raise EngineRefused(f"{name} is refused")
        if fault is Fault.NOT_NOW:
            raise EngineNotNow(f"{name} is refused for now")
        if fault is Fault.LATE:
            self._late.append(effect)
        if self.silent or fault in (Fault.TIMES_OUT, Fault.LATE):
            raise EngineUnavailable(f"{name} timed out")
        result = effect()
        self.effects[name] += 1
        if fault is Fault.TWICE:
            effect()
        if fault is Fault.ANSWER_LOST:
            raise EngineUnavailable(f"{name} timed out")
        return result


class FaultyDriver:
    """Implements :class:`service.executors.cluster.driver.EngineDriver` over another driver."""

    def __init__(self, inner: EngineDriver, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def abilities(self) -> Abilities:
        return self._inner.abilities

    @property
    def kill_wait_s(self) -> float:
        return self._inner.kill_wait_s

    def submit(self, launch: NodeLaunch) -> str:
        return self._faults.call("submit", lambda: self._inner.submit(launch))

    def cancel(self, ids: Sequence[str]) -> None:
        self._faults.call("cancel", lambda: self._inner.cancel(ids))

    def jobs(self) -> Sequence[EngineJob]:
        return self._faults.call("jobs", self._inner.jobs)

    def nodes(self) -> Sequence[EngineNode]:
        return self._faults.call("nodes", self._inner.nodes)

    def close(self) -> None:
        self._inner.close()
