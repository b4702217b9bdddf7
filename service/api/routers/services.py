"""The services of this database: who leads, who stands by, who has not been seen for long."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel

from service.api.deps import Deps
from service.api.documents import instant
from service.api.permissions import READ, allow
from service.api.routers.common import router
from service.db.services import ServiceNow

routes = router("services")


class ServiceDocument(BaseModel):
    """One service. ``condemned``: it was silent for so long that its attempts were given up; it is alive again only when it
    has made sure that nothing of them runs."""

    id: str
    name: str
    url: str
    version: str
    role: Literal["leader", "standby"]
    started_at: datetime
    seen_at: datetime
    silent_s: float
    condemned: bool


class ServicesDocument(BaseModel):
    """All services of this database."""

    services: list[ServiceDocument]


@routes.get("/services", summary="List the services of this database")
@allow(READ)
def list_services(dependencies: Deps) -> ServicesDocument:
    """Every `sooner serve` that was ever started on it, the one seen last first; one of them leads."""
    return ServicesDocument(services=[_document(service) for service in dependencies.fleet.services()])


def _document(service: ServiceNow) -> ServiceDocument:
    registered = service.registered
    return ServiceDocument(
        id=registered.id,
        name=registered.name,
        url=registered.url,
        version=registered.version,
        role="leader" if service.leads else "standby",
        started_at=instant(service.started_at_s),
        seen_at=instant(service.seen_at_s),
        silent_s=max(0.0, service.silent_s),
        condemned=service.condemned,
    )
