"""The original's wire beyond its runs: sessions, their turns, and what it says of itself. Requests become submissions,
rows and events become the original's objects; nothing here is kept."""
