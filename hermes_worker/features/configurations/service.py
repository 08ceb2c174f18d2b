"""Write configurations, for the API and the command line."""

from __future__ import annotations

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings.overriding import parse_configuration
from hermes_worker.store.configurations import Configurations, ConfigurationVersion
from hermes_worker.store.engine.database import Database


def write_configuration(
    database: Database, tenant: str | None, text: str, *, expected: int, written_by: str
) -> ConfigurationVersion:
    """Write the version behind ``expected`` of the fleet's configuration (``None``), or of a tenant's. Raises
    ``ConfigurationError``, ``ConfigurationMoved``, ``TenantNotFound``, ``UnavailableError``."""
    after = parse_configuration(text, tenant)
    rows = Configurations(database)
    newest = rows.find(tenant)
    before = _parse_values(newest)
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    return rows.write(tenant, text, expected=expected, written_by=written_by, changed=changed)


def _parse_values(row: ConfigurationVersion | None) -> dict[str, str]:
    if row is None:
        return {}
    try:
        return parse_configuration(row.text, row.of_tenant or None)
    except ConfigurationError:
        return {}
