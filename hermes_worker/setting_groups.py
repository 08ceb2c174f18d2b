"""The settings of an extension as one frozen dataclass:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Warehouse:
        token: str = setting("ACME_WAREHOUSE_TOKEN", "What the warehouse knows you by.", is_secret=True)
        timeout_s: float = setting("ACME_TIMEOUT_S", "Seconds to wait for it.", default=5.0, minimum=0.1, maximum=60.0)

    EXTENSION = Extension(..., settings=settings_of(Warehouse))

A field without a default is required, unless it may be ``None``. Its type says what the variable may hold: ``str``,
``int``, ``float``, ``bool`` or a ``Literal`` of words. Values are read by ``settings`` when a process begins, and a
tool gets them by a parameter of the type ``Warehouse``. Pure.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hermes_worker.extension import SettingDeclaration, SettingType, SettingValue

__all__ = ["fill_group", "is_group", "setting", "settings_of"]

_Group = TypeVar("_Group")
_KEY = "setting of an extension"
_TYPES: Mapping[Any, SettingType] = {
    str: SettingType.TEXT,
    int: SettingType.INTEGER,
    float: SettingType.NUMBER,
    bool: SettingType.SWITCH,
}


def setting(
    variable: str,
    summary: str,
    *,
    default: SettingValue | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    is_secret: bool = False,
    roles: tuple[str, ...] = ("tools",),
) -> Any:
    """A field of a group: the variable that holds it, and a sentence about it. Typed ``Any`` as ``dataclasses.field``
    is. ``SettingDeclaration`` explains the rest."""
    said = {"variable": variable, "summary": summary, "minimum": minimum, "maximum": maximum, "roles": roles}
    metadata = {_KEY: {**said, "is_secret": is_secret, "default": default}}
    return field(default=MISSING if default is None else default, repr=not is_secret, metadata=metadata)


def settings_of(group: type) -> tuple[SettingDeclaration, ...]:
    """The declarations of a group. Raises ``TypeError`` for what is no frozen dataclass of settings."""
    if not is_dataclass(group) or not group.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise TypeError(f"{group.__name__} must be a frozen dataclass")
    hints = get_type_hints(group)
    return tuple(_declare_setting(group, item, hints[item.name]) for item in fields(group))


def _declare_setting(group: type, item: Field[Any], kind: Any) -> SettingDeclaration:
    said = item.metadata.get(_KEY)
    if said is None:
        raise TypeError(f"{group.__name__}.{item.name} must be made by setting()")
    plain, is_optional = _strip_none(kind)
    choices = get_args(plain) if get_origin(plain) is Literal else ()
    holds = SettingType.TEXT if choices else _TYPES.get(plain)
    if holds is None or not all(isinstance(word, str) for word in choices):
        raise TypeError(f"{group.__name__}.{item.name} must be a str, int, float, bool or a Literal of words")
    is_required = said["default"] is None and not is_optional
    return SettingDeclaration(name=item.name, holds=holds, choices=choices, is_required=is_required, **said)


def _strip_none(kind: Any) -> tuple[Any, bool]:
    if get_origin(kind) not in (Union, types.UnionType):
        return kind, False
    others = [one for one in get_args(kind) if one is not type(None)]
    return (others[0] if len(others) == 1 else kind), len(others) < len(get_args(kind))


def is_group(kind: Any) -> bool:
    """Whether a type is a group of settings."""
    return isinstance(kind, type) and is_dataclass(kind) and any(_KEY in item.metadata for item in fields(kind))


def fill_group(group: type[_Group], values: Mapping[str, SettingValue]) -> _Group:
    """Build a group from the values of its extension; a missing required value was refused before."""
    return group(**{item.name: values.get(item.name) for item in fields(group)})  # type: ignore[arg-type]
