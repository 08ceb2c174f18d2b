"""The contents of a home directory, and the stack that runs on it.

A *stack* is the process tree of one ``hermes-worker up`` or ``hermes-worker run``. It holds an exclusive lock for as
long as it lives, which the kernel takes back however it dies, and beside the lock it leaves a note that says where its
servers listen. A note without a lock is a dead stack's and is not believed.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from hermes_worker.core.errors import ConfigurationError, HermesError, format_reason
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.observe import log
from hermes_worker.system.plainfiles import read_note

if TYPE_CHECKING:
    from hermes_worker.settings import Settings

_LOCK_PATIENCE_S = 0.5
"""How many seconds a starting stack waits for the lock: a reader holds it for an instant, to see whether a stack does.
"""


class HomeBusy(HermesError):
    """Another stack runs on this home."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackNote:
    """The facts about a running stack for other commands of the same user."""

    pid: int
    command: str
    """``up`` or ``run``."""
    started_at: float
    """Epoch seconds."""
    broker_url: str
    """Holds the broker's password: the note can be read by its owner only."""
    model: str
    """The model that answers, in words for people."""
    model_key: str
    """The model that answers, for comparison: equal when a run would be answered by the same endpoint."""
    model_name: str | None = None
    """The model of runs that name none; ``None`` when they have to."""
    api_url: str | None = None


def build_embedded_database_url(home: Path) -> str:
    """The SQLite file of this home."""
    return f"sqlite:///{quote(str(home / 'hermes-worker.db'))}"


def list_spellings(home: Path) -> Sequence[str]:
    """The path of the home, and with all links followed: workspaces that people name are written in that way."""
    return tuple(dict.fromkeys((str(home.absolute()), os.path.realpath(home))))


def find_embedded_broker_url(home: Path) -> str | None:
    """The broker of the stack that runs on this home; ``None`` when none does."""
    note = find_running_stack(home)
    return note.broker_url if note else None


def find_broker_url(settings: Settings) -> str:
    """The broker to talk to. Raises ``ConfigurationError`` when none is given and none runs in the home."""
    url = settings.broker.url or find_embedded_broker_url(settings.home)
    if url is None:
        raise ConfigurationError(
            "HERMES_BROKER_URL is not set and no embedded broker runs for this home; "
            "start one with 'hermes-worker up' or set HERMES_BROKER_URL to a Redis URL"
        )
    return url


def get_output_dir(home: Path) -> Path:
    """The directory for deliveries to ``local``."""
    return home / "cron" / "output"


def get_job_data_dir(home: Path, job_id: str) -> Path:
    """The directory that the script of a job may write to, and finds again the next time. ``home`` is its tenant's."""
    return home / _JOB_DATA / job_id


def list_job_data_dirs(home: Path) -> list[Path]:
    """The parent directories of jobs' data, of all tenants. Not all of them need exist."""
    return [home / _JOB_DATA, *sorted((home / "tenants").glob(f"*/{_JOB_DATA}"))]


_JOB_DATA = Path("cron/data")


def holds_state(home: Path, directory: Path, tenant: str = DEFAULT_TENANT) -> bool:
    """Whether a directory is the home or within it, and outside of the workspaces of a tenant: no session may work
    there. ``directory`` is absolute, with all links resolved.
    """
    inside = home.resolve()
    if tenant == DEFAULT_TENANT and directory.is_relative_to(get_tenants_workspaces_dir(inside)):
        return True
    return directory.is_relative_to(inside) and not directory.is_relative_to(get_workspaces_dir(home, tenant).resolve())


def get_workspaces_dir(home: Path, tenant: str = DEFAULT_TENANT) -> Path:
    """The directory in which sessions of a tenant that name none get one of their own."""
    return home / "workspaces" if tenant == DEFAULT_TENANT else get_tenants_workspaces_dir(home) / tenant


def get_tenants_workspaces_dir(home: Path) -> Path:
    """The directory with the workspaces of all tenants but the default one. No session has this name."""
    return home / "workspaces" / "tenants"


def get_processes_dir(home: Path) -> Path:
    """The directory with the state of background processes, on the volume of the workspaces. No session has this
    name.
    """
    return home / "workspaces" / ".processes"


def get_soul_path(home: Path, tenant: str = DEFAULT_TENANT) -> Path:
    """The text that says who the agents of a tenant are."""
    return (home if tenant == DEFAULT_TENANT else home / "tenants" / tenant) / "SOUL.md"


def get_logs_dir(home: Path) -> Path:
    return home / "logs"


def find_running_stack(home: Path) -> StackNote | None:
    """The note of the stack that runs on this home; ``None`` when none does, or when it is not up yet."""
    if not is_held(home):
        return None
    try:
        document = json.loads(read_note(_get_note_path(home)))
        return StackNote(**document)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, OSError) as error:
        raise ConfigurationError(
            f"{str(_get_note_path(home))!r} cannot be read ({format_reason(error)}); "
            "stop the hermes-worker that runs on this home"
        ) from error


def find_left_note(home: Path) -> StackNote | None:
    """The note of a stack that ended without removing it: it was killed, or the machine was. ``None`` for none."""
    if is_held(home):
        return None
    try:
        return StackNote(**json.loads(read_note(_get_note_path(home))))
    except (ValueError, TypeError, OSError):
        return None


def require_free_home(home: Path) -> None:
    """Raise ``HomeBusy`` when a stack runs on this home."""
    if is_held(home):
        raise HomeBusy(_format_holder(home))


@contextmanager
def hold_home(home: Path) -> Iterator[HeldHome]:
    """Be the one stack of this home while the block runs.

    Raises ``HomeBusy`` when there is another, ``ConfigurationError`` when the home cannot be written.
    """
    from hermes_worker.local.archives import finish_restore

    prepare_home(home)
    descriptor = _open_lock(home)
    try:
        _lock(descriptor, home)
        finish_restore(home)
        _get_note_path(home).unlink(missing_ok=True)  # a dead stack's
        yield HeldHome(home, descriptor)
    finally:
        # Closing gives the lock back. The file stays: removing it would let two stacks lock two files.
        os.close(descriptor)


class HeldHome:
    """The right to run a stack on a home."""

    def __init__(self, home: Path, descriptor: int) -> None:
        self.home = home
        self.descriptor = descriptor
        """The lock; who has it open holds the home."""

    def announce(self, note: StackNote) -> None:
        """Tell other commands where this stack is. The last word counts."""
        path = _get_note_path(self.home)
        draft = path.with_suffix(f".{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(note), file)
        draft.rename(path)
        _get_failure_path(self.home).unlink(missing_ok=True)

    def note_failure(self, sentence: str) -> None:
        """Tell 'hermes-worker doctor' why the start of a stack failed. The next start that succeeds takes it back."""
        path = _get_failure_path(self.home)
        path.touch(mode=0o600)
        path.write_text(sentence, encoding="utf-8", errors="replace")

    def withdraw(self) -> None:
        """Take the note away. Idempotent."""
        _get_note_path(self.home).unlink(missing_ok=True)


def prepare_home(home: Path) -> None:
    """Make the home and what a stack needs in it, and close it to other users. Raises ``ConfigurationError`` when that
    cannot be done."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        for directory in (home / "run", get_logs_dir(home), get_workspaces_dir(home)):
            directory.mkdir(mode=0o700, exist_ok=True)
        _try_writing(home / "run" / f"probe.{os.getpid()}")
        close_to_others(home)
    except OSError as error:
        raise ConfigurationError(
            f"the home {str(home)!r} cannot be used ({error.strerror}); "
            "choose a directory on a disk with room that you may write to, with --home or HERMES_HOME"
        ) from error


_PRIVATE = (
    *("run", "logs", "workspaces", "valkey", "cron", ".env", "config.yaml", "api.key"),
    *(f"hermes-worker.db{ending}" for ending in ("", "-wal", "-shm", "-journal")),
)
"""Files that an earlier version, or a person, may have made with the usual permissions."""


def close_to_others(home: Path) -> None:
    """Take the permissions of other users from an existing home and from what it holds of ours.

    Raises ``ConfigurationError`` when others can enter it and that is not ours to change, ``OSError``.
    """
    status = home.stat()
    if status.st_uid != os.geteuid() and os.geteuid() != 0:
        if status.st_mode & stat.S_IRWXO:
            raise ConfigurationError(
                f"the home {str(home)!r} is open to every user of this machine and belongs to user {status.st_uid}; "
                f"have its owner run 'chmod o= {home}', or choose a directory of your own with --home or HERMES_HOME"
            )
        return  # a group may share it: that is how volumes are given to containers
    for path in (home, *(home / name for name in _PRIVATE)):
        if path is home or not path.is_symlink():
            _close_path(path)


def _close_path(path: Path) -> None:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        path.chmod(mode & ~(stat.S_IRWXG | stat.S_IRWXO))
        log.warning("home.closed", path=str(path), mode=f"{mode:04o}")


def _try_writing(probe: Path) -> None:
    """Write a file and flush it: a full disk takes a new name and refuses the first block, so more than one byte is
    written.
    """
    try:
        with probe.open("wb") as file:
            file.write(bytes(64 * 1024))
            os.fsync(file.fileno())
    finally:
        probe.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedStart:
    """The last start of a stack, when it failed."""

    at: float
    """Epoch seconds."""
    sentence: str


def read_failed_start(home: Path) -> FailedStart | None:
    """The last start on this home, if it failed; ``None`` when it did not."""
    path = _get_failure_path(home)
    try:
        return FailedStart(at=path.stat().st_mtime, sentence=read_note(path))
    except (OSError, UnicodeDecodeError):
        return None


def _get_failure_path(home: Path) -> Path:
    return home / "run" / "start-failed"


def _get_note_path(home: Path) -> Path:
    return home / "run" / "stack.json"


def _get_lock_path(home: Path) -> Path:
    return home / "run" / "lock"


def _open_lock(home: Path) -> int:
    # Not inherited: a child that outlived its stack would keep the home locked.
    return os.open(_get_lock_path(home), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _lock(descriptor: int, home: Path) -> None:
    import fcntl  # not on Windows, where nothing of ours takes a lock

    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise HomeBusy(_format_holder(home)) from None
        time.sleep(0.02)


def _format_holder(home: Path) -> str:
    note = find_running_stack(home)
    if note is None:
        return f"another hermes-worker is starting or stopping on {str(home)!r}; try again in a moment"
    since = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(note.started_at))
    where = f", API at {note.api_url}" if note.api_url else ""
    return (
        f"'hermes-worker {note.command}' (pid {note.pid}, since {since}{where}) already runs on {str(home)!r}; "
        "use it, stop it, or choose another directory with --home"
    )


def is_held(home: Path) -> bool:
    """Whether some stack runs on this home, or is starting or stopping."""
    try:
        descriptor = os.open(_get_lock_path(home), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def has_no_rows(settings: Settings) -> bool:
    """Whether no database was made yet."""
    return settings.database.url is None and not (settings.home / "hermes-worker.db").exists()
