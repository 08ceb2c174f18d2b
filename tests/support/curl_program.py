"""As much of ``curl`` as README, the tour and the tests use: for machines without curl."""

from __future__ import annotations

import argparse
import http.client
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

_PIECE_BYTES = 65_536
_EXIT_NO_CONNECTION = 7


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="curl")
    parser.add_argument("-s", "--silent", action="store_true")
    parser.add_argument("-N", "--no-buffer", action="store_true")
    parser.add_argument("-X", "--request")
    parser.add_argument("-H", "--header", action="append", default=[])
    parser.add_argument("-d", "--data")
    parser.add_argument("url")
    options = parser.parse_args(arguments)
    url = urlsplit(options.url if "://" in options.url else f"http://{options.url}")
    headers = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in options.header)}
    data = None if options.data is None else options.data.encode()
    if data is not None:
        headers.setdefault("Content-Type", "application/x-www-form-urlencoded")
    connection = http.client.HTTPConnection(url.netloc)
    try:
        target = f"{url.path or '/'}{'?' if url.query else ''}{url.query}"
        connection.request(options.request or ("GET" if data is None else "POST"), target, data, headers)
        answer = connection.getresponse()
        while piece := answer.read1(_PIECE_BYTES):
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    except OSError as error:
        if not options.silent:
            print(f"curl: {error}", file=sys.stderr)
        return _EXIT_NO_CONNECTION
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
