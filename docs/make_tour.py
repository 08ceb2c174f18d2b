"""Play the commands of a Markdown document in a shell and write down what they print.

``python docs/make_tour.py`` plays ``docs/tour.md`` in a home of its own and replaces the output in its ``console``
blocks by the real one. Lines that begin with ``$ `` are commands; they all run in one bash, in order. A command that
ends in ``&`` goes on in the background; what it prints until it is ready stands below it.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PORT = 8642
"""As written in the document; played on a free one."""
_HOME_AS_WRITTEN = "/home/you"
_END = "<<<end of command>>>"
_READY = "Ctrl-C drains and stops"
_PATIENCE_S = 500.0
_SUBMITS = "RUN=$(hermes-worker submit"
_WAIT_FOR_CALL = "until hermes-worker runs show $RUN | grep -q '^did:'; do sleep 0.2; done"
"""What a reader does not type, who comes to the next command later than a shell."""
_BLOCK = re.compile(r"^```console\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One command and what became of it."""

    command: str
    output: str
    status: int


class Shell:
    """A bash that is told one command after the other. Use as a context manager."""

    def __init__(self, home: Path, port: int) -> None:
        self._home = home
        self._port = port
        environ = _environ(home, port)
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environ,
            cwd=home,
            start_new_session=True,
        )

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        """End the shell and, as a closed terminal would, what it left in the background."""
        self._bash.communicate(b"kill -TERM $(jobs -p) 2>/dev/null; wait\n")

    def play(self, command: str) -> Played:
        """Run one command to its end, or, if it goes on in the background, until it says that it is ready."""
        concrete = command.replace(str(PORT), str(self._port))
        if concrete.endswith("&"):
            return self._play_in_background(command, concrete.removesuffix("&"))
        self._say(f"{concrete}\nprintf '\\n%s %d\\n' '{_END}' $?\n")
        text, _, status = self._read_until(f"{_END} ").rpartition(f"\n{_END} ")
        return Played(command=command, output=self._as_written(text), status=int(status))

    def _play_in_background(self, command: str, concrete: str) -> Played:
        log = self._home / "background.log"
        self._say(f"{concrete} > '{log}' 2>&1 &\n")
        deadline = time.monotonic() + _PATIENCE_S
        while not log.exists() or _READY not in log.read_text():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{command!r} did not get ready: {log.read_text() if log.exists() else ''}")
            time.sleep(0.1)
        return Played(command=command, output=self._as_written(log.read_text()), status=0)

    def _say(self, text: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(text.encode())
        self._bash.stdin.flush()

    def _read_until(self, mark: str) -> str:
        assert self._bash.stdout is not None
        descriptor = self._bash.stdout.fileno()
        readable = select.poll()  # unlike select() it takes descriptors above 1,023
        readable.register(descriptor, select.POLLIN)
        deadline = time.monotonic() + _PATIENCE_S
        data = b""
        while not re.search(re.escape(mark).encode() + rb"\d+\n$", data):
            if not readable.poll(max(0.0, deadline - time.monotonic()) * 1_000):
                raise TimeoutError(f"no end after {_PATIENCE_S:g} s; so far: {data.decode(errors='replace')}")
            piece = os.read(descriptor, 65_536)
            if not piece:
                raise EOFError(f"the shell ended: {data.decode(errors='replace')}")
            data += piece
        return data.decode(errors="replace").rstrip("\n")

    def _as_written(self, text: str) -> str:
        """What a reader would see: their home, the usual port."""
        text = text.replace(str(self._home), _HOME_AS_WRITTEN).replace(f":{self._port}", f":{PORT}")
        return text.strip("\n")


def commands_of(document: str) -> Iterator[str]:
    """The commands of a document, in order."""
    for block in _BLOCK.finditer(document):
        yield from (line[2:] for line in block["body"].splitlines() if line.startswith("$ "))


def play(document: str, home: Path) -> list[Played]:
    """Play every command of ``document`` with ``home`` as the home directory. A run that is submitted for later
    commands is at its first call when they come."""
    played = []
    with Shell(home, _free_port()) as shell:
        for command in commands_of(document):
            played.append(shell.play(command))
            if command.startswith(_SUBMITS):
                shell.play(_WAIT_FOR_CALL)
    return played


def with_output(document: str, played: list[Played]) -> str:
    """``document`` with the output of its blocks replaced."""
    remaining = iter(played)

    def block(match: re.Match[str]) -> str:
        lines = []
        for line in match["body"].splitlines():
            if line.startswith("$ "):
                lines += [line, *next(remaining).output.splitlines()]
        return "\n".join(["```console", *lines, "```"])

    return _BLOCK.sub(block, document)


def _environ(home: Path, port: int) -> Mapping[str, str]:
    return {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "HERMES_SERVER_PORT": str(port),
        "GIT_AUTHOR_NAME": "You",
        "GIT_AUTHOR_EMAIL": "you@example.com",
        "GIT_COMMITTER_NAME": "You",
        "GIT_COMMITTER_EMAIL": "you@example.com",
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("document", nargs="?", type=Path, default=Path(__file__).parent / "tour.md")
    path = parser.parse_args().document
    home = Path(tempfile.mkdtemp(prefix="hermes-tour-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        document = path.read_text()
        played = play(document, home)
        path.write_text(with_output(document, played))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    failed = [each for each in played if each.status]
    for each in failed:
        sys.stderr.write(f"status {each.status}: {each.command}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
