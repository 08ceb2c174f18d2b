"""End a worker's commands when the worker dies, also when it is killed outright.

Theory of operation. A worker that gets SIGKILL cannot clean up, and a command that outlives it would go on changing a
workspace that another worker has taken over. The kernel's parent-death signal does not help: it follows the *thread*
that forked and is not inherited by the command's children. So each worker process has one small companion, a shell that
reads a pipe whose only writer is the worker. Every command enters itself (its process group and its tag) before it does
anything else, the worker strikes it off when it is over, and when the pipe ends the companion kills what is still
listed. It costs one shell per worker and two short writes per command.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import threading

TAG_VARIABLE = "HERMES_COMMAND_ID"
"""Set in the environment of every command, so that processes that left its session can still be found."""

_STOP_GRACE_S = 1.0
"""How many seconds the companion may take to see the end of its pipe."""

_COMPANION = f"""
declare -A commands
while read -r verb pid tag; do
  if [[ $verb == + ]]; then commands[$pid]=$tag; else unset "commands[$pid]"; fi
done
# A keeper ends everything that belongs to its command, and then itself.
for pid in "${{!commands[@]}}"; do kill -USR1 "$pid" 2>/dev/null; done
for pid in "${{!commands[@]}}"; do
  for round in {{1..20}}; do kill -0 "$pid" 2>/dev/null && sleep 0.05 || break; done
  kill -KILL -- "-$pid" 2>/dev/null
  for environ in $(grep -lsaF "{TAG_VARIABLE}=${{commands[$pid]}}" /proc/[0-9]*/environ 2>/dev/null); do
    stray=${{environ#/proc/}}
    kill -KILL "${{stray%/environ}}" 2>/dev/null
  done
done
"""


class CommandGuardian:
    """The companion of this process, started when it is first needed and again if it was killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._companion: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None
        self._listed: dict[int, str] = {}
        self._is_registered = False

    def open_entrance(self) -> int:
        """Return a descriptor through which a new command enters itself: pass it on, then close it.

        It is a duplicate, so that replacing the companion never leaves another thread with a number that by then means
        something else. Raises ``OSError``.
        """
        with self._lock:
            if self._pipe is None or self._companion is None or self._companion.poll() is not None:
                return self._start()
            return os.dup(self._pipe)

    def note_entered(self, pid: int, tag: str) -> None:
        """Remember a command that entered itself, in case the companion has to be replaced."""
        with self._lock:
            self._listed[pid] = tag

    def release(self, pid: int) -> None:
        """Strike off a command whose processes are gone."""
        with self._lock:
            self._listed.pop(pid, None)
            self._write_line(f"- {pid}\n")

    def forget_in_child(self) -> None:
        """Drop everything in a forked child: the companion and the commands are the parent's."""
        self._lock = threading.Lock()
        if self._pipe is not None:
            os.close(self._pipe)
        if self._companion is not None:
            # Not this process's child, so there is nothing to wait for and nothing to warn about.
            self._companion.returncode = 0
        self._companion = self._pipe = None
        self._listed = {}

    def stop(self) -> None:
        """End the companion when the worker exits in an orderly way."""
        with self._lock:
            self._close()

    def _start(self) -> int:
        """Start the companion, enter what is listed, and return an entrance."""
        self._close()
        if not self._is_registered:
            # Here and not on import, so that a process that runs no commands carries none of this.
            os.register_at_fork(after_in_child=self.forget_in_child)
            atexit.register(self.stop)
            self._is_registered = True
        read_end, write_end = os.pipe()
        try:
            self._companion = subprocess.Popen(
                ["/bin/bash", "--noprofile", "--norc", "-c", _COMPANION, "hermes-guardian"],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PATH": "/usr/bin:/bin"},
                cwd="/",
                # Its own session: a signal to the worker's group must not take the companion with it.
                start_new_session=True,
            )
        except OSError:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
        self._pipe = write_end
        entrance = os.dup(write_end)  # before the lines: a companion that is killed meanwhile closes the pipe
        for pid, tag in self._listed.items():
            self._write_line(f"+ {pid} {tag}\n")
        return entrance

    def _write_line(self, line: str) -> None:
        if self._pipe is None:
            return
        try:
            os.write(self._pipe, line.encode())
        except BrokenPipeError:
            # The companion was killed. The next command starts another one, which is told what is listed.
            self._close()

    def _close(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        if self._companion is not None:
            try:
                self._companion.wait(_STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                self._companion.kill()
                self._companion.wait()
            self._companion = None


guardian = CommandGuardian()
