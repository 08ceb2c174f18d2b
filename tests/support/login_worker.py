"""A worker process that does nothing but ask for the access token of a login.

    python login_worker.py DATABASE_URL TOKEN_URL [FAULT]

Waits for a line on its input, prints the token it got and how many exchanges that took, or what was wrong. ``FAULT`` is
armed as HERMES_FAULTS would be.
"""

from __future__ import annotations

import sys

from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.errors import ModelCallError
from hermes_worker.core.logins import Login
from hermes_worker.models.logins import LoginTokens, exchange_over
from hermes_worker.store.access.logins import Logins
from hermes_worker.store.engine.database import Database
from hermes_worker.system import faults
from support.token_server import TokenServer


def main(database_url: str, token_url: str, fault: str = "") -> None:
    faults.arm_faults(fault)
    login = Login(token_url=token_url, refresh_token=TokenServer.SEED)
    grants = LoginTokens(Logins(Database(database_url)), exchange_over())
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        grant = grants.get_token(login, AbortSignal())
        print(grant.access_token, grant.version, flush=True)
    except ModelCallError as error:
        print(error.kind.value, error.message, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
