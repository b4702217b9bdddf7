"""Who is let in, how often, and what is remembered of it."""

from pydantic import BaseModel, Field

from service.config.kinds import DAY_S, Words, between


class Access(BaseModel):
    """Tokens, API keys, and how often a client may ask."""

    local_token: bool = Field(
        True,
        description="Whether the token in the data folder opens the service, as an admin. Turn it off when admins have keys.",
    )
    key_lifetime_s: float = between(
        90 * DAY_S, 60.0, 3660 * DAY_S, "An API key's life if none is asked for: what is forgotten ends by itself."
    )
    key_lifetime_s_max: float = between(
        366 * DAY_S,
        60.0,
        3660 * DAY_S,
        "The longest life of an API key that may be asked for: a change of keys every year.",
    )
    key_cached_s: float = between(
        5.0,
        0.0,
        300.0,
        "How long a key is trusted before it is looked up again: one revoked through another server is good here so long.",
    )
    requests_per_s_max: float = between(
        200.0,
        0.1,
        1_000_000.0,
        "Requests of one API key a second, on average: a wild script leaves room for others. The local token has no limit.",
    )
    requests_burst_max: int = between(
        400, 1, 1_000_000, "Requests of one API key at once before that average counts: a page of jobs, each looked at."
    )
    failed_logins_per_s_max: float = between(
        0.2, 0.001, 1000.0, "Wrong tokens from one address a second, on average: each costs a look into the database."
    )
    failed_logins_burst_max: int = between(
        20,
        1,
        1_000_000,
        "Wrong tokens from one address before that average counts: some machines still use an old key.",
    )
    trusted_proxies: Words = Field(
        (),
        description="Addresses of proxies whose X-Forwarded-For is believed, comma-separated; by default the peer is the client.",
    )
    audit_kept_s: float = between(
        365 * DAY_S,
        DAY_S,
        3660 * DAY_S,
        "Lines of the log of changes older than this are forgotten: a year of questions.",
    )
