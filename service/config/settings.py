"""Loading the settings of the service. :mod:`service.config.groups` describes each of them.

A value comes from the command line, else from the environment (``SOONER_`` and the name in capitals), else from a YAML file
named by ``SOONER_CONFIG_FILE``, else it is the default. Nothing here starts anything or opens the database.
"""

import os
import re
import shlex
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError, model_validator

from policies.model.cluster import Gangs
from policies.suggestion import did_you_mean
from service.config.environment import CONFIG_FILE_VARIABLE, ENV_PREFIX, OTHER_VARIABLES
from service.config.groups.access import Access
from service.config.groups.attempts import Attempts
from service.config.groups.deciding import Deciding
from service.config.groups.engines import Engines
from service.config.groups.forecasting import Forecasting
from service.config.groups.health import Health
from service.config.groups.keeping import Keeping
from service.config.groups.learning import Learning
from service.config.groups.listening import Listening
from service.config.groups.observing import Observing
from service.config.groups.ray import RayCluster
from service.config.groups.requests import Requests
from service.config.groups.slurm import SlurmSettings
from service.config.groups.webhooks import Webhooks
from service.domain.type_faults import in_our_words, with_value

Source = Literal["default", "env", "file", "flag"]


_LISTED = "; remove it, then `sooner config show` lists those that are"
_URLS = frozenset({"database_url", "otlp_endpoint", "advertise_url"})

_PASSWORD_PARAMETER = re.compile(r"(?<=[?&])((?:ssl)?password=)[^&]*")


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


# A model's fields come in the order of its bases from the last to the first.
class Settings(
    Webhooks,
    Observing,
    Health,
    Access,
    Attempts,
    Requests,
    Keeping,
    Learning,
    Forecasting,
    RayCluster,
    SlurmSettings,
    Engines,
    Deciding,
    Listening,
    BaseModel,
):
    """The settings of one service. Frozen; build with :func:`load_settings`, which turns a fault into one line."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    _sources: dict[str, Source] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _settle(self) -> Self:
        if not self.database_url:
            # The default follows another setting; it still counts as a default.
            object.__setattr__(self, "database_url", f"sqlite:///{self.data_dir / 'sooner.db'}")
        if self.page_size_default > self.page_size_max:
            raise ValueError(f"page_size_default {self.page_size_default} is above page_size_max {self.page_size_max}")
        if (self.tls_cert is None) != (self.tls_key is None):
            given, missing = ("tls_cert", "tls_key") if self.tls_cert else ("tls_key", "tls_cert")
            raise ValueError(f"{given} needs {missing}: a certificate and its key belong together")
        return self

    @property
    def scheme(self) -> str:
        """How the service is reached."""
        return "https" if self.tls_cert is not None else "http"

    @property
    def gangs(self) -> Gangs:
        """The placements that the configured executor can start, for those who have no executor."""
        equal = self.executor == "slurm" and not self.slurm_uneven_gangs
        return Gangs.EQUAL_SHARES if equal else Gangs.ANY

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
    from_env = _from_environment()
    values = {**from_file, **from_env, **given}
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_first_fault(error, values, given, from_env, path)) from None
    origins: tuple[tuple[Source, Collection[str]], ...] = (("file", from_file), ("env", from_env), ("flag", given))
    for source, names in origins:
        settings._sources.update(dict.fromkeys(names, source))
    return settings


def _from_environment() -> dict[str, str]:
    """Settings by name from the environment; an empty variable counts as absent."""
    known = {env_name(name): name for name in Settings.model_fields}
    found = {}
    for variable, value in os.environ.items():
        if variable in known and value:
            found[known[variable]] = value
        elif variable.startswith(ENV_PREFIX) and variable not in known and variable not in OTHER_VARIABLES:
            nearest = did_you_mean(variable, {*known, *OTHER_VARIABLES}, ENV_PREFIX)
            raise SettingsError(f"{variable} is not a setting{nearest or _LISTED}")
    return found


def _read_file(path: Path) -> dict[str, Any]:
    # Imported here because most commands need no file, and every command loads the settings.
    from service.domain.strict_yaml import StrictYamlError, parse_yaml

    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except StrictYamlError as error:
        raise SettingsError(f"{path}: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{CONFIG_FILE_VARIABLE}: cannot read {path}: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise SettingsError(f"{path}: expected lines of the form 'port: 8765'")
    for name in content:
        if name not in Settings.model_fields:
            nearest = did_you_mean(name, Settings.model_fields)
            raise SettingsError(f"{path}: {name!r} is not a setting{nearest or _LISTED}")
    return content


def _first_fault(
    error: ValidationError,
    given: Mapping[str, object],
    flags: Collection[str],
    env: Collection[str],
    path: Path | None,
) -> str:
    fault = error.errors(include_url=False)[0]
    message = in_our_words(fault["msg"])
    if not fault["loc"]:
        return message
    name = str(fault["loc"][0])
    origin = "command line" if name in flags else env_name(name) if name in env else str(path or env_name(name))
    # A duration such as 31d as it was written, not in seconds.
    written = given.get(name, fault["input"]) if len(fault["loc"]) == 1 else fault["input"]
    return f"{name} ({origin}): {with_value(message[:1].lower() + message[1:], written)}"


def _shown(name: str, value: object) -> str:
    if value is None:
        return ""
    if name == "slurm_extra_args":
        return shlex.join(value)  # type: ignore[arg-type]
    if isinstance(value, tuple):
        return ",".join(str(entry) for entry in value)
    if isinstance(value, dict):
        return ",".join(f"{key}={entry}" for key, entry in value.items())
    if name in _URLS:
        # libpq takes its passwords as parameters, too.
        url = _PASSWORD_PARAMETER.sub(r"\1***", str(value))
        scheme, separator, rest = url.partition("://")
        credentials, at, place = rest.rpartition("@")
        return f"{scheme}{separator}{credentials.partition(':')[0]}:***@{place}" if at else url
    return str(value).removesuffix(".0")


def _unit(name: str) -> str:
    """The unit that a name ends with; counts and words have none."""
    bare = name.removesuffix("_max").removesuffix("_min").removesuffix("_default")
    if bare.endswith("_per_s"):
        return "1/s"
    if bare.endswith("_s"):
        return "seconds"
    return "bytes" if bare.endswith("_bytes") else ""
