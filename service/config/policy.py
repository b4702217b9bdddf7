"""The policy that the settings name, with its options, and the shadow policy beside it."""

from collections.abc import Mapping, Set
from typing import Any, NamedTuple

from policies.base import Policy
from policies.options import OptionError
from policies.registry import BUILT_IN, make_policy
from service.config.settings import Settings, SettingsError, env_name


def configured_policy(settings: Settings) -> Policy[Any]:
    """The policy with those settings that it takes. Raises OptionError, also for a ``preemption`` that it cannot do."""
    return make_policy(settings.policy, configured_options(settings))


def configured_options(settings: Settings) -> dict[str, str]:
    """The policy's options: ``policy_options``, and the settings that stand for options which this policy takes."""
    given = {line.name for line in settings.describe() if line.source != "default"}
    return _options(settings, settings.policy, settings.policy_options, given)


class ConfiguredShadow(NamedTuple):
    """The second policy, and the options that it was made with."""

    policy: Policy[Any]
    options: Mapping[str, str]


def configured_shadow(settings: Settings) -> ConfiguredShadow | None:
    """The second policy, if there is to be one. Raises :class:`SettingsError` for a name or option that is wrong."""
    if not settings.shadow_policy:
        if settings.shadow_options:
            raise SettingsError(f"{env_name('shadow_options')} needs {env_name('shadow_policy')}")
        return None
    # What was said of the first policy is no demand on this one: it takes of that what it can.
    taken = {name: value for name, value in settings.policy_options.items() if _takes(settings.shadow_policy, name)}
    options = _options(settings, settings.shadow_policy, {**taken, **settings.shadow_options}, frozenset())
    try:
        return ConfiguredShadow(make_policy(settings.shadow_policy, options), options)
    except OptionError as error:
        raise SettingsError(f"shadow policy ({env_name('shadow_policy')}): {error}") from error


def _options(settings: Settings, policy: str, own: Mapping[str, str], given: Set[str]) -> dict[str, str]:
    """``own`` and the settings that stand for options: those that the policy takes, and those in ``given``."""
    options = dict(own)
    wished: dict[str, str] = {
        "preemption": settings.preemption,
        "preempt_unsaved": settings.preempt_unsaved,
        "over_run": settings.over_run,
        "attempt_duration_s_min": str(settings.attempt_duration_s_min),
    }
    for name, value in wished.items():
        if _takes(policy, name) or name in given:
            options.setdefault(name, value)
    return options


def _takes(policy: str, option: str) -> bool:
    """Whether the built-in policy takes the option; ``preemption`` only if it can preempt."""
    factory = BUILT_IN.get(policy)
    return factory is not None and option in factory.options and (option != "preemption" or factory.preemptive)
