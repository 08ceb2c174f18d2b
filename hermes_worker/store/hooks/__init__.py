"""Calls of observers as rows: enqueued with the event, claimed and settled."""
