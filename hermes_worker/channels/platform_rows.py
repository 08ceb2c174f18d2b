"""The built-in platforms, as ``platform_rows.toml`` lists them."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.channels.catalog import Platform
from hermes_worker.core.data_files import load_data
from hermes_worker.extension import Extension


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlatformFile:
    platform: tuple[Platform, ...]


EXTENSION = Extension(
    name="channels",
    version="1",
    summary="The built-in platforms that messages are delivered to",
    channels=load_data(_PlatformFile, "hermes_worker.channels", "platform_rows.toml").platform,
)
