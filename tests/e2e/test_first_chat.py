"""From a bot's token to a paired chat: the commands that README.md prints, played against a stand-in for Telegram."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.commandline import CommandLine, script, wait_for
from support.documents import find_programs
from support.operating import OperatorsShell
from support.pgbouncer import free_port
from support.telegram_server import TelegramServer

pytestmark = pytest.mark.e2e

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
ADA = 4242


def test_the_block_of_the_readme_leads_from_a_token_to_an_answer(hermes: CommandLine, tmp_path: Path) -> None:
    section = README.partition("\n## On Telegram\n")[2].partition("\n## ")[0]
    [block] = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    exported, up, pair = block.splitlines()
    token = re.search(r"TELEGRAM_BOT_TOKEN=(\S+)", exported)
    assert token and up == "hermes-worker up" and pair.endswith("# in another terminal"), block

    with ExitStack() as stack:
        telegram = stack.enter_context(TelegramServer(token=token[1]))

        def terminal(name: str) -> OperatorsShell:
            (tmp_path / name).mkdir()
            environ = {
                **hermes.environ,
                "PATH": f"{find_programs()}:{hermes.environ['PATH']}",
                "TELEGRAM_BASE_URL": telegram.url,
                "HERMES_SERVER_PORT": str(free_port()),
            }
            shell = OperatorsShell(tmp_path / name, environ)
            stack.callback(shell.close)
            return shell

        first, another = terminal("first"), terminal("another")
        first(exported)
        first.begin(up)
        wait_for(lambda: "Hermes worker is up" in first.said, saying="for the stack")
        telegram.write(ADA, "Hello?")
        told = wait_for(lambda: re.search(rf"{pair.split(' CODE')[0]} (\w+)", "".join(telegram.texts(ADA))))
        another(pair.replace("CODE", told[1]))
        telegram.write(ADA, script(final="Hello, Ada."))
        wait_for(lambda: "Hello, Ada." in telegram.messages.values(), saying="for the answer")
        assert len(telegram.texts(ADA)) >= 2 and telegram.overlaps == 0
