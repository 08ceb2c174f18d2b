"""The settings of what Celery's own tools see and may change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import SWITCH, one_of


class RemoteControl(StrEnum):
    """What may be done to a worker over the broker, with ``celery control`` or Flower."""

    READ = "read"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What Celery's own tools see of a worker, and what they may change."""

    sends_events: bool = declare_setting(
        "worker.events",
        "HERMES_WORKER_EVENTS",
        SWITCH,
        False,
        audience="operator",
        reason="a monitor of yours reads Celery's events all the time; they are off at a start without it.",
    )
    """Whether a worker sends Celery's events from its start; Flower and `celery control enable_events` switch them on
    at any time."""
    remote_control: str = declare_setting(
        "worker.remote_control",
        "HERMES_REMOTE_CONTROL",
        one_of(*(level.value for level in RemoteControl)),
        RemoteControl.READ.value,
        audience="security",
        reason="an operator changes the fleet by Flower or celery control; workers refuse that without it.",
    )
    """`read` answers the commands of Celery's remote control that read, `all` also those that change a fleet
    (`shutdown`, `rate_limit`, `cancel_consumer`, `pool_grow` ...): all who reach the broker may send them."""
    is_debuggable: bool = declare_setting(
        "worker.debuggable",
        "HERMES_DEBUGGABLE",
        SWITCH,
        False,
        audience="developer",
        reason="py-spy or gdb must look into a process; the kernel refuses them without it.",
    )
    """Whether other programs of the same user may look into the memory of the processes: for `py-spy`, `gdb` and core
    files. It holds secrets."""
