"""Platforms over their websockets and streams, played by servers of the tests that follow the documentation."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from inbound.test_socket_listening import account_row, client, frequent_renewals, taken, until  # noqa: F401
from support.patience import PATIENCE_S
from support.socket_platforms import (
    SOCKET_PLATFORMS,
    DiscordPlatform,
    HomeAssistantPlatform,
    MattermostPlatform,
    NtfyPlatform,
    SlackPlatform,
    SocketPlatform,
    played,
)

from hermes_worker.channels.inbound.declaration import InboundMode
from hermes_worker.channels.receivers import list_gateway_accounts
from hermes_worker.gateway import listening as listening_module
from hermes_worker.gateway.listening import GatewayListener, ListenedAccount
from hermes_worker.store.tables import channels
from hermes_worker.wiring import Client


def account_of(values: Mapping[str, str]) -> ListenedAccount:
    (found,) = list_gateway_accounts(values)
    assert found.mode is InboundMode.SOCKET
    credentials = found.receiver.build_credentials(found.values)
    return ListenedAccount(receiver=found.receiver, mode=found.mode, credentials=credentials, token_hash="t")


@contextmanager
def listened_to(client: Client, platform: SocketPlatform, **more: str) -> Iterator[None]:  # noqa: F811
    """A gateway listens to the account of a platform."""
    account = account_of(platform.values | more)
    listener = GatewayListener(client, [account], name="gw", alive_file=None)
    stopping = threading.Event()
    thread = threading.Thread(target=listener.run, args=(stopping,))
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again at once."""
    monkeypatch.setattr(listening_module, "LOOK_AGAIN_S_MAX", 0.05)
    monkeypatch.setattr(listening_module, "compute_poll_wait_s", lambda *_: 0.0)


def error_told(client: Client) -> str:  # noqa: F811
    with client.database.read() as connection:
        return connection.execute(sa.select(channels.c.error)).scalar() or ""


def settled(client: Client, platform: SocketPlatform, *wanted: tuple[int, str]) -> None:  # noqa: F811
    until(lambda: sorted(taken(client)) == sorted((platform.key(number), outcome) for number, outcome in wanted))


@pytest.mark.parametrize("name", SOCKET_PLATFORMS)
def test_what_people_say_is_taken_once_over_cuts_and_hostile_frames(client: Client, name: str, at_once: Any) -> None:  # noqa: F811
    with played(SOCKET_PLATFORMS[name]) as platform, listened_to(client, platform):
        assert platform.ready.wait(PATIENCE_S)
        platform.say(1, "hello")
        settled(client, platform, (1, "run"))
        before = platform.connections
        for frame in ("", "[" * 100_000, "x" * 1_000_000, b"\xff\xfe not UTF-8", '{"type": [], "op": {}}'):
            platform.send(frame)
        platform.send_bytes(b"\x00\xff\xfe")
        platform.say_as_program(2, "I am a program")
        platform.say(3, "after the noise")
        wanted = [(1, "run"), (3, "run"), *([(2, "bot")] if platform.tells_programs else [])]
        settled(client, platform, *wanted)
        assert platform.connections == before
        platform.ready.clear()
        platform.cut()
        assert platform.keeps or platform.ready.wait(30)
        platform.say(4, "after the cut")
        settled(client, platform, *wanted, (4, "run"))
        assert platform.broken == []
    assert account_row(client)[1] is None


def test_slack_hears_that_an_envelope_was_taken_after_the_commit(client: Client, at_once: Any) -> None:  # noqa: F811
    with played(SlackPlatform) as slack, listened_to(client, slack):
        assert slack.ready.wait(PATIENCE_S)
        slack.forgets = True
        slack.say(1, "hello")
        until(lambda: slack.acknowledged == ["e1"])
        assert taken(client) == [(slack.key(1), "run")]
        slack.cut()
        until(lambda: slack.acknowledged == ["e1", "e1"])
        assert taken(client) == [(slack.key(1), "run")]


def test_slack_replaces_a_connection_and_says_that_socket_mode_is_off(client: Client, at_once: Any) -> None:  # noqa: F811
    with played(SlackPlatform) as slack, listened_to(client, slack):
        assert slack.ready.wait(PATIENCE_S)
        slack.send({"type": "disconnect", "reason": "refresh_requested"})
        until(lambda: slack.connections >= 2 and slack.open is not None)
        slack.send({"type": "disconnect", "reason": "link_disabled"})
        until(lambda: "Socket Mode is turned off" in error_told(client))


def test_ntfy_begins_where_a_topic_was_when_it_was_first_listened_to(client: Client, at_once: Any) -> None:  # noqa: F811
    """Also when nothing was said before the first connection ended."""
    with played(NtfyPlatform) as server, listened_to(client, server):
        assert server.ready.wait(PATIENCE_S)
        server.cut()
        server.say(2, "while nobody was there")
        settled(client, server, (2, "run"))


def test_mattermost_is_asked_for_what_the_server_dropped(client: Client, at_once: Any) -> None:  # noqa: F811
    with played(MattermostPlatform) as server, listened_to(client, server):
        assert server.ready.wait(PATIENCE_S)
        server.say(1, "hello")
        settled(client, server, (1, "run"))
        server.say_unheard(2, "dropped")
        server.say(3, "heard")
        settled(client, server, (1, "run"), (2, "run"), (3, "run"))
        assert account_row(client)[0] == str(server.posts[-1]["create_at"])


def test_discord_goes_on_with_its_session_and_begins_another_where_that_is_over(client: Client, at_once: Any) -> None:  # noqa: F811
    with played(DiscordPlatform) as discord:
        with listened_to(client, discord):
            assert discord.ready.wait(PATIENCE_S)
            discord.say(1, "hello")
            settled(client, discord, (1, "run"))
        discord.say(2, "between two gateways")
        with listened_to(client, discord):
            settled(client, discord, (1, "run"), (2, "run"))
            assert discord.begun == ["identify", "resume"]
            discord.session = "another"
            discord.cut()
            until(lambda: discord.begun[2:] == ["resume", "identify"])
            discord.say(3, "in the new session")
            settled(client, discord, (1, "run"), (2, "run"), (3, "run"))
        assert discord.broken == []


@pytest.mark.parametrize("code", [4004, 4014])
def test_discord_is_not_stormed_with_what_it_refuses(client: Client, code: int) -> None:  # noqa: F811
    with played(DiscordPlatform) as discord:
        discord.refuses_with = code
        with listened_to(client, discord):
            until(lambda: error_told(client))
            assert ("token" if code == 4004 else "Message Content") in error_told(client)
        assert discord.connections == 1


def test_a_token_of_home_assistant_that_may_not_hear_events_is_told(client: Client, at_once: Any) -> None:  # noqa: F811
    with played(HomeAssistantPlatform) as house:
        house.is_admin = False
        with listened_to(client, house):
            until(lambda: "may not hear" in error_told(client))


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("slack", "SLACK_APP_TOKEN"),
        ("mattermost", "MATTERMOST_TOKEN"),
        ("discord", "DISCORD_BOT_TOKEN"),
        ("ntfy", "NTFY_TOKEN"),
        ("irc", "IRC_SASL_PASSWORD"),
        ("homeassistant", "HASS_TOKEN"),
    ],
)
def test_a_wrong_token_is_told(client: Client, name: str, variable: str) -> None:  # noqa: F811
    with played(SOCKET_PLATFORMS[name]) as platform, listened_to(client, platform, **{variable: "wrong"}):
        until(lambda: error_told(client))
        assert not platform.ready.is_set()
