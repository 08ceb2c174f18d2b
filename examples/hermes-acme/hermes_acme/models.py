"""A provider of models, as data."""

from __future__ import annotations

from hermes_worker.extending import ProviderRow

ACME = ProviderRow(
    name="acme",
    aliases=("acme-models",),
    base_url="https://models.acme.example/v1",
    default_model="acme-large",
    key_variables=("ACME_API_KEY",),
    hosts=("models.acme.example",),
)
