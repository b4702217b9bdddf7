"""Who is let in, how often, and what is remembered of it."""

from pydantic import BaseModel, Field

from service.config.kinds import DAY_S, Seconds, Words, between


class Access(BaseModel):
    """Tokens, API keys, and how often a client may ask."""

    local_token: bool = Field(
        True,
        description="Whether the data folder's token opens the service as an admin. Turn it off when admins have keys.",
    )
    key_lifetime_s: Seconds = between(
        90 * DAY_S, 60.0, 3660 * DAY_S, "Default lifetime of an API key. A forgotten key then expires by itself."
    )
    key_lifetime_s_max: Seconds = between(
        366 * DAY_S,
        60.0,
        3660 * DAY_S,
        "Longest lifetime of an API key. Keys are then replaced at least once a year.",
    )
    key_cached_s: Seconds = between(
        5.0,
        0.0,
        300.0,
        "Time for which a valid key is cached. A key revoked through another service stays valid here for that long.",
    )
    session_s: Seconds = between(
        DAY_S / 2,
        60.0,
        90 * DAY_S,
        "Time after which a browser must sign in again. It ends with the API key at the latest.",
    )
    requests_per_s_max: float = between(
        200.0,
        0.1,
        1_000_000.0,
        "Requests per second of one API key, on average: one script cannot block others. The local token has no limit.",
    )
    requests_burst_max: int = between(
        400, 1, 1_000_000, "Requests of one API key at once before the average applies: a page of jobs with details."
    )
    failed_logins_per_s_max: float = between(
        0.2, 0.001, 1000.0, "Wrong tokens per second from one address, on average. Each costs a query of the database."
    )
    failed_logins_burst_max: int = between(
        20,
        1,
        1_000_000,
        "Wrong tokens from one address before the average applies. Some machines may still use an old key.",
    )
    trusted_proxies: Words = Field(
        (),
        description="Proxies whose X-Forwarded-For is trusted, comma-separated. Default: none, the peer is the client.",
    )
    audit_kept_s: Seconds = between(
        365 * DAY_S,
        DAY_S,
        3660 * DAY_S,
        "Age at which entries of the audit log are deleted. A year is enough for most investigations.",
    )
