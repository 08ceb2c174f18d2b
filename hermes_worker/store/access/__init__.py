"""Tenants, keys, logins, and the audit log."""
