"""Who calls: keys and logins."""
