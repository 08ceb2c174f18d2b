"""Whatever the API lets people change leaves a row in the audit log that says who did it, and from where."""

from __future__ import annotations

from collections.abc import Sequence

import httpx
import pytest
from serving import Served
from support.patience import PATIENCE_S
from support.samples import sample_seeds
from support.store import Store
from test_tenants import Operation, Side, client, guest, host, one_of_each, operations, tenants  # noqa: F401  (fixtures)

from hermes_worker.api import auth
from hermes_worker.core.principals import KeyScope
from hermes_worker.store.access.audit import AuditLog, AuditRow
from hermes_worker.store.access.principals import Tenants

CHANGES_NOTHING = frozenset(
    {
        "POST /v1/responses/{response_id}/cancel",  # the one here has ended
        "POST /v1/batch/stop",  # nothing has its tag
        "DELETE /v1/page/login",  # who sends a key has no login
        "POST /v1/webhook-routes/{name}/signature",
        "POST /v1/exports",
        "POST /v1/erasures/foretold",
        "POST /v1/erasures/{receipt_id}/work",  # what was begun, and recorded
    }
)
"""Operations that are no GET and change nothing here."""


@pytest.mark.parametrize("turn", sample_seeds(1, 4))
def test_every_operation_that_changes_something_is_recorded(
    api: Served,
    guest: Side,  # noqa: F811
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    turn: int,
) -> None:
    """Each fourth operation by day, the others at night."""
    monkeypatch.setattr(auth, "REMEMBERED_S", 3_600.0)  # one of the operations revokes the key that asks
    log = AuditLog(api.client.database)
    who = next(row.actor for row in log.list_actions("acme") if row.act == "run.submit")
    tried, unrecorded = 0, []

    def ask(operation: Operation) -> tuple[bool, Sequence[AuditRow]]:
        """Whether it was done, and what was recorded of it."""
        seen = log.list_actions("acme", newest_first=True, limit=1)[0].number
        is_done = operation.ask(guest.http, ids).status_code < 400
        return is_done, log.list_actions("acme", after=seen)

    ids = guest.ids
    changing = [each for each in operations(api) if each.method != "GET"]
    for operation in changing[turn::4]:
        if f"{operation.method} {operation.path}" in CHANGES_NOTHING:
            continue
        is_done, rows = ask(operation)
        if not is_done or not rows:
            ids = guest.ids | one_of_each(guest.http, store)  # others may have ended what there was
            is_done, rows = ask(operation)
        if not is_done:
            continue
        tried += 1
        if not rows:
            unrecorded.append(f"{operation.method} {operation.path}")
            continue
        assert {(row.actor, row.address) for row in rows} == {(who, "127.0.0.1")}, operation
    assert not unrecorded, f"{unrecorded}: call store.access.audit.record_action where it is written"
    assert tried > 3


def test_the_log_is_for_administrators_of_its_tenant(
    api: Served,
    guest: Side,  # noqa: F811
    tenants: Tenants,  # noqa: F811
) -> None:
    page = guest.http.get("/v1/audit", params={"limit": 1}).json()
    assert page["has_more"] is True
    [deed] = page["data"]
    assert (deed["act"], deed["address"]) == ("run.submit", "127.0.0.1")
    behind = guest.http.get("/v1/audit", params={"after": deed["number"], "act": "job.create"}).json()["data"]
    assert [each["act"] for each in behind] == ["job.create"]
    assert api.http.get("/v1/audit").json()["data"] == []
    numbers = [each["number"] for each in guest.http.get("/v1/audit").json()["data"]]
    newest = guest.http.get("/v1/audit", params={"newest_first": True, "limit": 2}).json()
    assert [each["number"] for each in newest["data"]] == numbers[:-3:-1]
    earlier = guest.http.get("/v1/audit", params={"newest_first": True, "before": numbers[-2]}).json()
    assert [each["number"] for each in earlier["data"]] == numbers[-3::-1]
    assert not earlier["has_more"]
    key = tenants.create_key("acme", "reader", [KeyScope.RUNS_READ]).token
    refused = httpx.get(
        f"{api.url}/v1/audit", headers={"Authorization": f"Bearer {key}"}, verify=False, timeout=PATIENCE_S
    )
    assert refused.status_code == 403
