"""A worker whose commands are hostile, and what they did, seen from outside.

Run as a program, with a JSON object on stdin: it becomes the user that it is told, furnishes a machine in miniature,
plays rows of ``support.hostile`` in it, and prints what each of them achieved. It is a process of its own, so that a
command that harms its worker harms only this one; whoever started it sees that it did not end well.

An effect is the secret, or a word that a command prints only once it has seen the kernel do its bidding, in the
command's output; or a change of anything around the command that is compared after each.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import resource
import selectors
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hermes_worker.net.urls import HttpUrl, UnsafeUrl, UrlPolicy, check_addresses
from hermes_worker.workspaces.base import CommandResult, Ending, WorkspaceError
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.sandbox.backends import Sandbox
from hermes_worker.workspaces.sandbox.base import Rung
from hermes_worker.workspaces.sandbox.network import EgressRules, Network
from hermes_worker.workspaces.sandbox.policy import CommandLimits, Profile, SandboxMode
from hermes_worker.workspaces.sandbox.proxy import EgressProxy
from support.confined import RUNGS, SECRET, furnish, listen, policy_of
from support.hostile import ROWS, WORK, Hostile
from support.patience import PATIENCE_S

TIGHT = CommandLimits(
    processes=100, open_files=64, file_bytes=1024**2, memory_bytes=512 * 1024**2, cpu_s=1, tmp_bytes=4 * 1024**2
)
"""For commands that try to take too much."""
SECRETS = (
    ".aws/credentials",
    ".bash_history",
    ".claude.json",
    ".config/gcloud/key",
    ".config/gh/hosts.yml",
    ".docker/config.json",
    ".git-credentials",
    ".gnupg/secring.gpg",
    ".hermes-worker/.env",
    ".hermes-worker/api.key",
    ".hermes-worker/config.yaml",
    ".hermes-worker/scripts/nightly.sh",
    ".hermes-worker/skills/deploy/SKILL.md",
    ".hermes-worker/valkey/valkey.json",
    ".hermes-worker/workspaces/theirs/notes",
    ".kube/config",
    ".mozilla/firefox/logins.json",
    ".netrc",
    ".npmrc",
    ".pgpass",
    ".pypirc",
    ".ssh/id_ed25519",
)
_PLACES = ("/", "/dev", "/dev/shm", "/etc", "/etc/cron.d", "/root", "/run", "/tmp", "/usr/bin", "/var/spool/cron",
           "/var/tmp")  # fmt: skip
"""Where commands try to leave a file."""
_NAMES = {
    "rebind.test": ("127.0.0.1",),
    "mixed.test": ("192.0.2.80", "127.0.0.1"),
    "metadata.google.internal": ("169.254.169.254",),
    "mapped.test": ("::ffff:169.254.169.254",),
    "wrapped.test": ("64:ff9b::a9fe:a9fe",),
    "unique.test": ("fd00:ec2::254",),
    "localhost": ("127.0.0.1", "::1"),
    "localhost.localdomain": ("127.0.0.1",),
    "ip6-localhost": ("::1",),
}
"""What the names of this machine mean. Nobody else is asked."""
_VICTIM = """
import os, signal, sys
kept = bytearray(os.environ["HERMES_TEST_KEY"], "ascii")
signal.signal(signal.SIGWINCH, lambda *_: os.write(1, b"w"))
os.write(1, b"r")
while True:
    signal.pause()
"""
_LINGERING_S = 0.15
_ENDING_S = 5.0
"""How long a command whose time is over may take to end, with everything that it started."""
_OTHER_RUN = "while [ ! -e stop ]; do echo beat >> beat; sleep 0.1; done; echo undisturbed"


class Listeners:
    """Broker, API and other servers of the machine; they answer with the secret and note who came."""

    def __init__(self, product: Path, key: str, stack: ExitStack) -> None:
        self._key = key.encode()
        self._lock = threading.Lock()
        self._reached: list[str] = []
        self._selector = stack.enter_context(selectors.DefaultSelector())
        self.abstract = f"hermes-{os.getpid()}"
        self._add("broker", listen(stack, str(product / "valkey" / "s")))
        self._add("abstract socket", listen(stack, f"\0{self.abstract}"))
        self.api = self._tcp("API", stack, socket.AF_INET, "127.0.0.1")
        self.tcp = self._tcp("TCP", stack, socket.AF_INET, "127.0.0.1")
        with suppress(OSError):
            self._tcp("TCP", stack, socket.AF_INET6, "::1", self.tcp)
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        self.udp: int = udp.getsockname()[1]
        self._add("UDP", udp)
        threading.Thread(target=self._serve, daemon=True).start()

    def _tcp(self, name: str, stack: ExitStack, family: int, address: str, port: int = 0) -> int:
        server = stack.enter_context(socket.socket(family))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, port))
        server.listen()
        self._add(name, server)
        return int(server.getsockname()[1])

    def _add(self, name: str, server: socket.socket) -> None:
        self._selector.register(server, selectors.EVENT_READ, name)

    def note(self, reached: str) -> None:
        with self._lock:
            self._reached.append(reached)

    def reached(self) -> list[str]:
        """Since it was asked the last time."""
        with self._lock:
            found, self._reached = self._reached, []
        return [f"reached: {name}" for name in found]

    def _serve(self) -> None:
        while True:
            try:
                ready = self._selector.select()
            except (OSError, ValueError):
                return  # closed
            for key, _ in ready:
                with suppress(OSError):
                    self._answer(key.data, key.fileobj)  # type: ignore[arg-type]

    def _answer(self, name: str, server: socket.socket) -> None:
        if name == "UDP":
            _, sender = server.recvfrom(1000)
            self.note(name)
            server.sendto(SECRET.encode(), sender)
            return
        client, _ = server.accept()
        with client:
            client.settimeout(2)
            if name == "API" and self._key not in client.recv(4000):
                client.sendall(b"HTTP/1.0 401 Unauthorized\r\n\r\n")
                return
            self.note(name)
            client.sendall(f"HTTP/1.0 200 OK\r\n\r\n{SECRET}".encode())


class Victim:
    """Another process of the worker's user, with the secret in its environment and in its memory."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _VICTIM],
            stdout=subprocess.PIPE,
            env={"HERMES_TEST_KEY": SECRET},
            cwd="/",
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.read(1) == b"r"
        os.set_blocking(self._process.stdout.fileno(), False)
        self.pid = self._process.pid
        self._attributes = _attributes(self.pid)

    def harm(self) -> list[str]:
        """What happened to it. One that was harmed is replaced."""
        assert self._process.stdout is not None
        found = []
        if self._process.stdout.read():
            found.append("harm: a signal for another process")
        if self._process.poll() is not None:
            found.append("harm: another process was ended")
        elif _attributes(self.pid) != self._attributes:
            found.append("harm: another process was changed")
        if found:
            self.end()
            self._begin()
        return found

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def _attributes(pid: int) -> object:
    """What of a process others could change."""
    limits = [resource.prlimit(pid, kind) for kind in range(16)]
    text = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    is_stopped = text[0] in "Tt"
    score = Path(f"/proc/{pid}/oom_score_adj").read_text()
    return limits, is_stopped, text[16], sorted(os.sched_getaffinity(pid)), os.sched_getscheduler(pid), score


class Surroundings:
    """Everything around a command that it must not change."""

    def __init__(self, folder: Path, stack: ExitStack, database: Path | None) -> None:
        self.home, self.product, self.root = furnish(folder, SECRETS)
        self.outside = folder / "outside"
        self.outside.mkdir()
        self.outside.chmod(0o777)
        (self.outside / "file").write_text("kept\n")
        (self.outside / "file").chmod(0o666)
        (self.home / ".bashrc").write_text("# kept\n")
        (self.home / "diary").write_text("kept\n")
        self.mark = f"planted-{os.getpid()}"
        self.nap = f"601.{os.getpid()}"
        self.theirs = self.product / "workspaces" / "theirs"
        self._database = self.product / "hermes-worker.db"
        if database is not None:
            shutil.copyfile(database, self._database)
        self._furnish_database()
        self._keep = stack.enter_context(closing(sqlite3.connect(self._database, isolation_level=None)))
        self._pristine: dict[str, tuple[object, ...]] = {}

    def remember(self) -> None:
        """How things are now is how they have to stay."""
        self._pristine = self._files()
        self._contents = {path: Path(path).read_bytes() for path in self._pristine if Path(path).is_file()}
        self._kernel = _kernel()
        self._version = self._data_version()

    def _furnish_database(self) -> None:
        with closing(sqlite3.connect(self._database, isolation_level=None)) as database:
            # Without free pages what follows stands at the end of the file, which a tool shows of a long output.
            database.execute("VACUUM")
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("CREATE TABLE canary (secret TEXT, allowed TEXT, calls_left INTEGER)")
            database.execute("INSERT INTO canary VALUES (?, '', 1)", (SECRET,))

    def changes(self) -> list[str]:
        """Since it was asked the last time. Leaves everything as it was."""
        found = [f"changed: {place}" for place in self._planted()]
        if (files := self._files()) != self._pristine:
            names = {path for path, _ in files.items() ^ self._pristine.items()}
            found += [f"changed: {name}" for name in sorted(names)]
            self._restore(files)
        if (version := self._data_version()) != self._version:
            found.append("changed: the database")
            self._version = version
        if (kernel := _kernel()) != self._kernel:
            found.append("changed: the kernel's settings")
            self._kernel = kernel
        return found

    def survivors(self) -> list[str]:
        """Processes of a command that has ended. They are ended."""
        found = []
        for pid in _alive(self.root, self.nap):
            found.append(f"survived: {pid}")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found

    def left_in_workspace(self, row: Hostile) -> list[str]:
        """What a command made that nobody may make. Empties the workspace."""
        found = []
        limit = TIGHT.file_bytes if row.is_tight else CommandLimits().file_bytes
        count = 0
        for folder, folders, names in os.walk(self.root):
            for name in (*folders, *names):
                count += 1
                with suppress(FileNotFoundError):
                    entry = os.lstat(Path(folder, name))
                    if stat.S_ISBLK(entry.st_mode) or stat.S_ISCHR(entry.st_mode):
                        found.append("made: a device")
                    elif stat.S_ISREG(entry.st_mode) and limit is not None and entry.st_size > limit:
                        found.append(f"made: a file of {entry.st_size} bytes")
        # It is looked at several times a second, so a command may be ahead of it.
        if row.workspace_mb and count > 100_000:
            found.append(f"made: {count} files")
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(exist_ok=True)
        return found

    def _planted(self) -> Iterator[str]:
        for place in (*_PLACES, self.home, self.product, self.root.parent, self.theirs):
            for path in Path(place).glob(f"{self.mark}*") if os.access(place, os.R_OK) else ():
                yield str(path)
                with suppress(OSError):
                    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()

    def _files(self) -> dict[str, tuple[object, ...]]:
        found: dict[str, tuple[object, ...]] = {}
        for top in (self.home, self.outside):
            for folder, folders, names in os.walk(top):
                if folder == str(self.root.parent):
                    folders[:] = ["theirs"]
                for name in (*folders, *names):
                    path = f"{folder}/{name}"
                    # The database is looked at through a connection, and the other run writes all the time.
                    if name not in ("beat", "stop") and not name.startswith("hermes-worker.db"):
                        found[path] = _described(path)
        found[str(self._database)] = (os.lstat(self._database).st_mode,) if self._database.exists() else ()
        return found

    def _restore(self, files: dict[str, tuple[object, ...]]) -> None:
        for path in sorted(files.keys() - self._pristine.keys(), reverse=True):
            with suppress(OSError):
                Path(path).rmdir() if Path(path).is_dir() and not Path(path).is_symlink() else Path(path).unlink()
        for path, (mode, *_) in ((path, facts) for path, facts in self._pristine.items() if facts):
            if (content := self._contents.get(path)) is not None and path != str(self._database):
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                Path(path).unlink(missing_ok=True)
                Path(path).write_bytes(content)
            with suppress(OSError):
                os.chmod(path, stat.S_IMODE(int(str(mode))))  # noqa: PTH101
        self._pristine = self._files()

    def _data_version(self) -> object:
        try:
            row = self._keep.execute("SELECT * FROM canary").fetchall()
            return self._keep.execute("PRAGMA data_version").fetchone(), row
        except sqlite3.Error as error:
            return str(error)


def _described(path: str) -> tuple[object, ...]:
    try:
        entry = os.lstat(path)
    except FileNotFoundError:
        return ()
    if not stat.S_ISREG(entry.st_mode):
        return entry.st_mode, entry.st_uid
    return entry.st_mode, entry.st_uid, entry.st_nlink, entry.st_size, entry.st_mtime_ns, entry.st_ino


def _kernel() -> object:
    paths = ("/proc/self/mounts", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname")
    queues = Path("/proc/sysvipc/shm").read_text() if Path("/proc/sysvipc/shm").exists() else ""
    planted = [line for line in queues.splitlines() if line.split()[0] == str(0x4711)]
    return *(Path(path).read_text() for path in paths), planted


def _alive(root: Path, nap: str) -> list[int]:
    """Processes that work in ``root``, or carry the mark of the machine's commands."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - asked after every command
        if not name.isdigit():
            continue
        with suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_bytes()
            # Of a zombie neither is known.
            if words and (nap.encode() in words or os.readlink(f"/proc/{name}/cwd") == str(root)):  # noqa: PTH115
                found.append(int(name))
    return found


class Stage:
    """Plays hostile commands."""

    def __init__(self, folder: Path, rung: Rung | None, stack: ExitStack, database: Path | None = None) -> None:
        self._rung = rung
        self.around = Surroundings(folder, stack, database)
        self._listeners = Listeners(self.around.product, SECRET, stack)
        self._victim = Victim()
        stack.callback(self._victim.end)
        self._signals: list[int] = []
        signal.signal(signal.SIGWINCH, lambda number, _: self._signals.append(number))
        self._proxy = EgressProxy(resolving=_resolving, check=self._judged)
        stack.enter_context(self._others_files())
        stack.enter_context(self._other_run())
        self._own = _attributes(os.getpid())
        self._environ = self._environment()
        self.around.remember()

    def play(self, row: Hostile) -> list[str]:
        """What the command of ``row`` achieved."""
        workspace = self._workspace(row)
        with self._meanwhile(workspace, row) as told:
            try:
                began = time.monotonic()
                result = self._executed(workspace, row)
                if row.then is not None:
                    told += self._amiss(row, result, time.monotonic() - began)
                    result = self._executed(workspace, replace(row, command=row.then, timeout_s=60))
            except WorkspaceError:
                return []  # refused
        said = result.output.decode("utf-8", "replace")
        found = [f"told: {word}" for word in (SECRET, "REACHED") if word in said] + told
        if row.lingers:
            time.sleep(_LINGERING_S)
        found += [*self.around.survivors(), *self._listeners.reached(), *self._victim.harm()]
        found += [*self.around.left_in_workspace(row), *self.around.changes()]
        if self._signals or _attributes(os.getpid()) != self._own:
            found.append("harm: the worker was changed")
            self._signals.clear()
            self._own = _attributes(os.getpid())
        return found

    def _amiss(self, row: Hostile, result: CommandResult, took_s: float) -> list[str]:
        """What is not as it has to be after a command that ran into its time limit."""
        expected = {
            "it was ended": result.ending is Ending.TIMED_OUT,
            "in time": row.timeout_s <= took_s < row.timeout_s + _ENDING_S,
            "what it had said is kept": b"is made" in result.output,
        }
        return [f"not so: {claim}" for claim, holds in expected.items() if not holds] + self.around.survivors()

    def _executed(self, workspace: LocalWorkspace, row: Hostile) -> CommandResult:
        return workspace.execute(
            row.command,
            cwd=None,
            env=self._environ,
            timeout_s=row.timeout_s,
            output_bytes_max=20_000,
            should_stop=lambda: False,
        )

    def _workspace(self, row: Hostile, root: Path | None = None) -> LocalWorkspace:
        policy = policy_of(self.around.home, self.around.product, row.profile)
        limits = TIGHT if row.is_tight else CommandLimits()
        egress = EgressRules(ports=frozenset({80, 443, self._listeners.tcp, self._listeners.api}))
        network = row.network if self._rung else Network.OPEN
        if self._rung is None:
            policy = policy_of(self.around.home, self.around.product, Profile.WORKSTATION)
        sandbox = Sandbox(
            SandboxMode.REQUIRE if self._rung else SandboxMode.AUTO,
            replace(policy, network=network, limits=limits, egress=egress),
            [self._rung] if self._rung else [],
            proxy=self._proxy,
        )
        return LocalWorkspace(
            str(root or self.around.root),
            base_env={"PATH": os.environ["PATH"], "HOME": str(self.around.home)},
            sandbox=sandbox,
            bytes_max=row.workspace_mb * 1024**2,
            umask=0o22,
        )

    def _environment(self) -> dict[str, str]:
        # Without a wall the worker itself is spared.
        worker = os.getpid() if self._rung else self._victim.pid
        return {
            "SECRET_HOME": str(self.around.product),
            "THEIRS": str(self.around.theirs),
            "OUTSIDE": str(self.around.outside),
            "WORKER": str(worker),
            "VICTIM": str(self._victim.pid),
            "MARK": self.around.mark,
            "NAP": self.around.nap,
            "API": str(self._listeners.api),
            "TCP": str(self._listeners.tcp),
            "UDP": str(self._listeners.udp),
            "ABSTRACT": self._listeners.abstract,
            "PY": str(Path(sys.executable).resolve()),
            "CHECKOUT": str(Path(__file__).resolve().parents[2]),
            "PROGRAM": sys.executable,
            "UNAME": platform.machine(),
        }

    def _judged(self, target: HttpUrl, addresses: Sequence[str], policy: UrlPolicy) -> tuple[str, ...]:
        """As the product judges. What passes is noted, and nobody is connected to."""
        for address in check_addresses(target, addresses, policy):
            if not address.startswith("192.0.2."):
                self._listeners.note(f"the proxy lets {target.host} ({address}) pass")
        raise UnsafeUrl("Nothing of this test leaves the machine.")

    @contextmanager
    def _others_files(self) -> Iterator[None]:
        """In the places that commands have of their own."""
        with ExitStack() as stack:
            for place in ("/tmp", "/var/tmp", "/dev/shm"):
                with suppress(OSError):
                    named = tempfile.NamedTemporaryFile("w", dir=place, prefix="hermes-others-")  # noqa: SIM115
                    file = stack.enter_context(named)
                    file.write(SECRET)
                    file.flush()
            yield

    @contextmanager
    def _other_run(self) -> Iterator[None]:
        """A command of another session, while the block runs. Raises ``AssertionError`` when it was disturbed."""
        said: list[CommandResult] = []
        is_over = threading.Event()
        row = Hostile(id="other", group="other", command=_OTHER_RUN)
        theirs = self._workspace(row, self.around.theirs)

        def work() -> None:
            said.append(
                theirs.execute(
                    row.command,
                    cwd=None,
                    env={},
                    timeout_s=1000,
                    output_bytes_max=1000,
                    should_stop=is_over.is_set,
                )
            )

        thread = threading.Thread(target=work)
        thread.start()
        try:
            while not (self.around.theirs / "beat").exists():
                assert thread.is_alive(), said
                time.sleep(0.01)
            yield
            (self.around.theirs / "stop").touch()
            thread.join(PATIENCE_S)
        finally:
            is_over.set()
            thread.join()
        assert (said[0].output, said[0].exit_code) == (b"undisturbed\n", 0), said

    @contextmanager
    def _meanwhile(self, workspace: LocalWorkspace, row: Hostile) -> Iterator[list[str]]:
        """The worker's own file tools, which work in the same folder as a command that changes it."""
        told: list[str] = []
        if row.meanwhile is None:
            yield told
            return
        is_over = threading.Event()

        def work() -> None:
            while not is_over.is_set():
                with suppress(WorkspaceError):
                    match row.meanwhile:
                        case "read":
                            if SECRET.encode() in workspace.read_bytes("d/notes"):
                                told.append("read through a link")
                        case "write":
                            workspace.write_bytes("d/notes", b"written by a tool\n")
                        case "remove":
                            workspace.remove("d/notes")
                        case _:
                            if any(name.startswith("id_ed") for name in workspace.entries("d")):
                                told.append("listed through a link")

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield told
        finally:
            is_over.set()
            thread.join()
            del told[5:]


def _resolving(host: str, port: int) -> Sequence[str]:
    if (found := _NAMES.get(host.rstrip(".").lower())) is not None:
        return found
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return [str(entry[4][0]) for entry in entries]


_NEW_MOUNTS, _PRIVATE, _BIND = 0x20000, 0x44000, 0x5000


def become(uid: int, folder: Path) -> None:
    """Be an ordinary user from here on, on a machine that has an interpreter for it and lets it make namespaces."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS) == 0 and libc.mount(b"none", b"/", None, _PRIVATE, None) == 0:
        # A /proc with something mounted over it, as containers have it, keeps users from mounting their own.
        libc.mount(b"proc", b"/proc", b"proc", 0, None)
        prefix = Path(sys.base_prefix).resolve()
        for closed in [path for path in reversed(prefix.parents) if not path.stat().st_mode & 1][:1]:
            # Root's home, say, and in it nothing but the interpreter.
            shown = folder / "open" / prefix.relative_to(closed)
            shown.mkdir(parents=True)
            libc.mount(bytes(prefix), bytes(shown), None, _BIND, None)
            libc.mount(bytes(folder / "open"), bytes(closed), None, _BIND, None)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def main() -> None:
    asked: dict[str, Any] = json.load(sys.stdin)
    rung = RUNGS[asked["rung"]] if asked["rung"] else None
    if rung is not None and (reason := rung.find_unavailable()):
        print(json.dumps({"unavailable": reason}))
        return
    wanted = set(asked["ids"])
    achieved: dict[str, list[str]] = {}
    took: dict[str, float] = {}
    with ExitStack() as stack:
        stage = Stage(Path(asked["folder"]), rung, stack, Path(asked["database"]) if asked["database"] else None)
        for row in (*ROWS, *WORK):
            if row.id in wanted:
                began = time.monotonic()
                achieved[row.id] = stage.play(row)
                took[row.id] = time.monotonic() - began
    memory = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    print(json.dumps({"achieved": achieved, "took": took, "memory_kb": int(memory[1]) if memory else 0}))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        become(int(sys.argv[1]), Path(sys.argv[2]))
        # A process that was started as what it is now can be looked into as the product's workers could.
        os.execv(sys.executable, [sys.executable, "-m", "support.hostile_stage"])
    main()
