"""Inbound webhooks: what becomes of an event that another service sends. Pure: nothing here reads a request or a
row."""
