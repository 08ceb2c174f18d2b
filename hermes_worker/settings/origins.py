"""Who may say what a setting says."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class SettingLayer(StrEnum):
    """Who said what a setting says."""

    RUN = "run"
    SESSION = "session"
    TENANT = "tenant"
    COMMAND_LINE = "command_line"
    ENVIRONMENT = "environment"
    DOTENV = "dotenv"
    FLEET = "fleet"
    """The configuration in the database."""
    FILE = "file"
    PRESET = "preset"
    DERIVED = "derived"
    """Nobody: it follows from other settings."""
    DEFAULT = "default"


class SettingOrigin(NamedTuple):
    """Where the value of a setting comes from."""

    layer: SettingLayer
    place: str
    """In words: ``HERMES_MODEL in the environment``."""
