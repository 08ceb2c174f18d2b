"""As much of ``git`` as the tour, the survey and the tests use, over dulwich: for machines without git."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from dulwich import porcelain
from dulwich.errors import NotGitRepository
from dulwich.repo import Repo

_LETTERS = {"add": "A", "delete": "D", "modify": "M"}


def main(arguments: Sequence[str]) -> int:
    options = _options().parse_args(arguments)
    os.chdir(options.C)
    for name, value in (setting.split("=", 1) for setting in options.c):
        variable = name.removeprefix("user.").upper()
        os.environ |= {f"GIT_AUTHOR_{variable}": value, f"GIT_COMMITTER_{variable}": value}
    if options.command == "init":
        porcelain.init(options.directory)
        return 0
    try:
        repository = Repo.discover(".")
    except NotGitRepository:
        return _refuse("not a git repository (or any of the parent directories): .git")
    with repository:
        return _act(repository, options)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="git")
    parser.add_argument("-c", action="append", default=[])
    parser.add_argument("-C", default=".")
    parser.add_argument("--no-pager", action="store_true")
    commands = parser.add_subparsers(dest="command", required=True)
    init = commands.add_parser("init")
    init.add_argument("-q", action="store_true")
    init.add_argument("directory", nargs="?", default=".")
    commands.add_parser("add").add_argument("paths", nargs="+")
    commit = commands.add_parser("commit")
    commit.add_argument("-q", action="store_true")
    commit.add_argument("-m", required=True)
    log = commands.add_parser("log")
    log.add_argument("--oneline", action="store_true", required=True)
    log.add_argument("-n", type=int, default=sys.maxsize)
    commands.add_parser("status").add_argument("--short", action="store_true", required=True)
    commands.add_parser("ls-files")
    return parser


def _act(repository: Repo, options: argparse.Namespace) -> int:
    match options.command:
        case "add":
            porcelain.add(repository, paths=[str(Path(path).resolve()) for path in options.paths])
        case "commit":
            porcelain.commit(repository, message=options.m.encode())
        case "ls-files":
            print("\n".join(path.decode() for path in repository.open_index()))
        case "status":
            _show_status(repository)
        case "log":
            return _show_log(repository, options.n)
    return 0


def _show_status(repository: Repo) -> None:
    status = porcelain.status(repository, untracked_files="normal")
    for kind, paths in status.staged.items():
        for path in sorted(paths):
            print(f"{_LETTERS[kind]}  {path.decode()}")
    for path in status.unstaged:
        print(f" M {path.decode()}")
    for path in status.untracked:
        print(f"?? {os.fsdecode(path)}")


def _show_log(repository: Repo, count: int) -> int:
    try:
        head = repository.head()
    except KeyError:
        return _refuse("your current branch 'master' does not have any commits yet")
    for entry in repository.get_walker(include=[head], max_entries=count):
        subject = entry.commit.message.decode().partition("\n")[0]
        print(f"{entry.commit.id.decode()[:7]} {subject}")
    return 0


def _refuse(reason: str) -> int:
    print(f"fatal: {reason}", file=sys.stderr)
    return 128


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
