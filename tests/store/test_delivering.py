"""The outbox end to end: a run ends, rows are due, a worker sends to real servers, whatever happens is written down."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.smtp_server import SmtpServer, smtp_server
from support.store import EMPTY, Store

from hermes_worker.channels.dispatcher import Dispatcher
from hermes_worker.channels.errors import DUPLICATE_REMARK
from hermes_worker.channels.files import FileGone, FileOutbox, read_judged_file
from hermes_worker.channels.media import MediaFile
from hermes_worker.channels.signature import SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from hermes_worker.core import events as ev
from hermes_worker.core.delivery_states import DeliveryState
from hermes_worker.core.effects import SendDelivery
from hermes_worker.core.errors import Failure
from hermes_worker.core.messages import ModelReply
from hermes_worker.core.run import ExitReason
from hermes_worker.core.spec import Multitask
from hermes_worker.store.outbox.deliveries import Deliveries, DeliveryBusy, DeliveryView, enqueue_deliveries
from hermes_worker.store.rows import Hint
from hermes_worker.store.tables import deliveries, runs
from hermes_worker.store.workers import Registration
from hermes_worker.system import faults
from hermes_worker.tasks.deliver import DeliveryContext, deliver
from hermes_worker.tasks.leases import Leases
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef

IDLE = {**EMPTY, "delivery": 0}


class Sink:
    """An HTTP server that keeps requests and answers them from a script: a status, or ``None`` to hang up."""

    def __init__(self) -> None:
        self.received: list[tuple[str, dict[str, str], bytes]] = []
        self.script: deque[tuple[int | None, dict[str, str]]] = deque()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                sink.received.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                status, headers = sink.script.popleft() if sink.script else (200, {})
                if status is None:
                    return
                answer = b'{"ok": true, "id": "m1", "result": {"message_id": 7}, "ts": "1.2", "channel": "C1"}'
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def do_GET(self) -> None:
                self.send_response(200 if self.path in sink.files else 302 if self.path.startswith("/moved/") else 404)
                self.send_header("Location", self.path.removeprefix("/moved"))
                self.send_header("Content-Length", str(len(sink.files.get(self.path, b""))))
                self.end_headers()
                self.wfile.write(sink.files.get(self.path, b""))

            def log_message(self, format: str, *arguments: object) -> None:
                """Quiet."""

        self.files: dict[str, bytes] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def then(self, status: int | None, **headers: str) -> None:
        self.script.append((status, headers))

    def texts(self) -> list[str]:
        return [json.loads(body)["text"] for _, _, body in self.received]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def sink() -> Iterator[Sink]:
    server = Sink()
    yield server
    server.close()


@pytest.fixture
def mailbox() -> Iterator[SmtpServer]:
    with smtp_server() as server:
        yield server


class Sent:
    """A publisher that keeps what it is given."""

    def __init__(self) -> None:
        self.hints: list[Hint] = []

    def send(self, hints: Any) -> int:
        self.hints += hints
        return len(hints)

    def count_waiting(self) -> dict[str, int]:
        return dict(IDLE)


class Office:
    """One worker of the delivery queue."""

    def __init__(
        self,
        store: Store,
        directory: Path,
        values: dict[str, str],
        *,
        allows_private: bool = True,
        channels: Sequence[str] = (),
    ) -> None:
        self.store = store
        self.outbox = Deliveries(store.database)
        self.directory = directory
        leases = Leases(store.workers, name="dispatcher", queues="delivery", ttl_s=1e6)
        leases.register()
        self.parts = DeliveryContext(
            outbox=self.outbox,
            views=store.views,
            dispatcher=Dispatcher(values=values, directory=directory, allows_private=allows_private, channels=channels),
            sender=Sent(),
            leases=leases,
        )

    def work(self) -> None:
        """Deliver everything that is due."""
        with self.store.database.read() as connection:
            due = connection.execute(sa.select(deliveries).where(deliveries.c.hinted_at.is_not(None))).all()
        for row in due:
            effect = SendDelivery(run_id="", delivery_id=row.delivery_id, attempt=row.attempts + 1)
            deliver(self.parts, effect, row.hinted_at)

    def wait_over(self) -> None:
        """As if every delay had passed, and the sweeper come round."""
        with self.store.database.write() as connection:
            connection.execute(sa.update(deliveries).where(deliveries.c.not_before.is_not(None)).values(not_before=1.0))
        self.store.sweep(IDLE)

    @property
    def all(self) -> list[DeliveryView]:
        return self.outbox.list()

    @property
    def only(self) -> DeliveryView:
        (view,) = self.all
        return view


def office(store: Store, tmp_path: Path, **more: Any) -> Office:
    values = more.pop("values", {})
    return Office(store, tmp_path / "output", values, **more)


def test_a_run_that_ends_is_delivered_to_a_file(store: Store, tmp_path: Path) -> None:
    run_id = store.submit(deliver=["local"]).run_id
    here = office(store, tmp_path)
    assert here.all == []
    hints = store.answer(run_id, ModelReply(text="All is well."))
    assert [hint.effect.kind for hint in hints] == ["send_delivery"]
    here.work()
    assert here.only.state is DeliveryState.DELIVERED
    path = Path(here.only.receipt or "")
    assert path.read_text() == "All is well."
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("how", ["stop", "break", "expire"])
def test_a_failure_is_delivered_however_the_run_ended(store: Store, tmp_path: Path, how: str) -> None:
    created = store.submit(deliver=["local"], wall_s_max=5.0)
    if how == "stop":
        store.runs.request_stop(created.run_id)
    elif how == "break":
        failure = Failure(kind="internal_error", message="KeyError: boom")
        store.runs.end_broken(created.run_id, ev.RunBroken(reason=ExitReason.INTERNAL_ERROR, failure=failure))
    else:
        store.let_pass(10.0)
        store.sweep(IDLE)
    here = office(store, tmp_path)
    here.work()
    assert here.only.state is DeliveryState.DELIVERED
    assert created.run_id in Path(here.only.receipt or "").read_text()


def test_what_a_run_says_on_the_way_is_sent_as_it_is(store: Store, tmp_path: Path) -> None:
    created = store.submit()
    with store.database.write() as connection:
        run_pk = connection.execute(sa.select(runs.c.pk)).scalar_one()
        enqueue_deliveries(connection, ["local"], run=(run_pk, created.run_id), body="May I do this?")
    here = office(store, tmp_path)
    here.work()
    assert Path(here.only.receipt or "").read_text() == "May I do this?"


def test_nobody_passes_a_run_off_as_a_job_s(store: Store, tmp_path: Path) -> None:
    claims = {"job_id": "0123456789ab", "job_name": "News"}
    run_id = store.submit(deliver=["local"], source="api", metadata=claims).run_id
    store.answer(run_id, ModelReply(text="planted"))
    here = office(store, tmp_path)
    here.work()
    assert Path(here.only.receipt or "").name == f"{run_id}.md"


def test_a_webhook_is_signed_and_says_which_run(store: Store, tmp_path: Path, sink: Sink) -> None:
    run_id = store.submit(deliver=[f"webhook:{sink.url}/hook?a=1"]).run_id
    store.answer(run_id, ModelReply(text="Ready; key sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"))
    here = office(store, tmp_path, values={"WEBHOOK_DELIVERY_SECRET": "s3cret-s3cret"})
    here.work()
    ((path, headers, body),) = sink.received
    document = json.loads(body)
    assert path == "/hook?a=1"
    assert document["run"] == {"id": run_id, "status": "completed", "session_id": run_id}
    assert "abcdefghijklmnopqrstuvwxyz" not in document["text"]
    from datetime import UTC, datetime

    at = datetime.fromtimestamp(int(headers[TIMESTAMP_HEADER.lower()]), UTC)
    assert headers[SIGNATURE_HEADER.lower()] == sign(body, "s3cret-s3cret", at)[SIGNATURE_HEADER]
    assert here.only.receipt == "m1"


def test_a_webhook_to_a_private_address_is_refused_unless_allowed(store: Store, tmp_path: Path, sink: Sink) -> None:
    run_id = store.submit(deliver=[f"webhook:{sink.url}/hook"]).run_id
    store.answer(run_id)
    here = office(store, tmp_path, allows_private=False)
    here.work()
    assert here.only.state is DeliveryState.FAILED
    assert "not a public address" in (here.only.error or "")
    assert sink.received == []


def test_a_redirect_is_not_followed(store: Store, tmp_path: Path, sink: Sink) -> None:
    store.answer(store.submit(deliver=[f"webhook:{sink.url}/hook"]).run_id)
    sink.then(302, Location="http://169.254.169.254/latest/")
    here = office(store, tmp_path)
    here.work()
    assert here.only.state is DeliveryState.FAILED
    assert len(sink.received) == 1


def test_a_server_that_says_later_is_asked_later(store: Store, tmp_path: Path, sink: Sink) -> None:
    store.answer(store.submit(deliver=[f"webhook:{sink.url}/hook"]).run_id)
    sink.then(429, **{"Retry-After": "30"})
    here = office(store, tmp_path)
    here.work()
    assert here.only.state is DeliveryState.PENDING
    assert 29 < (here.only.not_before or 0) - store.database.read_clock() < 32
    store.sweep(IDLE)
    here.work()
    assert len(sink.received) == 1
    here.wait_over()
    here.work()
    assert here.only.state is DeliveryState.DELIVERED
    first, second = (json.loads(body)["id"] for _, _, body in sink.received)
    assert first == second


def test_a_server_that_stays_down_is_given_up_on_and_can_be_tried_again(
    store: Store, tmp_path: Path, sink: Sink
) -> None:
    store.answer(store.submit(deliver=[f"webhook:{sink.url}/hook"]).run_id)
    here = office(store, tmp_path)
    for _ in range(6):
        sink.then(503)
        here.work()
        here.wait_over()
    assert here.only.state is DeliveryState.ABANDONED
    assert len(sink.received) == 6
    here.outbox.retry(here.only.delivery_id)
    with pytest.raises(DeliveryBusy):
        here.outbox.retry(here.only.delivery_id)
    here.work()
    assert here.only.state is DeliveryState.DELIVERED


@pytest.mark.parametrize(("target", "is_marked"), [("telegram:123", True), ("webhook", False)])
def test_an_unanswered_message_is_repeated_with_a_remark_unless_the_target_knows_repetitions(
    store: Store, tmp_path: Path, sink: Sink, target: str, is_marked: bool
) -> None:
    store.answer(store.submit(deliver=[target if ":" in target else f"webhook:{sink.url}/hook"]).run_id)
    here = office(store, tmp_path, values={"TELEGRAM_BOT_TOKEN": "1:abc", "TELEGRAM_BASE_URL": sink.url})
    sink.then(None)
    here.work()
    assert here.only.is_in_doubt
    assert here.only.error_kind == "ambiguous"
    here.wait_over()
    here.work()
    assert here.only.state is DeliveryState.DELIVERED
    first, second = sink.texts()
    assert "duplicate" not in first
    assert ("duplicate" in second) is is_marked


def test_a_delivery_whose_worker_vanished_is_sent_again_with_a_remark(
    store: Store, tmp_path: Path, mailbox: SmtpServer
) -> None:
    store.answer(store.submit(deliver=["email:me@example.org"]).run_id, ModelReply(text="Hello"))
    here = office(store, tmp_path, values=mail_values(mailbox))
    (view,) = here.all
    gone = store.worker("gone")
    claim = here.outbox.claim(SendDelivery(run_id="", delivery_id=view.delivery_id, attempt=1), gone.pk)
    assert claim is not None
    store.workers.retire(gone)
    store.sweep(IDLE)
    here.wait_over()
    here.work()
    assert here.only.state is DeliveryState.DELIVERED
    assert here.only.attempts == 2
    assert mailbox.text().startswith(DUPLICATE_REMARK)


def mail_values(mailbox: SmtpServer) -> dict[str, str]:
    return {
        "EMAIL_SMTP_HOST": "127.0.0.1",
        "EMAIL_SMTP_PORT": str(mailbox.port),
        "EMAIL_ADDRESS": "hermes@example.org",
    }


@pytest.mark.parametrize(
    ("reply", "state", "mails"),
    [
        ("", DeliveryState.DELIVERED, 1),
        ("450 4.2.0 come back later", DeliveryState.PENDING, 0),
        ("550 5.1.1 no such user", DeliveryState.FAILED, 0),
        ("drop", DeliveryState.PENDING, 1),
    ],
)
def test_a_mail_is_taken_deferred_refused_or_in_doubt(
    store: Store, tmp_path: Path, mailbox: SmtpServer, reply: str, state: DeliveryState, mails: int
) -> None:
    store.answer(store.submit(deliver=["email:me@example.org"]).run_id, ModelReply(text="Dear all\n.\nBye"))
    here = office(store, tmp_path, values=mail_values(mailbox))
    mailbox.next_replies.append(reply)
    here.work()
    assert here.only.state is state
    assert here.only.is_in_doubt is (reply == "drop")
    assert len(mailbox.mails) == mails
    if mails:
        assert mailbox.text().split() == ["Dear", "all", ".", "Bye"]


def test_a_password_is_not_sent_without_tls(tmp_path: Path) -> None:
    from hermes_worker.channels.smtp import choose_tls
    from hermes_worker.settings.server import is_loopback

    assert not is_loopback("mail.example.org")
    assert not is_loopback("10.0.0.1")
    assert choose_tls("", 465).value == "implicit"


def test_a_long_answer_goes_on_at_the_part_that_failed(store: Store, tmp_path: Path, sink: Sink) -> None:
    answer = "\n".join(f"line {number} " + "x" * 60 for number in range(160))
    store.answer(store.submit(deliver=["telegram:123"]).run_id, ModelReply(text=answer))
    here = office(store, tmp_path, values={"TELEGRAM_BOT_TOKEN": "1:abc", "TELEGRAM_BASE_URL": sink.url})
    sink.then(200)
    sink.then(503)
    here.work()
    assert here.only.state is DeliveryState.PENDING
    here.wait_over()
    here.work()
    assert here.only.state is DeliveryState.DELIVERED
    texts = sink.texts()
    assert texts[1] == texts[2]
    assert [text.rpartition("(")[2] for text in texts] == ["1/3)", "2/3)", "2/3)", "3/3)"]


def test_one_failing_target_does_not_stop_the_others(store: Store, tmp_path: Path, sink: Sink) -> None:
    targets = ["slack:C0123456", "telegram:1", "ntfy:topic", "discord:42", "local", "signal"]
    store.answer(store.submit(deliver=targets).run_id)
    values = {
        "TELEGRAM_BOT_TOKEN": "1:abc",
        "TELEGRAM_BASE_URL": sink.url,
        "NTFY_SERVER_URL": sink.url,
        "SLACK_BOT_TOKEN": "xoxb-1",
        "SLACK_BASE_URL": sink.url,
    }
    here = office(store, tmp_path, values=values)
    here.work()
    states = {view.target: view.state for view in here.all}
    assert states == {
        "slack:C0123456": DeliveryState.DELIVERED,
        "telegram:1": DeliveryState.DELIVERED,
        "ntfy:topic": DeliveryState.DELIVERED,
        "discord:42": DeliveryState.FAILED,
        "local": DeliveryState.DELIVERED,
        "signal": DeliveryState.FAILED,
    }
    assert "DISCORD_BOT_TOKEN" in next(v.error or "" for v in here.all if v.target == "discord:42")


def test_all_becomes_one_delivery_per_home_channel(store: Store, tmp_path: Path, sink: Sink) -> None:
    store.answer(store.submit(deliver=["all", "telegram:7"]).run_id)
    values = {
        "TELEGRAM_BOT_TOKEN": "1:abc",
        "TELEGRAM_BASE_URL": sink.url,
        "TELEGRAM_HOME_CHANNEL": "7",
        "NTFY_SERVER_URL": sink.url,
        "NTFY_HOME_CHANNEL": "alerts",
    }
    here = office(store, tmp_path, values=values)
    here.work()
    here.work()
    assert sorted(view.target for view in here.all) == ["ntfy:alerts", "telegram:7"]
    assert {view.state for view in here.all} == {DeliveryState.DELIVERED}
    assert len(sink.received) == 2


def test_a_chat_that_is_meant_twice_is_sent_to_once(store: Store, tmp_path: Path, sink: Sink) -> None:
    store.answer(store.submit(deliver=["all", "origin", "telegram", "telegram:7", "ntfy"]).run_id)
    values = {
        "TELEGRAM_BOT_TOKEN": "1:abc",
        "TELEGRAM_BASE_URL": sink.url,
        "TELEGRAM_HOME_CHANNEL": "7",
        "NTFY_SERVER_URL": sink.url,
        "NTFY_HOME_CHANNEL": "alerts",
    }
    here = office(store, tmp_path, values=values)
    here.work()
    here.work()
    assert {view.state for view in here.all} == {DeliveryState.DELIVERED}
    assert len(sink.received) == 2
    receipts = {view.target: view.receipt for view in here.all if view.target in ("origin", "telegram")}
    assert set(receipts.values()) <= {"sent as 'telegram:7'", "sent as 'origin'"}
    again = next(view for view in here.all if view.target == "telegram")
    here.outbox.retry(again.delivery_id)
    here.work()
    assert len(sink.received) == 3


def test_a_late_worker_cannot_settle_what_was_taken_from_it(store: Store, tmp_path: Path) -> None:
    from hermes_worker.core.errors import LeaseLost

    store.answer(store.submit(deliver=["local"]).run_id)
    here = office(store, tmp_path)
    slow = store.worker("slow")
    effect = SendDelivery(run_id="", delivery_id=here.only.delivery_id, attempt=1)
    claim = here.outbox.claim(effect, slow.pk)
    assert claim is not None
    assert here.outbox.claim(effect, slow.pk) is None
    store.workers.retire(slow)
    store.sweep(IDLE)
    here.wait_over()
    here.work()
    with pytest.raises(LeaseLost):
        here.outbox.settle_failed(claim, Failure(kind="transient", message="late"), is_abandoned=True)
    assert here.only.state is DeliveryState.DELIVERED


def test_a_worker_that_was_frozen_under_its_claim_sends_nothing(store: Store, tmp_path: Path, sink: Sink) -> None:
    store.answer(store.submit(deliver=[f"webhook:{sink.url}"]).run_id)
    here = office(store, tmp_path)
    frozen = Leases(store.workers, name="frozen", queues="delivery", ttl_s=0.2)
    here.parts = replace(here.parts, leases=frozen)
    faults.arm_faults("deliver.after_claim=stall:0.3")  # longer than its lease, which nothing renews
    try:
        here.work()
    finally:
        faults.disarm_faults()
    assert sink.received == []
    assert here.only.state is DeliveryState.PENDING
    here.parts = replace(here.parts, leases=office(store, tmp_path).parts.leases)
    here.wait_over()
    here.work()
    assert (here.only.state, len(sink.received)) == (DeliveryState.DELIVERED, 1)


def test_a_lost_message_is_sent_again_and_a_backlog_is_not(store: Store, tmp_path: Path) -> None:
    store.answer(store.submit(deliver=["local"]).run_id)
    here = office(store, tmp_path)
    store.let_pass(20.0)
    full = store.sweep({**EMPTY, "delivery": 1000})
    assert full.hints == ()
    swept = store.sweep(IDLE)
    assert [hint.effect for hint in swept.hints] == [
        SendDelivery(run_id=here.only.delivery_id, delivery_id=here.only.delivery_id, attempt=1)
    ]


def take(here: Office, worker: Registration, attempt: int, *, is_suspect: bool) -> None:
    delivery_id = here.only.delivery_id
    effect = SendDelivery(run_id="", delivery_id=delivery_id, attempt=attempt, is_suspect=is_suspect)
    other = replace(effect, is_suspect=not is_suspect)
    assert here.outbox.claim(other, worker.pk) is None, "a suspect is claimed apart only, and nothing else is"
    assert here.outbox.claim(effect, worker.pk) is not None


def test_a_delivery_that_kills_its_lanes_is_abandoned(store: Store, tmp_path: Path) -> None:
    store.answer(store.submit(deliver=["local"]).run_id)
    here = office(store, tmp_path)
    for attempt in (1, 2, 3, 4):
        assert here.only.state is DeliveryState.PENDING
        worker = store.worker(f"w{attempt}")
        take(here, worker, attempt, is_suspect=attempt > 1)
        if attempt == 1:
            store.vanish(worker)
        else:
            store.crash(worker)
        store.sweep(IDLE)
        store.let_pass(10)
        swept = store.sweep(IDLE)
    assert here.only.state is DeliveryState.ABANDONED
    assert here.only.error is not None and "3 times" in here.only.error
    assert swept.hints == ()


def test_a_delivery_whose_workers_die_of_something_else_is_never_abandoned_for_it(store: Store, tmp_path: Path) -> None:
    store.answer(store.submit(deliver=["local"]).run_id)
    here = office(store, tmp_path)
    for attempt in range(1, 12):
        worker = store.worker(f"w{attempt}")
        take(here, worker, attempt, is_suspect=attempt > 5)
        if attempt < 5:
            store.workers.retire(worker)
        else:
            store.vanish(worker)
        store.sweep(IDLE)
        store.let_pass(400)
        [hint] = store.sweep(IDLE).hints
        assert isinstance(hint.effect, SendDelivery)
        assert hint.effect.is_suspect == (attempt >= 5)
    assert here.only.state is DeliveryState.PENDING


def test_a_delivery_that_meets_a_defect_again_and_again_is_abandoned(store: Store, tmp_path: Path) -> None:
    store.answer(store.submit(deliver=["local"]).run_id)
    here = office(store, tmp_path)
    for attempt in range(1, 7):
        worker = store.worker(f"w{attempt}")
        take(here, worker, attempt, is_suspect=False)
        store.let_pass(10)
        store.workers.release_stray_claims(worker, except_for=(), older_than_s=5)
        store.sweep(IDLE)
        here.wait_over()
    assert here.only.state is DeliveryState.ABANDONED


@pytest.mark.parametrize("text", ["*(silent)*", "..."])
def test_people_are_not_sent_silence_and_programs_are_told_of_the_end(
    store: Store, tmp_path: Path, sink: Sink, text: str
) -> None:
    store.answer(
        store.submit(deliver=["telegram:1", f"webhook:{sink.url}/hook", "local"]).run_id, ModelReply(text=text)
    )
    here = office(store, tmp_path, values={"TELEGRAM_BOT_TOKEN": "1:abc", "TELEGRAM_BASE_URL": sink.url})
    here.work()
    assert {view.state for view in here.all} == {DeliveryState.DELIVERED}
    assert [path for path, _, _ in sink.received] == ["/hook"]
    assert {view.receipt for view in here.all if view.target == "telegram:1"} == {"nothing to say"}


def test_silence_is_sent_to_people_where_it_is_not_filtered(store: Store, tmp_path: Path, sink: Sink) -> None:
    store.answer(store.submit(deliver=["telegram:1"]).run_id, ModelReply(text="..."))
    here = office(store, tmp_path, values={"TELEGRAM_BOT_TOKEN": "1:abc", "TELEGRAM_BASE_URL": sink.url})
    here.parts = replace(here.parts, filters_silence=False)
    here.work()
    assert sink.texts() == ["..."]


def test_a_chat_may_be_named(store: Store, tmp_path: Path, sink: Sink) -> None:
    names = [
        "telegram:Alice (dm)=42",
        "slack:#ops=C0123ABCD:1700.1",
        "slack:loop=#ops",
        "slack:odd=C0 1",
        "matrix:x=local",
    ]
    targets = [
        "telegram:alice (DM)",
        "slack:OPS",
        "slack:#loop",
        "slack:odd",
        "matrix:x",
        "telegram:ops",
        "slack:#none",
    ]
    store.answer(store.submit(deliver=targets).run_id)
    values = {"TELEGRAM_BOT_TOKEN": "1:a", "TELEGRAM_BASE_URL": sink.url, "SLACK_BASE_URL": sink.url}
    here = office(store, tmp_path, values={**values, "SLACK_BOT_TOKEN": "x"}, channels=names)
    here.work()
    sent = [json.loads(body) for _, _, body in sink.received]
    assert sorted((str(m.get("chat_id") or m.get("channel")), m.get("thread_ts")) for m in sent) == [
        ("42", None),
        ("C0123ABCD", "1700.1"),
    ]
    failed = {view.target: view.error or "" for view in here.all if view.state is DeliveryState.FAILED}
    assert set(failed) == set(targets[2:])
    assert all("no chat of that name is known" in error for error in failed.values())


def test_whoever_steers_a_run_gets_its_answer_too(store: Store, tmp_path: Path) -> None:
    first = store.submit(session_id="s", deliver=["local"])
    store.turn(first.run_id)
    steered = store.submit(session_id="s", multitask=Multitask.STEER, deliver=["telegram:1", "local"])
    assert steered.was_steered
    store.runs.end_broken(
        first.run_id, ev.RunBroken(reason=ExitReason.INTERNAL_ERROR, failure=Failure(kind="x", message=""))
    )
    assert sorted(view.target for view in office(store, tmp_path).all) == ["local", "telegram:1"]


# --- targets that are gone ---


def test_a_target_that_forbids_us_is_not_sent_to_again_until_a_replay_arrives(
    store: Store, tmp_path: Path, sink: Sink
) -> None:
    here = office(store, tmp_path, values={"TELEGRAM_BOT_TOKEN": "1:abc", "TELEGRAM_BASE_URL": sink.url})
    first, second = (store.submit(deliver=["telegram:123"]).run_id for _ in range(2))
    store.answer(first)
    sink.then(403)
    here.work()
    assert here.only.state is DeliveryState.FAILED
    assert [dead.key for dead in here.outbox.list_dead_targets()] == ["telegram:123"]
    store.answer(second)
    here.work()
    (skipped,) = here.outbox.list(run_id=second)
    assert (skipped.state, skipped.error_kind) == (DeliveryState.FAILED, "dead_target")
    assert len(sink.received) == 1
    here.outbox.retry(skipped.delivery_id)
    here.work()
    assert here.outbox.get(skipped.delivery_id).state is DeliveryState.DELIVERED
    assert here.outbox.list_dead_targets() == []


def test_a_replay_does_not_rely_on_a_platform_to_remember_keys(store: Store, tmp_path: Path, sink: Sink) -> None:
    """Discord knows a nonce for minutes; whoever asks for a replay may come days later."""
    store.answer(store.submit(deliver=["discord:42"]).run_id, ModelReply(text="Hello"))
    here = office(store, tmp_path, values={"DISCORD_BOT_TOKEN": "abc", "DISCORD_BASE_URL": sink.url})
    sink.then(None)
    here.work()
    here.wait_over()
    sink.then(401)
    here.work()
    assert here.only.state is DeliveryState.FAILED
    here.outbox.retry(here.only.delivery_id)
    here.work()
    texts = [json.loads(body)["content"] for _, _, body in sink.received]
    assert texts[-1].startswith(DUPLICATE_REMARK)
    assert not any(text.startswith(DUPLICATE_REMARK) for text in texts[:-1])


# --- files ---


def with_files(store: Store, tmp_path: Path, deliver: list[str], text: str, **more: Any) -> tuple[Office, Path]:
    """A run in a workspace that ended with ``text``, and an office that hands out its files."""
    workspace = tmp_path / "workspace"
    workspace.mkdir(exist_ok=True)
    ref = WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(workspace)).to_json()
    store.answer(store.submit(deliver=deliver, workspace=ref).run_id, ModelReply(text=text))
    here = office(store, tmp_path, **more)
    here.parts = replace(
        here.parts, attachments=lambda stored: FileOutbox(root=json.loads(stored)["root"], denied=["/etc"])
    )
    return here, workspace


def test_the_files_an_answer_names_are_sent_after_it(store: Store, tmp_path: Path, sink: Sink) -> None:
    text = "Two charts.\nMEDIA:a.png\nMEDIA:sub/b.pdf\nMEDIA:/etc/passwd.txt\nMEDIA:../outside.txt"
    here, workspace = with_files(
        store,
        tmp_path,
        ["telegram:1"],
        text,
        values={"TELEGRAM_BOT_TOKEN": "1:abc", "TELEGRAM_BASE_URL": sink.url},
    )
    (workspace / "sub").mkdir()
    (workspace / "a.png").write_bytes(b"\x89PNG")
    (workspace / "sub" / "b.pdf").write_bytes(b"%PDF")
    old = tmp_path / "outside.txt"
    old.write_text("private")
    os.utime(old, (1.0, 1.0))
    here.work()
    assert here.only.state is DeliveryState.DELIVERED
    methods = [path.rpartition("/")[2] for path, _, _ in sink.received]
    assert methods == ["sendMessage", "sendPhoto", "sendDocument", "sendMessage", "sendMessage"]
    said = [json.loads(sink.received[index][2])["text"] for index in (0, 3, 4)]
    assert said[0] == "Two charts."
    assert "passwd.txt was not sent: there is no such file" in said[1]
    assert "outside.txt was not sent: it lies outside the workspace" in said[2]
    assert not any(b"private" in body for _, _, body in sink.received)


PICTURE = b"\x89PNG\r\n\x1a\n of a heron"


@pytest.mark.parametrize("allows_private", [True, False])
def test_pictures_that_an_answer_names_by_address_are_sent_as_pictures(
    store: Store, tmp_path: Path, sink: Sink, allows_private: bool
) -> None:
    sink.files = {"/a.png": PICTURE, "/page.png": b"<html>no picture</html>"}
    text = f"**Two** birds.\n![heron]({sink.url}/moved/a.png)\n![owl]({sink.url}/page.png)\n![]({sink.url}/gone.png)"
    values = {"TELEGRAM_BOT_TOKEN": "1:abc", "TELEGRAM_BASE_URL": sink.url}
    here, _ = with_files(store, tmp_path, ["telegram:1"], text, values=values, allows_private=allows_private)
    here.work()
    assert here.only.state is DeliveryState.DELIVERED
    methods = [path.rpartition("/")[2] for path, _, _ in sink.received]
    assert methods == ["sendMessage", "sendPhoto" if allows_private else "sendMessage", "sendMessage", "sendMessage"]
    assert json.loads(sink.received[0][2])["text"] == "<b>Two</b> birds."
    assert (PICTURE in sink.received[1][2]) is allows_private, "a picture is asked for where deliveries may go"
    owl, gone = (json.loads(sink.received[index][2])["text"] for index in (2, 3))
    assert owl == f'<a href="{sink.url}/page.png">owl</a>'
    assert gone == f'<a href="{sink.url}/gone.png">{sink.url}/gone.png</a>'


def test_a_picture_and_a_short_text_are_one_message_in_the_markup_of_the_platform(
    store: Store, tmp_path: Path, sink: Sink
) -> None:
    sink.files = {"/a.png": PICTURE}
    values = {"TELEGRAM_BOT_TOKEN": "1:abc", "TELEGRAM_BASE_URL": sink.url}
    text = f"A **heron**. ![]({sink.url}/a.png)"
    here, _ = with_files(store, tmp_path, ["telegram:1"], text, values=values, allows_private=True)
    here.work()
    ((path, _, body),) = sink.received
    assert path.endswith("sendPhoto") and b"A <b>heron</b>." in body and b"HTML" in body and PICTURE in body


def test_a_platform_without_markup_is_told_plainly(store: Store, tmp_path: Path, sink: Sink) -> None:
    text = (
        "# Score\n**Alice** won, see [the page](https://x.example/p).\n\n| Player | Score |\n|---|---|\n| Alice | 150 |"
    )
    values = {"LINE_CHANNEL_ACCESS_TOKEN": "t", "LINE_BASE_URL": sink.url}
    here, _ = with_files(store, tmp_path, ["line:U" + "0" * 32], text, values=values)
    here.work()
    ((_, _, body),) = sink.received
    told = "Score\nAlice won, see the page (https://x.example/p).\n\n- Player: Alice; Score: 150"
    assert json.loads(body)["messages"][0]["text"] == told


def test_a_short_text_and_its_only_file_are_one_message(store: Store, tmp_path: Path, mailbox: SmtpServer) -> None:
    here, workspace = with_files(
        store, tmp_path, ["email:me@example.org"], "The report. MEDIA:report.csv", values=mail_values(mailbox)
    )
    (workspace / "report.csv").write_text("name,api_key\nx,sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD\n")
    here.work()
    assert here.only.state is DeliveryState.DELIVERED
    (mail,) = mailbox.mails
    message = message_from_bytes(mail, policy=policy.default)
    assert isinstance(message, EmailMessage)
    (attached,) = message.iter_attachments()
    assert attached.get_filename() == "report.csv"
    assert "abcdefghijklmnop" not in str(attached.get_content()), "a file that is text is redacted like the message"
    assert mailbox.text().strip() == "The report."


def test_a_target_that_takes_no_files_is_told_of_them(store: Store, tmp_path: Path, sink: Sink) -> None:
    here, _ = with_files(
        store,
        tmp_path,
        ["line:U" + "0" * 32],
        "Look: MEDIA:a.png",
        values={"LINE_CHANNEL_ACCESS_TOKEN": "t", "LINE_BASE_URL": sink.url},
    )
    here.work()
    ((_, _, body),) = sink.received
    assert "Not sent, because this target takes no files: a.png" in json.loads(body)["messages"][0]["text"]


def test_a_file_that_fails_is_sent_again_without_its_text(store: Store, tmp_path: Path, sink: Sink) -> None:
    here, workspace = with_files(
        store,
        tmp_path,
        ["telegram:1"],
        "x " * 700 + "\nMEDIA:a.png",
        values={"TELEGRAM_BOT_TOKEN": "1:abc", "TELEGRAM_BASE_URL": sink.url},
    )
    (workspace / "a.png").write_bytes(b"\x89PNG")
    sink.then(200)
    sink.then(503)
    here.work()
    (workspace / "a.png").unlink()
    here.wait_over()
    here.work()
    assert here.only.state is DeliveryState.DELIVERED
    methods = [path.rpartition("/")[2] for path, _, _ in sink.received]
    assert methods == ["sendMessage", "sendPhoto", "sendMessage"], "in its place stands why it was not sent"


@pytest.mark.parametrize(("status", "is_noted"), [(413, True), (400, True), (503, False)])
def test_a_file_that_a_platform_refuses_is_replaced_by_a_line(
    store: Store, tmp_path: Path, sink: Sink, status: int, is_noted: bool
) -> None:
    here, workspace = with_files(
        store,
        tmp_path,
        ["telegram:1"],
        "Look: MEDIA:a.png",
        values={"TELEGRAM_BOT_TOKEN": "1:abc", "TELEGRAM_BASE_URL": sink.url},
    )
    (workspace / "a.png").write_bytes(b"\x89PNG")
    sink.then(status)
    here.work()
    assert here.only.state is (DeliveryState.DELIVERED if is_noted else DeliveryState.PENDING)
    assert len(sink.received) == 1 + is_noted
    if is_noted:
        assert "Look:\n\n📎 a.png was not sent: it was refused there." in json.loads(sink.received[1][2])["text"]


def test_a_link_that_takes_a_files_place_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "a.txt").write_text("secret")
    workspace = tmp_path / "workspace"
    (workspace / "sub").mkdir(parents=True)
    (workspace / "sub" / "a.txt").write_text("public")
    judged = FileOutbox(root=str(workspace)).judge("sub/a.txt")
    assert isinstance(judged, MediaFile)
    assert read_judged_file(judged, judged.kind).content == b"public"
    (workspace / "sub" / "a.txt").unlink()
    (workspace / "sub").rmdir()
    (workspace / "sub").symlink_to(secret)
    with pytest.raises(FileGone):
        read_judged_file(judged, judged.kind)


def test_a_credential_of_ours_leaves_under_no_disguise(store: Store, tmp_path: Path, sink: Sink) -> None:
    store.answer(store.submit(deliver=["telegram:1"]).run_id, ModelReply(text="My word is correct-horse-battery."))
    here = office(store, tmp_path, values={"TELEGRAM_BOT_TOKEN": "1:abc", "TELEGRAM_BASE_URL": sink.url})
    here.parts = replace(here.parts, secrets=("correct-horse-battery",))
    here.work()
    assert sink.texts() == ["My word is correc...tery."]
