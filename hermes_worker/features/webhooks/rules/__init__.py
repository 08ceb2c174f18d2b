"""Inbound webhooks: what an event of somebody else's becomes. Pure: nothing here reads a request or a row."""
