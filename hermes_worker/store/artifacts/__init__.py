"""Files that runs left: owed when a run ends, gathered under a claim, listed and read."""
