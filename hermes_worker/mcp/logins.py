"""The login of an MCP server: a secret setting that a sign-in left, and the access tokens that come of it.

The setting holds the refresh token that a person got. What it is exchanged for stands in the rows of ``logins``,
encrypted, and is renewed by one worker for all of them (``models.logins``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pydantic import BaseModel, Field, ValidationError

from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.errors import ConfigurationError, ModelCallError
from hermes_worker.core.logins import Answer, Grant, Login
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.mcp.protocol import McpRefusal
from hermes_worker.mcp.servers import name_credentials_variable
from hermes_worker.mcp.sign_in import SignInResult, make_exchange
from hermes_worker.net.urls import UrlPolicy


class LoginTokenSource(Protocol):
    """Supplies access tokens. Implemented by ``models.logins.LoginTokens``."""

    def get_token(self, login: Login, abort: AbortSignal) -> Grant: ...

    def renew_token(self, login: Login, refused: int, abort: AbortSignal) -> Grant: ...


GrantsMaker = Callable[[Callable[[Login, str], Answer]], LoginTokenSource]
"""Makes the grants, given the function that sends a refresh token."""


class ServerLogin(BaseModel, frozen=True, extra="forbid", hide_input_in_errors=True):
    """The login as it stands in ``HERMES_MCP_SERVER_CREDENTIALS``."""

    token_url: str = Field(max_length=2_000, pattern=r"^https?://[^@\s]+$")
    refresh_token: str = Field(min_length=1, max_length=20_000, repr=False)
    client_id: str = Field(default="", max_length=2_000)
    client_secret: str = Field(default="", max_length=2_000, repr=False)
    sends_basic: bool = False
    resource: str = Field(default="", max_length=2_000)
    allows_private: bool = False
    """Whether the server was in the local network, so that its token server may be too."""

    def build_login(self, server: str) -> Login:
        """The refresh token to exchange, by the rules for all logins."""
        facts = self.model_dump(exclude={"allows_private"})
        return Login(**facts, sign_in=f"sign in again: hermes-worker mcp login {server}")


def render_login(signed_in: SignInResult) -> str | None:
    """The document to keep of a sign-in; ``None`` when it brought no refresh token. One line without single quotes."""
    refresh_token = signed_in.granted.refresh_token
    if refresh_token is None:
        return None
    kept = ServerLogin(
        token_url=signed_in.token_url,
        refresh_token=refresh_token,
        client_id=signed_in.client.client_id,
        client_secret=signed_in.client.client_secret,
        sends_basic=signed_in.client.sends_basic,
        resource=signed_in.resource,
        allows_private=signed_in.policy.allows_private,
    )
    return dump_canonical_json(kept.model_dump(exclude_defaults=True)).replace("'", "\\u0027")


def parse_login(server: str, text: str) -> ServerLogin:
    """Parse a kept login. Raises ``ConfigurationError``, which shows nothing of the text."""
    try:
        return ServerLogin.model_validate_json(text)
    except ValidationError:
        raise ConfigurationError(
            f"{name_credentials_variable(server)} is not what 'hermes-worker mcp login {server}' wrote: run it again"
        ) from None


class LoginBearers:
    """The login of one server, for the calls of this process. Thread-safe."""

    def __init__(self, server: str, found: ServerLogin, grants: GrantsMaker) -> None:
        self._login = found.build_login(server)
        self._grants = grants(make_exchange(UrlPolicy(allows_private=found.allows_private)))

    def make_bearer(self) -> LoginBearer:
        """Make the bearer for one call."""
        return LoginBearer(self._login, self._grants)


class LoginBearer:
    """The access token of one call: it remembers which one it used, so that a refusal is about that one."""

    def __init__(self, login: Login, grants: LoginTokenSource) -> None:
        self._login = login
        self._grants = grants
        self._used = 0

    def get_token(self) -> str:
        """The token, renewed before if its time is over. Raises ``McpRefusal``: nothing was asked of the server."""
        return self._get_access_token(lambda: self._grants.get_token(self._login, AbortSignal()))

    def get_newer_token(self) -> str:
        """Another token than the server just refused. Raises ``McpRefusal``."""
        return self._get_access_token(lambda: self._grants.renew_token(self._login, self._used, AbortSignal()))

    def _get_access_token(self, work: Callable[[], Grant]) -> str:
        try:
            grant = work()
        except ModelCallError as error:
            raise McpRefusal(str(error)) from None
        self._used = grant.version
        return grant.access_token
