"""Presets: one word for the size of an installation gives other defaults to the settings that depend on it. Pure.

Whatever is said elsewhere, even in ``config.yaml``, wins over a preset. ``config show --origin`` names the preset where
a value comes from it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings.kinds import SettingKind

_SHARED = {
    "logging.format": "json",
    "metrics.port": "9464",
    "terminal.network_api": "proxy",
    "terminal.profile": "tenant",
    "terminal.sandbox": "require",
}
"""Values for an installation that several people use: their commands are confined, and logs and metrics collected."""

PRESETS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "small": {
            "browser.max": "1",
            "checkpoints.max_total_size_mb": "100",
            "delegation.max_concurrent_children": "2",
            "lease.lane_memory_mb": "512",
            "lease.lanes_max": "1",
            "mcp.max": "4",
            "retention.rules": "events=30d,deliveries=30d,firings=30d,artifacts=14d",
        },
        "team": _SHARED,
        "fleet": {**_SHARED, "server.drain_s": "10"},
    }
)
"""Values by preset and key, written as in the environment. ``small`` is a server with one core and 1 GB, ``team`` one
machine for several people, ``fleet`` several machines with servers of their own behind a load balancer."""

PRESET_KEYS = frozenset(key for values in PRESETS.values() for key in values)

CONCURRENCY: Mapping[str | None, tuple[int, int]] = MappingProxyType({None: (32, 8), "small": (8, 2)})
"""How many model calls and how many tool calls ``up`` makes at once where its options say nothing, by preset. A preset
that is missing has the numbers of ``None``."""


def _parse_preset(raw: object) -> str:
    """Parse the name of a preset. Raises ``ConfigurationError`` that names the nearest one."""
    name = str(raw).strip().lower()
    if name in PRESETS:
        return name
    close = difflib.get_close_matches(name, PRESETS, n=1)
    nearest = f"; the nearest is {close[0]!r}" if close else ""
    raise ConfigurationError(f"there is no preset {name[:100]!r}{nearest}.")


PRESET = SettingKind(f"one of {', '.join(PRESETS)}", _parse_preset, pattern=f"(?i){'|'.join(PRESETS)}")


def find_preset_value(preset: str | None, key: str) -> str | None:
    """The value that a preset gives to a setting; ``None`` where it gives none."""
    return None if preset is None else PRESETS[preset].get(key)
