"""As much of ``psql`` as docs/operations.md uses, for machines without it: statements from the standard input."""

from __future__ import annotations

import sys

import psycopg


def main(url: str) -> int:
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(sys.stdin.read().encode())
    except psycopg.Error as error:
        print(f"psql: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
