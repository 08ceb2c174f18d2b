"""Leased resources that are processes: the role that owns and ends them, and how one is started and confined."""
