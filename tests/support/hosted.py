"""What a host in this process keeps."""

from __future__ import annotations

from hermes_worker.hosting.host import ResourceHost
from support.commandline import wait_for


def only_pid(host: ResourceHost) -> int:
    """The process that keeps the one hosted thing. Its row is ready for calls before the host counts it as its own."""
    wait_for(lambda: host.pids)
    [pid] = host.pids.values()
    return pid
