"""Processes of workers that change one memory and are killed in the middle of it, each replaced by one that goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from support.memory_changes import Answer, keys

TESTS = Path(__file__).resolve().parents[1]
_CODE = f"import sys; sys.path.insert(0, {str(TESTS)!r}); from support.memory_worker import main; main(*sys.argv[1:])"


class KilledWorkers:
    """``processes`` of so many ``workers`` in all, each of which makes ``calls``; ``kills`` at moments of a seed."""

    def __init__(self, url: str, *, processes: int, workers: int, calls: int, kills: int, seed: int) -> None:
        self.answers: dict[str, Answer] = {}
        self.deaths = 0
        self._url = url
        self._calls = calls
        self._chance = random.Random(seed)
        whole = workers * calls
        self._kills_at = sorted(self._chance.sample(range(whole // 20, whole * 9 // 10), kills))
        self._numbers = [range(slot, workers, processes) for slot in range(processes)]
        self._lines: SimpleQueue[tuple[int, bytes]] = SimpleQueue()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._waiting_calls = [calls * len(numbers) for numbers in self._numbers]
        self._killed: set[int] = set()

    def play(self) -> None:
        """Until every call is answered. Raises ``AssertionError`` where a process ends by itself before."""
        try:
            for slot in range(len(self._numbers)):
                self._start(slot)
            while self._running:
                slot, line = self._lines.get()
                if line:
                    self._hear(slot, line)
                else:
                    self._replace(slot)
        finally:
            for process in self._running.values():
                process.kill()
                process.wait()

    def asked(self) -> set[str]:
        """The keys of all calls."""
        return {key for numbers in self._numbers for number in numbers for key in keys(number, self._calls)}

    def _start(self, slot: int) -> None:
        done = Counter(key.partition(".")[0] for key in self.answers)
        workers = [f"{number}:{done[f'{number:02d}']}" for number in self._numbers[slot]]
        arguments = (self._url, str(self._calls), str(self._chance.random()), *workers)
        process = subprocess.Popen(
            [sys.executable, "-c", _CODE, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._running[slot] = process
        Thread(target=self._read, args=(slot, process), daemon=True).start()

    def _read(self, slot: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._lines.put((slot, line))
        self._lines.put((slot, b""))

    def _hear(self, slot: int, line: bytes) -> None:
        key, (changed, stood, refused) = json.loads(line)
        assert key not in self.answers, f"{key} was answered before, and made again"
        self.answers[key] = Answer(_pairs(changed), _pairs(stood), refused)
        self._waiting_calls[slot] -= 1
        with suppress(BrokenPipeError):  # it was killed behind its answer
            stdin = self._running[slot].stdin
            assert stdin is not None
            os.write(stdin.fileno(), b".")
        # Whoever has calls to make is alive until it is killed: it waits for a byte behind each of them.
        alive = [each for each in self._running if self._waiting_calls[each] and each not in self._killed]
        if self._kills_at and len(self.answers) >= self._kills_at[0] and alive:
            del self._kills_at[0]
            chosen = self._chance.choice(alive)
            self._killed.add(chosen)
            self._running[chosen].kill()

    def _replace(self, slot: int) -> None:
        process = self._running.pop(slot)
        self._killed.discard(slot)
        assert process.stdin is not None
        process.stdin.close()
        code = process.wait()
        assert code in (0, -signal.SIGKILL)
        if code:
            self.deaths += 1
            self._start(slot)


def _pairs(found: list[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    return tuple((str(entry_id), int(version)) for entry_id, version in found)
