"""A memory provider that keeps conversations with Honcho."""

from __future__ import annotations

from hermes_worker.addons.memory_honcho.service import honcho_search
from hermes_worker.addons.memory_honcho.settings import Honcho
from hermes_worker.extension import Extension, MemoryProviderDeclaration
from hermes_worker.setting_groups import settings_of

_SERVICE = "hermes_worker.addons.memory_honcho.service"

EXTENSION = Extension(
    name="memory_honcho",
    version="1",
    summary="Remember people by Honcho",
    tools=(honcho_search,),
    memory_providers=(
        MemoryProviderDeclaration(
            name="honcho",
            prefetch=f"{_SERVICE}:recall",
            sync=f"{_SERVICE}:keep_turn",
            on_delegation=f"{_SERVICE}:keep_delegation",
            on_memory_write=f"{_SERVICE}:keep_memory",
        ),
    ),
    settings=settings_of(Honcho),
)
