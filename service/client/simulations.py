"""What-if runs of the service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.client.flow import Flow, Many
from service.client.noun import C, Noun, call

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from service.wire.simulations import SimulationDocument, SimulationReportDocument


class Simulations(Noun[C]):
    """``client.simulations``."""

    @call
    def run(self, simulation: Mapping[str, Any]) -> Flow[SimulationDocument]:
        """Ask for a run, which waits for those before it: ``{"policies": ["current", "srtf"], "from_now": True}``.

        :class:`ApiError` of status 409 if too many wait.
        """
        return self._post("/v1/simulations", simulation)

    @call
    def list(self, *, limit: int | None = None) -> Many[SimulationDocument]:
        """Runs without their reports, newest first; all pages, or at most ``limit``."""
        return self._pages("/v1/simulations", limit=limit)

    @call
    def show(self, simulation_id: int) -> Flow[SimulationReportDocument]:
        """One run. Its ``report`` is None until it has succeeded, ``ended_at`` until it has ended."""
        return self._get(f"/v1/simulations/{simulation_id}")

    @call
    def cancel(self, simulation_id: int) -> Flow[SimulationDocument]:
        """End a run that waits or is under way. :class:`ApiError` of status 409 if it has ended."""
        return self._post(f"/v1/simulations/{simulation_id}/cancel")
