"""Checkpoints: the files of a workspace as they were before an agent changed them."""
