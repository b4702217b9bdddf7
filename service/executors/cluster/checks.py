"""Checks each server once, through the engine, before its first faults become those of jobs.

A check (:mod:`service.executors.cluster.check`) is a submission for one GPU of one server, of job 0, which does not exist. A
server counts as down until it has passed a check once: ``checked/<server>`` in the shared folder notes that for later services.
One with a problem counts as drained, with the problem as the reason, and is checked again every minute.
"""

import contextlib
import logging
import math
import os
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from policies.model.ids import AttemptId
from service.executors.cluster.attempt import START_S, STUCK_S
from service.executors.cluster.driver import (
    EngineDriver,
    EngineEnd,
    EngineJob,
    EngineJobState,
    EngineNode,
    EngineRefused,
    EngineUnavailable,
    NodeLaunch,
    NodeShare,
    NodeState,
)
from service.executors.cluster.runtime import Check, CheckRequest, begin_check, end_check, request_check, take_answer
from service.runtime.untrusted import PRIVATE_FOLDER, open_below

logger = logging.getLogger(__name__)

UNCHECKED = "not checked yet"
CHECKED = "checked"
SUBMITS_MAX = 16
"""Checks that one step submits, a call each: servers that have answered take no jobs until its end."""
_LOOK_S = 1.0
_LOOK_PAUSE = 4.0
"""Time from one look at the engine's jobs to the next, at the least: as a multiple of how long it takes."""
_ANSWER_S = 0.2
"""Between two looks for answers in the shared folder, longer with many of them: servers take no jobs until then."""
_ANSWER_S_EACH = 0.01
_IDLE_S = 5.0
_AGAIN_S = 60.0
_PENDING_S_MAX = 600.0
"""A server may be busy. Its check is given up after this time, and tried again later."""
_RUNNING_S_MAX = START_S
"""A check takes about a second after the engine's prologs. Where it takes longer than this, no attempt would start in time."""
_VISIBLE_S = 5.0
"""Longest time until a file that was written on a server is seen here."""


@dataclass(slots=True)
class _Submission:
    attempt: AttemptId
    request: CheckRequest
    id: str
    since_s: float
    begun_s: float | None = None
    ended_s: float | None = None


class NodeChecks:
    """``program``: the arguments that start a check. ``elapsed_s``: a monotonic clock. One thread calls :meth:`step`."""

    def __init__(
        self,
        driver: EngineDriver,
        shared_dir: Path,
        program: Callable[[Check], tuple[str, ...]],
        elapsed_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver = driver
        self._shared_dir = shared_dir
        self._program = program
        self._elapsed_s = elapsed_s
        self._check: Check | None = None
        self._up: frozenset[str] = frozenset()
        self._waiting: dict[str, _Submission] = {}
        self._due_s: dict[str, float] = {}
        self._problems: dict[str, str] = {}
        self._admitted: set[str] = set()
        self._look_s = self._read_s = -math.inf
        self.verdicts = 0
        """Checks that have ended: the engine's next answer may be overlaid in another way."""
        self._checked = shared_dir / CHECKED
        self._checked.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)

    def overlaid(self, nodes: Sequence[EngineNode], used: Collection[str] = ()) -> list[EngineNode]:
        """An answer of the engine, in which servers with a problem are drained, and those that were never checked are down.

        Their checks follow. ``used``: servers on which attempts run. They are not down, as their checks may wait for a free GPU.
        Any thread may call it.
        """
        self._up = frozenset(node.server.name for node in nodes if node.state is NodeState.UP)
        return [
            self._overlaid(node, node.server.name in used) if node.state is NodeState.UP else node for node in nodes
        ]

    def _overlaid(self, node: EngineNode, used: bool) -> EngineNode:
        name = node.server.name
        if (problem := self._problems.get(name)) is not None:
            return replace(node, state=NodeState.DRAINED, detail=problem)
        if name not in self._admitted:
            if (self._checked / name).exists():
                self._admitted.add(name)
            elif not used:
                return replace(node, state=NodeState.DOWN, detail=UNCHECKED)
        return node

    @property
    def due(self) -> bool:
        """Whether a server is up that this object has not begun to check. Any thread may ask."""
        return not self._up <= self._due_s.keys()

    def owns(self, attempt: AttemptId) -> bool:
        """Whether a submission is a running check of this object. Any thread may ask."""
        return any(submission.attempt == attempt for submission in list(self._waiting.values()))

    def step(self) -> float:
        """Submit checks that are due, and read the answers; returns the seconds until the next step, 0 if more are due."""
        try:
            more = self._submit()
            if not more or self._elapsed_s() - self._read_s >= self._answer_s():
                self._read_answers()
            if self._waiting and self._elapsed_s() >= self._look_s:
                self._look_at_all()
        except (EngineUnavailable, OSError) as error:
            logger.warning("the servers cannot be checked now: %s", error)
            return _IDLE_S
        if more:
            return 0.0
        if self._check is not None and not self._waiting and not self._problems:
            end_check(self._shared_dir, self._check)
            self._check = None
        return self._answer_s() if self._waiting else _IDLE_S

    def _answer_s(self) -> float:
        return min(_LOOK_S, max(_ANSWER_S, _ANSWER_S_EACH * len(self._waiting)))

    def _submit(self) -> bool:
        """Submit some of the checks that are due; whether there are more."""
        begun_s = self._elapsed_s()
        due = [name for name in self._up if name not in self._waiting and self._due_s.get(name, 0.0) <= begun_s]
        # Those that were never checked come first: the others take jobs already, or have a problem.
        due.sort(key=lambda name: (self._due_s.get(name, 0.0), name))
        for server in due[:SUBMITS_MAX]:
            now_s = self._elapsed_s()
            if self._check is None:
                self._check = begin_check(self._shared_dir)
            request = request_check(self._check, server)
            attempt = AttemptId(f"0.{secrets.randbelow(10**9)}")
            program = self._program(self._check)
            self._due_s[server] = now_s + _AGAIN_S
            # It is known before the engine has it, so that it is not taken for what another service has left.
            self._waiting[server] = _Submission(attempt, request, "", now_s)
            try:
                launch = NodeLaunch(attempt, (NodeShare(server, 1),), program, request.plan)
                self._waiting[server].id = self._driver.submit(launch)
            except EngineRefused as refusal:
                self._admit_unchecked(server, str(refusal))
            except EngineUnavailable:
                del self._waiting[server]
                self._due_s[server] = now_s + _IDLE_S
                raise
        return len(due) > SUBMITS_MAX

    def _admit_unchecked(self, server: str, why: str) -> None:
        # What the engine refuses, or never starts, says nothing of the server, and jobs that it takes may run there.
        logger.warning("server %s cannot be checked: %s", server, why)
        del self._waiting[server]
        self._admitted.add(server)
        self.verdicts += 1

    def _read_answers(self) -> None:
        self._read_s = self._elapsed_s()
        for server, submission in list(self._waiting.items()):
            assert self._check is not None
            if (answer := take_answer(self._shared_dir, self._check, submission.request)) is not None:
                self._note(server, answer)

    def _look_at_all(self) -> None:
        begun_s = self._elapsed_s()
        jobs = {job.attempt: job for job in self._driver.jobs()}
        ended_s = self._elapsed_s()
        self._look_s = max(begun_s + _LOOK_S, ended_s + _LOOK_PAUSE * (ended_s - begun_s))
        for server, submission in list(self._waiting.items()):
            self._look(server, submission, jobs.get(submission.attempt))

    def _look(self, server: str, submission: _Submission, job: EngineJob | None) -> None:
        now_s = self._elapsed_s()
        over = job is None or job.state is EngineJobState.ENDED
        if not over:
            # An earlier answer of the engine may have been without it.
            submission.ended_s = None
        elif submission.ended_s is None:
            submission.ended_s = now_s
        if submission.ended_s is not None and now_s - submission.ended_s >= _VISIBLE_S:
            if job is not None and job.end in (EngineEnd.COMPLETED, EngineEnd.OUT_OF_MEMORY):
                why = f": {job.detail}" if job.detail else ""
                self._note(server, [f"the check of the server left no answer in the shared folder{why}"])
            else:
                del self._waiting[server]
        elif job is not None and not over:
            self._hold_to_times(server, submission, job)

    def _hold_to_times(self, server: str, submission: _Submission, job: EngineJob) -> None:
        now_s = self._elapsed_s()
        if job.state is EngineJobState.PENDING:
            submission.begun_s = None
            if job.stuck and now_s - submission.since_s >= STUCK_S:
                self._driver.cancel([submission.id])
                self._admit_unchecked(server, job.stuck)
            elif now_s - submission.since_s >= _PENDING_S_MAX:
                self._driver.cancel([submission.id])
                del self._waiting[server]
        elif submission.begun_s is None:
            submission.begun_s = now_s
        elif now_s - submission.begun_s >= _RUNNING_S_MAX:
            self._driver.cancel([submission.id])
            self._note(server, [f"the check of the server did not end within {_RUNNING_S_MAX:g} s"])

    def _note(self, server: str, problems: Sequence[str]) -> None:
        del self._waiting[server]
        self.verdicts += 1
        if problems:
            self._admitted.discard(server)
            with contextlib.suppress(OSError):
                (self._checked / server).unlink(missing_ok=True)
            text = "; ".join(problems)
            if self._problems.get(server) != text:
                logger.error("server %s: %s", server, text)
            self._problems = {**self._problems, server: text}
            self._due_s[server] = self._elapsed_s() + _AGAIN_S
            return
        self._admitted.add(server)
        with contextlib.suppress(OSError):  # then a later service checks it before it takes jobs
            os.close(open_below(self._checked, server, flags=os.O_WRONLY | os.O_CREAT))
        if server in self._problems:
            logger.warning("server %s has passed its check", server)
            self._problems = {name: text for name, text in self._problems.items() if name != server}
        self._due_s[server] = float("inf")
