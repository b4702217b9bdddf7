"""The services of this database: the leader, the standbys, and the silent ones."""

from service.api.deps import Deps
from service.api.documents import document
from service.api.permissions import READ
from service.api.routers.common import Routes
from service.wire.cluster import ServiceDocument, ServicesDocument

routes = Routes("services")


@routes.read("/services", READ, "List the services of this database")
def list_services(dependencies: Deps) -> ServicesDocument:
    """Every service that has used the database, the most recently seen first."""
    return ServicesDocument(
        services=[
            document(
                ServiceDocument,
                each.registered,
                each,
                role="leader" if each.leads else "standby",
                silent_s=max(0.0, each.silent_s),
            )
            for each in dependencies.fleet.services()
        ]
    )
