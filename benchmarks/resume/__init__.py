"""Six properties that an agent should keep when it resumes, as experiments for any system that has a driver."""
