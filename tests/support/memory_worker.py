"""A process of several workers that change one memory, and say what they were told, until it is killed.

    python memory_worker.py DATABASE_URL CALLS SEED [WORKER:DONE ...]

Each worker goes on behind its calls that were answered. The next one may have been made by its predecessor, who died
before it heard of it, so it has the same key. A line of JSON is written for each call that was answered, and a byte is
read before the next one: whoever kills is never behind.
"""

from __future__ import annotations

import json
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from hermes_worker.features.memory.rows import Memories
from hermes_worker.store.engine.database import Database
from support.memory_changes import Answer, ChangingWorker, keys

_WHOLE_BYTES_MAX = 4_096
"""A pipe takes so many at once or none (POSIX, ``PIPE_BUF`` of Linux), so a kill tears no line."""


def main(database_url: str, calls: str, seed: str, *workers: str) -> None:
    memories = Memories(Database(database_url))

    def work(said: str) -> None:
        number, done = map(int, said.split(":"))
        worker = ChangingWorker(memories, seed=random.Random(f"{seed}.{said}").randrange(10**9))
        for key in islice(keys(number, int(calls)), done, None):
            _say(key, worker.call(key))
            os.read(0, 1)

    with ThreadPoolExecutor(len(workers)) as pool:
        list(pool.map(work, workers))


def _say(key: str, answer: Answer) -> None:
    line = json.dumps([key, answer]).encode() + b"\n"
    assert len(line) <= _WHOLE_BYTES_MAX
    os.write(1, line)


if __name__ == "__main__":
    main(*sys.argv[1:])
