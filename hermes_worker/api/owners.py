"""Check who owns the thing that a path names: one of another tenant is answered as one that does not exist.

A route takes an id of its path as one of these types, and so only gets ids of its caller's tenant. The store is asked
once, here: ids never change their owner, so later reads need no look at the tenant.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query

from hermes_worker.api.auth import Caller
from hermes_worker.api.context import Context
from hermes_worker.api.errors import ApiError, tenant_not_found
from hermes_worker.api.formats import TENANT_FORM
from hermes_worker.core.principals import DEFAULT_TENANT, KeyScope, Principal
from hermes_worker.store.access.principals import TenantNotFound
from hermes_worker.store.sessions import Sessions


async def require_own_run(context: Context, caller: Caller, run_id: str) -> str:
    """Require that the run is the caller's. Raises ``RunNotFound``, ``RunDeleted``."""
    return await context.call_store(context.tenants.require_run, caller.tenant, run_id)


async def require_own_delivery(context: Context, caller: Caller, delivery_id: str) -> str:
    """Require that the delivery is the caller's. Raises ``DeliveryNotFound``."""
    return await context.call_store(context.tenants.require_delivery, caller.tenant, delivery_id)


async def require_own_session(context: Context, caller: Caller, session_id: str) -> str:
    """Require that the session is the caller's. Raises ``SessionNotFound``."""
    await context.call_store(Sessions(context.client.database, caller.tenant, caller.source).require, session_id)
    return session_id


async def choose_tenant(
    context: Context,
    caller: Caller,
    tenant: Annotated[
        str | None, Query(pattern=TENANT_FORM, description="Whose things are meant; only operators may name others.")
    ] = None,
) -> str:
    """Choose the tenant that a request is about. Only operators may name another tenant; for other callers it does not
    exist. Raises ``ApiError``."""
    return await _require_visible_tenant(context, caller, tenant or caller.tenant)


async def _require_visible_tenant(context: Context, caller: Principal, wanted: str) -> str:
    try:
        if wanted != caller.tenant and not caller.is_of_operators:
            raise TenantNotFound(wanted)
        return await context.call_store(context.tenants.require_tenant, wanted)
    except TenantNotFound:
        raise tenant_not_found(wanted) from None


async def choose_listed_tenant(context: Context, caller: Principal, tenant: str | None) -> str:
    """Choose the tenant whose rows a list shows: the caller's, or another one for an operator with an administrator's
    key. For other callers that tenant does not exist. Raises ``ApiError``."""
    if tenant is None or tenant == caller.tenant:
        return caller.tenant
    wanted = await _require_visible_tenant(context, caller, tenant)
    if not caller.has_scope(KeyScope.ADMIN):
        message = f"To see what is another tenant's, a key of operators needs the scope {KeyScope.ADMIN.value!r}."
        raise ApiError(403, message, code="missing_scope", param="tenant")
    return wanted


def choose_tenant_or_all(caller: Principal, *, all_tenants: bool) -> str | None:
    """Choose the tenant whose rows a list shows: the caller's, or ``None`` for all tenants, which only operators with
    an administrator's key may ask for: a key that may read the default tenant's runs shows nothing of others. Raises
    ``ApiError``."""
    if all_tenants and not (caller.is_of_operators and caller.has_scope(KeyScope.ADMIN)):
        message = (
            f"'all_tenants' is about the whole installation: it needs a key of the tenant {DEFAULT_TENANT!r} with the "
            f"scope {KeyScope.ADMIN.value!r}."
        )
        raise ApiError(403, message, code="missing_scope", param="all_tenants")
    return None if all_tenants else caller.tenant


ActsFor = Annotated[str, Depends(choose_tenant)]
OwnRun = Annotated[str, Depends(require_own_run)]
OwnDelivery = Annotated[str, Depends(require_own_delivery)]
OwnSession = Annotated[str, Depends(require_own_session)]
"""The id of a session of the caller's tenant, or the name that a caller of the API gave it."""
