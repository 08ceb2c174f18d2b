"""One module for each wire."""
