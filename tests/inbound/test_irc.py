"""What is special about IRC: nicks that anybody may have, lines that are short, and a server of the real kind."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from inbound.test_socket_listening import client, frequent_renewals, taken, until  # noqa: F401
from inbound.test_socket_platforms import at_once, listened_to  # noqa: F401
from support.inbound_cases import AT
from support.patience import PATIENCE_S
from support.socket_cases import irc_said
from support.socket_platforms import IrcPlatform, played

from hermes_worker.channels import irc
from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import Part, Receipt, Unsendable
from hermes_worker.channels.inbound.irc import Socket
from hermes_worker.channels.irc_lines import LINE_BYTES_MAX, Credentials, IrcRegistration, build_lines, parse_line
from hermes_worker.channels.targets import Target, format_reference, parse_targets
from hermes_worker.core.inbound import ChatKind, InboundMessage
from hermes_worker.wiring import Client

NGIRCD = """
[Global]
    Name = irc.test
    Info = test
    Listen = 127.0.0.1
    Ports = {port}
    ServerUID = 65534
    ServerGID = 65534
    Password = irc-secret
[Limits]
    MaxConnectionsIP = 0
    MaxNickLength = 16
[Options]
    DNS = no
    Ident = no
    PAM = no
"""


def credentials(**changes: str) -> Credentials:
    usual = {"server": "127.0.0.1", "nick": "hermes", "uses_tls": "false", "nicks_are_people": "true"}
    return Credentials(**{**usual, "channels": "#ops", **changes})


def welcomed(**changes: str) -> Socket:
    talk = Socket(credentials(**changes))
    talk.on_frame(":irc.test CAP * ACK :account-tag", AT)
    assert talk.on_frame(":irc.test 001 hermes :Welcome", AT).error is None
    return talk


def heard(frame: str, **changes: str) -> InboundMessage | None:
    found = welcomed(**changes).on_frame(frame, AT).inbound
    assert all(isinstance(one, InboundMessage) for one in found)
    return found[0] if found else None  # type: ignore[return-value]


def test_who_a_person_is_the_network_says_and_not_the_nick() -> None:
    known = heard(irc_said(1, "hi", account="ada"), nicks_are_people="")
    unknown = heard(":Ada!ada@ada PRIVMSG hermes :hi", nicks_are_people="")
    trusted = heard(":Ada!ada@ada PRIVMSG hermes :hi")
    assert known is not None and unknown is not None and trusted is not None
    assert (known.sender.id, unknown.sender.id, trusted.sender.id) == ("ada", "", "ada")
    # The same nick with another account is another conversation.
    assert (known.chat.scope, unknown.chat.scope) == ("ada", "")


def test_a_network_that_says_of_nobody_who_they_are_is_told_to_the_operator() -> None:
    talk = Socket(credentials(nicks_are_people=""))
    talk.on_frame(":irc.test CAP * NAK :account-tag", AT)
    found = talk.on_frame(":irc.test 001 hermes :Welcome", AT)
    assert found.is_over
    assert found.error is not None
    assert "IRC_NICKS_ARE_PEOPLE" in found.error.message


@pytest.mark.parametrize(
    ("text", "is_addressed", "said"),
    [
        ("hermes: /status", True, "/status"),
        ("@Hermes, hello", True, "hello"),
        ("ask hermes about it", True, "ask hermes about it"),
        ("hermes_ said so", False, "hermes_ said so"),
        ("hello all", False, "hello all"),
    ],
)
def test_in_a_channel_a_message_is_for_us_when_it_names_us(text: str, is_addressed: bool, said: str) -> None:
    message = heard(f":Ada!u@h PRIVMSG #Ops :{text}")
    assert message is not None
    assert (message.chat.id, message.chat.kind) == ("#ops", ChatKind.GROUP)
    assert (message.is_addressed, message.text) == (is_addressed, said)


@pytest.mark.parametrize(
    "frame",
    [
        ":Ada!u@h PRIVMSG hermes :\x01VERSION\x01",
        ":Ada!u@h NOTICE hermes :hello",
        ":Ada!u@h PRIVMSG somebody :hello",
        ":irc.test PRIVMSG hermes :hello",
        ":Ada!u@h PRIVMSG hermes :   ",
        "PRIVMSG hermes :hello",
    ],
)
def test_ctcp_notices_and_what_is_for_others_are_left_aside(frame: str) -> None:
    assert heard(frame) is None


def test_two_equal_messages_of_one_moment_are_two() -> None:
    talk = welcomed()
    first, second = (talk.on_frame(":Ada!u@h PRIVMSG hermes :yes", AT).inbound for _ in range(2))
    assert first[0].event_key != second[0].event_key


def test_a_server_that_says_nothing_any_more_is_left_and_what_is_missing_is_asked_for_again() -> None:
    talk = welcomed()
    talk.on_frame(":hermes!u@h JOIN #ops", AT)
    talk.on_frame(":op!u@h KICK #ops hermes :out", AT)
    assert talk.on_beat(AT).replies == ("PING :hermes-worker", "JOIN #ops")
    talk.on_frame(":hermes!u@h JOIN #ops", AT)
    talk.on_frame(":hermes!u@h NICK hermes_", AT)
    assert talk.on_beat(AT).replies == ("PING :hermes-worker", "NICK hermes")
    assert talk.on_beat(AT).error is None
    found = talk.on_beat(AT)
    assert found.is_over
    assert found.error is not None


def test_a_nick_that_is_in_use_gets_something_at_its_end_and_not_for_ever() -> None:
    registration = IrcRegistration(credentials())
    taken_line = parse_line(":irc.test 433 * hermes :Nickname is already in use")
    assert [registration.on_line(taken_line) for _ in range(2)] == [("NICK hermes_",), ("NICK hermes__",)]
    for _ in range(10):
        registration.on_line(taken_line)
    assert registration.error is not None


def test_a_text_becomes_lines_that_fit_and_hold_no_command() -> None:
    text = "one\r\nQUIT :x\x00JOIN 0\n\n" + "wörd " * 300 + "\x01ACTION dances\x01\n" + "ü" * 1_000
    lines = list(build_lines("#ops", text))
    assert lines[:3] == ["PRIVMSG #ops :one", "PRIVMSG #ops :QUIT :x", "PRIVMSG #ops :JOIN 0"]
    assert all(line.startswith("PRIVMSG #ops :") and not set(line) & {"\r", "\n", "\x00", "\x01"} for line in lines)
    said = [line.removeprefix("PRIVMSG #ops :") for line in lines]
    assert max(len(one.encode()) for one in said) <= LINE_BYTES_MAX
    assert "".join(said[3:]).replace(" ", "") == ("wörd" * 300 + "ACTIONdances" + "ü" * 1_000)


def test_a_password_does_not_go_over_the_network_in_the_clear() -> None:
    with pytest.raises(Unsendable, match="over TLS only"):
        _ = credentials(server="irc.example", password="x").url
    assert credentials(server="irc.example").url == "irc://irc.example:6667"
    assert credentials(server="irc.example", uses_tls="", password="x").url == "ircs://irc.example:6697"


def test_channels_and_nicks_are_targets() -> None:
    assert [format_reference(one) for one in parse_targets("irc:#ops, irc:ada")] == ["irc:#ops", "irc:ada"]


def test_what_is_said_goes_out_after_a_login_under_a_free_nick_and_is_a_program(client: Client, at_once: None) -> None:  # noqa: F811
    with played(IrcPlatform) as network:
        network.taken_nicks = {"hermes"}
        with listened_to(client, network):
            assert network.ready.wait(PATIENCE_S)
            network.say(1, "hello")
            until(lambda: taken(client) == [("irc000001", "run")])
        assert "MODE hermes_ +B" in network.heard


# A server of the real kind.

needs_ngircd = pytest.mark.machine  # the package ngircd


class _Person:
    """Somebody with a client."""

    def __init__(self, port: int, nick: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.settimeout(0.1)
        self._rest = ""
        self.lines: list[str] = []
        self.say("PASS irc-secret", f"NICK {nick}", f"USER {nick} 0 * :{nick}", "JOIN #ops")
        until(lambda: self.has(" 366 "))

    def say(self, *lines: str) -> None:
        self._socket.sendall("".join(f"{line}\r\n" for line in lines).encode())

    def has(self, part: str) -> bool:
        try:
            *found, self._rest = (self._rest + self._socket.recv(65_536).decode()).split("\r\n")
            self.lines += found
        except TimeoutError:
            pass
        return any(part in line for line in self.lines)

    def sees(self, nick: str) -> bool:
        """Whether somebody is in the channel."""
        self.lines.clear()
        self.say("NAMES #ops")
        until(lambda: self.has(" 366 "))
        return any(nick in line.partition(" :")[2].replace("@", "").split() for line in self.lines if " 353 " in line)


@contextmanager
def served(home: Path, port: int) -> Iterator[None]:
    program = shutil.which("ngircd") or "/usr/sbin/ngircd"
    assert Path(program).exists(), "this test needs the package ngircd"
    file = home / "ngircd.conf"
    file.write_text(NGIRCD.format(port=port))
    with (home / "ngircd.log").open("ab") as log:
        process = subprocess.Popen([program, "-n", "-f", str(file)], stdout=log, stderr=log)
    try:
        until(lambda: _answers(port))
        yield
    finally:
        process.terminate()
        process.wait(10)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


class _Network(IrcPlatform):
    """Only the settings of it."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def values(self) -> dict[str, str]:
        here = {"IRC_SERVER": "127.0.0.1", "IRC_PORT": str(self.port), "IRC_USE_TLS": "false"}
        who = {"IRC_NICKNAME": "hermes", "IRC_SERVER_PASSWORD": "irc-secret", "IRC_NICKS_ARE_PEOPLE": "true"}
        return {**here, **who, "IRC_CHANNELS": "#ops"}


@needs_ngircd
def test_people_of_a_real_server_are_heard_and_answered_over_its_restart(
    client: Client,  # noqa: F811
    tmp_path: Path,
    at_once: None,  # noqa: F811
) -> None:
    port = free_port()
    account = credentials(port=str(port), password="irc-secret")
    with served(tmp_path, port), listened_to(client, _Network(port)):
        ada = _Person(port, "ada")
        until(lambda: ada.sees("hermes"))
        ada.say("PRIVMSG #ops :hello everybody", "PRIVMSG #ops :hermes: hello", "PRIVMSG hermes :just you")
        until(lambda: [outcome for _, outcome in taken(client)].count("run") == 2)
        before = len(taken(client))
        text = "\n".join(f"line {number} for hermes" for number in range(12))
        for chat in ("#ops", "ada"):
            assert _said(text, chat, account) == Receipt()
        until(lambda: ada.has("PRIVMSG #ops :line 11") and ada.has("PRIVMSG ada :line 11"))
        answers = [line.partition(" :")[2] for line in ada.lines if "PRIVMSG ada" in line]
        assert answers == text.splitlines()
        until(lambda: [outcome for _, outcome in taken(client)[before:]] == ["bot"] * 12)
    error = _said("hello", "nobody", account)
    assert isinstance(error, DeliveryError)
    assert error.kind is SendErrorKind.TRANSIENT  # the server is away


@needs_ngircd
def test_a_real_server_that_comes_back_is_joined_again_and_says_who_is_not_there(
    client: Client,  # noqa: F811
    tmp_path: Path,
    at_once: None,  # noqa: F811
) -> None:
    port = free_port()
    with listened_to(client, _Network(port)):
        for number in range(2):
            with served(tmp_path, port):
                ada = _Person(port, "ada")
                until(lambda ada=ada: ada.sees("hermes"))  # type: ignore[misc]
                ada.say("PRIVMSG hermes :are you there?")
                until(lambda number=number: len(taken(client)) == number + 1)  # type: ignore[misc]
                account = credentials(port=str(port), password="irc-secret")
                found = [_said("hello", chat, account) for chat in ("nobody", "#other")]
                assert isinstance(found[0], DeliveryError)
                assert found[0].kind is SendErrorKind.NOT_FOUND
                refused = _said("hello", "#ops", credentials(port=str(port), password="wrong"))
                assert isinstance(refused, DeliveryError)
                assert refused.kind in (SendErrorKind.AUTH, SendErrorKind.TRANSIENT)


def _said(text: str, chat: str, account: Credentials) -> Receipt | DeliveryError:
    part = Part(text=text, idempotency_key=f"d{time.monotonic()}:{datetime.now(UTC)}")
    return irc.send(part, Target(platform="irc", chat=chat), account)
