"""A chat with an account of some platform, whoever listens to it, and a worker that fetches what people send there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from hermes_worker import settings as settings_module
from hermes_worker.channels.downloads import FileDownloader
from hermes_worker.channels.inbound import telegram
from hermes_worker.core.effects import FetchFile
from hermes_worker.core.inbound import Inbound
from hermes_worker.gateway.inbound import InboundHandler
from hermes_worker.gateway.received import ReceivedEvent
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.inbound_files import InboundFiles, PlacedFile
from hermes_worker.store.rows import Hint
from hermes_worker.store.tables import inbound_files, runs
from hermes_worker.store.workers import Workers
from hermes_worker.tasks.inbound_files import FetchingContext, fetch_file
from hermes_worker.tasks.leases import Leases
from hermes_worker.wiring import Client, open_client
from support.inbound_cases import telegram_update
from support.migrated import bring_up
from support.sent_files import Answer
from support.store import TTL_S, Store
from support.telegram_server import TOKEN, TelegramServer

BYTES_MAX = 1024**2


class Sent:
    """A broker that keeps what it is given."""

    def __init__(self) -> None:
        self.hints: list[Hint] = []

    def send(self, hints: Any) -> int:
        self.hints += hints
        return len(hints)

    def count_waiting(self) -> None:
        return None


@dataclass
class FileChat:
    """Somebody writes, and a worker fetches what they send."""

    client: Client
    parts: FetchingContext

    def take(self, platform: str, event: Inbound) -> str | None:
        return InboundHandler(self.client).handle(ReceivedEvent(platform=platform, event=event))

    @property
    def due(self) -> list[FetchFile]:
        columns = (inbound_files.c.pk, inbound_files.c.attempts, inbound_files.c.hinted_at)
        rows = self.rows(*columns)
        return [FetchFile(run_id="r", file_id=pk, attempt=tried + 1) for pk, tried, at in rows if at is not None]

    def fetch(self, **changes: Any) -> None:
        """What is due is fetched, once."""
        for effect in self.due:
            fetch_file(replace(self.parts, **changes), effect, time.time())

    def rows(self, *columns: Any) -> list[Any]:
        with self.client.database.read() as connection:
            return list(connection.execute(sa.select(*columns).order_by(columns[0].table.primary_key.columns[0])))

    def gathered(self) -> list[Hint]:
        """The time in which more of a turn may come is over, and somebody sweeps."""
        early = {"gathers_until": db_now() - 1}
        with self.client.database.write() as connection:
            connection.execute(sa.update(inbound_files).values(early))
            waits = sa.update(runs).where(runs.c.not_before.is_not(None), runs.c.hinted_at.is_(None))
            connection.execute(waits.values(not_before=db_now() - 1))
        return list(Store.over(self.client.database).sweep().hints)

    @property
    def run_ids(self) -> list[str]:
        return [run_id for (run_id,) in self.rows(runs.c.run_id)]

    def content(self, number: int = 0) -> Any:
        """What the model is told at the beginning of a turn."""
        bodies = Store.over(self.client.database).bodies(self.run_ids[number])
        return bodies[-1]["content"]

    def text(self, number: int = 0) -> str:
        content = self.content(number)
        return str(content if isinstance(content, str) else content[0]["text"])

    def has_begun(self, number: int = 0) -> bool:
        return bool(self.rows(runs.c.hinted_at)[number][0])

    def placed(self, number: int = 0) -> list[PlacedFile]:
        """What a run's workspace gets."""
        return InboundFiles(self.client.database).list_unplaced(self.rows(runs.c.pk)[number][0])


@dataclass
class TelegramChat(FileChat):
    """A chat on Telegram."""

    server: TelegramServer
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(1, 10_000)))

    def write(self, text: str = "", *, person: int = 42, **more: Any) -> str | None:
        who = {"chat": {"id": person, "type": "private"}, "from": {"id": person, "is_bot": False, "first_name": "Ada"}}
        return self.update(telegram_update(next(self.numbers), text, **(who | more)))

    def update(self, update: dict[str, Any]) -> str | None:
        credentials = telegram.Credentials(token=TOKEN, base_url=self.server.url)
        [event] = telegram.read(update, credentials)
        return self.take("telegram", event)

    def send_file(self, name: str, content: Answer, message: Callable[..., dict[str, Any]], **more: Any) -> str | None:
        self.server.files.contents[name] = content
        return self.write(**message(name, **more))


@contextmanager
def file_chat(
    tmp_path: Path, broker_url: str, values: Mapping[str, str], *, bytes_max: int = BYTES_MAX, total_s: float = 1.0
) -> Iterator[FileChat]:
    """On a database of its own. ``values`` are the variables of the accounts."""
    url = f"sqlite:///{tmp_path / 'test.db'}"
    (tmp_path / "home").mkdir()
    bring_up(url)
    environ = {
        "HOME": str(tmp_path),
        "HERMES_HOME": str(tmp_path / "home"),
        "HERMES_DATABASE_URL": url,
        "HERMES_BROKER_URL": broker_url,
        "HERMES_PROVIDER": "scripted",
        "HERMES_GATEWAY": "true",
        "HERMES_GATEWAY_FILE_MB_MAX": str(bytes_max // 1024**2),
        **values,
    }
    client = open_client(settings_module.load_settings(environ))
    leases = Leases(Workers(client.database), name="fetcher", queues="delivery", ttl_s=TTL_S)
    leases.register()
    parts = FetchingContext(
        files=InboundFiles(client.database),
        downloads=FileDownloader(values=client.settings.variables, bytes_max=bytes_max, total_s=total_s),
        sender=Sent(),
        leases=leases,
    )
    yield FileChat(client, parts)
    client.close()
