"""Alembic migrations, run from the installed package: ``hermes-worker data migrate``."""
