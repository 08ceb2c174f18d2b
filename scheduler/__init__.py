"""The beat scheduler: schedules, due slots and what becomes of them."""
