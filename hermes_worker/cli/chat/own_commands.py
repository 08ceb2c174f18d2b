"""Run a command of the person at the chat: here, as them, and told to nobody unless they ask for it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from hermes_worker.core.errors import ConfigurationError

_KEPT_CHARS_MAX = 100_000
_USUAL_SHELL = "/bin/sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCommand:
    """A command that has ended."""

    command: str
    output: str
    """What it wrote, as much as is kept."""
    code: int

    def describe(self, text: str) -> str:
        """Describe it for the agent, behind what the person says about it."""
        said = f"I ran this myself:\n\n$ {self.command}\n{self.output.rstrip()}\n(exit code {self.code})"
        return f"{text}\n\n{said}" if text else said


def run_here(command: str, show: Callable[[str], None]) -> OwnCommand:
    """Run a command in the person's shell and the current directory; ``show`` gets each line of its output. Ctrl-C ends
    the command. Raises ``ConfigurationError`` where it cannot be started."""
    shell = _find_shell()
    kept, room = [], _KEPT_CHARS_MAX
    try:
        process = subprocess.Popen(
            [shell, "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{shell!r} cannot be started: {error}") from None
    with process:
        assert process.stdout is not None  # the library's type
        try:
            for line in process.stdout:
                show(line.rstrip("\r\n"))
                kept.append(line[:room])
                room -= len(kept[-1])
        except KeyboardInterrupt:
            process.terminate()
    return OwnCommand(command=command, output="".join(kept), code=process.returncode)


def _find_shell() -> str:
    """Find the person's shell by the system's word."""
    import pwd  # not on Windows, where only 'doctor' works

    try:
        return pwd.getpwuid(os.getuid()).pw_shell or _USUAL_SHELL
    except KeyError:  # a container's user may have no entry
        return _USUAL_SHELL
