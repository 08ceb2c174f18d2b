"""The settings of where state is kept."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import DATABASE_URL, SWITCH

POSTGRESQL_DRIVER = ("psycopg", "sqlalchemy.dialects.postgresql.psycopg")
"""The modules that talk to PostgreSQL: 6 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSettings:
    """Where state is kept."""

    url: str | None = declare_setting(
        "database.url",
        "HERMES_DATABASE_URL",
        DATABASE_URL,
        is_shown=False,
        audience="operator",
        reason="more than one machine runs processes; they have no rows in common without it.",
    )
    """Database that holds all state. Not set: an SQLite file in the home directory."""
    prepared_statements: bool = declare_setting(
        "database.prepared_statements",
        "HERMES_DATABASE_PREPARED_STATEMENTS",
        SWITCH,
        True,
        audience="operator",
        reason="a pooler forgets prepared statements; processes refuse to start behind it without it.",
    )
    """Whether statements are prepared on PostgreSQL. `false` behind a pooler in transaction mode that does not keep
    them: PgBouncer before 1.21, or one with `max_prepared_statements` 0. Without it no process starts there."""

    @property
    def driver_modules(self) -> tuple[str, ...]:
        """The modules that a process imports for the database before it forks others; none more for SQLite."""
        return () if (self.url or "sqlite").startswith("sqlite") else POSTGRESQL_DRIVER
