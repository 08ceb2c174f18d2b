"""The process that starts one confined command, and ends whatever the command leaves behind.

It is forked by ``starter.py``, which imports nothing of the product, and reads its plan from a pipe.

Theory of operation. The keeper forks. The child limits itself, enters its control group if it has one, applies its plan
(Landlock, seccomp) and becomes the command, or bubblewrap, which does the rest. The keeper is not confined; it is the
"subreaper" of everything the child starts, so a process that daemonizes becomes the keeper's child instead of leaving.
Where it may, it gives the command a process namespace: ``namespace.py`` says why. When the command has ended it ends
the rest: first by itself, then by SIGTERM, then by SIGKILL. The worker asks for an end by a signal (``STOP_SIGNALS``),
and its death ends everything at once (SIGUSR1, which the guardian sends; a keeper without a guardian notices that it
has another parent).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import marshal
import os
import resource
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Iterable
    from typing import Any

    from hermes_worker.workspaces.sandbox.helper import connector, namespace, space
else:
    # "typing" and "signal" take longer to import than all the rest.
    import _signal as signal

    try:
        import connector  # in the starter
        import namespace
        import space
    except ImportError:
        from hermes_worker.workspaces.sandbox.helper import connector, namespace, space

FINISH_GRACE_S = 0.3
"""How long processes that outlive the shell may take to finish by themselves."""
STOP_SIGNALS: dict[int, float] = {signal.SIGTERM: 2.0, signal.SIGINT: 0.08}
"""What the worker sends when a command's time is over, and when somebody wants it to stop; and how long it may then
take to finish, in seconds."""
_DIE = signal.SIGUSR1
_OURS = frozenset({*STOP_SIGNALS, _DIE, signal.SIGCHLD, signal.SIGIO, signal.SIGHUP})
_TERM_GRACE_S = 0.2
_KILL_PATIENCE_S = 10.0
_TICK_S = 0.2
_WATCHING_TICK_S = 0.03
"""Seconds between two looks while nothing but the keeper's look bounds the number of processes."""
_WALKING_TICK_S = 0.02
"""Seconds between two looks while it walks through a directory."""
_ROUNDS_MAX = 30
FIRST_DESCRIPTOR = 17
"""The number of the first of the descriptors that the command itself is given; the others follow. Scripts use lower
ones for files of their own."""
_PLAN_PATIENCE_S = 30
_LENGTH_BYTES = 8
_OWN_DESCRIPTORS = 64
"""The keeper's own are at least this."""

EXIT_UNCONFINED = 125
FULL, OVER = b"full ", b"quota "
LEFT_RUNNING, TOO_MANY, BOUNDED, UNCONFINED = b"left ", b"processes ", b"bounded ", b"unconfined "
"""What the keeper tells the worker."""
LISTENS, NOTICES = b"L", b"N"
"""What kind of descriptor a command's first process sends to the proxy (``sandbox/proxy_sockets.py``)."""

_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SECCOMP_SET_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 8, 32
_SYS_LANDLOCK_CREATE, _SYS_LANDLOCK_ADD, _SYS_LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_VERSION, _RULE_PATH = 1, 1
_ATTRIBUTE_BYTES = {1: 8, 2: 8, 3: 8, 4: 16, 5: 16}
_OF_FILES = 0x1 | 0x2 | 0x4 | 0x4000 | 0x8000
"""The rights that exist for files: execute, write, read, truncate, ioctl."""
_LAST_CAPABILITY = 40

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _Given:
    """The descriptors that a keeper is handed, in this order. Out of the way of the command's."""

    def __init__(self, descriptors: list[int]) -> None:
        moved = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _OWN_DESCRIPTORS) for number in descriptors]
        for number in descriptors:
            os.close(number)
        self.plan, self.verdict, self.entrance, *self.of_command = moved
        """``of_command``: its output, its errors, and what else it is given."""


def frame_plan(plan: dict[str, Any]) -> bytes:
    """The plan, as a keeper reads it."""
    text = marshal.dumps(plan)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def main(descriptors: list[int]) -> None:
    """Keep the command that the plan describes. Never returns."""
    given = _Given(descriptors)
    status = EXIT_UNCONFINED
    try:
        signal.alarm(_PLAN_PATIENCE_S)
        with os.fdopen(given.plan, "rb") as file:
            text = file.read(int.from_bytes(file.read(_LENGTH_BYTES), "little"))
        signal.alarm(0)
        # A worker that died, or took its word back, wrote nothing.
        if text:
            status = keep(marshal.loads(text), given)
    except BaseException as error:
        os.write(given.verdict, UNCONFINED + repr(error).encode())
    finally:
        os._exit(status)


def keep(plan: dict[str, Any], given: _Given) -> int:
    """Run the command and whatever belongs to it to the end; the exit code, as shells count."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)
    os.setsid()
    _set_process_option(_PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != plan["parent"]:
        return 128 + _DIE
    os.write(given.entrance, b"+ %d %s\n" % (os.getpid(), plan["tag"].encode()))
    os.close(given.entrance)

    if plan["domain"]:
        _set_process_option(_PR_SET_NO_NEW_PRIVS, 1)
        _restrict(**plan["domain"])
    connecting = _Connecting(plan["connector"]) if plan["connector"] else None

    def become() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _run_command(plan, given, connecting)

    started = namespace.start(become, given.of_command, plan["processes_max"])
    started.is_bounded |= plan["bounds_processes"]
    if connecting is not None:
        connecting.serve()
    for number in given.of_command:
        # The command's output ends when its last writer has closed it.
        os.close(number)
    return _KeptProcess(started, plan, given.verdict).wait()


class _Connecting:
    """Who makes the connections of the command (``connector.py``), from both sides."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        import _socket

        pair = _socket.socketpair()
        self._ours, self._its = (fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, _OWN_DESCRIPTORS) for one in pair)
        for one in pair:
            one.close()
        self._wanted = wanted

    def serve(self) -> None:
        """Start the connector in the keeper, once the child is there."""
        os.close(self._its)
        connector.Connector(self._ours, self._wanted["refused"], serves_paths=self._wanted["serves_paths"]).start()

    def require(self) -> None:
        """Install the filter in the child, whose connections ask the connector from here on. Raises ``OSError``."""
        import _socket

        _filter(self._wanted["program"], self._its)
        if self._wanted.get("is_tried"):
            tried = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
            tried.connect(("127.0.0.1", 9))  # sends nothing
            tried.close()


class _KeptProcess:
    """A started command and its descendants."""

    def __init__(self, started: namespace.Started, plan: dict[str, Any], verdict: int) -> None:
        self._started = started
        self._group: bytes = plan["group"]
        self._parent: int = plan["parent"]
        self._verdict = verdict
        self._processes_max: int = plan["processes_max"]
        self._tasks_before = _count_tasks()
        self._watches = [
            space.Watch(path, bytes_max=bytes_max, free_bytes_min=free_bytes_min)
            for path, bytes_max, free_bytes_min in plan["watched"]
        ]
        self._code: int | None = None
        self._has_children = True
        self._grace_s: float | None = None
        """Once the worker wants an end: how long it may take."""

    def wait(self) -> int:
        while self._code is None:
            if self._was_told_to_die(self._choose_tick_s()):
                return self._destroy()
            self._reap()
            if self._grace_s is not None:
                return self._stop(self._grace_s)
            if self._code is None and (excess := self._find_excess()):
                os.write(self._verdict, excess)
                return self._destroy()
        if self._started.is_bounded:
            os.write(self._verdict, BOUNDED)
        self._finish()
        return self._code

    def _choose_tick_s(self) -> float:
        if any(watch.is_walking for watch in self._watches):
            return _WALKING_TICK_S
        return _WATCHING_TICK_S if self._processes_max and not self._started.is_bounded else _TICK_S

    def _find_excess(self) -> bytes | None:
        if self._has_too_many():
            return TOO_MANY
        if any(watch.is_full() for watch in self._watches):
            return FULL
        return OVER if any(watch.is_over() for watch in self._watches) else None

    def _has_too_many(self) -> bool:
        if not self._processes_max or (tasks := _count_tasks()) - self._tasks_before <= self._processes_max:
            return False
        found = len(_list_descendants())
        # It reads all of /proc. What others have started meanwhile must not make it the work of every tick.
        self._tasks_before = tasks - found
        return found > self._processes_max

    def _stop(self, grace_s: float) -> int:
        """End the command because the worker asked for it; return the exit code."""
        _signal_all(_list_descendants(), signal.SIGTERM)
        if not self._is_alone_within(grace_s):
            self._destroy()
        return 128 + signal.SIGTERM

    def _finish(self) -> None:
        """End what the command left running after its own end."""
        if self._is_alone_within(FINISH_GRACE_S):
            return
        if self._grace_s is not None:
            self._stop(self._grace_s)
            return
        os.write(self._verdict, LEFT_RUNNING)
        _signal_all(_list_descendants(), signal.SIGTERM)
        if not self._is_alone_within(_TERM_GRACE_S):
            self._destroy()

    def _destroy(self) -> int:
        deadline = time.monotonic() + _KILL_PATIENCE_S
        while self._has_children and time.monotonic() < deadline:
            if self._group:
                _kill_group(self._group)
            if self._started.init is not None:
                # The kernel kills whatever is in the namespace with its first process, which ends as the last.
                _signal_all([self._started.init], signal.SIGKILL)
            else:
                _freeze_and_kill()
            self._is_alone_within(0.05)
        return 128 + signal.SIGKILL

    def _is_alone_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        was_stopping = self._grace_s is not None
        self._reap()
        while self._has_children and (left := deadline - time.monotonic()) > 0:
            if self._was_told_to_die(min(left, 0.02)):
                return False
            self._reap()
            if self._grace_s is not None and not was_stopping:
                return not self._has_children
        return not self._has_children

    def _was_told_to_die(self, seconds: float) -> bool:
        """Wait for a signal or the time."""
        told = signal.sigtimedwait(_OURS, seconds)
        number = _DIE if os.getppid() != self._parent else told.si_signo if told is not None else 0
        if number == _DIE:
            self._grace_s = 0.0
        elif number in STOP_SIGNALS:
            self._grace_s = STOP_SIGNALS[number]
        return number == _DIE

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._has_children = False
                break
            if pid == 0:
                break
            self._started.note_end(pid, status)
        ended = self._started.find_status(is_over=not self._has_children)
        if ended is not None:
            code = os.waitstatus_to_exitcode(ended)
            self._code = code if code >= 0 else 128 - code


def _kill_group(group: bytes) -> None:
    try:
        with open(group + b"/cgroup.kill", "r+b", buffering=0) as file:  # noqa: PTH123
            file.write(b"1")
    except OSError:
        pass  # Linux before 5.14; what follows is enough


def _freeze_and_kill() -> None:
    """Stop all descendants until no new one turns up, so that none can fork out of the way, and kill them."""
    known: set[int] = set()
    for _ in range(_ROUNDS_MAX):
        new = set(_list_descendants()) - known
        if not new:
            break
        _signal_all(new, signal.SIGSTOP)
        known |= new
    _signal_all(known, signal.SIGKILL)


def _signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def _list_descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib would double the time to start
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    state, parent = file.read().rpartition(b")")[2].split(None, 2)[:2]
            except (OSError, ValueError):
                continue
            if state != b"Z":
                children.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _count_tasks() -> int:
    """How many processes and threads the machine has; cheap enough to ask all the time."""
    try:
        with open("/proc/loadavg", "rb") as file:  # noqa: PTH123
            return int(file.read().split()[3].partition(b"/")[2])
    except (OSError, ValueError, IndexError):
        return 0


# --- the child ---


def _run_command(plan: dict[str, Any], given: _Given, connecting: _Connecting | None) -> None:
    """Limit and confine this process and make it the command. Never returns."""
    try:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
            signal.signal(number, signal.SIG_DFL)
        _set_process_option(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if plan["group"]:
            _enter(plan["group"])
        os.chdir(plan["cwd"])
        if plan["umask"] is not None:
            os.umask(plan["umask"])
        _arrange(given.of_command)
        _raise_oom_score(plan["oom_score"])
        for kind, value in plan["limits"]:
            _limit(kind, value)
        _set_process_option(_PR_SET_NO_NEW_PRIVS, 1)
        if plan["drops_capabilities"]:
            _drop_bounding_set()
        if plan["landlock"]:
            _restrict(**plan["landlock"])
        if plan["drops_capabilities"]:
            _drop_capabilities()
        if connecting is not None:
            connecting.require()
        if plan["seccomp"]:
            _filter(plan["seccomp"], plan["door"])
        os.execve(plan["argv"][0], plan["argv"], plan["env"])
    except OSError as error:
        os.write(given.verdict, UNCONFINED + (error.strerror or "?").encode())
    except BaseException as error:
        os.write(given.verdict, UNCONFINED + repr(error).encode())
    finally:
        os._exit(EXIT_UNCONFINED)


def _enter(group: bytes) -> None:
    try:
        with open(group + b"/cgroup.procs", "r+b", buffering=0) as file:  # noqa: PTH123
            file.write(b"0")  # who writes
    except OSError as error:
        raise OSError(error.errno, f"control group: {error.strerror}") from error


def _arrange(descriptors: list[int]) -> None:
    """Give them the numbers that the command knows; every other one is closed when it is executed."""
    os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
    for wanted, number in enumerate(descriptors[:2], start=1):
        os.dup2(number, wanted)
    for wanted, number in enumerate(descriptors[2:], start=FIRST_DESCRIPTOR):
        os.dup2(number, wanted)


def _raise_oom_score(score: int) -> None:
    try:
        with open("/proc/self/oom_score_adj", "r+b", buffering=0) as file:  # noqa: PTH123
            if int(file.read()) < score:
                file.write(b"%d" % score)
    except (OSError, ValueError):
        pass  # some containers do not have it


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _set_process_option(option: int, value: int) -> None:
    _raise_unless_done(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def _drop_bounding_set() -> None:
    for capability in range(_LAST_CAPABILITY + 1):
        # Whoever may not drop one has none that a program could give back.
        _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0)


def _drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    none = (ctypes.c_uint32 * 6)()
    _raise_unless_done(_libc.syscall(_SYS_CAPSET[os.uname().machine], header, none), "capset")


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_char_p))


def _filter(program: bytes, door: int | None) -> None:
    wanted = _Filter(len(program) // 8, program)
    if door is None:
        mode = ctypes.c_ulong(_SECCOMP_MODE_FILTER)
        _raise_unless_done(_libc.prctl(_PR_SET_SECCOMP, mode, ctypes.byref(wanted), 0, 0), "seccomp")
        return
    number = _SYS_SECCOMP[os.uname().machine]
    # Signals need not interrupt who waits for an answer; kernels before 5.19 do not know that.
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER):
        listener = _libc.syscall(number, _SECCOMP_SET_FILTER, ctypes.c_ulong(flags), ctypes.byref(wanted))
        if listener >= 0 or ctypes.get_errno() != errno.EINVAL:
            break
    hand_out(door, NOTICES, _raise_unless_done(listener, "seccomp listener"))


def hand_out(door: int, kind: bytes, descriptor: int) -> None:
    """Send ``descriptor`` through ``door``, and close both."""
    import _socket

    channel = _socket.socket(fileno=door)
    channel.sendmsg([kind], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptor.to_bytes(4, sys.byteorder))])
    channel.close()
    os.close(descriptor)


def find_landlock_abi() -> int:
    """The version of Landlock that the kernel has; 0 when it has none or it is switched off."""
    version = _libc.syscall(_SYS_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_LANDLOCK_VERSION))
    return max(0, int(version))


def _restrict(*, abi: int, files: int, network: int, scopes: int, rules: list[tuple[str, int]]) -> None:
    attribute = (ctypes.c_uint64 * 3)(files, network, scopes)
    size = _ATTRIBUTE_BYTES.get(abi, 24)
    ruleset = _raise_unless_done(
        _libc.syscall(_SYS_LANDLOCK_CREATE, attribute, ctypes.c_size_t(size), ctypes.c_uint32(0)), "Landlock"
    )
    _grant_all(ruleset, [(path, rights & files) for path, rights in rules])
    _raise_unless_done(_libc.syscall(_SYS_LANDLOCK_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0)), "Landlock")
    os.close(ruleset)


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"  # what _pack_ meant before Python 3.14, which asks for it
    _fields_ = (("rights", ctypes.c_uint64), ("descriptor", ctypes.c_int32))


def _grant_all(ruleset: int, rules: list[tuple[str, int]]) -> None:
    """There are some hundred rules for each command, so each makes as few calls as it can."""
    rule = _PathRule()
    arguments = (
        ctypes.c_long(_SYS_LANDLOCK_ADD),
        ctypes.c_int(ruleset),
        ctypes.c_int(_RULE_PATH),
        ctypes.byref(rule),
        ctypes.c_uint32(0),
    )
    for path, rights in rules:
        try:
            rule.descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # gone meanwhile
        # A directory takes all rights, and the kernel refuses some of them for a file.
        rule.rights = rights
        done = _libc.syscall(*arguments)
        if done != 0 and ctypes.get_errno() == errno.EINVAL:
            rule.rights = rights & _OF_FILES
            done = _libc.syscall(*arguments)
        os.close(rule.descriptor)
        # Links and files that the kernel makes up itself cannot be granted; they stay refused.
        if done != 0 and ctypes.get_errno() not in (errno.EBADFD, errno.EINVAL, errno.ENOMSG):
            raise OSError(ctypes.get_errno(), f"Landlock refused {path!r}")


def _raise_unless_done(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
