"""One tool call: claim, run, settle."""
