"""The settings of the service and where each value comes from; what they are is told in :mod:`service.config.groups`.

A value comes from the command line, else from the environment (``SOONER_`` and the name in capitals), else from a YAML file
named by ``SOONER_CONFIG_FILE``, else it is the default. Nothing here starts anything or opens the database.
"""

import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import yaml
from pydantic import PrivateAttr, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from service.config.groups.access import Access
from service.config.groups.attempts import Attempts
from service.config.groups.deciding import Deciding
from service.config.groups.forecasting import Forecasting
from service.config.groups.keeping import Keeping
from service.config.groups.learning import Learning
from service.config.groups.listening import Listening
from service.config.groups.observing import Observing
from service.config.groups.requests import Requests
from service.config.groups.webhooks import Webhooks

ENV_PREFIX = "SOONER_"
CONFIG_FILE_VARIABLE = "SOONER_CONFIG_FILE"

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


# A model's fields come in the order of its bases from the last to the first.
class Settings(
    Webhooks, Observing, Access, Attempts, Requests, Keeping, Learning, Forecasting, Deciding, Listening, BaseSettings
):
    """The settings of one service. Frozen; build with :func:`load_settings`, which turns a fault into one line."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="forbid", env_ignore_empty=True, validate_default=True
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
