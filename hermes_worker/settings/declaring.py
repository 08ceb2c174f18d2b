"""How a setting is declared: as a field of a frozen dataclass, which is its group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, field, fields
from typing import Any, Literal, NamedTuple

from hermes_worker.settings.kinds import SettingKind

Audience = Literal["anyone", "operator", "security", "developer"]
"""Who sets a setting: anyone who installs the product, operators of an installation, people who answer for its
security, or developers of it and of extensions."""


class DeclaredSetting(NamedTuple):
    """One setting, as its field declares it."""

    key: str
    """Name in config.yaml and in messages: ``lease.ttl_s``."""
    variables: tuple[str, ...]
    """Environment variables, the one we document first."""
    kind: SettingKind[Any]
    audience: Audience = "anyone"
    reason: str = ""
    """When it is set, and what happens there without it. Completes the sentence "Set it when ..."."""


def declare_setting(
    key: str,
    variables: str,
    kind: SettingKind[Any],
    default: Any = None,
    *,
    audience: Audience,
    reason: str,
    is_shown: bool = True,
) -> Any:
    """Declare a field that is a setting; ``variables`` are separated by spaces. Typed ``Any`` as ``dataclasses.field``
    is."""
    declaration = DeclaredSetting(key, tuple(variables.split()), kind, audience, reason)
    return field(default=default, repr=is_shown, metadata={"setting": declaration})


def iterate_declared(group: type) -> Iterator[tuple[Field[Any], DeclaredSetting]]:
    """The fields of a group that are settings, in their order."""
    for item in fields(group):
        if declaration := item.metadata.get("setting"):
            yield item, declaration
