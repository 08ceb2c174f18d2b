"""Commands whose only network is the proxy, on each rung: what works through it, and what finds no way around it.

The servers are on this machine, where the judge lets nobody connect; so the proxy of these tests takes names that end
in ``.test`` for public ones. Everything else is judged as ever.
"""

from __future__ import annotations

import functools
import http.server
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.confined import RUNGS, Machine, machine, working
from support.programs import is_on_machine

from hermes_worker.net.urls import HttpUrl, UrlPolicy, check_addresses
from hermes_worker.workspaces.base import WorkspaceError
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.sandbox import landlock as landlock_module
from hermes_worker.workspaces.sandbox.backends import Sandbox
from hermes_worker.workspaces.sandbox.landlock import LandlockRung
from hermes_worker.workspaces.sandbox.network import EgressRules, Network
from hermes_worker.workspaces.sandbox.policy import SandboxMode, SandboxPolicy
from hermes_worker.workspaces.sandbox.proxy import EgressProxy, resolve_host

BOTH = ("bubblewrap", "landlock")
PYTHON = str(Path(sys.executable).resolve())
"""Not one of a version manager's, which wants to write where commands must not."""


def resolving(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"] if host.endswith(".test") else resolve_host(host, port)


def as_if_public(target: HttpUrl, addresses: Sequence[str], policy: UrlPolicy) -> tuple[str, ...]:
    return tuple(addresses) if target.host.endswith(".test") else check_addresses(target, addresses, policy)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files, and below ``/smart/`` what ``git http-backend`` says."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self._smart() if self.path.startswith("/smart/") else super().do_GET()

    def do_POST(self) -> None:
        self._smart()

    def _smart(self) -> None:
        path, _, query = self.path.removeprefix("/smart").partition("?")
        environ = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": self.directory,
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "HTTP_GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        done = subprocess.run(["git", "http-backend"], input=body, env=environ, capture_output=True, check=True)
        head, _, answer = done.stdout.partition(b"\r\n\r\n")
        lines = [line.partition(": ")[::2] for line in head.decode().splitlines()]
        self.send_response(int(dict(lines).get("Status", "200").split()[0]))
        for name, value in (*lines, ("Content-Length", str(len(answer)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the server shows."""
    return tmp_path_factory.mktemp("site")


@pytest.fixture(scope="module")
def port(site: Path) -> Iterator[int]:
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield served.server_port
        served.shutdown()
        thread.join()


@pytest.fixture(params=BOTH)
def proxied(request: pytest.FixtureRequest, tmp_path: Path, port: int) -> Iterator[Machine]:
    proxy = EgressProxy(resolving=resolving, check=as_if_public)
    egress = EgressRules(ports=frozenset({80, 443, port}))
    rung = working(request.param)
    with machine(tmp_path, rung, network=Network.PROXY, egress=egress, proxy=proxy) as here:
        yield here


def _python(code: str) -> str:
    return f"{PYTHON} -I -S - <<'END' 2>&1\n{code}\nEND\n"


def needs(program: str) -> None:
    if not is_on_machine(program):
        pytest.skip(f"{program} is not installed")


@pytest.mark.parametrize("kind", ["files", "smart"])
def test_git_clones_through_the_proxy(proxied: Machine, site: Path, port: int, kind: str) -> None:
    needs("git")
    source = site / "source"
    if not source.exists():
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(source)]
        subprocess.run(["git", "init", "-q", str(source)], check=True)
        (source / "file").write_text("cloned\n")
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-q", "-m", "one"], check=True)
        subprocess.run([*git, "update-server-info"], check=True)
    path = "smart/source/.git" if kind == "smart" else "source/.git"
    done = proxied(f"git clone -q http://git.test:{port}/{path} clone && cat clone/file")
    assert (done.exit_code, done.output) == (0, b"cloned\n")


def test_pip_installs_through_the_proxy(proxied: Machine, site: Path, port: int) -> None:
    index = site / "simple" / "little-thing"
    if not index.exists():
        index.mkdir(parents=True)
        _wheel(index / "little_thing-1.0-py3-none-any.whl")
        (index / "index.html").write_text('<a href="little_thing-1.0-py3-none-any.whl">x</a>')
    source = f"--index-url http://index.test:{port}/simple/ --trusted-host index.test"
    has_pip = proxied(f"{PYTHON} -m pip --version")
    if has_pip.exit_code != 0:
        pytest.skip("pip is not installed for this machine's python3")
    done = proxied(f"{PYTHON} -m pip install -q --no-input --target libs {source} little-thing 2>&1")
    assert done.exit_code == 0, done.output
    assert b"it works" in proxied(f"PYTHONPATH=libs {PYTHON} -c 'import little_thing'").output


def _wheel(path: Path) -> None:
    info = "little_thing-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("little_thing.py", "print('it works')\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: little-thing\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_npm_installs_through_the_proxy(proxied: Machine, site: Path, port: int) -> None:
    needs("npm")
    if not (site / "little-thing").exists():
        manifest = json.dumps({"name": "little-thing", "version": "1.0.0", "main": "index.js"}).encode()
        with tarfile.open(site / "little-thing.tgz", "w:gz") as archive:
            for name, data in (("package.json", manifest), ("index.js", b"console.log('it works')\n")):
                entry = tarfile.TarInfo(f"package/{name}")
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
        release = {"name": "little-thing", "version": "1.0.0"}
        release |= {"dist": {"tarball": f"http://npm.test:{port}/little-thing.tgz"}}
        document = {"name": "little-thing", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": release}}
        (site / "little-thing").write_text(json.dumps(document))
    options = f"--registry http://npm.test:{port}/ --no-audit --no-fund --loglevel error"
    done = proxied(
        f"echo '{{}}' > package.json; npm install {options} little-thing 2>&1 && node -e 'require(\"little-thing\")'"
    )
    assert (done.exit_code, b"it works" in done.output) == (0, True), done.output


def test_the_result_says_what_was_refused_and_so_does_the_program(proxied: Machine) -> None:
    needs("curl")
    done = proxied("curl -sS --max-time 20 http://169.254.169.254/latest/ http://10.0.0.1/; true")
    assert b"The host '169.254.169.254' is refused" in done.output
    assert [line.partition(" ")[0] for line in done.refused] == ["http://169.254.169.254/latest/:", "http://10.0.0.1/:"]
    assert done.network == "proxy"


AROUND = {
    "tcp": "import socket\ns = socket.create_connection(('127.0.0.1', PORT), 3)\n"
    "s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'); print('REACHED' if b'200 OK' in s.recv(1000) else 'refused')",
    "tcp-without-blocking": "import socket, time\ns = socket.socket(); s.setblocking(False)\n"
    "s.connect_ex(('127.0.0.1', PORT)); time.sleep(0.2)\n"
    "s.send(b'GET / HTTP/1.0\\r\\n\\r\\n'); time.sleep(0.5)\n"
    "print('REACHED' if b'200 OK' in s.recv(1000) else 'refused')",
    "tcp-fast-open": "import socket\ns = socket.socket()\n"
    "s.sendto(b'GET / HTTP/1.0\\r\\n\\r\\n', 0x20000000, ('127.0.0.1', PORT))\n"
    "print('REACHED' if b'200 OK' in s.recv(1000) else 'refused')",
    "mptcp": "import socket\ns = socket.socket(2, 1, 262); s.settimeout(3); s.connect(('127.0.0.1', PORT))\n"
    "s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'); print('REACHED' if b'200 OK' in s.recv(1000) else 'refused')",
    "udp": "import socket\ns = socket.socket(2, 2); s.settimeout(3)\n"
    "s.sendto(b'ping', ('127.0.0.1', UDP)); print('REACHED' if s.recv(10) else 'refused')",
    "udp-by-connect": "import socket\ns = socket.socket(2, 2); s.settimeout(3)\n"
    "s.connect(('127.0.0.1', UDP)); s.send(b'ping'); print('REACHED' if s.recv(10) else 'refused')",
    "ping": "import socket\nsocket.socket(2, 2, 1).sendto(b'\\x08' + b'\\0' * 15, ('127.0.0.1', 0)); "
    "print('REACHED' if 'LANDLOCK' == 'KIND' else 'sent into an empty network')",
    "worker's-own-door": "import os\nfor n in os.listdir('/proc/self/fd'):\n"
    "    try: where = os.readlink('/proc/self/fd/' + n)\n    except OSError: continue\n"
    "    print('REACHED' if where.startswith(('socket:', 'anon_inode:seccomp')) else where)",
}


@pytest.mark.parametrize("way", AROUND)
def test_nothing_goes_around_the_proxy(proxied: Machine, port: int, way: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as echo:
        echo.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=_answer_one, args=(echo,), daemon=True)
        thread.start()
        code = AROUND[way].replace("PORT", str(port)).replace("UDP", str(echo.getsockname()[1]))
        assert b"REACHED" not in proxied(_python(code)).output


def _answer_one(echo: socket.socket) -> None:
    try:
        data, sender = echo.recvfrom(100)
        echo.sendto(data, sender)
    except OSError:
        pass  # closed: nothing came


@pytest.mark.parametrize("way", ["tcp", "tcp-without-blocking", "tcp-fast-open", "udp", "udp-by-connect"])
def test_these_ways_lead_somewhere_where_nothing_stops_them(tmp_path: Path, port: int, way: str) -> None:
    with machine(tmp_path, None) as here, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as echo:
        echo.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=_answer_one, args=(echo,), daemon=True)
        thread.start()
        code = AROUND[way].replace("PORT", str(port)).replace("UDP", str(echo.getsockname()[1]))
        assert b"REACHED" in here(_python(code)).output


def test_names_are_not_resolved_inside(proxied: Machine) -> None:
    done = proxied(
        _python("import socket\ntry: socket.getaddrinfo('example.org', 80)\nexcept OSError: print('nothing')")
    )
    assert done.output.strip() == b"nothing"


def test_a_command_cannot_use_the_wider_list_of_another(proxied: Machine, tmp_path: Path, port: int) -> None:
    """Both ask at the same address at the same time; each is judged by its own list."""
    needs("curl")
    rung = next(rung for rung in RUNGS.values() if rung.name == proxied("true").sandbox)
    proxy = EgressProxy(resolving=resolving, check=as_if_public)
    narrow = EgressRules(hosts=("only.test",), ports=frozenset({port}))
    said: list[bytes] = []
    command = f"for n in 1 2 3 4 5; do curl -s -o /dev/null -w '%{{http_code}} ' http://wide.test:{port}/; done"
    sandbox = Sandbox(SandboxMode.AUTO, SandboxPolicy(network=Network.PROXY, egress=narrow), [rung], proxy=proxy)
    other = LocalWorkspace(str(tmp_path), base_env={"PATH": os.environ["PATH"]}, sandbox=sandbox)
    here = replace(proxied, workspace=other)
    thread = threading.Thread(target=lambda: said.append(here(command).output))
    thread.start()
    assert proxied(command).output == b"200 " * 5
    thread.join()
    assert said == [b"403 " * 5]


def test_where_no_filter_can_be_asked_landlock_refuses_the_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working("landlock")
    rung = LandlockRung()
    monkeypatch.setattr(
        landlock_module.probing, "probe_confinement", lambda _: "no listener" if rung.find_unavailable else None
    )
    rung._unavailable = None
    with (
        machine(tmp_path, rung, network=Network.PROXY) as here,
        pytest.raises(WorkspaceError, match=r"through the proxy here: no listener\. Install bubblewrap"),
    ):
        here("true")


def test_many_connections_at_once_all_arrive(proxied: Machine, site: Path, port: int) -> None:
    needs("curl")
    (site / "piece").write_bytes(b"x" * 20_000)
    fetch = f"curl -s http://files.test:{port}/piece | wc -c &"
    done = proxied("\n".join([fetch] * 40) + "\nwait")
    assert done.output.split() == [b"20000"] * 40
