"""Commands with an open network, on each rung: they reach no link-local and no metadata address, and everything else.

``support.link_local`` has such an address with somebody listening, where the machine lets a test make a network of its
own. Elsewhere the kind of refusal tells: whoever was refused before the kernel was asked gets EACCES.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from support.confined import RUNGS, Machine, listen, machine, working
from support.patience import PATIENCE_S
from support.programs import is_on_machine

from hermes_worker.workspaces.sandbox import probing
from hermes_worker.workspaces.sandbox.bubblewrap import BubblewrapRung
from hermes_worker.workspaces.sandbox.landlock import LandlockRung
from hermes_worker.workspaces.sandbox.network import Network
from hermes_worker.workspaces.sandbox.policy import SandboxPolicy

BOTH = ("bubblewrap", "landlock")
PYTHON = str(Path(sys.executable).resolve())
TESTS = Path(__file__).parents[1]


def judging(name: str) -> str:
    """The name of the rung, where it judges addresses; otherwise a skip."""
    plan = working(name).plan_confinement(SandboxPolicy()).plan
    if plan.get("connector") is None:
        pytest.skip(f"{name} does not judge addresses here: {RUNGS[name].list_gaps()}")
    return name


@pytest.fixture(params=BOTH)
def confined(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path, RUNGS[judging(request.param)]) as found:
        yield found


@pytest.fixture
def walled(tmp_path: Path) -> Iterator[Machine]:
    """The rung that has Unix sockets."""
    with machine(tmp_path, RUNGS[judging("bubblewrap")]) as found:
        yield found


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """It says "reached" to whoever connects."""
    with socket.create_server(("127.0.0.1", 0)) as opened:

        def serve() -> None:
            while True:
                try:
                    client, _ = opened.accept()
                except OSError:
                    return
                with client:
                    client.sendall(b"reached\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield opened
        opened.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def full() -> Iterator[socket.socket]:
    """Nobody else gets a connection to it before somebody accepts one."""
    with ExitStack() as stack:
        opened = stack.enter_context(socket.socket())
        opened.bind(("127.0.0.1", 0))
        opened.listen(0)
        for _ in range(2):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(opened.getsockname())
        yield opened


def script(code: str) -> str:
    return (
        f"{PYTHON} -I -S - <<'END' 2>&1\nimport ctypes, errno, os, signal, socket, sys, threading, time\n{code}\nEND\n"
    )


def output(here: Machine, command: str) -> str:
    result = here(command)
    assert result.exit_code == 0, result.output
    return result.output.decode()


REFUSED = """
def tell(call, *arguments):
    try:
        print(call(*arguments))
    except OSError as error:
        print(errno.errorcode[error.errno])
for address in ("169.254.169.254", "169.254.77.1", "100.100.100.200", "::ffff:169.254.169.254", "fe80::1%lo",
                "fd00:ec2::254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::"):
    family, _, _, _, where = socket.getaddrinfo(address, 80)[0]
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        tell(socket.socket(family, kind).connect, where)
    tell(socket.socket(family, socket.SOCK_DGRAM).sendto, b"x", where)
quick = socket.socket()
quick.setblocking(False)
tell(quick.connect, ("169.254.169.254", 80))
"""


def test_a_metadata_address_is_refused_as_not_permitted(confined: Machine) -> None:
    assert output(confined, script(REFUSED)).split() == ["EACCES"] * 25


def test_programs_say_that_it_is_not_permitted(confined: Machine) -> None:
    said = confined("exec 3<>/dev/tcp/169.254.169.254/80").output.decode()
    assert "Permission denied" in said


HARMLESS = """
port = {port}
one = socket.create_connection(("127.0.0.1", port))
print(one.recv(99))
two = socket.socket()
two.setblocking(False)
assert two.connect_ex(("127.0.0.1", port)) in (0, errno.EINPROGRESS)
two.settimeout(30)
print(two.recv(99))
three = socket.socket(socket.AF_INET6)
three.setsockopt(41, 26, 0)
three.connect(("::ffff:127.0.0.1", port))
print(three.recv(99))
for wrong in (lambda: socket.create_connection(("127.0.0.1", 1)), lambda: one.connect(("127.0.0.1", port))):
    try:
        wrong()
    except OSError as error:
        print(errno.errorcode[error.errno])
libc = ctypes.CDLL(None, use_errno=True)
nowhere, some = ctypes.c_void_p(8), b"\\2\\0" * 100
for where, address, length in ((one.fileno(), nowhere, 16), (one.fileno(), some, -1), (one.fileno(), some, 200),
                               (99, some, 16), (0, some, 16)):
    print(libc.connect(where, address, length), errno.errorcode[ctypes.get_errno()])
"""


def test_other_addresses_answer_and_fail_as_ever(confined: Machine, server: socket.socket) -> None:
    said = output(confined, script(HARMLESS.format(port=server.getsockname()[1]))).splitlines()
    assert said == [
        *["b'reached\\n'"] * 3,
        *("ECONNREFUSED", "EISCONN", "-1 EFAULT", "-1 EINVAL", "-1 EINVAL", "-1 EBADF", "-1 ENOTSOCK"),
    ]


def test_shells_and_curl_connect(confined: Machine, server: socket.socket) -> None:
    port = server.getsockname()[1]
    assert output(confined, f"exec 3<>/dev/tcp/127.0.0.1/{port} && cat <&3") == "reached\n"
    if is_on_machine("curl"):
        # The server reads no request, so its end may be a reset.
        assert b"reached" in confined(f"curl -sS --noproxy '*' --http0.9 http://127.0.0.1:{port}/").output


def test_datagrams_go_to_this_machine_and_to_resolvers(confined: Machine) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(PATIENCE_S)
        code = f"""
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print(one.sendto(b"to", ("127.0.0.1", {server.getsockname()[1]})))
one.connect(("127.0.0.1", {server.getsockname()[1]}))
print(one.send(b"connected"))
try:
    one.sendto(b"x" * 70000, ("127.0.0.1", 9))
except OSError as error:
    print(errno.errorcode[error.errno])
resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    resolver.connect(("169.254.169.253", 53))
except OSError as error:
    assert error.errno != errno.EACCES
socket.getaddrinfo("localhost", 80)
"""
        assert output(confined, script(code)).split() == ["2", "9", "EMSGSIZE"]
        assert [server.recv(99), server.recv(99)] == [b"to", b"connected"]


PATHS = """
here = socket.socket(socket.AF_UNIX)
os.makedirs("folder/deep", exist_ok=True)
here.bind("folder/a-name-longer-than-a-family")
here.listen(20)
os.symlink("folder", "link")
open("plain-file", "w").close()
os.symlink(os.getcwd() + "/folder/a-name-longer-than-a-family", "absolute-link")
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\\0a-name-longer-than-a-family-%d" % os.getpid())
abstract.listen(9)
os.symlink(os.getcwd(), "/tmp/link-to-the-workspace")
above = os.open("folder", os.O_PATH)
os.chdir("folder/deep")
for name in ("../a-name-longer-than-a-family", "../../link/a-name-longer-than-a-family", "../../absolute-link",
             "/proc/self/cwd/../a-name-longer-than-a-family", "/proc/self/fd/%d/a-name-longer-than-a-family" % above,
             "/tmp/link-to-the-workspace/folder/a-name-longer-than-a-family",
             "\\0a-name-longer-than-a-family-%d" % os.getpid()):
    asking = socket.socket(socket.AF_UNIX)
    asking.connect(name)
    answering, _ = (abstract if name[0] == "\\0" else here).accept()
    credentials = answering.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    assert int.from_bytes(credentials[4:8], sys.byteorder) == os.getuid()
    answering.send(b"reached")
    print(asking.recv(99))
datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
datagrams.bind("/tmp/datagrams-by-a-long-name")
asking = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
asking.sendto(b"sent", "/tmp/datagrams-by-a-long-name")
print(datagrams.recv(99))
for missing in ("/tmp/no-such-socket-at-all", "/tmp/link-to-the-workspace/plain-file", "\\0no-such-name-at-all"):
    try:
        socket.socket(socket.AF_UNIX).connect(missing)
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


def test_unix_sockets_are_found_by_path_and_by_name(walled: Machine) -> None:
    assert output(walled, script(PATHS)).split() == [
        *["b'reached'"] * 7,
        *("b'sent'", "ENOENT", "ECONNREFUSED", "ECONNREFUSED"),
    ]


def test_unix_sockets_that_a_command_does_not_see_stay_unseen(walled: Machine) -> None:
    """Whoever connects for it sees more than it does: through a link, by its own /proc, by an abstract name."""
    with ExitStack() as stack:
        (walled.home / ".ssh" / "agent").mkdir(parents=True)
        listen(stack, str(walled.home / ".ssh" / "agent" / "s"))
        listen(stack, f"\0hermes-of-the-test-{os.getpid()}")
        code = f"""
os.symlink("{walled.home}/.ssh/agent", "l")
for name in ("{walled.home}/.ssh/agent/s", "l/s", "./././././l/s", "/proc/self/root{walled.home}/.ssh/agent/s",
             "/proc/1/root{walled.home}/.ssh/agent/s", "\\0hermes-of-the-test-{os.getpid()}"):
    try:
        socket.socket(socket.AF_UNIX).connect(name)
        print("REACHED", name)
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
        said = output(walled, script(code)).split()
    assert said[:4] == ["ENOENT"] * 4
    assert said[4] in ("ENOENT", "EXDEV")
    assert said[5:] == ["EPERM"] or RUNGS["bubblewrap"].list_gaps()[-1].startswith("abstract")


def test_waiting_connections_hold_up_no_other(confined: Machine, server: socket.socket, full: socket.socket) -> None:
    code = f"""
def wait():
    try:
        socket.socket().connect({full.getsockname()!r})
    except OSError:
        pass
for _ in range(60):
    threading.Thread(target=wait, daemon=True).start()
for _ in range(200):
    assert socket.create_connection({server.getsockname()!r}).recv(99)
print("done", flush=True)
os._exit(0)
"""
    assert output(confined, script(code)) == "done\n"


def test_many_connect_at_once(confined: Machine, server: socket.socket) -> None:
    code = f"""
def ask():
    for _ in range(20):
        found.append(socket.create_connection({server.getsockname()!r}).recv(99))
found = []
threads = [threading.Thread(target=ask) for _ in range(20)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(found), set(found))
"""
    assert output(confined, script(code)) == "400 {b'reached\\n'}\n"


INTERRUPTED = """
class Late(Exception): pass
def late(*_): raise Late
signal.signal(signal.SIGALRM, late)
signal.setitimer(signal.ITIMER_REAL, 0.5)
try:
    socket.socket().connect({address!r})
except Late:
    print("late")
"""


def test_an_alarm_interrupts_a_connection_that_waits(confined: Machine, full: socket.socket) -> None:
    began = time.monotonic()
    assert output(confined, script(INTERRUPTED.format(address=full.getsockname()))) == "late\n"
    assert time.monotonic() - began < PATIENCE_S


RESTARTED = """
libc = ctypes.CDLL(None, use_errno=True)
handled = []
signal.signal(signal.SIGALRM, lambda *_: handled.append(1))
signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)
threading.Timer(1.0, lambda: socket.create_connection(("127.0.0.1", {bell}))).start()
one = socket.socket()
where = b"\\2\\0" + ({port}).to_bytes(2, "big") + bytes([127, 0, 0, 1]) + bytes(8)
print(libc.connect(one.fileno(), where, 16), len(where))
"""


def test_a_connection_that_signals_interrupt_goes_on_where_they_say_so(confined: Machine, full: socket.socket) -> None:
    def accept() -> None:
        bell.accept()  # the connection has waited through some alarms
        for _ in range(3):
            full.accept()

    full.settimeout(PATIENCE_S)
    with socket.create_server(("127.0.0.1", 0)) as bell:
        bell.settimeout(PATIENCE_S)
        later = threading.Thread(target=accept)
        later.start()
        try:
            said = output(confined, script(RESTARTED.format(port=full.getsockname()[1], bell=bell.getsockname()[1])))
        finally:
            later.join()
    assert said.split() == ["0", "16"]


@pytest.mark.parametrize("ends_by", ["time", "kill"])
def test_nobody_goes_on_for_a_command_that_was_ended(confined: Machine, full: socket.socket, ends_by: str) -> None:
    before = set(psutil.Process().children(recursive=True))
    code = f"socket.socket().connect({full.getsockname()!r})"
    if ends_by == "time":
        confined(script(code), timeout_s=1.5)
    else:
        output(confined, f"( {script(code)} ) & sleep 0.5; kill -9 %1; sleep 0.5; true")
    left = set(psutil.Process().children(recursive=True)) - before
    assert [process for process in left if any("connect" in word for word in process.cmdline())] == []
    for process in left:
        assert "starter" in " ".join(process.cmdline()), process


def test_git_clones_by_http(confined: Machine, tmp_path: Path) -> None:
    if not is_on_machine("git"):
        pytest.skip("git is not installed")
    source = tmp_path / "source"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(source)]
    subprocess.run(["git", "init", "-q", str(source)], check=True)
    (source / "file").write_text("cloned\n")
    for words in (["add", "."], ["commit", "-q", "-m", "one"], ["update-server-info"]):
        subprocess.run([*git, *words], check=True)
    handler = functools.partial(_Silent, directory=str(source))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        try:
            said = output(
                confined, f"git clone -q http://127.0.0.1:{served.server_port}/.git clone 2>&1 && cat clone/file"
            )
        finally:
            served.shutdown()
            thread.join()
    assert said == "cloned\n"


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize("rung", BOTH)
@pytest.mark.parametrize("network", [Network.PROXY, Network.NONE])
def test_no_other_network_has_a_connector(rung: str, network: Network) -> None:
    assert working(rung).plan_confinement(SandboxPolicy(network=network)).plan.get("connector") is None


@pytest.mark.parametrize("rung", BOTH)
def test_a_machine_without_user_notification_runs_commands_and_says_what_it_does_not_stop(
    rung: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working(rung)
    tried = probing.probe_confinement
    monkeypatch.setattr(
        probing,
        "probe_confinement",
        lambda plan: "seccomp listener: busy" if plan.plan.get("connector") else tried(plan),
    )
    fresh = BubblewrapRung() if rung == "bubblewrap" else LandlockRung()
    assert fresh.find_unavailable() is None
    assert any("metadata services among them" in each and "listener: busy" in each for each in fresh.list_gaps())
    with machine(tmp_path, fresh) as here:
        assert output(here, "echo runs") == "runs\n"


@pytest.mark.parametrize("rung", BOTH)
def test_no_trick_reaches_somebody_who_listens_there(rung: str) -> None:
    """In a network of its own, where 169.254.77.1 answers: with another address swapped in, another socket swapped in,
    and each way to name an address."""
    judging(rung)
    if os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("ip")):
        pytest.skip("only root makes a network of its own, with unshare and ip")
    done = subprocess.run(
        ["unshare", "-n", sys.executable, "-m", "support.link_local", rung],
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["without"] == dict.fromkeys(found["without"], True), "the judge sees what gets through"
    assert found["reached"] == dict.fromkeys(found["reached"], False), found["said"]
    assert found["private"] == "reached"
