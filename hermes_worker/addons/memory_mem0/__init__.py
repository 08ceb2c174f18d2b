"""A memory provider that keeps conversations with Mem0."""

from __future__ import annotations

from hermes_worker.addons.memory_mem0.service import mem0_search
from hermes_worker.addons.memory_mem0.settings import Mem0
from hermes_worker.extension import Extension, MemoryProviderDeclaration
from hermes_worker.setting_groups import settings_of

_SERVICE = "hermes_worker.addons.memory_mem0.service"

EXTENSION = Extension(
    name="memory_mem0",
    version="1",
    summary="Remember people by Mem0",
    tools=(mem0_search,),
    memory_providers=(
        MemoryProviderDeclaration(
            name="mem0",
            prefetch=f"{_SERVICE}:recall",
            sync=f"{_SERVICE}:keep_turn",
            on_delegation=f"{_SERVICE}:keep_delegation",
        ),
    ),
    settings=settings_of(Mem0),
)
