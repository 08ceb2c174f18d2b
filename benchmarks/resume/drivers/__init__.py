"""A thin program for each system: it starts an agent in a directory, or resumes it there."""
