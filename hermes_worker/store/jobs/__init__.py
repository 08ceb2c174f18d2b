"""Jobs, their slots and what they collected."""
