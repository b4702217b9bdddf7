"""What-if runs of the service: ask for one, list and show them, cancel one."""

from typing import Annotated, Any

from fastapi import Header, Path, Response
from fastapi.responses import JSONResponse
from sqlalchemy import Row
from sqlmodel import Session

from service.api.access import Caller
from service.api.changes import Change
from service.api.deps import Deps
from service.api.documents import document, etag, etag_matches
from service.api.idempotency import Answer, Effect
from service.api.paging import SERIAL, Page, Paging
from service.api.permissions import OPERATE
from service.api.problems import Problem, ProblemType
from service.api.routers.common import NoBody, Routes, found_or_404
from service.api.simulation_bodies import stored_request
from service.db import simulations
from service.domain.simulations import WAITING_MAX
from service.wire.bodies import Id
from service.wire.simulations import SimulationBody, SimulationDocument, SimulationReportDocument

routes = Routes("simulations")

SimulationPath = Annotated[Id, Path(description="The run's number.")]


@routes.read("/simulations", OPERATE, "List what-if runs, newest first")
def list_simulations(dependencies: Deps, paging: Paging) -> Page[SimulationDocument]:
    """Without their reports. A run is deleted 30 days after its end."""
    before = paging.position("simulations", SERIAL)
    with dependencies.reading() as connection:
        rows = simulations.simulations(connection, before, paging.limit + 1)
    return paging.page("simulations", rows, lambda row: (row.id,), _document)


@routes.change("POST", "/simulations", OPERATE, "Simulate other policies or servers", SimulationDocument)
def simulate(caller: Caller, dependencies: Deps, change: Change, body: SimulationBody) -> Response:
    """The run waits for those before it, and then takes place in a process of its own with low priority. It changes nothing."""

    def prepare() -> Effect:
        request = stored_request(body, dependencies.settings, dependencies.now_s())
        return lambda session: _add(session, request, caller.user, dependencies.now_s())

    return change.prepare_and_make(prepare)


@routes.read(
    "/simulations/{simulation_id}",
    OPERATE,
    "Show a what-if run and its report",
    404,
    response_model=SimulationReportDocument,
    responses={304: {"description": "The run still has the ETag in 'If-None-Match'."}},
)
def show_simulation(
    dependencies: Deps,
    simulation_id: SimulationPath,
    if_none_match: Annotated[str | None, Header(max_length=1024)] = None,
) -> Response:
    """Its progress is at most a second old. The ETag changes exactly when the response does."""
    with dependencies.reading() as connection:
        row = simulations.simulation(connection, simulation_id, report=True)
    found = {**_document(found_or_404(row, f"simulation {simulation_id}")), "report": row.report if row else None}
    headers = {"ETag": etag(found), "Cache-Control": "private, no-cache"}
    if if_none_match is not None and etag_matches(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return JSONResponse(found, headers=headers)


@routes.change(
    "POST", "/simulations/{simulation_id}/cancel", OPERATE, "Cancel a what-if run", SimulationDocument, 404, status=200
)
def cancel_simulation(
    dependencies: Deps, change: Change, simulation_id: SimulationPath, body: NoBody = None
) -> Response:
    """Its process is killed within some seconds. 409 if the run has ended."""

    def effect(session: Session) -> Answer:
        connection = session.connection()
        cancelled = simulations.cancel_simulation(connection, simulation_id, dependencies.now_s())
        row = found_or_404(simulations.simulation(connection, simulation_id), f"simulation {simulation_id}")
        if not cancelled:
            raise Problem(ProblemType.CONFLICT, f"Simulation {simulation_id} has ended ({row.state}).")
        return Answer(200, _document(row))

    return change.make(effect)


def _add(session: Session, request: dict[str, Any], user: str | None, now_s: float) -> Answer:
    connection = session.connection()
    number = simulations.add_simulation(connection, request, user, WAITING_MAX, now_s)
    if number is None:
        detail = f"At most {WAITING_MAX} simulations wait at a time, and so many do: repeat later, or cancel one."
        raise Problem(ProblemType.CONFLICT, detail)
    row = simulations.simulation(connection, number)
    assert row is not None
    return Answer(
        202,
        _document(row),
        f"/v1/simulations/{number}",
        target=f"simulation {number}",
        detail={"policies": request["policies"], "from_now": request["from_now"]},
    )


def _document(row: Row[Any]) -> SimulationDocument:
    progress = None if row.total is None else {"done": row.done, "total": row.total, "eta_s": row.eta_s}
    return document(SimulationDocument, row, progress=progress)
