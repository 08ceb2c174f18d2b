"""As much of ``redis-cli`` as docs/operations.md uses, for machines without it: ``redis-cli -u URL COMMAND...``."""

from __future__ import annotations

import sys

import redis


def main(option: str, url: str, *command: str) -> int:
    assert option == "-u"
    try:
        with redis.Redis.from_url(url, decode_responses=True) as client:
            print(client.execute_command(*command))
    except redis.RedisError as error:
        print(f"(error) {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
