"""What this installation is configured as, setting by setting, and who said so."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from hermes_worker.api import schema
from hermes_worker.api.auth import FOR_OPERATORS
from hermes_worker.api.context import Context
from hermes_worker.api.formats import NO_NUL
from hermes_worker.safety.redaction import redact
from hermes_worker.settings import Settings, ToldSetting, told_settings
from hermes_worker.settings.shaping import configuration_of

router = APIRouter(prefix="/v1/settings", tags=["settings"], responses=schema.errors(503))
_Layer = Literal["command_line", "environment", "dotenv", "file", "derived", "default"]


class ListSettings(BaseModel):
    """Which settings to list."""

    model_config = ConfigDict(extra="forbid")

    prefix: str | None = Field(None, max_length=100, pattern=NO_NUL, description="Only those whose key begins so.")


class SettingObject(BaseModel):
    """What one setting says, and where that comes from."""

    key: str
    """Its name in ``config.yaml``."""
    variable: str
    """Its name in the environment."""
    value: str | None
    """As it is written in the environment; ``null`` for one that is not set, and for every secret."""
    is_secret: bool
    is_set: bool
    """Of a secret: whether there is one. One that only other processes have is not told here."""
    layer: _Layer
    """Who said so; ``derived`` for what follows from other settings, ``default`` for what nobody said."""
    origin: str
    """The layer in words, such as ``HERMES_MODEL in the environment``."""
    is_live: bool
    """Whether a change is taken up while processes run; otherwise when they are started again."""
    description: str


class SettingList(BaseModel):
    """The settings of the process that answers, by group."""

    object: Literal["list"] = "list"
    configuration: str
    """The same for two processes that shape runs alike; runs record it."""
    data: list[SettingObject]


@router.get("", dependencies=[FOR_OPERATORS])
async def list_settings(context: Context, question: Annotated[ListSettings, Query()]) -> SettingList:
    """Every setting with its value, where that comes from, and when a change takes effect. Secrets are withheld."""
    return await context.store(_listed, context.client.settings, question.prefix or "")


def _listed(settings: Settings, prefix: str) -> SettingList:
    told = [_object(each) for each in told_settings(settings) if each.key.startswith(prefix)]
    return SettingList(configuration=configuration_of(settings), data=told)


def _object(told: ToldSetting) -> SettingObject:
    return SettingObject(
        key=told.key,
        variable=told.variable,
        value=None if told.value is None else redact(told.value),
        is_secret=told.is_secret,
        is_set=told.is_set,
        layer=told.layer.value,
        origin=told.origin,
        is_live=False,
        description=told.doc,
    )
