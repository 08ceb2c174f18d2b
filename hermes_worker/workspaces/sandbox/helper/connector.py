"""Makes the connections of a command whose network is open, but for those to link-local and metadata addresses.

Theory of operation. The command's first process installs a seccomp filter (``seccomp.build_connecting_program``) whose
listener it hands to its keeper. From then on ``connect``, and ``sendto`` with an address, wait until a thread of the
keeper has answered. The thread copies the address out of the command's memory, judges the copy, gets the command's
socket (``pidfd_getfd``) and makes the call itself, with the copy. So nothing that the command does meanwhile with its
memory or its descriptors changes where the connection leads; "continue", after which the kernel would read the address
a second time, is never answered. If the keeper ends, these calls fail.

The thread is not confined, so it must do nothing for a command that the command could not do:

* It has no capability in effect, and is the same user: what it may is decided as for the command.
* Addresses of the internet, and those of netlink, mean the same whoever names them, for the socket is the command's.
* An abstract name of a Unix socket is looked up by the socket's network. The keeper stands in the Landlock domain that
  keeps a command from those of others (``domain`` of its plan), and the command in the same one.
* A path is looked up below the root of the command, links and all (``RESOLVE_IN_ROOT``), and the socket that was found
  is named by a descriptor. Where Landlock judges paths there are no such sockets, and their names are refused.
* The other end of a Unix socket is told the user and group of the command, but the keeper's process number.

Not asked about, because no filter can see the address: ``sendmsg`` and ``sendmmsg``, by which datagrams go to an
address and nothing connects. Datagrams and connections to port 53 are let through: clouds have their resolvers there.

The kernel lets only signals that kill interrupt a call that is being answered. A thread therefore looks now and then
whether the command's thread has a signal to handle, and takes back its own call, whose answer is then what the kernel
would have said (``ERESTARTSYS``). Before Linux 5.19 any signal takes the question back, and a connection that was made
in that very moment is found by the command's next try (``EISCONN``).

One thread receives at a time and answers what cannot wait; for a call that may, it lets the next thread receive.
"""

from __future__ import annotations

import _thread
import ctypes
import errno
import fcntl
import os
import select
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Iterable, Sequence
else:
    import _signal as signal

RECEIVE, ANSWER, IS_VALID = 0xC0502100, 0xC0182101, 0x40082102
"""SECCOMP_IOCTL_NOTIF_RECV, _SEND and _ID_VALID of linux/seccomp.h."""
NOTICE = struct.Struct("=QIIiIQ6Q")
"""``struct seccomp_notif``: number, task, flags, call, architecture, instruction, arguments."""
REPLY = struct.Struct("=QqiI")
"""``struct seccomp_notif_resp``: number, value, error, flags."""

_AF_UNSPEC, _AF_UNIX, _AF_INET, _AF_INET6 = 0, 1, 2, 10
_MAPPED = 0xFFFF << 32
_DOMAIN_PORT = (53).to_bytes(2, "big")
_ADDRESS_BYTES_MAX = 128
"""``struct sockaddr_storage``; the kernel refuses longer ones."""
_DATAGRAM_BYTES_MAX = 1 << 20
_MSG_DONTWAIT, _MSG_NOSIGNAL = 0x40, 0x4000
_ERESTARTSYS = 512
_IN_ROOT = 0x10
"""RESOLVE_IN_ROOT"""
_OWN_THREAD = os.O_EXCL
"""PIDFD_THREAD, since Linux 6.9."""
_SYS_CONNECT = {"x86_64": 42, "aarch64": 203}
_SYS_CAPGET = {"x86_64": 125, "aarch64": 90}
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_SYS_PIDFD_OPEN, _SYS_OPENAT2, _SYS_PIDFD_GETFD = 434, 437, 438
_SEES_OTHERS = 1 << 19
"""CAP_SYS_PTRACE"""
_WAKE = signal.SIGUSR2
_TICK_S = 0.1
_THREADS_MAX = 256
_SPARE_THREADS = 2
_STACK_BYTES = 256 * 1024

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def is_refused(address: bytes, refused: Iterable[Sequence[int]]) -> bool:
    """Whether ``address``, a ``struct sockaddr`` of any length, names a host that is one of ``refused``: pairs of a
    mask and a value of 128 bits (``net.urls.METADATA_SPELLINGS``). Paths and other families are none."""
    family = int.from_bytes(address[:2], sys.byteorder)
    whole = address.ljust(28, b"\0")
    # To some calls an address without a family is one of IPv4.
    if family in (_AF_UNSPEC, _AF_INET):
        bits = _MAPPED | int.from_bytes(whole[4:8], "big")
    elif family == _AF_INET6:
        bits = int.from_bytes(whole[8:24], "big")
    else:
        return False
    return whole[2:4] != _DOMAIN_PORT and any(bits & mask == value for mask, value in refused)


class _Call:
    """A call of the command that is to be made for it."""

    __slots__ = ("address", "data", "flags", "number", "path", "since", "socket", "task")

    def __init__(self, number: int, task: int) -> None:
        self.number = number
        """By which the kernel knows the question."""
        self.task = task
        self.address = b""
        self.data: bytes | None = None
        """``None`` for ``connect``."""
        self.flags = 0
        self.socket = self.path = -1
        self.since = 0.0

    def make(self) -> tuple[int, int]:
        """Make the call, and return its result and its error number."""
        size = ctypes.c_uint32(len(self.address))
        if self.data is None:
            result = _libc.connect(self.socket, self.address, size)
        else:
            count, flags = ctypes.c_size_t(len(self.data)), self.flags | _MSG_NOSIGNAL
            result = _libc.sendto(self.socket, self.data, count, flags, self.address, size)
        return int(result), ctypes.get_errno()

    def may_wait(self) -> bool:
        return not (self.flags & _MSG_DONTWAIT or fcntl.fcntl(self.socket, fcntl.F_GETFL) & os.O_NONBLOCK)

    def close(self) -> None:
        for descriptor in (self.socket, self.path):
            if descriptor >= 0:
                os.close(descriptor)


class Connector:
    """Answers the calls of one command."""

    def __init__(self, channel: int, refused: Sequence[Sequence[int]], *, serves_paths: bool) -> None:
        """``channel`` is a socket through which the command's first process sends the listener; ``serves_paths`` says
        whether the command may have sockets with a path."""
        self._channel = channel
        self._refused = refused
        self._serves_paths = serves_paths
        self._connect = _SYS_CONNECT[os.uname().machine]
        self._listener = -1
        self._receiving = _thread.allocate_lock()
        self._lock = _thread.allocate_lock()
        self._waiting = 0
        """How many threads receive, or wait until another has stopped receiving."""
        self._made: dict[int, _Call] = {}
        """What each other thread is at."""
        self._looked_at = 0.0

    def start(self) -> None:
        """Start the threads that answer calls. Only for a process that forks no more. Raises ``RuntimeError``,
        ``OSError``."""
        signal.signal(_WAKE, lambda *_: None)
        _thread.stack_size(_STACK_BYTES)
        self._waiting = 1
        _thread.start_new_thread(self._begin, ())

    def _begin(self) -> None:
        listener = _receive_descriptor(self._channel)
        if listener is None:
            return
        try:
            _drop_capabilities_in_effect()
        except OSError:
            # Without a listener the kernel answers with an error.
            os.close(listener)
            return
        self._listener = listener
        self._serve()

    def _serve(self) -> None:
        this = _thread.get_ident()
        while True:
            with self._receiving:
                call = self._take_next_that_may_wait()
                if call is None:
                    return
                with self._lock:
                    self._waiting -= 1
                    self._made[this] = call
            result = call.make()
            with self._lock:
                # From here on nobody wakes this thread.
                del self._made[this]
                stays = self._waiting < _SPARE_THREADS
                self._waiting += stays
            self._settle(call, result)
            if not stays:
                return

    def _take_next_that_may_wait(self) -> _Call | None:
        """Answer until a call may take its time, and another thread can receive meanwhile; ``None`` when nobody is
        left who could ask."""
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        while True:
            events = poller.poll(_TICK_S * 1000 if self._made else None)
            self._take_back()
            if not events:
                continue
            if not events[0][1] & select.POLLIN:
                return None
            call = self._receive_call()
            if call is None:
                continue
            if not call.may_wait():
                self._settle(call, call.make())
            elif self._has_successor():
                call.since = time.monotonic()
                return call
            else:
                self._settle(call, (-1, errno.EAGAIN))

    def _receive_call(self) -> _Call | None:
        notice = bytearray(NOTICE.size)
        try:
            fcntl.ioctl(self._listener, RECEIVE, notice)
        except OSError:
            return None  # whoever asked is gone
        number, task, _, which, _, _, *arguments = NOTICE.unpack(notice)
        call = _Call(number, task)
        try:
            self._copy(call, which, arguments)
        except OSError as error:
            self._settle(call, (-1, error.errno or errno.EACCES))
        except Exception:
            self._settle(call, (-1, errno.EACCES))
        else:
            return call
        return None

    def _copy(self, call: _Call, which: int, arguments: Sequence[int]) -> None:
        """Complete ``call`` with what the command's arguments mean at this moment. Raises ``OSError``: the answer."""
        if which == self._connect:
            at, length = arguments[1:3]
        else:
            at, length = arguments[4:6]
            if arguments[2] > _DATAGRAM_BYTES_MAX:
                raise OSError(errno.EMSGSIZE, "too long")
            call.data = _read_memory(call.task, arguments[1], arguments[2])
            call.flags = arguments[3] & 0x7FFFFFFF
        length &= 0xFFFFFFFF
        if not 0 < length <= _ADDRESS_BYTES_MAX:
            raise OSError(errno.EINVAL, "no address")
        call.address = _read_memory(call.task, at, length)
        if is_refused(call.address, self._refused):
            raise OSError(errno.EACCES, "refused")
        call.socket = _get_socket(call.task, arguments[0] & 0xFFFFFFFF)
        if int.from_bytes(call.address[:2], sys.byteorder) == _AF_UNIX:
            if not self._serves_paths:
                raise OSError(errno.EACCES, "refused")
            if call.address[2:3] not in (b"", b"\0"):
                call.path = _find_socket_file(call.task, call.address[2:].partition(b"\0")[0])
                call.address = struct.pack("=H", _AF_UNIX) + b"/proc/self/fd/%d\0" % call.path
        if not self._is_asked(call):
            # The task has ended, and what was found may have been another's.
            raise OSError(errno.ESRCH, "gone")

    def _is_asked(self, call: _Call) -> bool:
        try:
            fcntl.ioctl(self._listener, IS_VALID, struct.pack("=Q", call.number))
        except OSError:
            return False
        return True

    def _settle(self, call: _Call, result: tuple[int, int]) -> None:
        """Let go of what the call needed, and answer."""
        call.close()
        value, error = result
        if value >= 0:
            error = 0
        elif error == errno.EINTR:
            # Only this process interrupts its threads, and only for a signal that the command's thread is to handle.
            error = _ERESTARTSYS
        try:
            fcntl.ioctl(self._listener, ANSWER, REPLY.pack(call.number, max(value, 0), -error, 0))
        except OSError:
            pass  # whoever asked is gone

    def _has_successor(self) -> bool:
        """Whether another thread can receive; one is started where needed."""
        with self._lock:
            if self._waiting > 1:
                return True
            if len(self._made) >= _THREADS_MAX:
                return False
            try:
                _thread.start_new_thread(self._serve, ())
            except RuntimeError:
                return False
            self._waiting += 1
            return True

    def _take_back(self) -> None:
        """Interrupt the calls that nobody waits for any more, or whose caller has a signal to handle."""
        now = time.monotonic()
        if now - self._looked_at < _TICK_S:
            return
        self._looked_at = now
        with self._lock:
            for thread, call in self._made.items():
                if now - call.since >= _TICK_S and (not self._is_asked(call) or _has_signal(call.task)):
                    # As long as the lock is held the thread exists.
                    signal.pthread_kill(thread, _WAKE)


def _receive_descriptor(channel: int) -> int | None:
    """Receive a descriptor through ``channel``, a socket; ``None`` when none comes."""
    import _socket

    opened = _socket.socket(fileno=channel)
    _, ancillary, _, _ = opened.recvmsg(1, _socket.CMSG_SPACE(4))
    opened.close()
    return int.from_bytes(ancillary[0][2][:4], sys.byteorder) if ancillary else None


def _read_memory(task: int, at: int, size: int) -> bytes:
    """Read ``size`` bytes of the task's memory. Raises ``OSError``."""
    opened = os.open(b"/proc/%d/mem" % task, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # The highest byte may be a tag, which is no part of the address.
        data = os.pread(opened, size, at & (1 << 56) - 1)
    except OSError:
        data = b""
    finally:
        os.close(opened)
    if len(data) < size:
        raise OSError(errno.EFAULT, "not its memory")
    return data


def _get_socket(task: int, number: int) -> int:
    """Duplicate the descriptor ``number`` of the task into this process. Raises ``OSError``."""
    process = _libc.syscall(_SYS_PIDFD_OPEN, task, ctypes.c_uint32(0))
    if process < 0:
        # A thread that is not its process's first.
        process = _libc.syscall(_SYS_PIDFD_OPEN, task, ctypes.c_uint32(_OWN_THREAD))
    if process < 0:
        process = _require_success(_libc.syscall(_SYS_PIDFD_OPEN, _read_status(task)[b"Tgid"], ctypes.c_uint32(0)))
    try:
        return _require_success(_libc.syscall(_SYS_PIDFD_GETFD, ctypes.c_int(process), ctypes.c_uint32(number), 0))
    finally:
        os.close(process)


class _HowToOpen(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def _find_socket_file(task: int, path: bytes) -> int:
    """Open the file that the task calls ``path``, as a place only (``O_PATH``). Raises ``OSError``."""
    if path.startswith(b"/proc/self/"):
        # Programs write long paths like that, and it is not this process that they mean.
        words = path.split(b"/")
        count = 5 if words[3] == b"fd" else 4
        meant = os.readlink(b"/".join([b"/proc/%d" % task, *words[3:count]]))  # noqa: PTH115 - see below
        path = b"/".join([meant, *words[count:]])
    elif not path.startswith(b"/"):
        path = os.readlink(b"/proc/%d/cwd" % task) + b"/" + path  # noqa: PTH115 - pathlib takes long to import
    root = os.open(b"/proc/%d/root" % task, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    how = _HowToOpen(os.O_PATH | os.O_CLOEXEC, 0, _IN_ROOT)
    try:
        size = ctypes.c_size_t(ctypes.sizeof(how))
        return _require_success(_libc.syscall(_SYS_OPENAT2, ctypes.c_int(root), path, ctypes.byref(how), size))
    finally:
        os.close(root)


def _has_signal(task: int) -> bool:
    """Whether the kernel has woken this thread for a signal that it handles."""
    try:
        status = _read_status(task)
    except OSError:
        return False
    pending = status[b"SigPnd"]
    if status[b"Tgid"] == task:
        # Of a process's signals the first thread is woken unless it blocks them.
        pending |= status[b"ShdPnd"]
    return bool(pending & status[b"SigCgt"] & ~status[b"SigBlk"])


def _read_status(task: int) -> dict[bytes, int]:
    """Read the task's process number and its masks of signals. Raises ``OSError``."""
    found = {}
    with open(b"/proc/%d/status" % task, "rb") as file:  # noqa: PTH123 - pathlib would double the time to start
        for line in file:
            name, _, value = line.partition(b":")
            if name == b"Tgid":
                found[name] = int(value)
            elif name in (b"SigPnd", b"ShdPnd", b"SigBlk", b"SigCgt"):
                found[name] = int(value, 16)
    return found


def _drop_capabilities_in_effect() -> None:
    """Drop the capabilities in effect of this thread and of those that it will start. Raises ``OSError``."""
    machine = os.uname().machine
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    _require_success(_libc.syscall(_SYS_CAPGET[machine], header, sets))
    sets[0] &= _SEES_OTHERS
    sets[3] = 0
    _require_success(_libc.syscall(_SYS_CAPSET[machine], header, sets))


def _require_success(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
