"""What watchers are sent: live previews, followers, server-sent events."""
