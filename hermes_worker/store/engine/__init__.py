"""Connections, prepared statements, migrations."""
