"""What an agent is told and what it can do."""
