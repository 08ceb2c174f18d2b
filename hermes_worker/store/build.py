"""Build the database, its sealer, and the policies of sweeps and alerts from the settings."""

from __future__ import annotations

from pathlib import Path

from hermes_worker.core.hooks import NOT_OBSERVED, Observed
from hermes_worker.local.paths import build_embedded_database_url, list_spellings
from hermes_worker.settings import Settings
from hermes_worker.settings.text_keys import load_current_keys
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.sealing import PLAIN, Sealer, build_text_keys
from hermes_worker.store.outbox.alerts import AlertPolicy
from hermes_worker.store.sweep import SweepPolicy


def build_database(
    settings: Settings,
    *,
    pool_size: int = 10,
    observed: Observed = NOT_OBSERVED,
    sealer: Sealer = PLAIN,
    home: Path | None = None,
) -> Database:
    """Build the database of ``settings``, whatever its schema; ``observed`` says which hooks have to be called about
    what is written. Code that reads or writes texts needs ``build_sealer``. Nothing is connected yet. Raises
    ``ConfigurationError``. ``home`` is where the files are that rows name, if it is not that of the settings.
    """
    url = settings.database.url or build_embedded_database_url(settings.home)
    prepares = settings.database.prepared_statements
    homes = list_spellings(home or settings.home)
    return Database(url, pool_size=pool_size, prepares=prepares, observed=observed, sealer=sealer, homes=homes)


def build_sealer(settings: Settings) -> Sealer:
    """Build the sealer, which encrypts and decrypts texts in the database. Raises ``ConfigurationError``."""
    keys, source = load_current_keys(settings)
    return Sealer(build_text_keys(keys), source) if keys or source else PLAIN


def build_sweep_policy(settings: Settings) -> SweepPolicy:
    return SweepPolicy(
        interval_s=min(settings.lease.sweep_interval_s, settings.lease.ttl_s / 8),
        ttl_s=settings.lease.ttl_s,
        resend_grace_s=settings.lease.resend_grace_s,
        alerts=build_alert_policy(settings),
    )


def build_alert_policy(settings: Settings) -> AlertPolicy:
    """The policy of alerts: the targets that are told of problems."""
    delivery = settings.delivery
    return AlertPolicy(targets=delivery.alert_targets, backlog_age_s=delivery.alert_backlog_age_s)
