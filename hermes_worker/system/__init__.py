"""Of a process: armed faults, when to look for garbage, files read that may be none."""
