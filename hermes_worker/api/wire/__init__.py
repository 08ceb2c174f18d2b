"""Hermes Agent's wire beyond its runs: sessions, their turns, and the server's capabilities. Requests become
submissions, rows and events become Hermes Agent's objects; nothing is stored here."""
