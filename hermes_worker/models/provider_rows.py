"""The providers and wires that come with the product, as ``provider_rows.toml`` lists them."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.core.data_files import load_data
from hermes_worker.extension import Extension
from hermes_worker.models.provider_row import ProviderRow, WireRow


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProviderFile:
    provider: tuple[ProviderRow, ...]
    wire: tuple[WireRow, ...]


_FILE = load_data(_ProviderFile, "hermes_worker.models", "provider_rows.toml")

EXTENSION = Extension(
    name="providers",
    version="1",
    summary="The built-in providers of models and the ways to speak to them",
    providers=_FILE.provider,
    wires=_FILE.wire,
)
