"""Whether a way to confine commands works on this machine: by confining one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from hermes_worker.workspaces.sandbox.base import Confinement
from hermes_worker.workspaces.sandbox.kept_command import KeptCommand, LaunchOptions, hold_command
from hermes_worker.workspaces.sandbox.policy import CommandLimits

_PATIENCE_S = 10.0
_WORD = "confined"


def probe_confinement(confinement: Confinement) -> str | None:
    """Why no command can be started this way; ``None`` when one was."""
    tried = replace(confinement, door=_ClosedProxySocket()) if confinement.needs_door else confinement
    if connector := tried.plan.get("connector"):
        tried = replace(tried, plan={**tried.plan, "connector": {**connector, "is_tried": True}})
    try:
        with hold_command(tried, tag="probe") as prepared:
            return _run_probe(prepared)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)


class _ClosedProxySocket:
    """A proxy's socket for a trial command: it connects to nothing."""

    @contextmanager
    def serve(self) -> Iterator[int]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            yield theirs.fileno()


def limits_processes() -> bool:
    """Whether the kernel bounds how many processes a kept command has; otherwise its keeper only watches."""
    try:
        with hold_command(Confinement(), tag="probe", limits=CommandLimits()) as prepared:
            return _run_probe(prepared) is None and prepared.read_verdict().bounds_processes
    except (OSError, subprocess.SubprocessError):
        return False


def _run_probe(prepared: KeptCommand) -> str | None:
    with ExitStack() as stack:
        output, errors = os.memfd_create("hermes-probe"), os.memfd_create("hermes-probe")
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (output, errors, nowhere):
            stack.callback(os.close, descriptor)
        launch = LaunchOptions(
            cwd="/",
            env={"PATH": "/usr/bin:/bin", **prepared.variables},
            outputs=(output, errors),
            entrance=nowhere,
        )
        process = prepared.start(["/bin/sh", "-c", f"echo {_WORD}"], launch)
        try:
            code = process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGUSR1)
            raise
        if code == 0 and _read_lines(output) == [_WORD]:
            return None
        return prepared.read_verdict().unconfined or ([*_read_lines(errors), f"exit code {code}"][-2:][0])


def _read_lines(descriptor: int) -> list[str]:
    return os.pread(descriptor, 65_536, 0).decode("utf-8", "replace").strip().splitlines()
