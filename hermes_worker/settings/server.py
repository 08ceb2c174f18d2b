"""The settings of the HTTP API."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import (
    FILE,
    HOST,
    SECRET,
    SECRETS,
    SERVER_KEY,
    SWITCH,
    WEB_URL,
    Secret,
    integer,
    list_of_names,
    number,
)


def is_loopback(host: str) -> bool:
    """Whether a host name or address is of this machine, whatever a resolver would say."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The HTTP API."""

    host: str = declare_setting(
        "server.host",
        "HERMES_SERVER_HOST API_SERVER_HOST",
        HOST,
        "127.0.0.1",
        audience="anyone",
        reason="other machines should reach the API; only this one can without it.",
    )
    """Address to listen on. Anything but a loopback address needs `server.key`."""
    port: int = declare_setting(
        "server.port",
        "HERMES_SERVER_PORT API_SERVER_PORT",
        integer(0, 65_535),
        8642,
        audience="anyone",
        reason="the port is taken, or a second installation runs here; the API cannot start then without it.",
    )
    """TCP port to listen on; 0 takes a free one."""
    key: Secret | None = declare_setting(  # noqa: RUF009 - a field
        "server.key",
        "HERMES_SERVER_KEY API_SERVER_KEY",
        SERVER_KEY,
        audience="anyone",
        reason="the API listens beyond this machine; it refuses to start without it.",
    )
    """Bearer token that clients must send. Not set: the content of `api.key` in the home directory, which the API makes
    when it first starts."""

    previous_keys: tuple[Secret, ...] = declare_setting(
        "server.previous_keys",
        "HERMES_SERVER_PREVIOUS_KEYS",
        SECRETS,
        (),
        audience="operator",
        reason="the key was changed; secrets of webhook routes cannot be read again without it.",
    )
    """Earlier keys. They give no access. They only decrypt secrets of webhook routes, which are encrypted with the new
    key when an API starts."""

    drain_s: float = declare_setting(
        "server.drain_s",
        "HERMES_SERVER_DRAIN_S",
        number(0, 3600, "seconds"),
        0.0,
        audience="operator",
        reason="a load balancer needs time to notice a stop; requests fail during a rollout without it.",
    )
    """Seconds for which an API that is told to stop still takes requests, while `GET /health/ready` answers 503. Load
    balancers get that long to notice. A second signal ends it."""
    cors_origins: tuple[str, ...] = declare_setting(
        "server.cors_origins",
        "HERMES_SERVER_CORS_ORIGINS API_SERVER_CORS_ORIGINS",
        list_of_names(r"https?://[a-z0-9.-]{1,253}(:\d{1,5})?", "origins such as https://chat.example.org"),
        (),
        audience="operator",
        reason="a web page of yours calls the API; browsers refuse the answers without it.",
    )
    """Origins of web pages that may talk to the API, with a key. Not set: no page may."""
    page: bool = declare_setting(
        "server.page",
        "HERMES_SERVER_PAGE",
        SWITCH,
        True,
        audience="security",
        reason="people must not use the page; it is served at / without it.",
    )
    """Whether the API serves the page for people at `/`."""
    page_hosts: tuple[str, ...] = declare_setting(
        "server.page_hosts",
        "HERMES_SERVER_PAGE_HOSTS",
        list_of_names(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", "host names such as hermes.example.org"),
        (),
        audience="operator",
        reason="people open the page by a name behind a proxy; it is refused without it.",
    )
    """Host names under which browsers may open the page, without a port. `localhost`, addresses and `server.host` are
    always good. Any other name is refused: a stranger's name may lead here."""
    tls_certificate: Path | None = declare_setting(  # noqa: RUF009 - a field
        "server.tls_certificate",
        "HERMES_SERVER_TLS_CERTIFICATE",
        FILE,
        audience="operator",
        reason="no proxy in front speaks TLS; keys and texts travel in clear without it.",
    )
    """File with the API's certificate and those between it and the authority (PEM): the API then speaks HTTPS. Not set:
    HTTP, for this machine or behind a proxy that speaks TLS."""
    tls_key: Path | None = declare_setting(  # noqa: RUF009 - a field
        "server.tls_key",
        "HERMES_SERVER_TLS_KEY",
        FILE,
        audience="operator",
        reason="the private key is not in the certificate's file; TLS cannot begin without it.",
    )
    """File with the certificate's private key. Not set: it is in the same file."""
    tls_client_ca: Path | None = declare_setting(  # noqa: RUF009 - a field
        "server.tls_client_ca",
        "HERMES_SERVER_TLS_CLIENT_CA",
        FILE,
        audience="security",
        reason="clients must show a certificate; a key alone is enough without it.",
    )
    """File with the authorities whose certificates clients must show, beside their key. Not set: none."""
    embeddings_url: str | None = declare_setting(
        "server.embeddings_url",
        "HERMES_EMBEDDINGS_URL",
        WEB_URL,
        audience="operator",
        reason="clients ask for embeddings; they are refused without it.",
    )
    """Where `/v1/embeddings` is passed on to: a service with OpenAI's `/embeddings`, such as
    `https://api.openai.com/v1`. What it costs is in no budget of ours."""
    embeddings_key: Secret | None = declare_setting(  # noqa: RUF009 - a field
        "server.embeddings_key",
        "HERMES_EMBEDDINGS_API_KEY",
        SECRET,
        audience="operator",
        reason="the embeddings service needs a key; it refuses requests without it.",
    )
    """Key of that service, for the API alone."""

    @property
    def scheme(self) -> str:
        """The scheme of the API's address: ``http`` or ``https``."""
        return "http" if self.tls_certificate is None else "https"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host)
