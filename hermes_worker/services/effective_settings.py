"""Look up the settings that count for a tenant, a session or a run, and override those of a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hermes_worker.core.overrides import OverrideLevel
from hermes_worker.live_settings import ChosenSettings, LiveSettings
from hermes_worker.settings.overriding import check_overrides, require_overridable, restrict_overrides
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.configurations import Configurations
from hermes_worker.store.engine.database import Database
from hermes_worker.store.runs.listing import Listing
from hermes_worker.wiring import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsScope:
    """What settings are looked up for: at most one of these; for the installation without any."""

    tenant: str | None = None
    session_id: str | None = None
    run_id: str | None = None

    @property
    def is_ambiguous(self) -> bool:
        return sum(each is not None for each in (self.tenant, self.session_id, self.run_id)) > 1


def find_effective_settings(live: LiveSettings, database: Database, about: SettingsScope) -> ChosenSettings:
    """Find the settings with which a run is accepted now, or was. Raises ``TenantNotFound``, ``SessionNotFound``,
    ``RunNotFound``, ``UnavailableError``."""
    if about.run_id is not None:
        began = Listing(database).load_notes(about.run_id).began_with
        return live.restore_recorded(began.overrides, began.overridden_by)
    if about.session_id is not None:
        tenant, said = Configurations(database).require_overrides_of_any(about.session_id)
        return live.choose_settings(tenant, said)
    if about.tenant is not None:
        Tenants(database).require_tenant(about.tenant)
        return live.choose_settings(about.tenant)
    return live.choose_settings("")


def override_for_session(
    client: Client, tenant: str, session_id: str, said: Mapping[str, str | None], source: str = "api"
) -> dict[str, str]:
    """Override settings of a session; ``None`` removes an override. ``source`` is the name space of ``session_id``.
    Returns all overrides. Raises ``ConfigurationError``, ``SessionNotFound``."""
    place = "settings"
    given = {key: value for key, value in said.items() if value is not None}
    require_overridable(said, OverrideLevel.SESSION)
    checked = check_overrides(given, OverrideLevel.SESSION, place=place)
    restrict_overrides(client.live_settings.choose_settings(tenant).settings, checked, place=place)
    return Configurations(client.database).update_overrides(tenant, session_id, {**said, **checked}, source)
