"""``doctor``'s finding about provider keys that tenants bring."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

from hermes_worker.cli.doctor_findings import Grade
from hermes_worker.core.errors import HermesError
from hermes_worker.local.paths import has_no_rows
from hermes_worker.settings import Settings


def list_checks(settings: Settings) -> Iterator[tuple[str, Callable[[], tuple[Grade, str]]]]:
    """List the check of tenants' keys, where some tenant brings any."""
    if _has_tenant_keys(settings):
        yield "tenants", partial(check_keys, settings)


def _has_tenant_keys(settings: Settings) -> bool:
    """Whether some tenant brings keys, in rows or in the settings; false for a database that cannot be read, which
    another finding reports."""
    from hermes_worker.features.provider_keys.rows import ProviderKeys
    from hermes_worker.wiring import open_database

    if settings.model.tenant_keys:
        return True
    if has_no_rows(settings):
        return False
    try:
        with closing(open_database(settings)) as database:
            return ProviderKeys(database).load_version().keys > 0
    except HermesError:
        return False


def check_keys(settings: Settings) -> tuple[Grade, str]:
    """Check provider keys that tenants bring."""
    from hermes_worker.features.provider_keys.rows import ProviderKeys
    from hermes_worker.models.catalog import list_provider_rows
    from hermes_worker.wiring import open_database

    named = {each.tenant for each in settings.model.tenant_keys}
    if has_no_rows(settings):
        return Grade.OK, f"{len(named)} bring keys of providers, in HERMES_TENANT_KEYS"
    with closing(open_database(settings)) as database:
        kept = ProviderKeys(database)
        views, in_clear = kept.list_all(), kept.count_in_clear()
        broken = [each.key_id for each in kept.list_keys() if each.key is None]
    in_rows = {view.tenant for view in views}
    found = f"{len(in_rows | named)} bring keys of providers; {len(views)} keys in rows"
    if broken:
        return Grade.BROKEN, f"{found}; changed by others and not used: {', '.join(broken[:3])}: remove and add them"
    if unknown := sorted({view.provider for view in views} - list_provider_rows().keys()):
        return Grade.BROKEN, f"{found}; no extension brings the provider {unknown[0]!r} any more: its keys are idle"
    if in_clear:
        return Grade.NOTE, f"{found}, {in_clear} of them in clear: encrypt texts again (docs/encryption.md)"
    if both := sorted(in_rows & named):
        return Grade.NOTE, f"{found}; those of {', '.join(both)} in HERMES_TENANT_KEYS are not used: rows count"
    return Grade.OK, f"{found}, encrypted" if views else found
