"""TLS of the API: what it shows to others, and how commands of the same machine know it again."""

from __future__ import annotations

import ssl

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings import ServerSettings


def server_context(server: ServerSettings) -> ssl.SSLContext | None:
    """What the API listens with; ``None`` for plain HTTP. The files are read now, so a renewed certificate needs an API
    that is started again. Raises ``ConfigurationError``."""
    if server.tls_certificate is None:
        if server.tls_key is not None or server.tls_client_ca is not None:
            raise ConfigurationError(
                "server.tls_key and server.tls_client_ca need server.tls_certificate (HERMES_SERVER_TLS_CERTIFICATE)"
            )
        return None
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=server.tls_client_ca)
        context.load_cert_chain(server.tls_certificate, server.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"the API cannot use its certificate {str(server.tls_certificate)!r} with the files of server.tls_key and "
            f"server.tls_client_ca: {error.strerror or error}"
        ) from error
    if server.tls_client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def own_context(server: ServerSettings) -> ssl.SSLContext | None:
    """What a command of this machine asks the API with: it trusts exactly the configured certificate, under whatever
    name. ``None`` for plain HTTP. Raises ``ConfigurationError``."""
    if server.tls_certificate is None:
        return None
    try:
        context = ssl.create_default_context(cafile=server.tls_certificate)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"the certificate of the API, {str(server.tls_certificate)!r}, cannot be read: {error.strerror or error}"
        ) from error
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
