"""What the record of servers and attempts says of failures."""

from collections.abc import Iterable, Mapping

from policies.model.ids import ServerIndex
from service.db.failures import RanAttempt
from service.engine.events import ServerEventKind
from service.forecast.failures import Outage, PastAttempt

NEAR_S = 600.0
"""An attempt that is lost within this time of an outage of one of its servers was lost with it. A machine that has started anew
reports the loss late.
"""


def outages_of(
    changes: Iterable[tuple[ServerIndex, float, str]], servers: Mapping[ServerIndex, bool], since_s: float, now_s: float
) -> tuple[list[Outage], float]:
    """The outages that began since ``since_s``, in the order of their ends, and how long all servers together were up.

    ``changes``: (server, time, kind of event), oldest first; ``servers``: whether each is down now.
    """
    outages: list[Outage] = []
    up_from_s = dict.fromkeys(servers, since_s)
    down_from_s: dict[ServerIndex, float] = {}
    up_s = 0.0
    for server, at_s, kind in changes:
        if kind == ServerEventKind.DOWN:
            up_s += at_s - up_from_s.pop(server, at_s)
            down_from_s.setdefault(server, at_s)
        elif kind in (ServerEventKind.UP, ServerEventKind.ADDED):
            # Without a known begin the server was down, or absent, since before.
            up_from_s[server] = at_s
            if (from_s := down_from_s.pop(server, None)) is not None:
                outages.append(Outage(server, from_s, at_s))
    outages += [Outage(server, from_s) for server, from_s in down_from_s.items() if servers.get(server)]
    up_s += sum(now_s - from_s for server, from_s in up_from_s.items() if servers.get(server) is False)
    return outages, up_s


def fatal(outages: Iterable[Outage], attempts: Iterable[RanAttempt]) -> list[Outage]:
    """The outages that no attempt outlived. A server that was out of reach for a moment did not fail."""
    on: dict[ServerIndex, list[RanAttempt]] = {}
    for attempt in attempts:
        for server in attempt.servers:
            on.setdefault(server, []).append(attempt)

    def outlived(outage: Outage) -> bool:
        to_s = outage.to_s
        return to_s is not None and any(
            each.began_at_s <= outage.from_s
            and (each.ended_at_s is None or each.ended_at_s > to_s)
            and not (each.lost and each.ended_at_s is not None and each.ended_at_s <= to_s + NEAR_S)
            for each in on.get(outage.server, ())
        )

    return [outage for outage in outages if not outlived(outage)]


def past_attempts(attempts: Iterable[RanAttempt], outages: Iterable[Outage], now_s: float) -> list[PastAttempt]:
    """How long each ran, and whether it failed by itself: one that was lost with a server did not."""
    of: dict[ServerIndex, list[Outage]] = {}
    for outage in outages:
        of.setdefault(outage.server, []).append(outage)

    def with_server(attempt: RanAttempt, ended_at_s: float) -> bool:
        return attempt.lost and any(
            outage.from_s - NEAR_S <= ended_at_s and (outage.to_s is None or ended_at_s <= outage.to_s + NEAR_S)
            for server in attempt.servers
            for outage in of.get(server, ())
        )

    found = []
    for each in attempts:
        ended_at_s = each.ended_at_s if each.ended_at_s is not None else now_s
        failed = each.requeued and not with_server(each, ended_at_s)
        found.append(PastAttempt(max(0.0, ended_at_s - each.began_at_s), failed))
    return found
