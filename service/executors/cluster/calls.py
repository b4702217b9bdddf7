"""Submits and cancels: the calls to the engine that one attempt needs, on a thread that may wait for them."""

import logging
from collections.abc import Callable

from policies.model.reasons import Reason
from service.engine.commands import Launch
from service.engine.crash_points import CrashPoint, reached
from service.executors.cluster.attempt import ClusterAttempt
from service.executors.cluster.driver import EngineDriver, EngineNotNow, EngineRefused, EngineUnavailable, NodeLaunch
from service.executors.cluster.shared import LaunchRecord
from service.executors.files import is_disk_full
from service.runtime.accounts import NoAccount

logger = logging.getLogger(__name__)

TRIES_MAX = 10
"""Submits that may fail in a row, in about two minutes. Then the attempt is given up: it holds its GPUs until then."""
_FIRST_PAUSE_S = 0.5
_PAUSE_MAX_S = 30.0
_ANSWER_S = 0.1


class EngineCalls:
    """``node_launch``: what to submit; raises OSError or NoAccount. ``looks``: have the folder of an attempt looked at soon."""

    def __init__(
        self,
        driver: EngineDriver,
        node_launch: Callable[[Launch, LaunchRecord], NodeLaunch],
        looks: Callable[[str], None],
        elapsed_s: Callable[[], float],
    ) -> None:
        self._driver = driver
        self._node_launch = node_launch
        self._looks = looks
        self._elapsed_s = elapsed_s

    def carry_out(self, attempt: ClusterAttempt) -> float | None:
        """Make the calls that the attempt waits for; the seconds until the next try, None if there is nothing left to do.

        Raises :class:`service.executors.cluster.attempt.Dropped` if a newer leader has sent commands.
        """
        if attempt.end is not None:
            return None
        if due := attempt.to_cancel:
            try:
                self._driver.cancel(sorted(due))
            except EngineUnavailable as error:
                return self._put_off(attempt, f"cannot be cancelled yet: {error}")
            attempt.to_cancel -= due
            attempt.around.ask()
        return self._submit(attempt) if attempt.to_submit else None

    def _submit(self, attempt: ClusterAttempt) -> float | None:
        """Submit, unless the engine has a submission already that an earlier call has made without an answer."""
        attempt.submitting = (
            True  # before the attempt is asked whether it may run: one of the two threads sees the other
        )
        try:
            launch, record = attempt.launch, attempt.record
            if launch is None or record is None or attempt.never or attempt.failure is not None:
                attempt.to_submit = False
                return None
            if not attempt.submissions.certain:
                attempt.around.ask()
                return _ANSWER_S
            if attempt.submissions.ids:
                attempt.to_submit = False
                return None
            return self._try(attempt, launch, record)
        finally:
            attempt.submitting = False
            self._looks(attempt.attempt)

    def _try(self, attempt: ClusterAttempt, launch: Launch, record: LaunchRecord) -> float | None:
        try:
            node_launch = self._node_launch(launch, record)
            with attempt.around.fenced(launch.fencing_token):
                # Another leader may have noted a submission since this one has read the record.
                tried = (attempt.folder.read_launch() or record).tried()
                attempt.folder.write_launch(tried)
        except NoAccount as refusal:
            self._refuse(attempt, str(refusal))
            return None
        except OSError as error:
            reason = Reason.DISK_FULL if is_disk_full(error) else Reason.LAUNCH_FAILED
            if isinstance(error, TimeoutError):  # the fence is held elsewhere, which is no fault of the job
                reason = Reason.NODE_LOST
            return self._try_again(attempt, reason, f"cannot be submitted: {error}")
        attempt.record = tried
        try:
            engine_id = self._driver.submit(node_launch)
        except EngineNotNow as refusal:
            self._take_back(attempt, launch, tried)
            # The engine takes it later, which is no fault of the job, and uses up no retry.
            return self._try_again(attempt, Reason.NODE_LOST, f"cannot be submitted now: {refusal}")
        except EngineRefused as refusal:
            attempt.record = record
            self._refuse(attempt, str(refusal))
            return None
        except Exception as error:
            # It may have had an effect, now or later.
            attempt.submissions.note_uncertain(self._elapsed_s())
            away = isinstance(error, EngineUnavailable)
            if not away:
                logger.exception("the engine's driver failed")
            # An engine that takes no submission is no fault of the job, and uses up no retry.
            reason = Reason.NODE_LOST if away else Reason.LAUNCH_FAILED
            return self._try_again(attempt, reason, f"may not have been submitted: {error}")
        reached(CrashPoint.SPAWNED)
        attempt.submissions.add(engine_id, self._elapsed_s())
        attempt.to_submit = False
        attempt.tries = 0
        attempt.record = tried.submitted(engine_id)
        try:
            with attempt.around.fenced(launch.fencing_token):
                attempt.folder.write_launch(attempt.record)
        except OSError as error:
            # After a restart, the engine's own answer names it.
            logger.error("the submission %s of attempt %s cannot be noted: %s", engine_id, attempt.attempt, error)
        attempt.around.ask()
        return None

    def _take_back(self, attempt: ClusterAttempt, launch: Launch, tried: LaunchRecord) -> None:
        """Note that the last submission had no effect, so that no later leader looks for it."""
        attempt.record = tried.refused()
        try:
            with attempt.around.fenced(launch.fencing_token):
                attempt.folder.write_launch(attempt.record)
        except OSError as error:
            logger.warning("the refused submission of attempt %s cannot be taken back: %s", attempt.attempt, error)

    def _try_again(self, attempt: ClusterAttempt, reason: Reason, what: str) -> float | None:
        """After a submit that failed: the seconds until the next one, or None if it was the last one."""
        pause_s = self._put_off(attempt, what)
        if attempt.tries < TRIES_MAX:
            return pause_s
        self._refuse(attempt, f"{attempt.tries} submits in a row failed; the last: {what}", reason)
        return None

    def _refuse(self, attempt: ClusterAttempt, detail: str, reason: Reason = Reason.LAUNCH_FAILED) -> None:
        attempt.failure = (reason, detail)
        attempt.to_submit = False

    def _put_off(self, attempt: ClusterAttempt, what: str) -> float:
        attempt.tries += 1
        logger.warning("attempt %s %s", attempt.attempt, what)
        return float(min(_FIRST_PAUSE_S * 2.0 ** min(attempt.tries - 1, 16), _PAUSE_MAX_S))
