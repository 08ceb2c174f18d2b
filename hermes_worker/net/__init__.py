"""Addresses that may be asked, and one HTTP exchange."""
