"""podman's service of Docker's API, with an image of Debian's busybox that is made without a registry."""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from hermes_worker.workspaces.remote.docker import ContainerRules, DockerAccount
from hermes_worker.workspaces.remote.streams import ServiceAddress
from support.containers import ContainerEngine, container_engine, missing_programs
from support.patience import PATIENCE_S

IMAGE = "localhost/hermes-workspace"


def podman_missing() -> str | None:
    """Why it cannot be started; ``None`` when it can."""
    lacking = [*missing_programs(), *([] if shutil.which("busybox") else ["busybox"])]
    if lacking:
        return f"needs {', '.join(lacking)} (Debian: podman crun buildah busybox-static)"
    return None if os.geteuid() == 0 else "starting containers needs root"


class PodmanService:
    def __init__(self, engine: ContainerEngine, socket_path: Path) -> None:
        self._engine = engine
        self.socket_path = socket_path
        self.start()

    def start(self) -> None:
        self.socket_path.unlink(missing_ok=True)
        self._process = self._engine.started("podman", "system", "service", "--time=0", f"unix://{self.socket_path}")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(self.socket_path))
                return
            assert self._process.poll() is None and time.monotonic() < deadline, "podman's service does not begin"
            time.sleep(0.05)

    def account(self, **rules: object) -> DockerAccount:
        # There are no control groups here (``support.containers``), so no limits that need them.
        given = {"processes_max": None, "memory_bytes": None, "cpus": None, "tmp_bytes": 64 * 1024**2, **rules}
        return DockerAccount(
            address=ServiceAddress(url=f"unix://{self.socket_path}"),
            rules=ContainerRules(image=IMAGE, **given),  # type: ignore[arg-type]
        )

    def stop_containers(self) -> None:
        self._engine("podman", "kill", "--all")
        self._engine("podman", "wait", "--latest")

    def run_stranger(self, name: str) -> None:
        """A container that somebody else made."""
        self._engine("podman", "create", f"--name={name}", IMAGE, "/bin/sh")

    def die(self) -> None:
        """As when its machine loses power: the service and every container."""
        self.kill_service()
        self._engine("podman", "kill", "--all", check=False)

    def kill_service(self) -> None:
        family = psutil.Process(self._process.pid).children(recursive=True)
        for process in (*family, psutil.Process(self._process.pid)):
            with suppress(psutil.Error):
                if process.name() in ("podman", "nsenter"):
                    process.kill()
        self._process.wait()


@contextmanager
def podman_service() -> Iterator[PodmanService]:
    with container_engine() as engine:
        tarball = engine.directory / "busybox.tar"
        _write_image(tarball)
        engine.imported(tarball, IMAGE)
        service = PodmanService(engine, engine.directory / "engine.sock")
        try:
            yield service
        finally:
            service.die()


def _write_image(tarball: Path) -> None:
    """busybox with all its names, and a shell for everybody."""
    program = Path(str(shutil.which("busybox")))
    names = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    with tarfile.open(tarball, "w") as archive:
        for folder, mode in (("bin", 0o755), ("tmp", 0o1777), ("etc", 0o755), ("proc", 0o755), ("workspace", 0o755)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            archive.addfile(entry)
        for name, text in (("etc/passwd", "agent:x:10001:10001::/tmp:/bin/sh\n"), ("etc/group", "agent:x:10001:\n")):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o644
            archive.addfile(entry, io.BytesIO(text.encode()))
        entry = tarfile.TarInfo("bin/busybox")
        data = program.read_bytes()
        entry.size, entry.mode = len(data), 0o755
        archive.addfile(entry, io.BytesIO(data))
        for name in names:
            if name != "busybox":
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                archive.addfile(link)
