"""``python -m hermes_worker``: the command line, whatever is on PATH."""

from hermes_worker.cli import main

if __name__ == "__main__":
    main()
