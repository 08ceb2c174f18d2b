# ruff: noqa: E501 - a command stands on one line
"""Somebody who listens at a link-local address, and commands that try to get there. Run in a network of its own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from support.confined import RUNGS, machine

LINK_LOCAL, PORT = "169.254.77.1", 80
PRIVATE = "10.77.0.1"
TRIES = 2_000

_BEGINNING = f"""
import ctypes, mmap, os, socket, struct, sys, threading
L, P = "{LINK_LOCAL}", {PORT}
def ask(one):
    one.settimeout(3)
    print(one.recv(99), flush=True)
def raw(address, port):
    return struct.pack("=H", 2) + struct.pack(">H4s8x", port, socket.inet_aton(address))
libc = ctypes.CDLL(None, use_errno=True)
"""
_SWAP = f"""
shared = mmap.mmap(-1, 4096)
view = (ctypes.c_char * 4096).from_buffer(shared)
good, bad = raw("{PRIVATE}", P), raw(L, P)
shared[:16] = good
swapper = os.fork()
if swapper == 0:
    while True:
        ctypes.memmove(view, bad, 16)
        ctypes.memmove(view, good, 16)
found = set()
for _ in range({TRIES}):
    one = socket.socket()
    if libc.connect(one.fileno(), ctypes.byref(view), 16) == 0:
        found.add(one.getpeername()[0])
    one.close()
os.kill(swapper, 9)
assert "{PRIVATE}" in found, found
if L in found: print("REACHED")
"""
_SWAP_SOCKETS = f"""
shared = mmap.mmap(-1, 4096)
view = (ctypes.c_char * 4096).from_buffer(shared)
path = struct.pack("=H", 1) + b"/tmp/a-path-longer-than-a-family" + bytes(70)
bad = raw(L, P)
if {{has_paths}}:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("/tmp/a-path-longer-than-a-family")
    listening.listen(4000)
over, found = [], set()
def swap():
    while not over:
        inet = socket.socket()
        os.dup2(inet.fileno(), 50)
        ctypes.memmove(view, bad, 16)
        try:
            found.add(socket.socket(fileno=os.dup(50)).getpeername())
        except OSError:
            pass
        inet.close()
threading.Thread(target=swap).start()
for _ in range({TRIES}):
    unix = socket.socket(socket.AF_UNIX) if {{has_paths}} else socket.socketpair()[0]
    os.dup2(unix.fileno(), 50)
    ctypes.memmove(view, path, len(path))
    libc.connect(50, ctypes.byref(view), 110)
    try:
        found.add(socket.socket(fileno=os.dup(50)).getpeername())
    except OSError:
        pass
    unix.close()
over.append(1)
if any(name and name[0] == L for name in found): print("REACHED")
"""
WAYS = {
    "plain": "ask(socket.create_connection((L, P), 3))",
    "mapped": "one = socket.socket(socket.AF_INET6)\none.connect(('::ffff:' + L, P))\nask(one)",
    "quick": "one = socket.socket()\none.setblocking(False)\none.connect_ex((L, P))\nask(one)",
    "multipath": "one = socket.socket(2, 1, 262)\none.connect((L, P))\nask(one)",
    "fast-open-by-option": "one = socket.socket()\none.setsockopt(6, 30, 1)\none.connect((L, P))\none.send(b'x')\nask(one)",
    "fast-open": "one = socket.socket()\none.sendto(b'x', 0x20000000, (L, P))\nask(one)",
    "fast-open-by-message": "one = socket.socket()\none.sendmsg([b'x'], [], 0x20000000, (L, P))\nask(one)",
    "by-number": "one = socket.socket()\none.settimeout(3)\nlibc.syscall(42 if os.uname().machine == 'x86_64' else "
    "203, "
    "one.fileno(), raw(L, P), 16)\nask(one)",
    "longer": "one = socket.socket()\nlibc.connect(one.fileno(), raw(L, P) + bytes(90), 106)\nask(one)",
    "in-a-child": "if os.fork() == 0:\n    ask(socket.create_connection((L, P), 3))\n    os._exit(0)\nos.wait()",
    "in-a-thread": "one = threading.Thread(target=lambda: ask(socket.create_connection((L, P), 3)))\none.start()\none.join()",
    "datagram": "one = socket.socket(2, 2)\none.sendto(b'x', (L, P))\nask(one)",
    "connected-datagram": "one = socket.socket(2, 2)\none.connect((L, P))\none.send(b'x')\nask(one)",
    "datagram-without-a-family": "one = socket.socket(2, 2)\nlibc.sendto(one.fileno(), b'x', 1, 0, b'\\0\\0' + raw(L, "
    "P)[2:], 16)\n"
    "ask(one)",
    "swapped-address": _SWAP,
}  # fmt: skip
"""Commands, which print "reached" where they get there."""


def main() -> None:
    for words in ("link set lo up", f"addr add {LINK_LOCAL}/32 dev lo", f"addr add {PRIVATE}/32 dev lo"):
        subprocess.run(["ip", *words.split()], check=True)
    for address in (LINK_LOCAL, PRIVATE):
        _listen(address)
    rung = RUNGS[sys.argv[1]]
    # The sockets that are swapped are those that there are.
    ways = {**WAYS, "swapped-socket": _SWAP_SOCKETS.format(has_paths=sys.argv[1] == "bubblewrap")}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        with machine(Path(folder, "free"), None) as free:
            without = {name: free(_script(WAYS[name])).output.decode() for name in WAYS if name != "swapped-address"}
        with machine(Path(folder, "confined"), rung) as confined:
            said = {name: confined(_script(code)).output.decode() for name, code in ways.items()}
            private = confined(_script(f"ask(socket.create_connection(('{PRIVATE}', P)))")).output.decode()
    print(
        json.dumps(
            {
                "without": {name: "reached" in text for name, text in without.items()},
                "reached": {name: "reached" in text.lower() for name, text in said.items()},
                "said": said,
                "private": private.strip("b'\\n\n"),
            }
        )
    )


def _script(code: str) -> str:
    return f"{sys.executable} -I -S - <<'END' 2>&1\n{_BEGINNING}{code}\nEND\n"


def _listen(address: str) -> None:
    stream = socket.create_server((address, PORT), backlog=4096)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((address, PORT))
    threading.Thread(target=_serve_streams, args=(stream,), daemon=True).start()
    threading.Thread(target=_serve_datagrams, args=(datagrams,), daemon=True).start()


def _serve_streams(server: socket.socket) -> None:
    while True:
        client, _ = server.accept()
        with client:
            client.sendall(b"reached")


def _serve_datagrams(server: socket.socket) -> None:
    while True:
        _, client = server.recvfrom(99)
        server.sendto(b"reached", client)


if __name__ == "__main__":
    main()
