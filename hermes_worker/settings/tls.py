"""TLS of the API: the certificate that it shows to others, and how commands of the same machine recognise it."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings import ServerSettings


class _TlsFiles(NamedTuple):
    certificate: Path
    key: Path | None
    client_ca: Path | None


class RenewingContext(ssl.SSLContext):
    """What the API listens with: every connection gets what the files hold when it begins, so a certificate, its key
    and the authorities of clients can be replaced while it serves.

    Files that cannot be used, such as a new certificate beside the old key, leave what was read before. They are tried
    again when one of them changes.
    """

    _files: _TlsFiles
    _read: tuple[object, ...]
    _held: ssl.SSLContext
    _tell: Callable[[ConfigurationError | None], None]

    @classmethod
    def for_files(cls, files: _TlsFiles, tell: Callable[[ConfigurationError | None], None]) -> RenewingContext:
        """``tell`` is called after each change: with what is wrong with the files, or with ``None`` when they are used
        from now on. Raises ``ConfigurationError`` for files that cannot be used now."""
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context._files, context._tell = files, tell
        context._read = _compute_stamps(files)
        context._held = _build_context(files)
        return context

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:  # asyncio asks for it, once a connection
        if (stamps := _compute_stamps(self._files)) != self._read:
            self._read = stamps
            self._renew()
        return self._held.wrap_bio(*arguments, **options)

    def _renew(self) -> None:
        try:
            self._held = _build_context(self._files)
        except ConfigurationError as error:
            self._tell(error)
        else:
            self._tell(None)


def build_server_context(
    server: ServerSettings, tell: Callable[[ConfigurationError | None], None] = lambda wrong: None
) -> ssl.SSLContext | None:
    """What the API listens with; ``None`` for plain HTTP. ``tell`` as for ``RenewingContext``. Raises
    ``ConfigurationError``."""
    if server.tls_certificate is None:
        if server.tls_key is not None or server.tls_client_ca is not None:
            raise ConfigurationError(
                "server.tls_key and server.tls_client_ca need server.tls_certificate (HERMES_SERVER_TLS_CERTIFICATE)"
            )
        return None
    return RenewingContext.for_files(_TlsFiles(server.tls_certificate, server.tls_key, server.tls_client_ca), tell)


def _build_context(files: _TlsFiles) -> ssl.SSLContext:
    """What the files hold now. Raises ``ConfigurationError``."""
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.client_ca)
        context.load_cert_chain(files.certificate, files.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"the API cannot use its certificate {str(files.certificate)!r} with the files of server.tls_key and "
            f"server.tls_client_ca: {error.strerror or error}"
        ) from error
    if files.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _compute_stamps(files: _TlsFiles) -> tuple[object, ...]:
    """Another value when one of the files is another one or says something else."""
    return tuple(_compute_stamp(path) for path in files if path is not None)


def _compute_stamp(path: Path) -> object:
    try:
        found = path.stat()
    except OSError as error:
        return error.errno
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def build_own_context(server: ServerSettings) -> ssl.SSLContext | None:
    """What a command of this machine asks the API with: it trusts exactly the configured certificate, under whatever
    name. ``None`` for plain HTTP. Raises ``ConfigurationError``."""
    return None if server.tls_certificate is None else trust_certificate(server.tls_certificate)


def trust_certificate(certificate: Path) -> ssl.SSLContext:
    """Build what a client asks with that trusts exactly this certificate, under whatever name. Raises
    ``ConfigurationError``."""
    try:
        context = ssl.create_default_context(cafile=certificate)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"the certificate of the API, {str(certificate)!r}, cannot be read: {error.strerror or error}"
        ) from error
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
