"""Build what knows the keys of tenants from the settings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hermes_worker.settings import Settings
from hermes_worker.store.engine.database import Database
from hermes_worker.tasks.build import build_models_of_tenant, build_tenant_models

if TYPE_CHECKING:
    from hermes_worker.models.tenant_watch import TenantKeyWatch
    from hermes_worker.tasks.context import TenantModels


def build_tenant_watch(settings: Settings, database: Database) -> TenantKeyWatch[TenantModels]:
    """Build the watch over tenants' provider keys in rows, or in the settings. Nothing is read yet. Raises
    ``ConfigurationError``.
    """
    from hermes_worker.features.provider_keys.rows import ProviderKeys
    from hermes_worker.models.tenant_watch import TenantKeyWatch

    build = partial(build_models_of_tenant, settings)
    return TenantKeyWatch(ProviderKeys(database), build, build_tenant_models(settings))
