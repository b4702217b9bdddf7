"""Requests that change something: carried out once per ``Idempotency-Key`` and recorded in the audit log."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import Depends, Response
from sqlmodel import Session

from service.api.deps import ApiDependencies, Deps, KeyStore
from service.api.idempotency import Answer, Effect, Keyed, KeyedRequest, Keys
from service.engine.events import EngineRequest
from service.wire.jobs import AcceptedServerDocument


class ChangeRequest:
    """One such request."""

    def __init__(self, dependencies: ApiDependencies, keys: Keys, keyed: KeyedRequest) -> None:
        self._dependencies = dependencies
        self._keys = keys
        self._keyed = keyed

    def make(self, effect: Effect) -> Response:
        """The answer of ``effect``, which runs in a writing transaction."""
        return self._keys.run(self._keyed, lambda: effect)

    def prepare_and_make(self, prepare: Callable[[], Effect]) -> Response:
        """As :meth:`make`; ``prepare`` runs before the transaction, and a repeated request has the kept answer if it raises."""
        return self._keys.run(self._keyed, prepare)

    def make_outside(self, work: Callable[[], Effect]) -> Response:
        """As :meth:`make`; ``work`` changes something outside the database, so a repeated request does not call it."""
        return self._keys.run(self._keyed, work, outside=True)

    def accept(
        self,
        session: Session,
        request: EngineRequest,
        server: str | None = None,
        detail: Mapping[str, Any] | None = None,
        warnings: Sequence[str] = (),
        target: str | None = None,
    ) -> Answer:
        """Store a request to the scheduling loop, and answer that the next cycle acts on it.

        ``detail`` and ``target`` (by default the server, else what the path names) are for the audit log.
        """
        self._dependencies.store.add_request(session, request)
        accepted = AcceptedServerDocument(accepted=request.kind.value, job_id=request.job, server=server)
        if warnings:
            accepted["warnings"] = list(warnings)
        if server is not None:
            target = f"server {server}"
        return Answer(202, accepted, target=target, detail=detail or {})

    def ask(self, effect: Effect) -> Response:
        """As :meth:`make`; ``effect`` stores a request to the scheduling loop, which is woken after the commit."""
        answer = self.make(effect)
        self._dependencies.scheduler.nudge()
        return answer


async def _change(dependencies: Deps, keys: KeyStore, keyed: Keyed) -> ChangeRequest:
    return ChangeRequest(dependencies, keys, keyed)


Change = Annotated[ChangeRequest, Depends(_change)]
