"""A memory provider that keeps conversations with Hindsight."""

from __future__ import annotations

from hermes_worker.addons.memory_hindsight.service import hindsight_recall
from hermes_worker.addons.memory_hindsight.settings import Hindsight
from hermes_worker.extension import Extension, MemoryProviderDeclaration
from hermes_worker.setting_groups import settings_of

_SERVICE = "hermes_worker.addons.memory_hindsight.service"

EXTENSION = Extension(
    name="memory_hindsight",
    version="1",
    summary="Remember people by Hindsight",
    tools=(hindsight_recall,),
    memory_providers=(
        MemoryProviderDeclaration(
            name="hindsight",
            prefetch=f"{_SERVICE}:recall",
            sync=f"{_SERVICE}:keep_turn",
            on_delegation=f"{_SERVICE}:keep_delegation",
        ),
    ),
    settings=settings_of(Hindsight),
)
