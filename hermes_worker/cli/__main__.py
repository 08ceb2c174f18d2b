"""``python -m hermes_worker.cli``: how the supervisor starts the roles, whatever is on PATH."""

from hermes_worker.cli import main

main()
