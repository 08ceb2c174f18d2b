"""Browsers as leased resources: the role that owns them, and the tools that use them from any worker."""
