"""A memory provider that asks a server of the operator's own (docs/memory.md)."""

from __future__ import annotations

from hermes_worker.addons.memory_http.settings import MemoryServer
from hermes_worker.extension import Extension, MemoryProviderDeclaration
from hermes_worker.setting_groups import settings_of

_TELLS = "hermes_worker.addons.memory_http.server:send_event"
_ASKS = "hermes_worker.addons.memory_http.server:recall"

EXTENSION = Extension(
    name="memory_http",
    version="1",
    summary="Remember people by a server of your own that speaks a small protocol over HTTP",
    memory_providers=(
        MemoryProviderDeclaration(
            name="http",
            prefetch=_ASKS,
            sync=_TELLS,
            on_pre_compress=_ASKS,
            on_delegation=_TELLS,
            on_memory_write=_TELLS,
            on_session_end=_TELLS,
        ),
    ),
    settings=settings_of(MemoryServer),
)
