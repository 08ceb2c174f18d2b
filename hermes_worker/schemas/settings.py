"""Settings with their layers and the overrides of sessions, as the API answers them, the client returns them and
commands print them."""

from __future__ import annotations

from typing import Literal

from hermes_worker.core.overrides import OverrideLevel
from hermes_worker.resource import Resource

_Layer = Literal[
    "run", "session", "tenant", "command_line", "environment", "dotenv", "fleet", "file", "preset", "derived", "default"
]


class SettingObject(Resource):
    """A setting, with its value and the layer that set it."""

    key: str
    """Its name in ``config.yaml``."""
    variable: str
    """Its name in the environment."""
    value: str | None
    """The value as the environment would have it; ``null`` for one that is not set, and for every secret."""
    is_secret: bool
    is_set: bool
    """Whether a secret is set in this process. One that only other processes have counts as not set."""
    layer: _Layer
    """The layer that set it; ``derived`` for a value that follows from other settings, ``default`` where no layer sets
    it."""
    origin: str
    """The layer in words, such as ``HERMES_MODEL in the environment``."""
    is_live: bool
    """Whether a change is taken up while processes run, by runs that are accepted afterwards; otherwise when processes
    are started again."""
    overridable_for: list[OverrideLevel]
    """The levels at which it may be overridden."""
    description: str


class SettingList(Resource):
    """The settings of the process that answers, by group."""

    object: Literal["list"] = "list"
    configuration: str
    """A hash of the settings: equal for two processes that shape runs alike; runs record it."""
    layers: dict[str, str]
    """Which version of the configuration of the ``fleet`` and of the ``tenant`` counts, and which ``file``."""
    problems: dict[str, str]
    """Configurations that cannot be used, and why; the last good one counts in their place."""
    data: list[SettingObject]


class SessionSettingsObject(Resource):
    """The overrides of a session, by key. Its next run is accepted with each that does not allow more than the levels
    above do at that time."""

    object: Literal["hermes.session_settings"] = "hermes.session_settings"
    session_id: str
    settings: dict[str, str]
