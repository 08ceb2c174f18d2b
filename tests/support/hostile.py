# ruff: noqa: E501 - a command stands on one line
"""Commands that try to get out of their sandbox, or to harm what is around it, as data.

``support.hostile_stage`` plays them and looks from outside at what they achieved. ``rungs`` names the rungs for which
the table in docs/security.md says that they are stopped. Their variables are those of ``Stage._environment``. Each has
to be harmless for the machine even if the wall is broken: what is opened for writing is not written, signals that reach
everybody are those that everybody ignores, and what multiplies is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hermes_worker.workspaces.sandbox.network import Network
from hermes_worker.workspaces.sandbox.policy import Profile

BOTH = ("bubblewrap", "landlock")
BUBBLEWRAP = ("bubblewrap",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """A command, and where it must fail."""

    id: str
    group: str
    command: str
    rungs: tuple[str, ...] = BOTH
    network: Network = Network.OPEN
    profile: Profile = Profile.WORKSTATION
    is_tight: bool = False
    """With small limits."""
    workspace_mb: int = 0
    """What the workspace may hold; 0 for no limit."""
    meanwhile: str | None = None
    """What the worker's file tools do in folder ``d`` while the command runs: read, write, remove or list."""
    lingers: bool = False
    """It is looked at a moment after its end."""
    is_free: bool = True
    """It may be run without a sandbox, too."""
    is_long: bool = False
    """It takes more than a second, and is left to the slow ring."""
    then: str | None = None
    """The first command has to run into ``timeout_s``, with something said; this one follows in the same workspace."""
    timeout_s: float = 20.0
    needs: str | None = None
    """A program that not every machine has."""


def python(code: str) -> str:
    return f"$PY -I -S - <<'END' 2>&1\n{code.strip()}\nEND\n"


_CALLING = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
env = os.environ
worker, victim = int(env["WORKER"]), int(env["VICTIM"])
def call(x86_64, aarch64, *arguments):
    number = x86_64 if env["UNAME"] == "x86_64" else aarch64
    words = [a if isinstance(a, bytes) or hasattr(a, "_obj") or hasattr(a, "_length_") else ctypes.c_long(a)
             for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result if result >= 0 else -ctypes.get_errno()
def judge(result):
    # An error about the arguments means that the call itself was let through.
    print("REACHED" if result >= 0 or -result not in (1, 3, 13, 38) else "refused")
"""


def kernel(code: str) -> str:
    """A system call, numbered for both processors, that must be refused as such."""
    return python(_CALLING + code.strip())


def _rows(group: str, commands: Mapping[str, str | tuple[str, Mapping[str, Any]]], **common: Any) -> Iterator[Hostile]:
    for name, entry in commands.items():
        command, own = entry if isinstance(entry, tuple) else (entry, {})
        yield Hostile(id=f"{group}/{name}", group=group, command=command, **{**common, **own})


# --- secrets in files ---

_STORES = {
    "env": "$SECRET_HOME/.env",
    "api-key": "$SECRET_HOME/api.key",
    "config": "$SECRET_HOME/config.yaml",
    "database": "$SECRET_HOME/hermes-worker.db",
    "database-log": "$SECRET_HOME/hermes-worker.db-wal",
    "broker-password": "$SECRET_HOME/valkey/valkey.json",
    "script-of-a-job": "$SECRET_HOME/scripts/nightly.sh",
    "skill": "$SECRET_HOME/skills/deploy/SKILL.md",
    "ssh-key": "~/.ssh/id_ed25519",
    "cloud-key": "~/.aws/credentials",
    "gcloud": "~/.config/gcloud/key",
    "github": "~/.config/gh/hosts.yml",
    "docker": "~/.docker/config.json",
    "kubernetes": "~/.kube/config",
    "netrc": "~/.netrc",
    "npm": "~/.npmrc",
    "pypi": "~/.pypirc",
    "postgres-password": "~/.pgpass",
    "git-credentials": "~/.git-credentials",
    "gpg": "~/.gnupg/secring.gpg",
    "browser": "~/.mozilla/firefox/logins.json",
    "agent": "~/.claude.json",
    "history": "~/.bash_history",
}

_WAYS_TO_READ = {
    "head": "head -c 100 $SECRET_HOME/.env",
    "tail": "tail -n 5 $SECRET_HOME/.env",
    "dd": "dd if=$SECRET_HOME/.env bs=1 count=40 2>/dev/null",
    "od": "od -c $SECRET_HOME/.env | tr -d ' \\n' | grep -o 'tell-nobody-4711'",
    "shell-builtin": "echo $(<$SECRET_HOME/.env)",
    "read": "read -r line <$SECRET_HOME/.env; echo $line",
    "source": ". $SECRET_HOME/.env 2>&1",
    "mapfile": "mapfile lines <$SECRET_HOME/.env; echo ${lines[@]}",
    "descriptor": "exec 5<$SECRET_HOME/.env; cat <&5",
    "sort": "sort $SECRET_HOME/.env $SECRET_HOME/api.key",
    "sed": "sed -n 1,9p ~/.netrc",
    "awk": "awk '{print}' ~/.netrc",
    "grep-tree": "grep -rs tell-nobody ~",
    "find-exec": "find ~ -type f -exec cat {} + 2>/dev/null",
    "tar": "tar cf - -C $SECRET_HOME . 2>/dev/null | tr -d '\\0' | grep -ao 'tell-nobody-4711' | head -n 1",
    "copy-tree": "cp -r ~/. copy 2>/dev/null; cat copy/.netrc copy/.ssh/* copy/.hermes-worker/.env",
    "copy-archive": "cp -a $SECRET_HOME . 2>/dev/null; cat .hermes-worker/.env",
    "install": "install -m 644 $SECRET_HOME/.env mine; cat mine",
    "hard-link": "ln ~/.netrc mine; cat mine",
    "hard-link-logical": "ln -L $SECRET_HOME/.env mine; cat mine",
    "hard-link-of-descriptor": python(
        "import os\nd = os.open(os.environ['SECRET_HOME'] + '/.env', os.O_PATH)\n"
        "os.link(f'/proc/self/fd/{d}', 'mine', follow_symlinks=True)\nprint(open('mine').read())"
    ),
    "symbolic-link": "ln -s $SECRET_HOME/.env mine; cat mine",
    "link-to-folder": "ln -s ~/.ssh keys; cat keys/*",
    "chain-of-links": "ln -s $SECRET_HOME a; ln -s a b; ln -s b/.env c; cat c",
    "rename": "mv $SECRET_HOME/.env mine; cat mine",
    "rename-folder": "mv ~/.ssh keys; cat keys/*",
    "rename-parent": "mv ~/.config conf; cat conf/gcloud/key",
    "exchange": kernel(
        "open('mine', 'w').close()\n"
        "call(316, 276, -100, (env['SECRET_HOME'] + '/.env').encode(), -100, b'mine', 2)\nprint(open('mine').read())"
    ),
    "dots": "cat ../../.env ../../../.netrc ./../../api.key",
    "many-dots": "cat ../../../../../../../../../../../..$SECRET_HOME/.env",
    "double-slashes": "cat /${SECRET_HOME}//./.env",
    "cd-first": "cd $SECRET_HOME; cat .env; cd ~; cat .netrc",
    "cd-dots": "cd ..; cd ..; cat .env valkey/valkey.json",
    "own-root": "cat /proc/self/root$SECRET_HOME/.env",
    "own-cwd": "cat /proc/self/cwd/../../.env",
    "thread-root": "cat /proc/thread-self/root$SECRET_HOME/.env",
    "first-root": "cat /proc/1/root$SECRET_HOME/.env",
    "worker-root": "cat /proc/$WORKER/root$SECRET_HOME/.env",
    "worker-cwd": "cd /proc/$WORKER/cwd && cat $SECRET_HOME/.env",
    "parent-root": "cat /proc/$PPID/root$SECRET_HOME/.env",
    "every-root": "for p in /proc/[0-9]*; do cat $p/root$SECRET_HOME/.env; done 2>/dev/null",
    "every-cwd": "for p in /proc/[0-9]*; do cat $p/cwd/../../.env $p/cwd/.env; done 2>/dev/null",
    "map-into-memory": python(
        "import mmap, os\nd = os.open(os.environ['SECRET_HOME'] + '/.env', os.O_RDONLY)\n"
        "print(mmap.mmap(d, 0, prot=mmap.PROT_READ)[:])"
    ),
    "path-descriptor": python(
        "import os\nd = os.open(os.environ['SECRET_HOME'] + '/.env', os.O_PATH)\n"
        "print(open(f'/proc/self/fd/{d}').read())"
    ),
    "folder-descriptor": python(
        "import os\nd = os.open(os.environ['SECRET_HOME'], os.O_PATH | os.O_DIRECTORY)\n"
        "print(os.read(os.open('.env', os.O_RDONLY, dir_fd=d), 99))"
    ),
    "send-file": python(
        "import os\nd = os.open(os.environ['SECRET_HOME'] + '/.env', os.O_RDONLY)\nos.sendfile(1, d, 0, 99)"
    ),
    "copy-range": python(
        "import os\nd = os.open(os.environ['SECRET_HOME'] + '/.env', os.O_RDONLY)\no = os.open('mine', 66)\n"
        "os.copy_file_range(d, o, 99)\nprint(open('mine').read())"
    ),
    "openat2": kernel(
        "how = (ctypes.c_uint64 * 3)(0, 0, 0)\n"
        "d = call(437, 437, -100, (env['SECRET_HOME'] + '/.env').encode(), how, 24)\nprint(os.read(d, 99))"
    ),
    "by-handle": kernel(
        "handle = (ctypes.c_uint32 * 40)(128)\nmount = ctypes.c_int()\n"
        "judge(call(303, 264, -100, (env['SECRET_HOME'] + '/.env').encode(), handle, ctypes.byref(mount), 0))"
    ),
    "execute": "$SECRET_HOME/scripts/nightly.sh 2>&1; bash $SECRET_HOME/scripts/nightly.sh 2>&1",
    "as-a-library": "LD_PRELOAD=$SECRET_HOME/.env true 2>&1 | grep -q 'invalid ELF' && echo REACHED",
    "swap-and-read": (
        "echo x > plain; ln -s $SECRET_HOME/.env link; (for i in $(seq 400); do ln -sfn plain now; "
        "ln -sfn link now; done) & for i in $(seq 60); do cat now; done 2>/dev/null; wait"
    ),
    "shadow": ("grep -q '^root:' /etc/shadow && echo REACHED", {"is_free": True}),
    "sudoers": "cat /etc/sudoers /etc/sudoers.d/* 2>/dev/null | grep -q . && echo REACHED",
    "list-product": ("ls -a $SECRET_HOME | grep -q valkey && echo REACHED", {}),
    "list-keys": "ls ~/.ssh | grep -q id_ed25519 && echo REACHED",
    "names": ("test -e $SECRET_HOME/.env && echo REACHED", {"rungs": BUBBLEWRAP}),
    "sizes": ("stat -c %s ~/.netrc | grep -qx 17 && echo REACHED", {"rungs": BUBBLEWRAP}),
    "times": ("find ~/.aws/credentials -newermt 2020-01-01 | grep -q . && echo REACHED", {"rungs": BUBBLEWRAP}),
}

# --- what others have ---

_OTHERS = {
    "notes": "cat ../theirs/notes",
    "absolute": "cat $THEIRS/notes",
    "star": "cat $SECRET_HOME/workspaces/*/notes",
    "list": "ls ../theirs | grep -q notes && echo REACHED",
    "copy": "cp -r ../theirs . && cat theirs/notes",
    "link": "ln -s $THEIRS t; cat t/notes",
    "move": ("mv ../theirs mine; cat mine/notes", {"is_free": False}),
    "write": "echo x > ../theirs/$MARK",
    "write-absolute": "echo x > $THEIRS/$MARK",
    "append": "echo x >> $THEIRS/notes",
    "truncate": ": > $THEIRS/notes",
    "delete": "rm -f $THEIRS/notes",
    "delete-all": "rm -rf ../theirs/notes ../theirs/beat.old",
    "folder": "mkdir $THEIRS/$MARK",
    "plant-link": "ln -s /etc/passwd $THEIRS/$MARK",
    "plant-fifo": "mkfifo $THEIRS/$MARK",
    "hard-link-out": "echo x > mine; ln mine $THEIRS/$MARK",
    "hard-link-in": "ln $THEIRS/notes mine; cat mine",
    "rename-in": "echo x > mine; mv mine $THEIRS/$MARK",
    "swap-workspaces": (kernel("call(316, 276, -100, b'../ours', -100, b'../theirs', 2)"), {"is_free": False}),
    "new-session": "mkdir ../$MARK",
    "temporary-files": "cat /tmp/hermes-others-* /var/tmp/hermes-others-*",
    "shared-memory": "cat /dev/shm/hermes-others-*",
    "diary-of-a-tenant's-host": ("cat ~/diary && echo REACHED", {"profile": Profile.TENANT}),
    "elsewhere-of-a-tenant's-host": ("cat $OUTSIDE/file && echo REACHED", {"profile": Profile.TENANT}),
    "list-of-a-tenant's-host": ("ls ~ | grep -q diary && echo REACHED", {"profile": Profile.TENANT}),
}

_WRITES = {
    "home": "echo x >> ~/.bashrc",
    "home-new": "touch ~/$MARK",
    "diary": "echo x > ~/diary",
    "outside": "echo x >> $OUTSIDE/file",
    "outside-new": "touch $OUTSIDE/$MARK",
    "outside-delete": "rm -f $OUTSIDE/file",
    "outside-truncate": "truncate -s 0 $OUTSIDE/file",
    "outside-rename": "mv $OUTSIDE/file $OUTSIDE/$MARK",
    "outside-in": "mv $OUTSIDE/file .",
    "outside-link": "ln $OUTSIDE/file mine; echo x >> mine",
    "outside-symlink": "ln -s $OUTSIDE l; touch l/$MARK; echo x >> l/file",
    "outside-fifo": "mkfifo $OUTSIDE/$MARK",
    "outside-socket": python(
        "import os, socket\nos.chdir(os.environ['OUTSIDE'])\nsocket.socket(socket.AF_UNIX).bind(os.environ['MARK'])"
    ),
    "outside-unnamed": python(
        "import os\nd = os.open(os.environ['OUTSIDE'], os.O_TMPFILE | os.O_WRONLY)\nprint('REACHED')"
    ),
    "outside-copy": "cp /bin/true $OUTSIDE/$MARK",
    "outside-install": "tar cf a.tar --transform=s,.*,$MARK, /etc/hostname; tar xf a.tar -C $OUTSIDE",
    "outside-by-map": python(
        "import mmap, os\nd = os.open(os.environ['OUTSIDE'] + '/file', os.O_RDWR)\nmmap.mmap(d, 0)[0:1] = b'x'"
    ),
    "outside-by-descriptor": python(
        "import os\nd = os.open(os.environ['OUTSIDE'] + '/file', os.O_RDONLY)\n"
        "os.write(os.open(f'/proc/self/fd/{d}', os.O_WRONLY), b'x')"
    ),
    "outside-truncate-call": python("import os\nos.truncate(os.environ['OUTSIDE'] + '/file', 0)"),
    "outside-times": ("touch -d 2001-01-01 $OUTSIDE/file", {"rungs": BUBBLEWRAP}),
    "outside-mode": ("chmod 600 $OUTSIDE/file", {"rungs": BUBBLEWRAP}),
    "home-mode": ("chmod 777 ~/diary ~/.netrc", {"rungs": BUBBLEWRAP}),
    "product-mode": ("chmod 777 $SECRET_HOME $SECRET_HOME/.env", {"rungs": BUBBLEWRAP}),
    "system-binary": ("touch /usr/bin/$MARK", {"is_free": False}),
    "system-settings": ("touch /etc/$MARK", {"is_free": False}),
    "cron-table": ("touch /etc/cron.d/$MARK; touch /var/spool/cron/$MARK", {"is_free": False}),
    "root": ("mkdir /$MARK; touch /root/$MARK", {"is_free": False}),
    "run": ("touch /run/$MARK", {"is_free": False}),
    "real-tmp": "touch /tmp/$MARK",
    "real-var-tmp": "touch /var/tmp/$MARK",
    "real-shared-memory": "touch /dev/shm/$MARK",
    "interpreter": ("(exec 3>>$PY) && echo REACHED", {"is_free": False}),
    "product's-code": ("(exec 3>>$CHECKOUT/hermes_worker/__init__.py) && echo REACHED", {"is_free": False}),
    "passwords": ("(exec 3>>/etc/passwd) && echo REACHED", {"is_free": False}),
    "loader": ("(exec 3>>/etc/ld.so.preload) 2>/dev/null && echo REACHED", {"is_free": False}),
}

# --- the product itself ---

_SQL = {
    "allow-everything": "UPDATE canary SET allowed = 'rm -rf'",
    "more-calls": "UPDATE canary SET calls_left = 1000000",
    "plant-job": "INSERT INTO canary VALUES ('x', 'cron', 1)",
    "forget": "DELETE FROM canary",
    "drop": "DROP TABLE canary",
    "trigger": "CREATE TRIGGER planted AFTER UPDATE ON canary BEGIN DELETE FROM canary; END",
    "version": "PRAGMA user_version = 99",
    "read": "SELECT secret FROM canary",
}


def _sql(statement: str, path: str = "os.environ['SECRET_HOME'] + '/hermes-worker.db'") -> str:
    return python(
        f"import os, sqlite3\nd = sqlite3.connect({path}, timeout=1, isolation_level=None)\n"
        f'print(d.execute("{statement}").fetchall())'
    )


_DATABASE = {name: _sql(statement) for name, statement in _SQL.items()} | {
    "by-link": "ln -s $SECRET_HOME d; " + _sql("DELETE FROM canary", "'d/hermes-worker.db'"),
    "immutable": _sql(
        "SELECT secret FROM canary", "'file:' + os.environ['SECRET_HOME'] + '/hermes-worker.db?immutable=1'"
    ).replace("timeout=1", "uri=True"),
    "copy-and-open": "cp $SECRET_HOME/hermes-worker.db* .; " + _sql("SELECT secret FROM canary", "'hermes-worker.db'"),
    "append": "test -s $SECRET_HOME/hermes-worker.db && (exec 3>>$SECRET_HOME/hermes-worker.db) && echo REACHED",
    "delete-log": "rm -f $SECRET_HOME/hermes-worker.db-wal",
    "replace": "echo x > new; mv new $SECRET_HOME/hermes-worker.db",
    "lock": python(
        "import fcntl, os\nd = os.open(os.environ['SECRET_HOME'] + '/hermes-worker.db', os.O_RDWR)\n"
        "fcntl.lockf(d, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1073741824)\nprint('REACHED')"
    ),
}


def _unix(where: str, folder: str = "os.environ['SECRET_HOME'] + '/valkey'") -> str:
    return python(
        f"import os, socket\nos.chdir({folder})\ns = socket.socket(socket.AF_UNIX)\ns.settimeout(3)\n"
        f"s.connect({where})\ns.sendall(b'PING\\r\\n')\nprint(s.recv(99))"
    )


_BROKER = {
    "socket": _unix("'s'"),
    "socket-by-path": _unix("os.environ['SECRET_HOME'] + '/valkey/s'", "'/'"),
    "socket-by-link": 'ln -s "$SECRET_HOME/valkey" v; ' + _unix("'v/s'", "'.'"),
    "socket-by-root": _unix("f'/proc/self/root' + os.environ['SECRET_HOME'] + '/valkey/s'", "'/'"),
    "move-socket": "mv $SECRET_HOME/valkey/s here; " + _unix("'here'", "'.'"),
    "remove-socket": "rm -f $SECRET_HOME/valkey/s",
    "replace-socket": python(
        "import os, socket\nos.chdir(os.environ['SECRET_HOME'] + '/valkey')\nos.unlink('s')\n"
        "socket.socket(socket.AF_UNIX).bind('s')\nprint('REACHED')"
    ),
    "datagram": python(
        "import os, socket\nos.chdir(os.environ['SECRET_HOME'] + '/valkey')\n"
        "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', 's')\nprint('REACHED')"
    ),
    "configuration": "cat $SECRET_HOME/valkey/*.conf $SECRET_HOME/valkey/valkey.json",
}


def _api(key: str, path: str = "/v1/approvals") -> str:
    return f"KEY=$({key}) " + python(
        "import os, socket\ns = socket.create_connection(('127.0.0.1', int(os.environ['API'])), 3)\n"
        "key = os.environ.get('KEY', '').strip()\n"
        f"s.sendall(f'POST {path} HTTP/1.0\\r\\nAuthorization: Bearer {{key}}\\r\\n\\r\\n'.encode())\n"
        "print(s.recv(999))"
    )


_OUR_API = {
    "key-from-home": _api("cat $SECRET_HOME/api.key"),
    "key-from-environment": _api("tr '\\0' '\\n' </proc/$WORKER/environ | sed -n s/^HERMES_TEST_KEY=//p"),
    "key-from-another-process": _api("tr '\\0' '\\n' </proc/$VICTIM/environ | sed -n s/^HERMES_TEST_KEY=//p"),
    "key-from-configuration": _api("head -n 1 $SECRET_HOME/config.yaml"),
    "key-by-search": _api("grep -rhs tell-nobody $SECRET_HOME | head -n 1"),
    "key-of-home": _api("cat ~/.hermes-worker/api.key", "/v1/jobs"),
    "key-from-memory": _api(
        "$PY -I -S -c \"import os, re; m = open('/proc/%s/mem' % os.environ['VICTIM'], 'rb'); "
        "[print(re.search(b'tell-nobody-4711', m.read(b - a))[0].decode()) for a, b in "
        "[[int(x, 16) for x in l.split()[0].split('-')] for l in open('/proc/%s/maps' % os.environ['VICTIM']) "
        "if '[heap]' in l]]\" 2>/dev/null"
    ),
    "plant-a-key": "echo mine > $SECRET_HOME/api.key",
    "remove-the-key": "rm -f $SECRET_HOME/api.key",
    "change-settings": "printf 'terminal:\\n  sandbox: off\\n' >> $SECRET_HOME/config.yaml",
    "change-environment": "echo HERMES_SANDBOX=off >> $SECRET_HOME/.env",
    "plant-script": "echo evil >> $SECRET_HOME/scripts/nightly.sh",
    "plant-new-script": "echo evil > $SECRET_HOME/scripts/$MARK",
    "plant-skill": "echo evil >> $SECRET_HOME/skills/deploy/SKILL.md",
    "plant-new-skill": "mkdir -p $SECRET_HOME/skills/$MARK",
    "move-home": ("mv $SECRET_HOME $SECRET_HOME.old", {"is_free": False}),
    "delete-home": "rm -rf $SECRET_HOME/skills $SECRET_HOME/scripts",
    "link-home": "ln -s $PWD $SECRET_HOME/$MARK",
}


def _cli(words: str) -> str:
    return f"HERMES_HOME=$SECRET_HOME HOME=$PWD $PROGRAM -m hermes_worker {words} 2>&1"


_OUR_PROGRAM = {
    "cron-create": _cli("cron create 'every 5m' 'delete everything'"),
    "submit": _cli("submit 'delete everything'"),
    "webhook": _cli("gateway webhooks add planted --prompt x"),
    "migrate": _cli("data migrate"),
    "doctor": _cli("doctor"),
    "approve": _cli("approve run_1"),
    "config": _cli("config show"),
    "python": (
        "$PROGRAM - 2>&1 <<'END'\nimport os\nfrom hermes_worker.store.engine.database import Database\nimport "
        "sqlalchemy as sa\n"
        "d = Database('sqlite:///' + os.environ['SECRET_HOME'] + '/hermes-worker.db')\n"
        "with d.engine.begin() as c: c.execute(sa.text('DELETE FROM canary'))\nEND\n"
    ),
}


# --- the worker and other processes ---

_MEMORY = """
import os, re
def look(pid):
    for line in open(f"/proc/{pid}/maps"):
        area = line.split()
        if area[1].startswith("rw") and "[v" not in line:
            first, last = (int(end, 16) for end in area[0].split("-"))
            with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
                memory.seek(first)
                if b"tell-nobody-" + b"4711" in (memory.read(min(last - first, 1 << 24)) or b""):
                    print("REACHED")
                    return
"""
_SPY = "vector = (ctypes.c_uint64 * 2)()\nspace = ctypes.create_string_buffer(8)\n"

_PROCESSES = {
    "worker-environment": "tr '\\0' '\\n' </proc/$WORKER/environ | grep -q HERMES_TEST_KEY && echo REACHED",
    "parent-environment": "tr '\\0' '\\n' </proc/$PPID/environ | grep -q HERMES_TEST_KEY && echo REACHED",
    "every-environment": "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep HERMES_TEST_KEY",
    "victim-environment": "tr '\\0' '\\n' </proc/$VICTIM/environ | grep HERMES_TEST_KEY",
    "ps-environment": "ps eww -A 2>/dev/null | grep -v grep | grep -q HERMES_TEST_KEY && echo REACHED",
    "own-environment": "env | grep -E 'HERMES_TEST_KEY|tell-nobody'",
    "worker-memory": python(_MEMORY + "look(os.environ['WORKER'])"),
    "victim-memory": python(_MEMORY + "look(os.environ['VICTIM'])"),
    "parent-memory": python(_MEMORY + "look(os.getppid())"),
    "worker-descriptors": "ls /proc/$WORKER/fd 2>/dev/null | grep -q . && echo REACHED",
    "victim-descriptors": "cat /proc/$VICTIM/fd/0 2>/dev/null && ls /proc/$VICTIM/fd | grep -q . && echo REACHED",
    "worker-maps": "head -n 1 /proc/$WORKER/maps | grep -q . && echo REACHED",
    "worker-stack": "cat /proc/$WORKER/stack /proc/$WORKER/syscall 2>/dev/null | grep -q . && echo REACHED",
    "worker-command-line": "tr '\\0' ' ' </proc/$WORKER/cmdline | grep -q . && echo REACHED",
    "victim-threads": "ls /proc/$VICTIM/task 2>/dev/null | grep -q . && echo REACHED",
    "ps": "ps -A 2>/dev/null | grep -qw $VICTIM && echo REACHED",
    "write-memory": "(exec 3<>/proc/$VICTIM/mem) && echo REACHED",
    "attach": kernel("judge(call(101, 117, 16, victim, 0, 0))"),
    "seize": kernel("judge(call(101, 117, 0x4206, victim, 0, 0))"),
    "seize-worker": kernel("judge(call(101, 117, 0x4206, worker, 0, 0))"),
    "seize-parent": (kernel("judge(call(101, 117, 0x4206, os.getppid(), 0, 0))"), {"is_free": False}),
    "trace-me": kernel("judge(call(101, 117, 0, 0, 0, 0))"),
    "debugger": "command -v strace >/dev/null && timeout 3 strace -o t -p $VICTIM & sleep 0.3; grep -q pause t && echo REACHED",
    "read-memory": kernel("judge(call(310, 270, victim, 0, 0, 0, 0, 0))"),
    "write-memory-call": kernel("judge(call(311, 271, victim, 0, 0, 0, 0, 0))"),
    "compare": kernel("judge(call(312, 272, os.getpid(), victim, 0, 0, 0))"),
    "take-descriptor": kernel("p = call(434, 434, victim, 0)\njudge(call(438, 438, p, 0, 0) if p >= 0 else -1)"),
    "advise-memory": kernel("p = call(434, 434, victim, 0)\njudge(call(440, 440, p, 0, 0, 0, 0) if p >= 0 else -1)"),
    "move-pages": kernel("judge(call(279, 239, victim, 0, 0, 0, 0, 0))"),
    "robust-list": kernel(_SPY + "judge(call(274, 100, victim, space, space))"),
    "namespaces-of-others": "readlink /proc/$VICTIM/ns/net 2>/dev/null | grep -q net && echo REACHED",
    "enter-namespace": "nsenter -t $VICTIM -a true 2>/dev/null && echo REACHED",
    "given-descriptors": python(
        "import os, stat\n"
        "for number in range(3, 1024):\n"
        "    try: entry = os.fstat(number)\n    except OSError: continue\n"
        "    if stat.S_ISDIR(entry.st_mode) or stat.S_ISSOCK(entry.st_mode): print('REACHED')\n"
        "    if stat.S_ISREG(entry.st_mode):\n"
        "        try: print(os.pread(number, 9999, 0))\n        except OSError: pass"
    ),
    "confuse-with-descriptors": python(
        "import os\nfor number in range(3, 64):\n"
        "    try: os.write(number, b'/etc\\0A=1\\0' * 99 + b'bounded left processes unconfined ')\n"
        "    except OSError: pass"
    ),
    "worker's-own-door": (
        python(
            "import os, stat\nfor number in range(3, 1024):\n"
            "    try: entry = os.fstat(number)\n    except OSError: continue\n"
            "    if not stat.S_ISFIFO(entry.st_mode) and not stat.S_ISREG(entry.st_mode): print('REACHED', number)"
        ),
        {"network": Network.PROXY},
    ),
}

_SIGNALS = {
    "ask-worker": "kill -0 $WORKER && echo REACHED",
    "ask-victim": "kill -0 $VICTIM && echo REACHED",
    "stop-worker": "kill -STOP $WORKER; kill -CONT $WORKER; kill -WINCH $WORKER",
    "end-worker": "kill -TERM $WORKER",
    "kill-worker": "kill -KILL $WORKER",
    "kill-victim": "kill -KILL $VICTIM",
    "stop-victim": "kill -STOP $VICTIM",
    "interrupt-worker": "kill -INT $WORKER; kill -USR1 $WORKER; kill -ALRM $WORKER",
    "group-of-worker": "kill -WINCH -- -$WORKER",
    "group-of-victim": "kill -WINCH -- -$VICTIM",
    "everybody": "trap '' WINCH; kill -WINCH -- -1",
    "every-number": "for p in $(seq 2 6000); do kill -WINCH $p; done 2>/dev/null",
    "own-group": "trap '' WINCH; kill -WINCH 0",
    # Without a wall the parent is the worker itself.
    "parent": ("kill -WINCH $PPID; kill -KILL $PPID; sleep 0.2", {"is_free": False}),
    "stop-parent": ("kill -STOP $PPID; kill -CONT $PPID", {"is_free": False}),
    "by-descriptor": python(
        "import os, signal\nd = os.pidfd_open(int(os.environ['VICTIM']))\nsignal.pidfd_send_signal(d, signal.SIGWINCH)"
    ),
    "to-thread": kernel("judge(call(234, 131, victim, victim, 28))"),
    "to-thread-alone": kernel("judge(call(200, 130, victim, 28))"),
    "queued": kernel("judge(call(129, 138, victim, 28, (ctypes.c_uint32 * 32)(28, 0, 0xFFFFFFFF)))"),
    "by-owner-of-a-pipe": python(
        "import fcntl, os\nr, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETOWN, int(os.environ['VICTIM']))\n"
        "fcntl.fcntl(r, 10, 28)\nfcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)\nos.write(w, b'x')"
    ),
    "by-name": "pkill -WINCH -f 'signal.pause' ; killall -WINCH python3",
    "limits-of-worker": "prlimit --pid $WORKER --core=0:0 --nofile=600:600",
    "limits-of-victim": "prlimit --pid $VICTIM --nofile=99:99",
    "limits-of-victim-call": kernel("judge(call(302, 261, victim, 7, (ctypes.c_uint64 * 2)(50, 50), 0))"),
    "time-limit-of-victim": kernel("judge(call(302, 261, victim, 0, (ctypes.c_uint64 * 2)(1000, 1000), 0))"),
    "priority-of-victim": "renice -n 19 -p $VICTIM",
    "priority-of-worker": ("renice -n 5 -p $WORKER", {}),
    "priority-of-user": (kernel("call(141, 140, 2, os.getuid(), 1)"), {"is_free": False}),
    "processors-of-victim": python("import os\nos.sched_setaffinity(int(os.environ['VICTIM']), {0})"),
    "scheduler-of-victim": python(
        "import os\nos.sched_setscheduler(int(os.environ['VICTIM']), os.SCHED_IDLE, os.sched_param(0))"
    ),
    "scheduler-of-worker": python(
        "import os\nos.sched_setscheduler(int(os.environ['WORKER']), os.SCHED_BATCH, os.sched_param(0))"
    ),
    "scheduler-by-attributes": kernel("judge(call(314, 274, victim, (ctypes.c_uint32 * 12)(48, 5), 0))"),
    "disk-priority-of-victim": kernel("judge(call(251, 30, 1, victim, 3 << 13))"),
    "memory-score-of-victim": "(echo 900 > /proc/$VICTIM/oom_score_adj) 2>/dev/null",
    "memory-score-of-own": ("echo -900 > /proc/self/oom_score_adj && echo REACHED", {"is_free": False}),
    "core-scheduling": kernel("judge(libc.prctl(62, 1, victim, 0, 0) or -ctypes.get_errno() or 0)"),
    "group-of-processes": "(echo $VICTIM > /sys/fs/cgroup/cgroup.procs) 2>/dev/null && echo REACHED",
}

_SOCKETS = {
    "abstract": python(
        "import os, socket\ns = socket.socket(socket.AF_UNIX)\ns.settimeout(3)\n"
        "s.connect('\\0' + os.environ['ABSTRACT'])\nprint(s.recv(99))"
    ),
    "abstract-without-waiting": python(
        "import os, socket, time\ns = socket.socket(socket.AF_UNIX)\ns.setblocking(False)\n"
        "s.connect_ex('\\0' + os.environ['ABSTRACT'])\ntime.sleep(0.1)\nprint(s.recv(99))"
    ),
    "packet": python("import socket\nsocket.socket(17, socket.SOCK_RAW, 3)\nprint('REACHED')"),
    "packet-datagram": python("import socket\nsocket.socket(17, socket.SOCK_DGRAM, 3)\nprint('REACHED')"),
    "raw": python("import socket\nsocket.socket(2, socket.SOCK_RAW, 1)\nprint('REACHED')"),
    "raw-6": python("import socket\nsocket.socket(10, socket.SOCK_RAW, 58)\nprint('REACHED')"),
    "vsock": python("import socket\nsocket.socket(40, socket.SOCK_STREAM)\nprint('REACHED')"),
    "kernel-crypto": python("import socket\nsocket.socket(38, socket.SOCK_SEQPACKET)\nprint('REACHED')"),
    "bluetooth": kernel("judge(call(41, 198, 31, 3, 0))"),
    "tipc": kernel("judge(call(41, 198, 30, 2, 0))"),
    "xdp": kernel("judge(call(41, 198, 44, 3, 0))"),
    "rds": kernel("judge(call(41, 198, 21, 5, 0))"),
    "docker": ("test -S /run/docker.sock -o -S /var/run/docker.sock && echo REACHED", {"rungs": BUBBLEWRAP}),
    "desktop-bus": "ls /run/dbus/system_bus_socket /run/user 2>/dev/null | grep -q . && echo REACHED",
    "address-of-loopback": "ip addr add 127.9.9.9/32 dev lo 2>/dev/null && echo REACHED",
}

# --- the kernel ---

_KERNEL = {
    "mount": kernel("judge(call(165, 40, b'none', b'/tmp', b'tmpfs', 0, 0))"),
    "mount-program": ("mkdir m; mount -t tmpfs none m && echo REACHED", {"is_free": False}),
    "bind": ("mkdir m; mount --bind $SECRET_HOME m && cat m/.env", {"is_free": False}),
    "remount": ("mount -o remount,rw,bind / && echo REACHED", {"is_free": False}),
    "unmount": ("umount -l ~/.ssh && cat ~/.ssh/*; umount -l $SECRET_HOME && cat $SECRET_HOME/.env", {}),
    "unmount-call": kernel("judge(call(166, 39, b'/tmp/not-there', 2))"),
    "open-tree": kernel("judge(call(428, 428, -100, b'/', 1))"),
    "new-filesystem": kernel("judge(call(430, 430, b'tmpfs', 0))"),
    "move-mount": kernel("judge(call(429, 429, -100, b'/not-there', -100, b'/tmp', 0))"),
    "mount-settings": kernel("judge(call(442, 442, -100, b'/not-there', 0, (ctypes.c_uint64 * 4)(1), 32))"),
    "chroot": kernel("judge(call(161, 51, b'/'))"),
    "chroot-program": ("chroot / cat $SECRET_HOME/.env", {}),
    "pivot-root": kernel("judge(call(155, 41, b'.', b'.'))"),
    "unshare-user": "unshare -Urm true && echo REACHED",
    "unshare-mounts": ("unshare -m true && echo REACHED", {}),
    "unshare-call": kernel("judge(call(272, 97, 0x10000000))"),
    "unshare-net": kernel("judge(call(272, 97, 0x40000000))"),
    "clone-user": kernel("judge(call(56, 220, 0x10000011, 0, 0, 0, 0) or os._exit(0))"),
    "clone-pid": kernel("judge(call(56, 220, 0x20000011, 0, 0, 0, 0) or os._exit(0))"),
    "clone3-user": kernel("judge(call(435, 435, (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17), 88) or os._exit(0))"),
    "setns": kernel("judge(call(308, 268, os.open('/proc/self/ns/net', 0) if os.path.exists('/proc/self/ns/net') else 0, 0))"),
    "io-uring": kernel("judge(call(425, 425, 1, (ctypes.c_uint32 * 30)()))"),
    "io-uring-enter": kernel("judge(call(426, 426, 999, 0, 0, 0, 0, 0))"),
    "io-uring-register": kernel("judge(call(427, 427, 999, 0, 0, 0))"),
    "userfaultfd": kernel("judge(call(323, 282, 0))"),
    "userfaultfd-of-user": kernel("judge(call(323, 282, 1))"),
    "userfaultfd-device": "(exec 3<>/dev/userfaultfd) 2>/dev/null && echo REACHED",
    "keyctl": kernel("judge(call(250, 219, 0, -3, 0))"),
    "keyctl-session": kernel("judge(call(250, 219, 1, 0, 0))"),
    "add-key": kernel("judge(call(248, 217, b'user', b'planted', b'x', 1, -3))"),
    "request-key": kernel("judge(call(249, 218, b'user', b'planted', 0, -3))"),
    "bpf": kernel("judge(call(321, 280, 0, (ctypes.c_uint32 * 12)(2, 4, 4, 1), 48))"),
    "perf": kernel("judge(call(298, 241, (ctypes.c_uint64 * 16)(1, 128 << 32), 0, -1, -1, 0))"),
    "fanotify-of-everything": kernel("judge(call(300, 262, 0, 0))"),
    "module": ("modprobe planted_by_nobody 2>/dev/null && echo REACHED", {}),
    "module-call": kernel("judge(call(175, 105, 0, 0, 0))"),
    "module-from-file": kernel("judge(call(313, 273, -1, b'', 0))"),
    "unload": kernel("judge(call(176, 106, b'not_there_at_all', 2048))"),
    "kexec": kernel("judge(call(320, 294, -1, -1, 0, b'', 0))"),
    "swap-on": kernel("judge(call(167, 224, b'/not-there', 0))"),
    "accounting": kernel("judge(call(163, 89, b'/not-there'))"),
    "quota": kernel("judge(call(179, 60, 0x800001 << 8, 0, 0, 0))"),
    "kernel-log": kernel("judge(call(103, 116, 3, ctypes.create_string_buffer(99), 99))"),
    "handle": kernel("judge(call(303, 264, -100, b'.', (ctypes.c_uint32 * 40)(128), (ctypes.c_int * 1)(), 0))"),
    "open-by-handle": kernel("judge(call(304, 265, -100, (ctypes.c_uint32 * 40)(8, 1), 0))"),
    "host-name": ("hostname $MARK 2>/dev/null && echo REACHED", {"is_free": False}),
    "domain-name": kernel("judge(call(171, 162, b'x', -1))"),
    "old-processor-calls": (kernel("judge(call(173, 9999, 0, 1, 1))"), {}),
    "call-of-another-machine": kernel("judge(call(0x40000000 | 161, 51, b'/'))"),
    "core-pattern": "(exec 3>>/proc/sys/kernel/core_pattern) 2>/dev/null && echo REACHED",
    "process-maximum": "(exec 3>>/proc/sys/kernel/pid_max) 2>/dev/null && echo REACHED",
    "memory-overcommit": "(exec 3>>/proc/sys/vm/overcommit_memory) 2>/dev/null && echo REACHED",
    "user-namespaces": "(exec 3>>/proc/sys/user/max_user_namespaces) 2>/dev/null && echo REACHED",
    "forwarding": "(exec 3>>/proc/sys/net/ipv4/ip_forward) 2>/dev/null && echo REACHED",
    "system-request": "(exec 3>>/proc/sysrq-trigger) 2>/dev/null && echo REACHED",
    "processor-interrupts": "(exec 3>>/proc/irq/default_smp_affinity) 2>/dev/null && echo REACHED",
    "kernel-memory": "(exec 3</proc/kcore) 2>/dev/null && echo REACHED",
    "sysfs": "(exec 3>>/sys/kernel/mm/transparent_hugepage/enabled) 2>/dev/null && echo REACHED",
    "power": "(exec 3>>/sys/power/state) 2>/dev/null && echo REACHED",
    "hotplug": "(exec 3>>/sys/kernel/uevent_helper) 2>/dev/null && echo REACHED",
    "control-groups": (
        "for f in $(find /sys/fs/cgroup -name cgroup.procs -o -name tasks -o -name '*.max' 2>/dev/null | head -n 50); "
        "do (exec 3>>$f) 2>/dev/null && echo REACHED; done"
    ),
    "group-settings": "mkdir /sys/fs/cgroup/$MARK 2>/dev/null && rmdir /sys/fs/cgroup/$MARK && echo REACHED",
    "capabilities": "grep -q 'CapEff:.*[1-9a-f]' /proc/self/status && echo REACHED",
    "capabilities-back": kernel(
        "header, wanted = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(1, 1, 1)\n"
        "judge(-1 if libc.capset(header, wanted) else 0)"
    ),
    "ambient-capability": kernel("judge(-1 if libc.prctl(47, 2, 0, 0, 0) else 0)"),
    "new-privileges": "grep -q 'NoNewPrivs:.*0' /proc/self/status && echo REACHED",
    "setuid-shell": "cp /bin/bash b; chmod 4755 b; ./b -p -c 'cat $SECRET_HOME/.env'",
    "setgid-shell": "cp /bin/bash b; chmod 2755 b; ./b -p -c 'cat $SECRET_HOME/.env'",
    "become-root": python("import os\nos.setgroups([0])\nprint('REACHED')"),
    "become-another": python("import os\nos.setresuid(12345, 12345, 12345)\nprint('REACHED')"),
    "su": ("echo | timeout 3 su -c 'cat $SECRET_HOME/.env' 2>/dev/null", {}),
    "sudo": "timeout 3 sudo -n cat $SECRET_HOME/.env",
    "file-capabilities": python("import os\nopen('f', 'w').close()\nos.setxattr('f', 'security.capability', bytes.fromhex('0000000201000000000000000000000000000000'))\nprint('REACHED')"),
    "chown": python("import os\nopen('f', 'w').close()\nos.chown('f', 12345, 12345)\nprint('REACHED')"),
    "write-through-rights": "touch f; chmod 000 f; cat f 2>/dev/null && echo REACHED; true",
    "raise-limits": "ulimit -u unlimited 2>/dev/null && echo REACHED; ulimit -n 1000000 2>/dev/null && echo REACHED",
    "raise-file-size": "ulimit -f unlimited 2>/dev/null && echo REACHED",
    "higher-priority": python("import os\nos.setpriority(os.PRIO_PROCESS, 0, -10)\nprint('REACHED')"),
    "real-time": python("import os\nos.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))\nprint('REACHED')"),
    "clock": python("import time\ntime.clock_settime(time.CLOCK_REALTIME, time.time())\nprint('REACHED')"),
    "lock-memory": python("import ctypes\nprint('REACHED' if not ctypes.CDLL(None).mlock(bytes(1 << 24), 1 << 24) else '')"),
    "system-v-memory": (
        python("import ctypes\nprint(ctypes.CDLL(None).shmget(0x4711, 4096, 0o1600))"), {"rungs": BUBBLEWRAP}
    ),
}  # fmt: skip

_DEVICES = {
    "block": ("mknod $MARK b 254 0", {}),
    "memory": ("mknod $MARK c 1 1 && (exec 3<$MARK) && echo REACHED", {}),
    "memory-device": "(exec 3</dev/mem) 2>/dev/null && echo REACHED",
    "port-device": "(exec 3</dev/port) 2>/dev/null && echo REACHED",
    "kernel-messages": "(exec 3</dev/kmsg) 2>/dev/null && echo REACHED",
    "virtual-machine": "(exec 3<>/dev/kvm) 2>/dev/null && echo REACHED",
    "tunnel": "(exec 3<>/dev/net/tun) 2>/dev/null && echo REACHED",
    "fuse": "(exec 3<>/dev/fuse) 2>/dev/null && echo REACHED",
    "loop-control": "(exec 3<>/dev/loop-control) 2>/dev/null && echo REACHED",
    "disks": "for d in /dev/vd? /dev/sd? /dev/nvme?n? /dev/loop?; do (exec 3<$d) 2>/dev/null && echo REACHED; done",
    "console": "(exec 3>/dev/console) 2>/dev/null && echo REACHED",
    "clock-device": "(exec 3</dev/rtc0) 2>/dev/null && echo REACHED",
    "watchdog": ("test -w /dev/watchdog && echo REACHED", {}),
    "input": "(exec 3</dev/input/event0) 2>/dev/null && echo REACHED",
    "pass-through-node": kernel("judge(call(133, -1, b'planted', 0x2180, 0x105) if env['UNAME'] == 'x86_64' else -1)"),
}

# --- what stays behind ---

_WORD = "$PY -I -S -c"
_BEHIND = {
    "background": "sleep $NAP & sleep 0.1",
    "session": "setsid sleep $NAP & sleep 0.1",
    "renamed": "(exec -a innocent sleep $NAP) & disown",
    "nohup": "nohup sleep $NAP >/dev/null 2>&1 & sleep 0.1",
    "empty-environment": "env -i /usr/bin/setsid /bin/sleep $NAP >/dev/null 2>&1 & sleep 0.1",
    "forked-twice": '(setsid bash -c "(sleep $NAP &) &" &); sleep 0.1',
    "stubborn": "setsid bash -c \"trap '' TERM HUP INT; while :; do sleep 0.2; done\" $NAP & sleep 0.1",
    "elsewhere": "(cd / && setsid sleep $NAP >/dev/null 2>&1 </dev/null &); sleep 0.1",
    "closed-descriptors": "(setsid sleep $NAP 0<&- 1>&- 2>&- &); sleep 0.1",
    "three-hundred": ("for i in $(seq 300); do (setsid sleep $NAP &); done", {"is_free": False}),
    "at-exit": "trap '(setsid sleep $NAP &)' EXIT",
    "at-term": "bash -c \"trap '(setsid sleep $NAP &); exit' TERM; while :; do sleep 0.1; done\" $NAP & sleep 0.1",
    "stopped": "setsid sleep $NAP & sleep 0.1; kill -STOP $!",
    "own-reaper": f"{_WORD} 'import ctypes, os, time\nctypes.CDLL(None).prctl(36, 1)\nif os.fork(): os._exit(0)\n"
    "os.setsid()\ntime.sleep(600)' $NAP & sleep 0.2",
    "no-death-signal": f"{_WORD} 'import ctypes, os, time\nctypes.CDLL(None).prctl(1, 0)\nos.setsid()\n"
    "os.fork() or os.fork()\ntime.sleep(600)' $NAP & sleep 0.2",
    "masked": f"{_WORD} 'import os, signal, time\nsignal.pthread_sigmask(0, range(1, 65))\nos.setsid()\n"
    "time.sleep(600)' $NAP & sleep 0.2",
    "forking-all-the-time": (
        f"setsid {_WORD} 'import os, time\nfor _ in range(200):\n    if os.fork(): os._exit(0)\n    time.sleep(0.01)' "
        "$NAP & sleep 0.2",
        {"lingers": True},
    ),
    "thread-leader-gone": f"{_WORD} 'import ctypes, threading, time\nthreading.Thread(target=time.sleep, "
    "args=(600,)).start()\n"
    "ctypes.CDLL(None).pthread_exit(None)' $NAP & sleep 0.3",
    "scheduled-by-at": "echo 'touch /tmp/$MARK' | at now 2>/dev/null; echo | batch 2>/dev/null",
    "scheduled-by-cron": '(echo "* * * * * touch /tmp/$MARK" | crontab -) 2>/dev/null && crontab -r && echo REACHED',
    "service-manager": "systemd-run --user sleep $NAP 2>/dev/null; systemd-run sleep $NAP 2>/dev/null",
    "terminal-multiplexer": 'command -v tmux >/dev/null && tmux -S ./t -f /dev/null new -d "sleep $NAP"; sleep 0.2',
    "autostart": "mkdir -p ~/.config/autostart/$MARK; echo x >> ~/.profile",
    "user-service": "mkdir -p ~/.config/systemd/user && touch ~/.config/systemd/user/planted.service",
    "shell-start": "echo 'touch planted' >> ~/.bashrc; echo x > ~/.bash_profile",
    "git-template": "git config --global core.hooksPath $PWD 2>/dev/null",
    "after-time-out": ("setsid sleep $NAP & sleep 600", {"timeout_s": 0.7}),
    "stubborn-after-time-out": (
        "setsid bash -c \"trap '' TERM HUP INT; while :; do sleep 0.2; done\" $NAP & trap '' TERM; sleep $NAP; sleep 600",
        {"timeout_s": 0.7, "is_long": True},
    ),
    "writer": (
        "setsid bash -c 'sleep 0.05; for i in 1 2 3 4 5 6 7 8; do sleep 0.1; echo x > $OUTSIDE/$MARK; "
        "echo x > $SECRET_HOME/$MARK; done' $NAP >/dev/null 2>&1 &",
        {"lingers": True},
    ),
}

# --- too much of everything ---

_FORKS = """
import os, sys, time
children = 0
try:
    while children < 300:
        if os.fork() == 0:
            time.sleep(3)
            os._exit(0)
        children += 1
except OSError:
    pass
time.sleep(0.4)
print("REACHED" if children == 300 else "refused", flush=True)
os._exit(0)
"""
_TOO_MUCH = {
    "processes": python(_FORKS),
    "processes-of-shell": "for i in $(seq 300); do sleep 3 & done; sleep 0.4; jobs -p | wc -l | grep -qx 300 && echo REACHED",
    "threads": python(
        "import threading, time, os\n"
        "for _ in range(300): threading.Thread(target=time.sleep, args=(3,), daemon=True).start()\n"
        "time.sleep(0.4)\nprint('REACHED', flush=True)\nos._exit(0)"
    ),
    "processes-in-sessions": "for i in $(seq 300); do setsid -f sleep 3 || exit; done; sleep 0.4; echo REACHED",
    "sparse-file": "truncate -s 100G big; dd if=/dev/zero of=more bs=1 count=1 seek=100G",
    "allocated-file": "fallocate -l 1G big",
    "written-file": "dd if=/dev/zero of=big bs=1M count=5",
    "appended-file": "for i in 1 2 3 4 5; do head -c 1000000 /dev/zero >> big; done",
    "mapped-file": python("import mmap, os\nd = os.open('big', 66)\nos.ftruncate(d, 1 << 36)"),
    "open-files": python("import os\nkept = [os.open('/dev/null', 0) for _ in range(100)]\nprint('REACHED')"),
    "open-pipes": python("import os\nkept = [os.pipe() for _ in range(60)]\nprint('REACHED')"),
    "memory": python("kept = bytearray(1 << 30)\nprint('REACHED')"),
    "memory-in-pieces": python("kept = [bytearray(1 << 26) for _ in range(16)]\nprint('REACHED')"),
    "processor-time": (
        python(
            "import time\nbegan = time.process_time()\nwhile time.process_time() - began < 3: pass\nprint('REA' + "
            "'CHED')"
        ),
        {"is_long": True},
    ),
    "own-tmp": (
        "cd /tmp; for i in 1 2 3 4 5 6 7 8; do head -c 1000000 /dev/zero > f$i || exit; done; echo REACHED",
        {"rungs": BUBBLEWRAP, "is_free": False},
    ),
    "own-shared-memory": (
        "cd /dev/shm; for i in 1 2 3 4 5 6 7 8; do head -c 1000000 /dev/zero > f$i || exit; done; echo REACHED",
        {"rungs": BUBBLEWRAP, "is_free": False},
    ),
    "files-in-quota": (
        python("for n in range(1_000_000): open(f'f{n}', 'w').close()\nprint('REACHED')"),
        {"workspace_mb": 8, "is_tight": False, "is_free": False, "is_long": True, "timeout_s": 30},
    ),
    "folders-in-quota": (
        python("import os\nfor n in range(1_000_000): os.mkdir(f'f{n}')\nprint('REACHED')"),
        {"workspace_mb": 8, "is_tight": False, "is_free": False, "is_long": True, "timeout_s": 30},
    ),
    "bytes-in-quota": (
        "for i in $(seq 40); do head -c 1M /dev/zero > f$i; sleep 0.05; done; echo REACHED",
        {"workspace_mb": 8, "is_tight": False, "is_free": False, "is_long": True},
    ),
    "links-in-quota": (
        python("import os\nfor n in range(1_000_000): os.symlink('x' * 200, f'f{n}')\nprint('REACHED')"),
        {"workspace_mb": 8, "is_tight": False, "is_free": False, "is_long": True, "timeout_s": 30},
    ),
    "output": ("head -c 200M /dev/zero", {"is_tight": False}),
    "deep-folders": (
        python("import os\nfor n in range(200):\n    os.mkdir('d')\n    os.chdir('d')"),
        {"is_tight": False},
    ),
}

# --- the network ---

_TALK = """
import os, socket, sys
place, host, port = sys.argv[1:4]
proxied = os.environ.get("http_proxy")
def ask(head):
    try:
        s = socket.create_connection(("127.0.0.1", 3128) if proxied else (host.strip("[]"), int(port)), 5)
        s.settimeout(5)
        s.sendall(head)
        print(s.recv(2000)[:300])
    except (OSError, UnicodeError) as error:
        print(error)
ask(f"GET http://{place}/ HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n".encode())
if proxied:
    ask(f"CONNECT {place} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\nGET / HTTP/1.0\\r\\n\\r\\n".encode())
"""


def _through_proxy(host: str, port: str = "$TCP") -> str:
    return f"$PY -I -S - \"{host}:{port}\" '{host}' {port} 2>&1 <<'END'\n{_TALK.strip()}\nEND\n"


_LOOPBACK = (
    "127.0.0.1", "localhost", "localhost.", "LOCALHOST", "127.1", "127.0.1", "127.255.255.254", "2130706433", "0x7f000001",
    "0x7f.1", "0177.0.0.1", "017700000001", "0", "0.0.0.0", "[::1]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]", "[::127.0.0.1]", "[::]", "127.0.0.1.", "[64:ff9b::127.0.0.1]", "[2002:7f00:1::]", "ip6-localhost",
    "127。0。0。1", "１２７.0.0.1", "①②⑦.0.0.1", "%31%32%37.0.0.1", "x@127.0.0.1", "public.example#@127.0.0.1",
    "127.0.0.1\\@public.example", "[::1%25lo]", "localhost.localdomain", "rebind.test", "mixed.test",
)  # fmt: skip
_METADATA = (
    "169.254.169.254", "metadata.google.internal", "METADATA.google.internal.", "2852039166", "0xa9fea9fe", "0xa9.0xfe.0xa9.0xfe",
    "0251.0376.0251.0376", "025177524776", "169.254.43518", "169.16689662", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]",
    "[::169.254.169.254]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "[fd00:ec2::254]", "[fe80::a9fe:a9fe]",
    "169.254.169.254.", "169。254。169。254", "①⑥⑨.254.169.254", "x@169.254.169.254", "169.254.170.2", "100.100.100.200",
    "192.0.0.192", "mapped.test", "wrapped.test", "unique.test", "10.0.0.1", "192.168.0.1", "172.16.0.1", "224.0.0.1",
    "255.255.255.255",
)  # fmt: skip

_AROUND = {
    "tcp": "s = socket.create_connection(('127.0.0.1', TCP), 3)\ns.sendall(b'x\\r\\n\\r\\n')\nprint(s.recv(999))",
    "tcp-without-waiting": "s = socket.socket()\ns.setblocking(False)\ns.connect_ex(('127.0.0.1', TCP))\n"
    "time.sleep(0.2)\nprint(s.recv(999))",
    "tcp-6": "s = socket.create_connection(('::1', TCP), 3)\ns.sendall(b'x\\r\\n\\r\\n')\nprint(s.recv(999))",
    "fast-open": "s = socket.socket()\ns.sendto(b'x', 0x20000000, ('127.0.0.1', TCP))\nprint(s.recv(999))",
    "fast-open-by-message": "s = socket.socket()\ns.sendmsg([b'x'], [], 0x20000000, ('127.0.0.1', TCP))\nprint(s.recv(999))",
    "fast-open-by-option": "s = socket.socket()\ns.setsockopt(6, 30, 1)\ns.connect(('127.0.0.1', "
    "TCP))\ns.send(b'x\\r\\n\\r\\n')\n"
    "print(s.recv(999))",
    "multipath": "s = socket.socket(2, 1, 262)\ns.settimeout(3)\ns.connect(('127.0.0.1', TCP))\nprint(s.recv(999))",
    "sctp": "s = socket.socket(2, 1, 132)\ns.connect(('127.0.0.1', TCP))\nprint('REACHED')",
    "bound-first": "s = socket.socket()\ns.bind(('127.0.0.1', 0))\ns.settimeout(3)\ns.connect(('127.0.0.1', TCP))\n"
    "s.sendall(b'x\\r\\n\\r\\n')\nprint(s.recv(999))",
    "in-a-thread": "def go():\n    s = socket.create_connection(('127.0.0.1', TCP), 3)\n    "
    "s.sendall(b'x\\r\\n\\r\\n')\n"
    "    print(s.recv(999))\nt = threading.Thread(target=go)\nt.start()\nt.join()",
    "in-a-child": "if os.fork() == 0:\n    s = socket.create_connection(('127.0.0.1', TCP), 3)\n"
    "    s.sendall(b'x\\r\\n\\r\\n')\n    print(s.recv(999), flush=True)\n    os._exit(0)\nos.wait()",
    "udp": "s = socket.socket(2, 2)\ns.settimeout(1)\ns.sendto(b'x', ('127.0.0.1', UDP))\nprint(s.recv(99))",
    "udp-connected": "s = socket.socket(2, 2)\ns.settimeout(1)\ns.connect(('127.0.0.1', UDP))\ns.send(b'x')\nprint(s.recv(99))",
    "udp-many": "import ctypes\ns = socket.socket(2, 2)\nfor _ in range(9): s.sendmsg([b'x'], [], 0, ('127.0.0.1', UDP))",
    "udp-6": "s = socket.socket(10, 2)\ns.sendto(b'x', ('::ffff:127.0.0.1', UDP))",
    "udp-lite": "s = socket.socket(2, 2, 136)\ns.sendto(b'x', ('127.0.0.1', UDP))\nprint('sent')",
    "name-question": "s = socket.socket(2, 2)\ns.settimeout(1)\n"
    "s.sendto(bytes.fromhex('beef01000001000000000000') + b'\\x06secret\\x04test\\0\\0\\1\\0\\1', ('127.0.0.1', UDP))\n"
    "print(s.recv(99))",
    "name-question-by-tcp": "s = socket.create_connection(('127.0.0.1', TCP), 3)\n"
    "s.sendall(b'\\0\\x1d' + bytes.fromhex('beef01000001000000000000') + "
    "b'\\x06secret\\x04test\\0\\0\\1\\0\\1\\r\\n\\r\\n')\n"
    "print(s.recv(99))",
    "api": "s = socket.create_connection(('127.0.0.1', API), 3)\ns.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')\n"
    "print('REACHED' if b'401' in s.recv(99) else 'refused')",
    "raw-socket": "s = socket.socket(2, 3, 255)\nprint('REACHED')",
    "packet-socket": "s = socket.socket(17, 3, 3)\nprint('REACHED')",
    "abstract": "s = socket.socket(1)\ns.connect('\\0' + os.environ['ABSTRACT'])\nprint(s.recv(99))",
}  # fmt: skip


_LINK_LOCAL = {
    "plain": "one.connect((M, 80))",
    "quick": "one.setblocking(False)\none.connect((M, 80))",
    "container-credentials": "one.connect(('169.254.170.2', 80))",
    "other-cloud": "one.connect(('100.100.100.200', 80))",
    "by-6": "six.connect(('fd00:ec2::254', 80))",
    "link-local-6": "six.connect(('fe80::a9fe:a9fe', 80, 0, 1))",
    "mapped": "six.connect(('::ffff:' + M, 80))",
    "nat64": "six.connect(('64:ff9b::a9fe:a9fe', 80))",
    "six-to-four": "six.connect(('2002:a9fe:a9fe::', 80))",
    "datagram": "far.sendto(b'x', (M, 123))",
    "connected-datagram": "far.connect((M, 123))",
    "datagram-after-another": "far.connect(('127.0.0.1', 9))\nfar.sendto(b'x', (M, 123))",
    "datagram-without-a-family": "call(libc.sendto, far.fileno(), b'x', 1, 0, raw(0), 16)",
    "longer": "call(libc.connect, one.fileno(), raw(2) + bytes(100), 116)",
    "by-number": "call(libc.syscall, *((42,) if os.uname().machine == 'x86_64' else (203,)), one.fileno(), raw(2), 16)",
    "by-another-number": "call(libc.syscall, 42 | 1 << 30, one.fileno(), raw(2), 16)",
    "fast-open": "one.sendto(b'x', 0x20000000, (M, 80))",
    "fast-open-by-message": "one.sendmsg([b'x'], [], 0x20000000, (M, 80))",
    "fast-open-by-option": "one.setsockopt(6, 30, 1)\none.connect((M, 80))",
    "multipath": "socket.socket(2, 1, 262).connect((M, 80))",
    "sctp": "socket.socket(2, 1, 132).connect((M, 80))",
    "by-a-ring": "call(libc.syscall, 425, 8, bytes(120))",
    "in-a-child": "if os.fork(): os._exit(os.waitstatus_to_exitcode(os.wait()[1]))\none.connect((M, 80))",
    "taken-from-another": "call(libc.syscall, 438, os.pidfd_open(os.getppid()), 0, 0)",
}  # fmt: skip


def _ask(code: str) -> str:
    """It got there, or might have, unless the kernel refused to try."""
    lines = "\n".join(f"    {line}" for line in code.splitlines())
    return python(
        "import ctypes, os, socket, struct\nM = '169.254.169.254'\none, six, far = socket.socket(), socket.socket(10), "
        "socket.socket(2, 2)\n"
        "for each in (one, six, far): each.settimeout(1)\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "def raw(family): return struct.pack('=H', family) + struct.pack('>H4s8x', 80, socket.inet_aton(M))\n"
        "def call(function, *arguments):\n    if function(*arguments) < 0: raise OSError(ctypes.get_errno(), '')\n"
        f"try:\n{lines}\nexcept OSError as error:\n"
        "    print('REACHED' if error.errno not in (1, 13, 38, 93, 94, 95) else 'refused')\nelse:\n    print('REACHED')"
    )


def _talk(code: str) -> str:
    numbers = "".join(f"{name} = int(os.environ['{name}'])\n" for name in ("TCP", "UDP", "API"))
    return python(f"import os, socket, threading, time\n{numbers}{code}")


# --- links that change while somebody looks ---

_SWAPPING = """
import ctypes, os, time
libc = ctypes.CDLL(None)
e = os.environ
place = {place}
os.makedirs("{name}") if {folder} else open("{name}", "w").close()
os.symlink(place, "l")
until, swaps, began = time.monotonic() + 1.0, 0, time.monotonic()
while time.monotonic() < until:
    libc.renameat2(-100, b"{name}", -100, b"l", 2)
    swaps += 1
assert swaps >= 1000, swaps
"""


def _swapping(place: str, *, name: str = "d", folder: bool = True) -> str:
    return python(_SWAPPING.format(place=place, name=name, folder=folder))


_KEYS, _NOTES = "e['HOME'] + '/.ssh'", "e['THEIRS']"
_NOTE = "e['THEIRS'] + '/notes'"
_IN_D = "mkdir d; cd d; "
_RACES = {
    "write-into-others": (_swapping(_NOTES), {"meanwhile": "write"}),
    "read-of-others": (_swapping(_NOTES), {"meanwhile": "read"}),
    "remove-of-others": (_swapping(_NOTES), {"meanwhile": "remove"}),
    "list-keys": (_swapping(_KEYS), {"meanwhile": "list"}),
    "write-a-link": (_IN_D + _swapping(_NOTE, name="notes", folder=False), {"meanwhile": "write"}),
    "read-a-link": (_IN_D + _swapping(_NOTE, name="notes", folder=False), {"meanwhile": "read"}),
    "remove-a-link": (_IN_D + _swapping(_NOTE, name="notes", folder=False), {"meanwhile": "remove"}),
    "write-outside": (_swapping("e['OUTSIDE']"), {"meanwhile": "write"}),
    "own-read": "(" + _swapping(_NOTES).rstrip() + "\n) & for i in $(seq 200); do cat d/notes; done 2>/dev/null; wait",
    "own-write": "("
    + _swapping(_NOTES).rstrip()
    + "\n) & for i in $(seq 300); do echo x > d/$MARK; done 2>/dev/null; wait",
}


def _all() -> Iterator[Hostile]:
    yield from _rows("files", {name: f"cat {path}" for name, path in _STORES.items()})
    yield from _rows("reading", _WAYS_TO_READ)
    yield from _rows("sessions", _OTHERS)
    yield from _rows("writing", _WRITES)
    yield from _rows("database", _DATABASE)
    yield from _rows("broker", _BROKER)
    yield from _rows("api", _OUR_API)
    yield from _rows("program", _OUR_PROGRAM, is_long=True, is_free=False)
    yield from _rows("processes", _PROCESSES)
    yield from _rows("signals", _SIGNALS)
    yield from _rows("sockets", _SOCKETS)
    yield from _rows("kernel", _KERNEL)
    yield from _rows("devices", _DEVICES)
    yield from _rows("survivors", _BEHIND)
    yield from _rows("too-much", _TOO_MUCH, is_tight=True)
    yield from _rows("races", _RACES)
    yield from _rows("loopback", {name: _through_proxy(name) for name in _LOOPBACK}, network=Network.PROXY)
    metadata = {name: _through_proxy(name, "80") for name in _METADATA}
    yield from _rows("metadata", metadata, network=Network.PROXY, is_free=False)
    for network in (Network.PROXY, Network.NONE):
        commands = {name: _talk(code) for name, code in _AROUND.items()}
        yield from _rows(f"around-{network.value}", commands, network=network)
    yield from _rows("link-local", {name: _ask(code) for name, code in _LINK_LOCAL.items()})


ROWS = tuple(_all())

_GIT = "git -c user.name=a -c user.email=a@b"
_SERVE = """
import http.server, threading, urllib.request
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://127.0.0.1:{server.server_port}/") as answer:
    print("REACHED" if answer.status == 200 else "")
"""
_ASK = (
    "import sys, time, urllib.request\nfor _ in range(100):\n    try:\n"
    "        print('REACHED' if urllib.request.urlopen('http://127.0.0.1:' + sys.argv[1]).status == 200 else '')\n     "
    "   break\n"
    "    except OSError: time.sleep(0.1)"
)
_MAKEFILE = """
all: $(foreach n,1 2 3 4 5 6 7 8,part$(n)) slow
\t@touch all; echo BUILT
part%:
\t@echo 'int f(void) {return $*;}' > $@.c; cc -c $@.c -o $@.o && touch $@ && echo $@ is made
slow: part1
\t@test -e hurry || sleep 600; touch $@
""".strip()
_SCRIPT_BUILD = """
cat > build <<'END'
for n in 1 2 3 4; do
    [ -e part$n ] || { echo $n > part$n; echo part$n is made; }
done
[ -e hurry ] || { (setsid sleep $NAP &); for n in 1 2 3; do sleep 600 & done; wait; }
cat part? > all
END
sh build
""".strip()
_WORK: Mapping[str, str | tuple[str, Mapping[str, Any]]] = {
    "git-clone": (
        f"{_GIT} init -q r && {_GIT} -C r commit -q --allow-empty -m x && git clone -q r c && git -C c log | grep -q x && echo REACHED",
        {"needs": "git"},
    ),
    "gcc": ("echo 'int main(){return 7;}' > a.c && gcc a.c -o a; ./a; test $? = 7 && echo REACHED", {"needs": "gcc"}),
    "pytest": (
        'printf \'def test_a(tmp_path):\\n    (tmp_path / "x").write_text("1")\\n\' > test_a.py; '
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $PROGRAM -m pytest -q -p no:cacheprovider test_a.py && echo REACHED"
    ),
    "server-in-a-program": python(_SERVE),
    "server-in-a-shell": (
        "port=$((20000 + WORKER % 20000)); $PY -I -S -m http.server --bind 127.0.0.1 $port >/dev/null 2>&1 & "
        f'$PY -I -S -c "{_ASK}" $((20000 + WORKER % 20000)); kill %1'
    ),
    "scripts": "printf '#!/bin/sh\\necho REACHED\\n' > s; chmod +x s; ./s; mkdir -p a/b; cp -a a c; ln -s a/b d; ln s t; mv t u; ./u",
    "limits-of-its-own": (
        "ulimit -n 100 && prlimit --nofile=90:90 true && nice -n 5 true && taskset 1 true && chrt -b 0 true && ionice "
        "-c 3 true "
        "&& prlimit --pid $$ --core >/dev/null && timeout 5 true && echo REACHED"
    ),
    "a-build-over-its-time": (
        _SCRIPT_BUILD,
        {"timeout_s": 1.5, "then": "ls part4 && touch hurry && sh build && wc -l < all | grep -qx 4 && echo REACHED"},
    ),
    "a-make-over-its-time": (
        f"cat > Makefile <<'END'\n{_MAKEFILE}\nEND\nmake -j 4",
        {
            "timeout_s": 4.0,
            "then": "ls part1.o && touch hurry && make -j 4 | grep -x BUILT && echo REACHED",
            "needs": "make",
        },
    ),
    "a-build-in-parts": "for i in 1 2 3 4 5 6 7 8; do (echo $i > part$i) & done; wait; cat part* | wc -l | grep -qx 8 && echo REACHED",
}
WORK = tuple(_rows("work", _WORK))
"""Ordinary work, which must go on beside all that. It prints ``REACHED``, too."""
