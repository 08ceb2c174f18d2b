"""The Celery shell: each task claims, loads, acts, commits and sends. What to do is decided in ``core``."""
