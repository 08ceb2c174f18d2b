"""Programs that run other programs: the commands that a command carries in its words.

A program of ``WRAPPERS`` is read precisely: its options, then a command. One of ``_DATA`` carries nothing. Everything
else is unknown: any of its words that could begin a dangerous command is taken for one, but not for certain
(``ShellCommand.is_sure``), so that a person is asked and nothing is refused for good.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from hermes_worker.safety.commands import (
    COMMANDS_MAX,
    DEPTH_MAX,
    EXPANSION,
    MARKS,
    SPLIT,
    ShellCommand,
    ShellReading,
    Unreadable,
    find_option_values,
    get_program_name,
    has_expansion,
    is_option,
    parse_name_set,
)

SHELLS: Final = frozenset(
    {"sh", "bash", "zsh", "dash", "ksh", "mksh", "ash", "fish", "csh", "tcsh", "rbash", "pwsh", "nu", "xonsh"}
)
ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[\])?\+?=")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapperProgram:
    """The command line of a program that runs another one."""

    letters: str = ""
    """Short options that take a value."""
    values: str = ""
    """Long options that take a value, without their dashes."""
    flags: str = ""
    """Long options that take none."""
    operands: int = 0
    """Words before the command."""
    assigns: bool = False
    """``NAME=value`` may stand before the command."""
    is_text: bool = False
    """Whether its words are joined and read by a shell."""
    is_sure: bool = True
    """Whether it surely runs the command here; false when it runs it elsewhere, or only perhaps."""


_TIMEOUT: Final = WrapperProgram(
    letters="ks", values="kill-after signal", flags="preserve-status foreground verbose", operands=1
)
_XARGS_VALUES: Final = "arg-file delimiter max-lines max-args max-procs max-chars replace eof process-slot-var"
WRAPPERS: Final = {
    "sudo": WrapperProgram(
        letters="ugpCcDhRrTtU",
        values="user group prompt close-from chdir chroot host role type other-user command-timeout login-class",
        flags="askpass bell background edit preserve-env login stdin shell list set-home non-interactive "
        "preserve-groups remove-timestamp reset-timestamp validate",
        assigns=True,
    ),
    "doas": WrapperProgram(letters="uC"),
    "env": WrapperProgram(
        letters="uCS",
        values="unset chdir split-string",
        flags="ignore-environment null debug block-signal default-signal ignore-signal list-signal-handling",
        assigns=True,
    ),
    "nice": WrapperProgram(letters="n", values="adjustment"),
    "ionice": WrapperProgram(letters="cn", values="class classdata", flags="ignore"),
    "timeout": _TIMEOUT,
    "gtimeout": _TIMEOUT,
    "stdbuf": WrapperProgram(letters="ioe", values="input output error"),
    "exec": WrapperProgram(letters="a"),
    "command": WrapperProgram(),
    "builtin": WrapperProgram(),
    "nohup": WrapperProgram(),
    "setsid": WrapperProgram(flags="ctty fork wait"),
    "time": WrapperProgram(letters="fo", values="format output", flags="append portability verbose quiet"),
    "chroot": WrapperProgram(values="userspec groups", flags="skip-chdir", operands=1),
    "xargs": WrapperProgram(
        letters="aEILnPsd",
        values=_XARGS_VALUES,
        flags="null no-run-if-empty verbose interactive open-tty exit show-limits",
    ),
    "busybox": WrapperProgram(),
    "toybox": WrapperProgram(),
    "caffeinate": WrapperProgram(letters="tw"),
    "unbuffer": WrapperProgram(),
    "chronic": WrapperProgram(),
    "eatmydata": WrapperProgram(),
    "fakeroot": WrapperProgram(letters="lisb"),
    "firejail": WrapperProgram(),
    "xvfb-run": WrapperProgram(letters="enfps", flags="auto-servernum auto-display listen-tcp"),
    "setarch": WrapperProgram(operands=1),
    "linux32": WrapperProgram(),
    "linux64": WrapperProgram(),
    "taskset": WrapperProgram(flags="all-tasks pid cpu-list", operands=1),
    "chrt": WrapperProgram(letters="TPD", flags="batch deadline fifo idle other rr", operands=1),
    "gosu": WrapperProgram(operands=1),
    "su-exec": WrapperProgram(operands=1),
    "systemd-run": WrapperProgram(
        letters="pHMuE",
        values="unit property description slice uid gid nice working-directory setenv",
        flags="user system scope pty pipe wait quiet collect shell same-dir no-block remain-after-exit",
    ),
    "strace": WrapperProgram(letters="abeEIoOpPsSuX"),
    "ltrace": WrapperProgram(letters="aADeFlnopsuwx"),
    "watch": WrapperProgram(letters="nqs", values="interval equexit", is_text=True),
    "entr": WrapperProgram(is_sure=False),
    "unshare": WrapperProgram(letters="RSGlw", is_sure=False),
    "nsenter": WrapperProgram(letters="tSG", is_sure=False),
    "parallel": WrapperProgram(letters="jaIPnLNS", is_text=True),
    "flock": WrapperProgram(letters="wE", values="timeout wait conflict-exit-code", operands=1),
    "ssh": WrapperProgram(letters="BbcDEeFIiJLlmOopQRSWw", operands=1, is_text=True, is_sure=False),
}
"""Options of the programs' own manuals (coreutils 9, util-linux 2.38, findutils 4.9, sudo 1.9, OpenSSH 9). A long
option that is not listed makes the rest uncertain."""

_TEXT_OPTIONS: Final = {
    "su": ("-c", "--command", "--session-command"),
    "runuser": ("-c", "--command", "--session-command"),
    "script": ("-c", "--command"),
    "flock": ("-c", "--command"),
    "env": ("-S", "--split-string"),
    "nix-shell": ("--run", "--command"),
    "mapfile": ("-C",),
    "readarray": ("-C",),
    "watchman-make": ("--run",),
    "sg": ("-c",),
    "vagrant": ("-c", "--command"),
    "expect": ("-c",),
    "complete": ("-C", "-F"),
    "compgen": ("-C", "-F"),
}
"""Options whose value a shell reads."""

_DATA: Final = parse_name_set(
    """
    command builtin echo printf print grep egrep fgrep zgrep rg ag ack ls dir cat bat head tail less more wc uniq
    man info tldr whatis apropos which type whereis hash help test [ [[ true false : cd pwd pushd popd dirs mkdir
    touch diff cmp comm jq yq sed gsed gawk awk mawk tr cut paste column fold fmt nl tac tee cp mv ln install chmod
    chown chgrp stat file basename dirname realpath readlink date cal expr seq sleep set shift return exit read
    unset umask ulimit jobs wait break continue history export local declare typeset readonly alias unalias let
    shopt getopts caller times bind rm rmdir shred truncate dd kill pkill killall pgrep pidof ps top df du free
    uname whoami id groups uptime tar zip unzip gzip gunzip bzip2 xz zstd curl wget http https fetch scp sftp rsync
    ping dig host nslookup lsof netstat git gh glab hub hg svn pip pip3 pipx ruff mypy black isort flake8 pylint
    pytest py.test eslint prettier tsc jest vitest mocha gcc g++ cc clang rustc javac go cargo rustup cmake ninja
    bazel code logger notify-send wall figlet cowsay say psql mysql mariadb sqlite3 mongosh mongo redis-cli
    valkey-cli openssl base64 base32 md5sum sha1sum sha256sum sha512sum xxd od hexdump strings ssh-keygen ssh-add
    systemctl journalctl service launchctl dpkg dpkg-query rpm apt-cache hermes hermes-worker crontab terraform tofu
    pulumi source . eval trap find fd fdfind sort bc dc look tree iconv patch mail mailx mutt sendmail tput clear
    reset stty mount umount ip ifconfig iptables nft ufw useradd userdel usermod passwd
    """
)
"""Programs whose words are never commands, except the options and words that a rule of their own names."""

_PROSE_OPTIONS: Final = (
    "--message",
    "--title",
    "--body",
    "--description",
    "--notes",
    "--subject",
    "--comment",
    "--reason",
)
_GUESSES_MAX: Final = 16
_CHARS_MAX: Final = 1_500_000
"""Characters of the words of all commands found in one line; the same word may stand in several."""
_WRAPPERS_MAX: Final = 24
_NOT_WORD: Final = re.compile(r"[\s;&|(){}`$]")
_TOKENS: Final = re.compile(r"[\w./+-]+")


@dataclass(slots=True)
class _CarrierScan:
    """The state of looking into one line."""

    read: Callable[[str], ShellReading]
    is_interesting: Callable[[str], bool]
    found: list[ShellCommand] = field(default_factory=list)
    doubts: dict[str, None] = field(default_factory=dict)
    guesses: int = 0
    chars: int = 0


def add_carried(
    reading: ShellReading, read: Callable[[str], ShellReading], is_interesting: Callable[[str], bool]
) -> ShellReading:
    """``reading`` with everything its commands carry, unwrapped.

    ``is_interesting`` says whether a program could be dangerous; only such are looked for where nothing is known.
    """
    work = _CarrierScan(read=read, is_interesting=is_interesting, doubts=dict.fromkeys(reading.doubts))
    for command in reading.commands:
        _scan_command(command, work, depth=0, guessed=False)
    return ShellReading(commands=work.found, doubts=list(work.doubts))


def _scan_command(command: ShellCommand, work: _CarrierScan, *, depth: int, guessed: bool) -> None:
    if depth > DEPTH_MAX or len(work.found) > COMMANDS_MAX:
        raise Unreadable("the command is nested too deeply or has too many parts to be checked")
    work.chars += sum(map(len, command.words)) + len(command.words)
    if work.chars > _CHARS_MAX:
        raise Unreadable("the command carries too many others to be checked")
    unwrapped, is_known = unwrap_command(command)
    work.found.append(unwrapped)
    for text in find_payloads(unwrapped):
        _read_payload(text, unwrapped, work, depth=depth, guessed=guessed)
    for words, wrapper, is_sure in find_carried_words(unwrapped):
        inner = _build_inner_command(unwrapped, words, wrapper, is_sure=is_sure)
        _scan_command(inner, work, depth=depth + 1, guessed=guessed)
    if not guessed and (not is_known or _is_unknown(unwrapped)):
        for inner in _guess_commands(unwrapped, work):
            _scan_command(inner, work, depth=depth + 1, guessed=True)


def _read_payload(text: str, carrier: ShellCommand, work: _CarrierScan, *, depth: int, guessed: bool) -> None:
    reading = work.read(text.replace(EXPANSION, SPLIT))
    if not guessed:
        work.doubts.update(dict.fromkeys(reading.doubts))
    runs_here = carrier.name not in WRAPPERS or WRAPPERS[carrier.name].is_sure
    for command in reading.commands:
        group = command.group or carrier
        inner = replace(command, is_sure=carrier.is_sure and runs_here, group=group, wrappers=list(carrier.wrappers))
        _scan_command(inner, work, depth=depth + 1, guessed=guessed)


def _build_inner_command(carrier: ShellCommand, words: list[str], wrapper: list[str], *, is_sure: bool) -> ShellCommand:
    return ShellCommand(
        words=words,
        wrappers=[*carrier.wrappers, wrapper],
        before=carrier.before,
        documents=carrier.documents,
        reads_from=carrier.reads_from,
        group=carrier.group,
        function=carrier.function,
        is_detached=carrier.is_detached,
        is_sure=carrier.is_sure and is_sure,
    )


def _is_unknown(command: ShellCommand) -> bool:
    name = command.name
    return bool(name) and name not in _DATA and name not in SHELLS and not is_interpreter(name)


_INTERPRETERS: Final = re.compile(
    r"(?:python|pypy|perl|ruby|node|nodejs|deno|bun|php|lua|luajit|tclsh|wish|expect|rscript|r|julia|elixir|iex|irb|scala"
    r"|groovy|guile|osascript|ghci|runghc|swift|ipython|python-dbg|jshell|sbcl|racket|raku)[\d.]*"
)


def is_interpreter(name: str) -> bool:
    """Whether the program runs programs in a language, shells aside. The words behind a script belong to the script."""
    return _INTERPRETERS.fullmatch(name) is not None


# --- wrappers --------------------------------------------------------------------------------------------------------


def unwrap_command(command: ShellCommand) -> tuple[ShellCommand, bool]:
    """The command without wrappers in front of it, and whether all of them were read for certain."""
    words = command.words
    wrappers = list(command.wrappers)
    is_sure = command.is_sure
    while words:
        name = get_program_name(words[0])
        wrapper = WRAPPERS.get(name)
        if wrapper is None or wrapper.is_text or _runs_nothing(name, words):
            break
        split = _split_words(wrapper, words[1:])
        if split is None:
            return replace(command, words=list(words), wrappers=wrappers, is_sure=is_sure), False
        own, rest = split
        if not rest:
            break
        wrappers.append([name, *own])
        if len(wrappers) > _WRAPPERS_MAX:
            raise Unreadable("the command is wrapped in too many others to be checked")
        is_sure = is_sure and wrapper.is_sure
        words = rest
    return replace(command, words=list(words), wrappers=wrappers, is_sure=is_sure), True


def _runs_nothing(name: str, words: Sequence[str]) -> bool:
    """Whether the wrapper runs nothing here: ``command -v rm`` only says where ``rm`` is; ``flock`` may be given a
    text; ``busybox --list``.
    """
    options = [word for word in words[1:3] if word.startswith("-")]
    if name == "command":
        return any("v" in option.lower() for option in options)
    return name == "flock" and any(is_option(word, "--command") or word == "-c" for word in words[1:])


def _split_words(wrapper: WrapperProgram, words: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """The wrapper's own options, and the command it runs; ``None`` when they cannot be told apart."""
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            at += 1
            break
        if word.startswith(tuple(MARKS)):
            break  # an option or the command: either way its name is not known
        if word.startswith("--"):
            takes = _find_option_length(wrapper, word)
            if takes is None:
                return None
            at += takes
        elif word.startswith("-") and len(word) > 1:
            at += 1 + _value_follows(wrapper, word)
        elif wrapper.assigns and ASSIGNMENT.match(word):
            at += 1
        else:
            break
    at += wrapper.operands
    return list(words[:at]), list(words[at:])


def _find_option_length(wrapper: WrapperProgram, word: str) -> int | None:
    """How many words the long option takes up; ``None`` when it is not known."""
    bare, has_value = word[2:].partition("=")[0], "=" in word
    if bare in wrapper.flags.split() or has_value:
        return 1
    if bare in wrapper.values.split():
        return 2
    return None


def _value_follows(wrapper: WrapperProgram, word: str) -> bool:
    """Whether the value of the last of some short options is the next word."""
    for position, letter in enumerate(word[1:], start=1):
        if letter in wrapper.letters:
            return position == len(word) - 1
    return False


# --- texts and commands among the words ------------------------------------------------------------------------------


def find_shell_payloads(args: Sequence[str]) -> Iterator[str]:
    """The texts that a shell given ``args`` runs because of ``-c``, also as part of ``-lc``."""
    for position, arg in enumerate(args):
        if arg == "--" or (not arg.startswith(("-", "+")) and not _is_option_value(args, position)):
            return
        if arg in ("--command", "-Command", "-command") or (
            arg.startswith("-") and not arg.startswith("--") and "c" in arg[1:]
        ):
            rest = [word for word in args[position + 1 :] if not word.startswith(("-", "+"))]
            yield rest[0] if rest else ""
            return
        if is_option(arg, "--command"):
            yield arg.partition("=")[2]
            return


def _is_option_value(args: Sequence[str], position: int) -> bool:
    """Whether the word belongs to ``-o pipefail``, ``-O extglob``, ``--rcfile x`` in front of it."""
    before = args[position - 1] if position else ""
    return before in ("--rcfile", "--init-file") or re.fullmatch(r"[-+]\w*[oO]", before) is not None


def find_payloads(command: ShellCommand) -> Iterator[str]:
    """Texts among the words that a shell will read."""
    name, args = command.name, command.args
    if name == "eval":
        yield " ".join(args)
    elif name == "trap":
        yield from [arg for arg in args if not arg.startswith("-")][:1]
    elif name == "alias":
        yield from (arg.partition("=")[2] for arg in args)
    elif name in SHELLS:
        yield from find_shell_payloads(args)
        yield from command.documents
    elif name in ("su", "runuser", "sg"):
        yield from command.documents
    elif name in ("watch", "parallel", "ssh"):
        yield from _iterate_joined_words(WRAPPERS[name], name, args)
    if name in _TEXT_OPTIONS:
        yield from find_option_values(args, *_TEXT_OPTIONS[name])
    for wrapper in command.wrappers:
        if wrapper[0] == "env":
            yield from find_option_values(wrapper[1:], *_TEXT_OPTIONS["env"])


def _iterate_joined_words(wrapper: WrapperProgram, name: str, args: Sequence[str]) -> Iterator[str]:
    split = _split_words(wrapper, args)
    words = split[1] if split else list(args)
    ends = [n for n, word in enumerate(words) if name == "parallel" and word in (":::", "::::", ":::+")]
    if ends == [0] or (ends and not words[: ends[0]]):
        yield from words  # the inputs are the commands
    else:
        yield " ".join(words[: ends[0]] if ends else words)


_EXEC_FLAGS: Final = {
    "find": ("-exec", "-execdir", "-ok", "-okdir"),
    "fd": ("-x", "-X", "--exec", "--exec-batch"),
    "fdfind": ("-x", "-X", "--exec", "--exec-batch"),
}


def find_carried_words(command: ShellCommand) -> Iterator[tuple[list[str], list[str], bool]]:
    """Commands among the words: the command, the words that run it, and whether that is certain."""
    name, args = command.name, command.args
    flags = _EXEC_FLAGS.get(name, ())
    for position, arg in enumerate(args):
        if arg in flags:
            rest = args[position + 1 :]
            end = next((n for n, word in enumerate(rest) if word in (";", "+")), len(rest))
            if rest[:end]:
                yield rest[:end], ["find"], True
    if name in ("runuser", "su") and "--" in args:
        yield args[args.index("--") + 1 :], [name], False


def _guess_commands(command: ShellCommand, work: _CarrierScan) -> Iterator[ShellCommand]:
    """The commands that an unknown program may run: its words from each that names a program, and texts among them."""
    args = command.args
    for position, word in enumerate(args):
        is_prose = position > 0 and args[position - 1] in _PROSE_OPTIONS
        if is_prose or word.startswith(tuple(f"{option}=" for option in _PROSE_OPTIONS)):
            continue
        if work.guesses > _GUESSES_MAX:
            return
        if work.is_interesting(get_program_name(word)):
            _count_guess(work)
            yield _build_inner_command(command, args[position:], [command.name], is_sure=False)
        for text in _iterate_possible_texts(word):
            if any(work.is_interesting(get_program_name(token)) for token in _TOKENS.findall(text)):
                _count_guess(work)
                yield from _iterate_commands_in_text(text, command, work)


def _iterate_possible_texts(word: str) -> Iterator[str]:
    """``word``, and what follows ``=`` in it, if that could be a text for a shell."""
    if _NOT_WORD.search(word) and not has_expansion(word[:1]):
        yield word
        if word.startswith("-") and "=" in word:
            yield word.partition("=")[2]


def _iterate_commands_in_text(text: str, carrier: ShellCommand, work: _CarrierScan) -> Iterator[ShellCommand]:
    try:
        reading = work.read(text)
    except Unreadable:
        return
    for command in reading.commands:
        yield replace(command, is_sure=False, wrappers=[*carrier.wrappers, [carrier.name]])


def _count_guess(work: _CarrierScan) -> None:
    work.guesses += 1
    if work.guesses == _GUESSES_MAX:
        work.doubts["a program that may run very many other commands"] = None
