"""The rules of a what-if run's body: between its values, and about names that its policies, servers and predictor have."""

from collections.abc import Iterator
from typing import Any

from policies.model.contention import NetworkError, parse_network
from policies.options import OptionError
from service.api.documents import seconds_of
from service.api.problems import Fault, Problem, ProblemType
from service.config.cluster_file import SCHEMA, ClusterFileError, parse_cluster
from service.config.settings import Settings, SettingsError
from service.sim.predictors import PredictorNameError, make_predictor
from service.simulations.request import RECORDED, more_servers, plan_of
from service.wire.bodies import SERVERS_MAX
from service.wire.simulations import SimulationBody

_OF_THE_PAST = ("since", "until", "servers", "predictor", "network")


def stored_request(body: SimulationBody, settings: Settings, now_s: float) -> dict[str, Any]:
    """The document of the request. Raises Problem (422) with every fault."""
    faults = [*_period(body, now_s), *_policies(body, settings), *_machines(body), *_words(body)]
    if faults:
        raise Problem(ProblemType.INVALID_BODY, faults=faults)
    # Keys that were left out keep the defaults of a cluster file, in which some mean more than null.
    servers = body.servers
    if isinstance(servers, list):
        return body.model_dump(exclude={"servers"}) | {
            "servers": [group.model_dump(exclude_unset=True) for group in servers]
        }
    return body.model_dump()


def _period(body: SimulationBody, now_s: float) -> Iterator[Fault]:
    if body.from_now:
        for key in _OF_THE_PAST:
            if getattr(body, key) is not None:
                yield Fault("must be left out with from_now", pointer=f"/{key}")
    elif body.samples is not None:
        yield Fault("must be left out without from_now", pointer="/samples")
    times: dict[str, float] = {}
    for key in ("since", "until"):
        text = getattr(body, key)
        if text is None:
            continue
        at_s = seconds_of(text)
        if at_s is None:
            yield Fault("must be a time in ISO 8601 with a zone", pointer=f"/{key}")
        else:
            times[key] = at_s
    if times.get("since", now_s) > now_s:
        yield Fault("must be in the past", pointer="/since")
    elif len(times) == 2 and times["until"] <= times["since"]:
        yield Fault("must be after since", pointer="/until")


def _policies(body: SimulationBody, settings: Settings) -> Iterator[Fault]:
    for index, text in enumerate(body.policies):
        first = body.policies.index(text)
        if first < index:
            yield Fault(f"must differ from policies/{first}", pointer=f"/policies/{index}")
            continue
        try:
            plan_of(text, settings, RECORDED, body.preemption)
        except (OptionError, SettingsError) as error:
            yield Fault(str(error), pointer=f"/policies/{index}")


def _machines(body: SimulationBody) -> Iterator[Fault]:
    servers = body.servers
    if servers is None:
        return
    if isinstance(servers, str):
        count = more_servers(servers) or 0
        if not 1 <= count <= SERVERS_MAX:
            yield Fault(f"must be +1 to +{SERVERS_MAX} (got {servers})", pointer="/servers")
        return
    try:
        groups = [group.model_dump(exclude_unset=True) for group in servers]
        found = len(parse_cluster({"schema": SCHEMA, "servers": groups}).servers)
    except ClusterFileError as error:
        yield Fault(str(error), pointer="/servers")
        return
    if found > SERVERS_MAX:
        yield Fault(f"must be at most {SERVERS_MAX} servers together (got {found})", pointer="/servers")


def _words(body: SimulationBody) -> Iterator[Fault]:
    if body.network is not None:
        try:
            parse_network(body.network)
        except NetworkError as error:
            yield Fault(str(error), pointer="/network")
    # The trained one has no parameter to be wrong, and takes a second to load.
    if body.predictor not in (None, "trained"):
        try:
            make_predictor(body.predictor or RECORDED, (), body.seed)
        except PredictorNameError as error:
            yield Fault(str(error), pointer="/predictor")
