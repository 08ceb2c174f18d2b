"""What observers are told of runs: rows that are owed, claimed and settled."""
