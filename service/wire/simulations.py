"""What-if runs: the body that asks for one, and the runs as the API answers them."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag
from typing_extensions import TypedDict

from service.config.cluster_file import ServerGroup
from service.domain.simulations import POLICIES_MAX, SimulationState
from service.simulations.request import MORE_SERVERS, SAMPLES
from service.wire.base import PRINTABLE_ASCII, TEXT_MAX, Body, Name
from service.wire.bodies import SERVERS_MAX, Moment
from service.wire.times import Time

SEED_MAX = 2**32 - 1
SAMPLES_MIN = 5
SAMPLES_MAX = 1000
WORD_MAX = 100
"""Of a predictor or a network with its parameters."""

_Word = Annotated[str, Field(min_length=1, max_length=WORD_MAX, pattern=PRINTABLE_ASCII)]


def _kind(value: object) -> str:
    return "<list>" if isinstance(value, list) else "<more>"


Servers = Annotated[
    Annotated[str, Field(max_length=TEXT_MAX, pattern=MORE_SERVERS), Tag("<more>")]
    | Annotated[list[ServerGroup], Field(min_length=1, max_length=SERVERS_MAX), Tag("<list>")],
    Discriminator(_kind),
]


class SimulationBody(Body):
    """A what-if run: policies on the jobs of a past period, beside what happened; or, from now on, on the queue as it is."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"policies": ["current", "asrpt:preemption=never"], "since": "2025-12-01T00:00:00Z", "servers": "+2"},
                {"policies": ["current", "srtf"], "from_now": True},
            ]
        }
    )

    policies: Annotated[list[Name], Field(min_length=1, max_length=POLICIES_MAX)] = Field(
        description="Each as `NAME` or `NAME:OPTION=VALUE:...`; `current` is the policy in force with its options, `shadow` "
        "the shadow policy."
    )
    from_now: bool = Field(
        default=False, description="Run the queue as it is into sampled futures. The past is not simulated."
    )
    since: Moment | None = Field(default=None, description="Start of the period. Default: the first submission.")
    until: Moment | None = Field(
        default=None, description="End of the period: only jobs submitted before it. Default: now."
    )
    servers: Servers | None = Field(
        default=None,
        description="`+N`: N more servers like the last one. A list: these servers instead, as in a cluster file. Default: "
        "the servers that are not down.",
    )
    predictor: _Word | None = Field(
        default=None,
        description="`recorded` (the default: the service's predictions at the time), `oracle`, `noisy:SIGMA`, `adversarial`, "
        "`trained` or `none`.",
    )
    preemption: Literal["never", "guided", "always"] | None = Field(
        default=None, description="For all policies but `current` and `shadow`. Default: each policy's default."
    )
    network: _Word | None = Field(
        default=None, description="`reserved` (the default), `contended`, or `contended:xi1=X,a=Y,xi2=Z`."
    )
    samples: Annotated[int, Field(ge=SAMPLES_MIN, le=SAMPLES_MAX)] | None = Field(
        default=None, description=f"With `from_now`: sampled futures. Default: {SAMPLES}."
    )
    seed: Annotated[int, Field(ge=0, le=SEED_MAX)] = 0


class SimulationRequestDocument(TypedDict):
    """A what-if run as it was asked for: the body, with null for what it left out."""

    policies: list[str]
    from_now: bool
    since: Time | None
    until: Time | None
    servers: str | list[dict[str, Any]] | None
    predictor: str | None
    preemption: str | None
    network: str | None
    samples: int | None
    seed: int


class SimulationProgressDocument(TypedDict):
    """How far a run is: jobs of all policies together, or sampled futures."""

    done: int
    total: int
    eta_s: Annotated[float | None, Field(description="Seconds that are left; null before there is a pace.")]


class SimulationDocument(TypedDict):
    """A what-if run, without its report."""

    id: int
    state: SimulationState
    request: SimulationRequestDocument
    user: Annotated[str | None, Field(description="Who asked for it; null for the local token.")]
    created_at: Time
    started_at: Time | None
    ended_at: Time | None
    starts: Annotated[int, Field(description="How often it was started: above 1 after a service ended during it.")]
    progress: Annotated[SimulationProgressDocument | None, Field(description="null until its jobs are counted.")]
    error: Annotated[str | None, Field(description="Why it failed.")]


class SimulationReportDocument(SimulationDocument):
    """A what-if run with its report."""

    report: Annotated[
        dict[str, Any] | None,
        Field(
            description="As `sooner sim what-if --json` prints it: `sooner.sim.whatif/1`, or from now on "
            "`sooner.sim.outlook/1`. null until the run has succeeded."
        ),
    ]
