"""The help of the whole command line as a text, so that a person who asks what there is waits for no import.

A test compares it with what the command line would say; ``python docs/make_reference.py`` writes it anew.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

WIDTH = 80
"""The columns it is written for; wider terminals show the same."""
_FILES = ("config.yaml", ".env")


def show_page(environ: Mapping[str, str]) -> bool:
    """Print the page; return false where it may not be what the command line would say: in a narrow terminal, and where
    an extension that is not built in may bring commands."""
    if shutil.get_terminal_size().columns < WIDTH or _may_have_extensions(environ):
        return False
    with suppress(OSError):  # a reader that went away
        sys.stdout.write(PAGE)
        sys.stdout.flush()
    return True


def _may_have_extensions(environ: Mapping[str, str]) -> bool:
    """Whether the word stands anywhere where an extension could be enabled; to read what it says takes many imports."""
    if environ.get("HERMES_EXTENSIONS", "").strip():
        return True
    home = environ.get("HERMES_HOME", "").strip() or os.path.join(environ.get("HOME", ""), ".hermes-worker")  # noqa: PTH118
    for name in _FILES:
        try:
            if b"extensions" in Path(home, name).read_bytes().lower():
                return True
        except FileNotFoundError:
            continue
        except OSError:
            return True
    return False


PAGE = """\
Usage: hermes-worker [OPTIONS] COMMAND [ARGS]...

  Hermes Agent's loop as a distributed task queue.

  Without configuration everything runs on this machine: SQLite and Valkey in
  ~/.hermes-worker, and, when no API key is found, a scripted stand-in for the
  model.

Options:
  --server URL     Ask this server and no database. Default:
                   $HERMES_SERVER_URL.
  --key-file FILE  The key for --server is in this file. Default:
                   $HERMES_SERVER_KEY_FILE.
  --ca-file FILE   Authorities that may vouch for --server. Default: those of
                   this machine.
  --insecure       Send the key over http:// to another machine, where
                   everybody on the way can read it.
  --version        Show the version and exit.
  -h, --help       Show this message and exit.

Work:
  run        Give an agent a task in a directory and watch it work.
  chat       Talk with an agent: over the HTTP API of 'hermes-worker up', or
             of --server.
  submit     Put a task into the queue.
  runs       List, show, watch, stop and export runs.
  top        Show what runs, waits and asks, with keys to open, stop, pause
             and approve.
  approvals  List what waits for a person, answer it, and see who answered
             what.

Conversations:
  sessions  List, show, search, rename, fork, move and delete conversations.
  memory    Show and change what agents remember, undo changes, and move
            memories in and out.
  skills    List, show, add, remove and check the instructions that agents
            load for kinds of tasks.

Schedules and chats:
  cron     Create, list and change scheduled jobs.
  gateway  Say who may write to the agent, what may start it, and see what was
           sent.

This machine:
  init    Choose a provider and a model, try them, and write config.yaml and
          .env.
  up      Start everything on this machine and keep it running.
  status  Whether the stack of this home runs, since when, and how it does.
  logs    What a stack in the background wrote, and with -f what it writes.
  down    Drain the stack of this home and stop it.
  doctor  Check everything this configuration needs, by trying it.

Operate:
  start  Run one process of a fleet, in the foreground.
  fleet  Watch and steer a fleet: workers, backlog, alerts, provider keys.
  data   Migrate, back up, keep, encrypt, hand out and delete what is stored.

Administer:
  config   Show, change and check the settings.
  tenants  List and create tenants, their limits, and keys of the HTTP API.

Develop:
  extensions  List, enable and disable what others wrote for Hermes worker.
  dev         Try things: examples, a scripted model, and a crash lab.
  mcp         Add, list, test, approve and remove MCP servers whose tools
              agents may call.

  Start with 'hermes-worker run' in a directory of yours, or 'hermes-worker
  up' for a service.
"""
