"""Every setting and limit of the service, in one place: name (unit last), default, bounds, and the reason for them.

A value comes from the command line, else from the environment (``SOONER_`` and the name in capitals), else from a YAML file
named by ``SOONER_CONFIG_FILE``, else it is the default. Nothing here starts anything or opens the database.
"""

import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import yaml
from pydantic import Field, PrivateAttr, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from service.setting_kinds import Folder, Pairs, Words, between, default_data_dir

ENV_PREFIX = "SOONER_"
CONFIG_FILE_VARIABLE = "SOONER_CONFIG_FILE"

_DAY_S = 86_400.0
_MIB = 1 << 20


Source = Literal["default", "env", "file", "flag"]


class SettingsError(ValueError):
    """A setting that cannot be used; one line that names it and its limit."""


class SettingLine(NamedTuple):
    """One line of ``sooner config show``."""

    name: str
    env: str
    value: str
    source: Source
    unit: str
    description: str


class Settings(BaseSettings):
    """The settings of one service. Frozen; build with :func:`load_settings`, which turns a fault into one line."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="forbid", env_ignore_empty=True, validate_default=True
    )

    # Where it listens and what it keeps.
    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Address to listen on. This machine alone by default, because whoever reaches it can run commands.",
    )
    port: int = between(8765, 0, 65_535, "TCP port to listen on; 0 takes any free one.")
    data_dir: Folder = Field(
        default_factory=default_data_dir,
        description="Folder of the token, the database, logs, checkpoints and models; created for its owner alone (0700).",
    )
    database_url: str = Field(
        "",
        max_length=2048,
        description="Where the database is. By default the file sooner.db in data_dir, so that nothing has to be set up.",
    )
    cluster: Folder | None = Field(
        None,
        description="Cluster file. Without one: one server with this machine's GPUs, or virtual_gpus virtual ones.",
    )
    virtual_gpus: int = between(
        4, 1, 1024, "GPUs pretended where the machine has none. Four let a gang and a preemption be seen on a laptop."
    )
    allowed_hosts: Words = Field(
        ("127.0.0.1", "localhost", "[::1]"),
        min_length=1,
        description="Host headers that are answered, comma-separated; no others, so that no web page can rebind its name to us.",
    )
    allowed_origins: Words = Field(
        (),
        description="Web origins whose requests are answered, comma-separated; none by default: no page has a reason to call.",
    )

    # How it decides.
    executor: Literal["local", "fake"] = Field(
        "local", description="What runs the jobs: processes on this machine, or a timed imitation."
    )
    policy: str = Field("asrpt", min_length=1, max_length=64, description="Scheduling policy, by its registered name.")
    preemption: Literal["never", "guided", "always"] = Field(
        "guided",
        description="Whether running jobs are stopped for shorter ones; guided does it where the gain pays for the loss.",
    )
    policy_options: Pairs = Field(
        default_factory=dict,
        description="Further options of the policy as name=value,name=value; its own defaults otherwise.",
    )
    shadow_policy: str = Field(
        "",
        max_length=64,
        description="A second policy that decides beside the first and changes nothing, to compare them; empty for none.",
    )
    shadow_options: Pairs = Field(
        default_factory=dict,
        description="Options of the second policy as name=value,name=value; the settings above stand in for those left out.",
    )
    shadow_budget_s: float = between(
        0.25,
        0.001,
        60.0,
        "A decision of the second policy that takes longer is left out: the loop waits for it, and it must not wait long.",
    )
    over_run: Literal["double", "attained"] = Field(
        "double",
        description="What is left of a job that outlives its prediction: up to the next doubling, or as much as it had.",
    )
    reschedule_period_s: float = between(
        5.0,
        0.1,
        3600.0,
        "The loop looks again at the latest after this long, whatever woke it before: a safety net, not the pulse.",
    )
    poll_period_s: float = between(
        0.25,
        0.01,
        60.0,
        "How often attempts are looked at. A quarter of a second is unnoticed by people and costs next to nothing.",
    )
    checkpoint_s: float = between(
        0.0,
        0.0,
        86_400.0,
        "How long GPUs stay held at a preemption, in its price. As in the simulator, so that both decide alike.",
    )
    restart_s: float = between(
        60.0,
        0.0,
        86_400.0,
        "Time without progress at each restart, in the price of a preemption: loading a framework and a checkpoint.",
    )
    attempt_duration_s_min: float = between(
        60.0,
        0.0,
        _DAY_S,
        "A job that has run for less is not preempted: as long as a restart takes, or starts would be all it does.",
    )
    stop_grace_s: float = between(
        30.0,
        0.0,
        3600.0,
        "Between the signals of a stop where the job chose no grace: time to write a checkpoint of some gigabytes.",
    )
    yields_max: int = between(
        1000,
        1,
        1_000_000,
        "Unasked exits with code 75 before a job counts as failed: one that yields for ever makes no progress.",
    )
    retry_backoff_s: float = between(
        10.0,
        0.0,
        86_400.0,
        "Pause before a failed job is tried again, times its failures so far: a broken file system needs a moment.",
    )
    facts_per_cycle_max: int = between(
        10_000, 1, 1_000_000, "Requests taken in by one cycle, so that a flood of submissions cannot stall the loop."
    )
    dump_every_cycles: int = between(
        100, 1, 1_000_000, "The policy's own state is stored with every so many cycles: replay starts from there."
    )

    # How it looks ahead.
    forecast_samples: int = between(
        16, 5, 1000, "Sampled futures behind a forecast; a long queue gets fewer. Sixteen show a spread, more cost CPU."
    )
    forecast_jobs_max: int = between(
        2000, 1, 100_000, "Unfinished jobs up to which there are forecasts: each future runs all of them to their end."
    )
    forecast_timeout_s: float = between(
        10.0,
        0.1,
        600.0,
        "A forecast that takes longer tells the futures it has, or is given up: whoever asked is waiting for it.",
    )
    forecast_period_s: float = between(
        5.0,
        0.1,
        3600.0,
        "How often it is looked whether a job has no recent forecast on record, so that new jobs get one.",
    )
    forecast_cpu_ratio: float = between(
        0.1, 0.001, 1.0, "Share of one core that these unasked forecasts may take: a long queue is told of less often."
    )

    snapshots_kept: int = between(
        20,
        0,
        1000,
        "Newest cycles with actions that can be replayed; about 2 kB of memory for each unfinished job of each.",
    )
    snapshot_jobs_max: int = between(
        500, 0, 100_000, "Unfinished jobs up to which cycles are recorded for replay: every pass copies all of them."
    )

    # How it learns.
    retrain_period_s: float = between(
        _DAY_S, 60.0, 30 * _DAY_S, "How often the models are trained anew: habits change by the day, not by the hour."
    )
    retrain_jobs_min: int = between(
        200,
        20,
        1_000_000,
        "Ended jobs before the first training; below, the recurrence and cold-start rules are better.",
    )
    retrain_rows_max: int = between(
        40_000, 200, 10_000_000, "Newest ended jobs that a training sees: seconds of work, and old habits fade."
    )
    retrain_timeout_s: float = between(
        900.0,
        1.0,
        _DAY_S,
        "A training that takes longer is stopped and the old model stays; 40,000 jobs take two minutes of a core.",
    )
    retrain_memory_bytes_max: int = between(
        2048 * _MIB,
        512 * _MIB,
        1024 * 1024 * _MIB,
        "Address space of a training; one that needs more fails and the old model stays. 40,000 jobs take far less.",
    )
    retrain_replay_jobs_max: int = between(
        2000,
        0,
        5000,
        "Newest tested jobs that are replayed under old and new model before one is promoted; 0 leaves it to the gate.",
    )

    # What it keeps, and for how long.
    cycles_kept_s: float = between(
        30 * _DAY_S, 3600.0, 3650 * _DAY_S, "Cycles older than this are forgotten: a month covers any question of why."
    )
    forecasts_kept_s: float = between(
        90 * _DAY_S, 3600.0, 3650 * _DAY_S, "Scored forecasts older than this are forgotten: a season shows any drift."
    )
    logs_kept_s: float = between(
        7 * _DAY_S,
        0.0,
        3650 * _DAY_S,
        "Logs and checkpoints of finished jobs are deleted after this. Jobs and predictions stay.",
    )
    idempotency_kept_s: float = between(
        _DAY_S, 60.0, 30 * _DAY_S, "How long an Idempotency-Key is remembered: longer than any client keeps retrying."
    )
    prune_period_s: float = between(
        3600.0, 1.0, _DAY_S, "How often old rows and folders are looked for; a pass is short, and nothing is urgent."
    )
    prune_rows_max: int = between(
        1000, 1, 100_000, "Rows deleted in one transaction, so that pruning never holds the write lock for long."
    )

    # Limits of requests and jobs.
    body_bytes_max: int = between(
        8 * _MIB, 1024, 1024 * _MIB, "Largest request body; room for a thousand jobs with a graph of usual size."
    )
    jobs_per_request_max: int = between(
        1000, 1, 100_000, "Jobs in one submission: they are checked and stored in one transaction."
    )
    layers_max: int = between(
        2000,
        1,
        100_000,
        "Layers of a job's graph; the largest public models have some hundreds. Cutting takes their square.",
    )
    jobs_queued_max: int = between(
        100_000, 1, 10_000_000, "Unfinished jobs; a further submission is refused until some have ended."
    )
    page_size_default: int = between(50, 1, 10_000, "Entries of a page if the client names no limit.")
    page_size_max: int = between(500, 1, 10_000, "Most entries of a page: an answer stays well under a megabyte.")

    # Limits of running attempts.
    lease_s: float = between(
        3600.0,
        1.0,
        30 * _DAY_S,
        "An attempt is stopped when no service has asked for it for so long. An hour outlasts an upgrade.",
    )
    leader_lease_s: float = between(
        15.0,
        1.0,
        3600.0,
        "A service that has not renewed its lead for so long has lost it: the longest pause at a fail-over.",
    )
    log_bytes_max: int = between(
        64 * _MIB, 4096, 1024 * 1024 * _MIB, "Log kept of one attempt; of more, the beginning and the end."
    )
    progress_line_bytes_max: int = between(
        65_536, 256, _MIB, "Longest progress line of a program; longer ones are counted and ignored."
    )
    progress_lines_per_s_max: float = between(
        10.0, 0.001, 1000.0, "Progress lines taken from one attempt a second; more are counted and ignored."
    )
    progress_rows_max: int = between(
        1000, 10, 1_000_000, "Progress points kept of one job; older ones are thinned out: enough for a curve."
    )

    _sources: dict[str, Source] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _settle(self) -> Self:
        if not self.database_url:
            # The default follows another setting; it still counts as a default.
            object.__setattr__(self, "database_url", f"sqlite:///{self.data_dir / 'sooner.db'}")
        if self.page_size_default > self.page_size_max:
            raise ValueError(f"page_size_default {self.page_size_default} is above page_size_max {self.page_size_max}")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments and the environment; a stray ``.env`` in the working directory is none of our business."""
        return init_settings, env_settings

    def describe(self) -> list[SettingLine]:
        """Every setting with its value, where that came from, its unit and its meaning. Passwords are hidden."""
        return [
            SettingLine(
                name,
                env_name(name),
                _shown(name, getattr(self, name)),
                self._sources.get(name, "default"),
                _unit(name),
                field.description or "",
            )
            for name, field in type(self).model_fields.items()
        ]

    def prepare_data_dir(self) -> Path:
        """Create the data folder (0700), or check the one there is. Raises :class:`SettingsError`.

        A folder into which other users may write is refused: they could put their own token there.
        """
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = stat.S_IMODE(self.data_dir.stat().st_mode)
        except OSError as error:
            raise SettingsError(f"data_dir ({env_name('data_dir')}): {self.data_dir}: {error.strerror}") from error
        if mode & 0o022:
            raise SettingsError(
                f"data_dir ({env_name('data_dir')}): other users may write to {self.data_dir}; run: chmod go-w {self.data_dir}"
            )
        if not os.access(self.data_dir, os.W_OK | os.X_OK):
            raise SettingsError(f"data_dir ({env_name('data_dir')}): {self.data_dir} is not writable")
        return self.data_dir


def env_name(name: str) -> str:
    """The environment variable of a setting."""
    return ENV_PREFIX + name.upper()


def load_settings(flags: Mapping[str, object] | None = None, file: Path | None = None) -> Settings:
    """The settings in force. ``flags`` are what the command line gave (None = not given). Raises :class:`SettingsError`."""
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    named = os.environ.get(CONFIG_FILE_VARIABLE)
    path = file or (Path(named) if named else None)
    from_file = _read_file(path) if path is not None else {}
    from_env = {name for name in Settings.model_fields if os.environ.get(env_name(name))}
    values = {name: value for name, value in from_file.items() if name not in from_env} | given
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise SettingsError(_first_fault(error, given, from_env, path)) from None
    origins: tuple[tuple[Source, Collection[str]], ...] = (("file", from_file), ("env", from_env), ("flag", given))
    for source, names in origins:
        settings._sources.update(dict.fromkeys(names, source))
    return settings


def _read_file(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"{CONFIG_FILE_VARIABLE}: cannot read {path}: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise SettingsError(f"{path}: expected lines of the form 'port: 8765'")
    for name in content:
        if name not in Settings.model_fields:
            raise SettingsError(f"{path}: {name!r} is not a setting; `sooner config show` lists them")
    return content


def _first_fault(error: ValidationError, flags: Mapping[str, object], env: set[str], path: Path | None) -> str:
    fault = error.errors(include_url=False)[0]
    said = fault["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if not fault["loc"]:
        return said
    name = str(fault["loc"][0])
    origin = "command line" if name in flags else env_name(name) if name in env else str(path or env_name(name))
    return f"{name} ({origin}): {said[:1].lower()}{said[1:]}, not {fault['input']!r}"


def _shown(name: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ",".join(str(entry) for entry in value)
    if isinstance(value, dict):
        return ",".join(f"{key}={entry}" for key, entry in value.items())
    if name == "database_url":
        scheme, separator, rest = str(value).partition("://")
        credentials, at, place = rest.rpartition("@")
        return f"{scheme}{separator}{credentials.partition(':')[0]}:***@{place}" if at else str(value)
    return str(value).removesuffix(".0")


def _unit(name: str) -> str:
    """The unit that a name ends with; counts and words have none."""
    bare = name.removesuffix("_max").removesuffix("_min").removesuffix("_default")
    if bare.endswith("_per_s"):
        return "1/s"
    if bare.endswith("_s"):
        return "seconds"
    return "bytes" if bare.endswith("_bytes") else ""
