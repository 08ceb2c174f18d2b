"""A name for the configuration that shapes a run: two processes that are configured alike give it the same one."""

from __future__ import annotations

import hashlib
from dataclasses import fields

from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.settings import Settings
from hermes_worker.settings.kinds import SECRET, SECRETS

_SHAPING = ("model", "agent", "delegation", "terminal", "approvals", "extensions")
"""Groups that decide what a run is told, may do and is served by. The others say where and how fast."""
_LEFT_OUT = frozenset({"model.asked_elsewhere", "model.providers", "model.proxy_url"})
"""What differs between the processes of one installation, and what may hold the credentials of a gateway."""
_SECRET = (SECRET, SECRETS)
_NAME_CHARS = 16


def name_configuration(settings: Settings) -> str:
    """The first hexadecimal digits of a SHA-256 over the settings that shape runs, in their order of declaration. No
    secret is among them, so a new key is no new configuration. Asked again for the same object it is free."""
    global _last
    known, name = _last
    if known is not settings:
        name = _hash_settings(settings)
        _last = settings, name
    return name


_last: tuple[Settings | None, str] = None, ""


def _hash_settings(settings: Settings) -> str:
    told: dict[str, str] = {}
    for group in _SHAPING:
        values = getattr(settings, group)
        for item in fields(values):
            declared = item.metadata.get("setting")
            if declared is None or declared.kind in _SECRET or declared.key in _LEFT_OUT:
                continue
            value = getattr(values, item.name)
            told[declared.key] = "" if value is None else declared.kind.render(value)
    return hashlib.sha256(dump_canonical_json(told).encode()).hexdigest()[:_NAME_CHARS]
