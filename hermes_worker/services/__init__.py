"""Submit, answer and read runs: one implementation for the API, the command line and the scheduler."""
