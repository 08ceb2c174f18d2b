"""One iteration: ask a model and commit its reply."""
