"""PostgreSQL servers and fresh databases for tests."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from hermes_worker.local.postgres import EmbeddedPostgres


class PostgresFarm:
    """Servers cut from one template, which is made once, and databases of the one that most tests share.

    Everything is made when it is first asked for: a test session without PostgreSQL does not pay for it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count(1)

    @cached_property
    def shared(self) -> EmbeddedPostgres:
        """The server whose databases are handed out. Tests do not stop it."""
        server = self._server("shared")
        server.start()
        return server

    @contextmanager
    def own_server(self) -> Iterator[EmbeddedPostgres]:
        """A running server for one test, which may stop, kill and start it."""
        server = self._server(f"own{next(self._numbers)}")
        try:
            server.start()
            yield server
        finally:
            server.stop()
            shutil.rmtree(server.directory, ignore_errors=True)

    @contextmanager
    def database(self) -> Iterator[str]:
        """URL of a fresh, empty database on the shared server."""
        name = f"t{os.getpid()}_{next(self._numbers)}"
        url = self.shared.create_database(name)
        try:
            yield url
        finally:
            self.shared.drop_database(name)

    def stop(self) -> None:
        if "shared" in self.__dict__:
            self.shared.stop()

    def _server(self, name: str) -> EmbeddedPostgres:
        server = EmbeddedPostgres(self._directory / name, is_durable=False)
        server.copy_from(self._template)
        return server

    @cached_property
    def _template(self) -> EmbeddedPostgres:
        template = EmbeddedPostgres(self._directory / "template", is_durable=False)
        template.initialise()
        return template


@contextmanager
def postgres_farm() -> Iterator[PostgresFarm]:
    """A farm in a directory of its own, not pytest's: as root the server runs under another account, which may not
    enter pytest's directories."""
    directory = Path(tempfile.mkdtemp(prefix="hermes-pg-"))
    directory.chmod(0o711)
    farm = PostgresFarm(directory)
    try:
        yield farm
    finally:
        farm.stop()
        shutil.rmtree(directory, ignore_errors=True)
