"""Streams for readers of a run: live previews, followers, server-sent events."""
