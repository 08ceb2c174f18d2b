"""A container engine where there is no Docker: Debian's podman, crun and buildah, in namespaces of their own.

What has to be arranged for, on a machine like CI's: a mount namespace with cgroup2 mounted anew and control groups
disabled, limits that do not exceed our own, chroot isolation where images are built, and no registry. A namespace of
processes makes sure that everything ends with the test, a network namespace that nobody's ports collide.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("podman", "crun", "buildah")
_PATIENCE_S = 2_400.0
"""A build takes half a minute of a processor, and the machine may be busy."""
_FILES_MAX = 4096
_PROCESSES_MAX = 4096
"""podman's own are higher than root may have without CAP_SYS_RESOURCE."""
_HOLDER = """
import ctypes, fcntl, os, signal, socket, struct, subprocess, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["umount", "-R", "/sys/fs/cgroup"], stderr=subprocess.DEVNULL)
os.makedirs("/sys/fs/cgroup", exist_ok=True)
subprocess.run(["mount", "-t", "cgroup2", "none", "/sys/fs/cgroup"], check=True)
with socket.socket() as probe:  # SIOCSIFFLAGS: the loopback interface, up and running
    fcntl.ioctl(probe, 0x8914, struct.pack("16sH14x", b"lo", 0x41))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reap whatever loses its parent
print("ready", flush=True)
sys.stdin.read()
"""


def missing_programs() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name) is None]


class ContainerEngine:
    """podman and buildah with a storage of their own, which is gone at the end."""

    def __init__(self, directory: Path, pid: int) -> None:
        self.directory = directory
        self._namespaces = ["nsenter", f"--target={pid}", "--mount", "--net", "--pid", "--"]
        self._shares_layers = _can_overlay(directory)
        self._environ = {**os.environ, **_configured(directory, "overlay" if self._shares_layers else "vfs")}

    def __call__(
        self, *command: str, check: bool = True, stdin: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run ``podman ...`` or ``buildah ...`` to its end. What it says is in the failure."""
        with (stdin or Path(os.devnull)).open("rb") as source:
            done = subprocess.run(
                [*self._namespaces, *command],
                env=self._environ,
                stdin=source,
                capture_output=True,
                text=True,
                timeout=_PATIENCE_S,
            )
        assert not check or done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done

    def started(self, *command: str) -> subprocess.Popen[bytes]:
        """Run ``podman ...`` beside the test."""
        log = (self.directory / "started.log").open("ab")
        return subprocess.Popen(
            [*self._namespaces, *command], env=self._environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )

    def imported(self, tarball: Path, name: str) -> None:
        """An image with the files of ``tarball`` and nothing else."""
        container = self("buildah", "from", "scratch").stdout.strip()
        self("buildah", "add", "--quiet", container, str(tarball), "/")
        self("buildah", "commit", "--rm", "--quiet", *_POLICY, container, name)

    def build(self, *options: str) -> None:
        # Targets of one file share the layers that they begin with. Where overlays cannot be mounted, each layer would
        # be a copy.
        self(
            "buildah",
            "build",
            "--isolation=chroot",
            "--format=docker",
            f"--layers={'true' if self._shares_layers else 'false'}",
            "--network=host",
            *_POLICY,
            *options,
        )

    def inspect(self, name: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = json.loads(self("podman", "inspect", name).stdout)
        return found[0]

    def logs(self, name: str) -> str:
        done = self("podman", "logs", name, check=False)
        return done.stdout + done.stderr


_POLICY = ("--signature-policy", str(Path(__file__).with_name("any_image.json")))


@contextmanager
def container_engine() -> Iterator[ContainerEngine]:
    """An engine; all its containers end with the block."""
    directory = Path(tempfile.mkdtemp(prefix="hermes-oci-"))
    unshared = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    holder = subprocess.Popen(
        [*unshared, sys.executable, "-c", _HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None and holder.stdout is not None
    try:
        assert holder.stdout.readline() == "ready\n", "no namespaces: is this root?"
        engine = ContainerEngine(directory, _only_child(holder.pid))
        yield engine
    finally:
        holder.stdin.close()
        holder.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _only_child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _configured(directory: Path, driver: str) -> dict[str, str]:
    """Variables that name the files of configuration, which are written here."""
    limits = [f'"{name}={most}:{most}"' for name, most in (("nofile", _FILES_MAX), ("nproc", _PROCESSES_MAX))]
    storage, containers = directory / "storage.conf", directory / "containers.conf"
    storage.write_text(f'[storage]\ndriver = "{driver}"\ngraphroot = "{directory}/root"\nrunroot = "{directory}/run"\n')
    containers.write_text(
        f'[containers]\ncgroups = "disabled"\ndefault_ulimits = [{", ".join(limits)}]\n'
        '[engine]\nruntime = "crun"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        f'tmp_dir = "{directory}/tmp"\nvolume_path = "{directory}/volumes"\n'
    )
    return {
        "CONTAINERS_STORAGE_CONF": str(storage),
        "CONTAINERS_CONF": str(containers),
        "CONTAINERS_REGISTRIES_CONF": os.devnull,
        "TMPDIR": str(directory),
        # Its clock would be a timer of systemd's; who wants to know runs a check.
        "DISABLE_HC_SYSTEMD": "true",
    }


def _can_overlay(directory: Path) -> bool:
    """Whether overlays can be mounted on the file system of ``directory``; a copy of every image is made otherwise."""
    for name in ("lower", "upper", "work", "merged"):
        (directory / name).mkdir()
    options = ",".join((f"lowerdir={directory}/lower", f"upperdir={directory}/upper", f"workdir={directory}/work"))
    mount = ["mount", "-t", "overlay", "overlay", "-o", options, str(directory / "merged")]
    return subprocess.run(["unshare", "--mount", *mount], capture_output=True).returncode == 0


def seconds(duration: str) -> float:
    """A duration as compose files write it: ``1m45s``."""
    units = {"h": 3600, "m": 60, "s": 1}
    total, digits = 0.0, ""
    for character in duration:
        if character in units:
            total, digits = total + float(digits) * units[character], ""
        else:
            digits += character
    assert not digits, duration
    return total
