"""The decision table: what is dangerous about a command that was read, and what is never run.

A rule takes one command and gives the key of its reason, or ``None``. ``NEVER`` is refused for every asker, and only
for what was read for certain; ``RULES`` asks. A danger that a program, a few words and an option express in full is a
row of ``safety.danger_rows``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from hermes_worker.safety import danger_rows
from hermes_worker.safety.carried_commands import (
    ASSIGNMENT,
    SHELLS,
    WRAPPERS,
    add_carried,
    find_shell_payloads,
    is_interpreter,
)
from hermes_worker.safety.commands import (
    ANY,
    ANY_CHAR,
    ANY_OF,
    EXPANSION,
    PROCESS,
    SPLIT,
    ShellCommand,
    ShellReading,
    find_operands,
    find_option_values,
    find_short_flags,
    get_program_name,
    has_expansion,
    has_option,
    parse_name_set,
)
from hermes_worker.safety.shell import read_commands

Rule = Callable[[ShellCommand], str | None]
FullRule = Callable[[ShellCommand], Iterator[str]]
"""A rule that may find several dangers in one command, and names each."""

NAME_BY_EXPANSION: Final = "a command whose name is made by an expansion"


def read_command(text: str) -> ShellReading:
    """Everything ``text`` would run, with what its commands carry. Raises ``Unreadable``."""
    return add_carried(read_commands(text), read_commands, is_interesting)


CODE_FLAG: Final = "script via an interpreter's code flag"
"""The danger of program text that stands in the command itself."""


def is_interesting(name: str) -> bool:
    """Whether a program has rules, or runs others."""
    return (
        name in _RULED or name in danger_rows.BY_PROGRAM or name in WRAPPERS or name in SHELLS or is_interpreter(name)
    )


# --- paths -----------------------------------------------------------------------------------------------------------

_PATTERN_TEXT: Final = str.maketrans({ANY: "*", ANY_CHAR: "?", ANY_OF: "["})


def normalize_path(word: str) -> str:
    """A path in one spelling: no doubled slashes, no ``.`` and ``..``; a trailing ``/*`` is left out."""
    plain = word.translate(_PATTERN_TEXT)
    end = len(plain)
    while plain.endswith(("/*", "/.*"), 0, end):
        end = plain.rindex("/", 0, end)
    bare = plain[:end]
    if bare == "":
        bare = "/" if plain.startswith("/") else plain
    return posixpath.normpath(bare).replace("//", "/") if bare.startswith(("/", "~")) else bare


_SYSTEM_FOLDERS: Final = frozenset(
    f"/{name}"
    for names in (
        ("bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "opt", "proc", "root", "run", "sbin"),
        ("srv", "sys", "usr", "usr/bin", "usr/lib", "usr/local", "usr/sbin", "usr/share", "var", "var/lib", "var/log"),
        ("Applications", "Library", "System", "Users", "private", "private/etc", "private/var"),
    )
    for name in names
)
_RAW_DEVICE: Final = re.compile(r"/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|r?disk|dm-|mapper/|md|loop|sr|mem|kmem|port)\w*")
_SYSTEM_FILE: Final = re.compile(
    r"/(?:private/)?etc(?:/.*)?|/private/var/.+|/boot(?:/.*)?|/(?:usr/)?s?bin(?:/.*)?|/(?:usr/)?lib(?:32|64)?(?:/.*)?"
    r"|/var/spool/cron(?:/.*)?|/proc/sys.*|/sys/.+",
    re.DOTALL,
)
_CREDENTIALS: Final = re.compile(
    r"(?:~[\w.-]*|/home/[^/]+|/root|/Users/[^/]+)/(?:\.ssh(?:/.*)?|\.(?:ba|z|k|c|tc)?shrc|\.(?:bash_|z)?profile|\.bash_login"
    r"|\.bash_logout|\.bash_aliases|\.zshenv|\.zlogin|\.netrc|\.pgpass|\.my\.cnf|\.npmrc|\.pypirc|\.git-credentials|\.aws(?:/.*)?"
    r"|\.gnupg(?:/.*)?|\.docker/config\.json|\.kube(?:/config)?|\.config/fish/config\.fish|\.config/autostart(?:/.*)?"
    r"|\.config/systemd(?:/.*)?|\.gitconfig|\.vimrc)",
    re.DOTALL,
)
_AGENT_CONFIG: Final = re.compile(r"(?:.*/)?\.hermes(?:-worker)?/(?:config\.yaml|\.env)", re.DOTALL)
_PROJECT_CONFIG: Final = re.compile(
    r"(?:.*/)?(?:\.env(?:\.(?!example|sample|template|dist)[\w-]+)?|config\.yaml)", re.DOTALL
)

_TARGET_OPTIONS: Final = {
    "cp": ("-t", "--target-directory"),
    "mv": ("-t", "--target-directory"),
    "ln": ("-t", "--target-directory"),
    "install": ("-t", "--target-directory"),
    "sort": ("-o", "--output"),
    "curl": ("-o", "--output", "--output-dir"),
    "wget": ("-O", "-P", "--output-document", "--directory-prefix"),
    "tar": ("-C", "--directory"),
    "bsdtar": ("-C", "--directory"),
    "unzip": ("-d",),
    "7z": ("-o",),
    "gpg": ("-o", "--output"),
    "openssl": ("-out",),
    "patch": ("-o", "-d", "--directory", "--output"),
}
"""Options that say where a program writes."""
_LAST_IS_TARGET: Final = frozenset({"cp", "mv", "install", "ln", "rsync", "scp", "sftp"})
_ALL_ARE_TARGETS: Final = frozenset(
    {"tee", "truncate", "sponge", "shred", "wipefs", "blkdiscard", "ed", "ex", "touch", "unlink"}
)


def _list_target_values(command: ShellCommand) -> list[str]:
    return [arg.removeprefix("of=") for arg in command.args if arg.startswith("of=")]


def find_written_paths(command: ShellCommand) -> Iterator[str]:
    """The files and folders a command writes to, as far as its form says."""
    yield from command.writes_to
    name, args = command.name, command.args
    if name in _TARGET_OPTIONS:
        yield from find_option_values(args, *_TARGET_OPTIONS[name])
    if name in _LAST_IS_TARGET:
        plain = find_operands(args)
        yield from plain[-1:] if len(plain) > 1 else ()
    elif name in _ALL_ARE_TARGETS:
        yield from find_operands(args)
    elif name == "dd":
        yield from _list_target_values(command)


def find_edited_paths(command: ShellCommand) -> Iterator[str]:
    """The files a command edits in place."""
    args = command.args
    is_sed = command.name in ("sed", "gsed") and (
        has_option(args, "--in-place") or any(re.match(r"-[nErsuz]*i", arg) for arg in args)
    )
    is_script = re.fullmatch(r"(?:perl|ruby)[\d.]*", command.name) and any(re.match(r"-\w*i", arg) for arg in args)
    if is_sed or is_script:
        yield from find_operands(args)


# --- what is never run -----------------------------------------------------------------------------------------------

_POWER: Final = frozenset({"shutdown", "reboot", "halt", "poweroff"})
_POWER_UNITS: Final = frozenset({"poweroff", "reboot", "halt", "kexec", "soft-reboot"})


def _is_recursive(command: ShellCommand) -> bool:
    return bool(find_short_flags(command.args) & {"r", "R"}) or has_option(command.args, "--recursive")


def _deletes_system(command: ShellCommand) -> str | None:
    if command.name != "rm" or not _is_recursive(command):
        return None
    for target in find_operands(command.args):
        path = normalize_path(target)
        if path == "/":
            return "recursive delete of the root folder"
        if path in _SYSTEM_FOLDERS:
            return "recursive delete of a system folder"
        if re.fullmatch(r"~[\w.-]*", path):
            return "recursive delete of a home folder"
    return None


def _describe_formatting(command: ShellCommand) -> str | None:
    return "making a file system (mkfs)" if re.match(r"mkfs(?:\.|$)", command.name) else None


def _writes_device(command: ShellCommand) -> str | None:
    targets = [normalize_path(target) for target in find_written_paths(command)]
    if not any(_RAW_DEVICE.match(target) for target in targets):
        return None
    if command.name == "dd":
        return "dd to a raw device"
    is_redirection = any(_RAW_DEVICE.match(normalize_path(target)) for target in command.writes_to)
    return "redirection to a raw device" if is_redirection else "writing to a raw device"


def _kills_all(command: ShellCommand) -> str | None:
    if command.name != "kill":
        return None
    args = command.args
    # A first ``-1`` is the signal HUP; one after a signal, or after ``--``, is "every process there is".
    signal_first = bool(args) and re.fullmatch(r"-(?:\d+|[A-Za-z]+|-signal.*)", args[0]) is not None
    return "killing every process" if signal_first and "-1" in args[1:] else None


def _shuts_down(command: ShellCommand) -> str | None:
    if command.name in _POWER:
        return "shutting the machine down"
    plain = find_operands(command.args)
    if command.name in ("init", "telinit") and plain[:1] and plain[0] in ("0", "6"):
        return "changing the run level to stop the machine"
    if command.name == "systemctl" and plain[:1]:
        units = {unit.removesuffix(".target") for unit in plain[1:]}
        if plain[0] in _POWER_UNITS or (plain[0] in ("start", "isolate") and units & _POWER_UNITS):
            return "shutting the machine down"
    if any(normalize_path(target) == "/proc/sysrq-trigger" for target in find_written_paths(command)):
        return "shutting the machine down"
    return None


def _forks_without_end(command: ShellCommand) -> str | None:
    """A function that starts itself twice: in a pipeline, or in the background."""
    if not command.function or not command.words or command.words[0] != command.function:
        return None
    is_piped = any(other.words[:1] == [command.function] for other in command.upstream)
    return "fork bomb" if is_piped or command.is_detached else None


NEVER: Final[tuple[Rule, ...]] = (
    _deletes_system,
    _describe_formatting,
    _writes_device,
    _kills_all,
    _shuts_down,
    _forks_without_end,
)


def explain_never_run(command: ShellCommand) -> str | None:
    """The reason why ``command`` is never run, or ``None``. To be asked of certain commands only."""
    return next((reason for rule in NEVER if (reason := rule(command)) is not None), None) if command.is_sure else None


def guesses_password(command: ShellCommand) -> bool:
    """Whether a password is fed to sudo."""
    sudo = command.find_wrapper("sudo")
    if sudo is None and command.name == "sudo":
        sudo = command.words
    takes_stdin = sudo is not None and ("S" in find_short_flags(sudo[1:]) or has_option(sudo[1:], "--stdin"))
    return takes_stdin and command.input is not None


# --- deleting, disks, permissions ------------------------------------------------------------------------------------

_VERIFICATION: Final = re.compile(r"(?:/private)?(?:/tmp|/var/tmp)/hermes-verify-[\w.-]+")


def _danger_of_delete(command: ShellCommand) -> Iterator[str]:
    if command.name == "rm":
        yield from _danger_of_rm(command)
    if command.name == "find" and "-delete" in command.args:
        yield "find -delete"
    if command.name in ("del", "erase", "rd", "rmdir") and any(
        re.fullmatch(r"/[sqf]", arg.lower()) for arg in command.args
    ):
        yield "Windows recursive delete"


def _danger_of_rm(command: ShellCommand) -> Iterator[str]:
    targets = find_operands(command.args)
    if command.find_wrapper("find") is not None:
        yield "find -exec rm"
    if command.find_wrapper("xargs") is not None:
        yield "xargs with rm"
    if _is_recursive(command):
        yield "recursive delete"
    elif targets and all(_VERIFICATION.fullmatch(target) for target in targets):
        return
    if any(target.startswith(("/", "~")) for target in targets):
        yield "delete in an absolute path"
    # What an expansion stands for may be an absolute path, and outside quotes ``-rf`` as well.
    if any(target.startswith((EXPANSION, SPLIT)) for target in targets):
        yield "delete of what an expansion names"


_POWERSHELL: Final = frozenset({"powershell", "powershell.exe", "pwsh", "pwsh.exe"})
_POWERSHELL_DELETE: Final = re.compile(r"(?i)\b(?:remove-item|ri|rm|rmdir|del|erase|rd)\b")


def _danger_of_powershell(command: ShellCommand) -> str | None:
    if command.name == "remove-item":
        return "PowerShell delete"
    if command.name not in _POWERSHELL:
        return None
    if any(re.fullmatch(r"(?i)[-/]e(?:c|nc\w*)?", arg) for arg in command.args):
        return "PowerShell encoded command"
    return "PowerShell delete" if _POWERSHELL_DELETE.search(" ".join(command.args)) else None


_MODE_FOR_ALL: Final = re.compile(r"[0-7]?[0-7][0-7][2367]")
_LETTERS_FOR_ALL: Final = re.compile(r"(?:^|,)[ugo]*[oa][ugo]*[+=][rxXst]*w")


def _danger_of_permissions(command: ShellCommand) -> Iterator[str]:
    if command.name not in ("chmod", "chown", "chgrp"):
        return
    plain = find_operands(command.args)
    if command.name == "chmod" and plain and (_MODE_FOR_ALL.fullmatch(plain[0]) or _LETTERS_FOR_ALL.search(plain[0])):
        yield "permission for everybody to write"
    if not _is_recursive(command):
        return
    if command.name == "chown" and re.match(r"root(?:$|[:.])", next(iter(plain), "")):
        yield "recursive change of owner to root"
    if {normalize_path(target) for target in plain[1:]} & (_SYSTEM_FOLDERS | {"/", "~"}):
        yield "recursive change of a system folder's permissions"


def _danger_of_disk(command: ShellCommand) -> str | None:
    return "disk copy" if command.name == "dd" and any(arg.startswith("if=") for arg in command.args) else None


def _danger_of_overwrite(command: ShellCommand) -> Iterator[str]:
    targets = [normalize_path(target) for target in find_written_paths(command)]
    for target in [*targets, *(normalize_path(target) for target in find_edited_paths(command))]:
        if _SYSTEM_FILE.fullmatch(target):
            yield "overwriting a system file"
        elif _CREDENTIALS.fullmatch(target):
            yield "overwriting credentials or a shell's start file"
        elif _AGENT_CONFIG.fullmatch(target):
            yield "overwriting the agent's configuration"
        elif target in targets and _PROJECT_CONFIG.fullmatch(target):
            yield "overwriting a project's .env or config.yaml"


def _danger_of_network(command: ShellCommand) -> str | None:
    files = [*command.writes_to, *command.reads_from]
    if any(file.startswith(("/dev/tcp/", "/dev/udp/")) for file in files):
        return "a connection to the network by redirection"
    if command.name in ("nc", "ncat", "netcat") and (
        find_short_flags(command.args) & {"e", "c"} or has_option(command.args, "--exec", "--sh-exec", "--lua-exec")
    ):
        return "a program that the network talks to"
    if command.name == "socat" and any(re.match(r"(?i)exec:|system:|shell:", arg) for arg in command.args):
        return "a program that the network talks to"
    return None


# --- programs that run text ------------------------------------------------------------------------------------------

_FETCHERS: Final = frozenset({"curl", "wget", "fetch", "aria2c", "http", "https"})
_SOURCES: Final = frozenset({"source", "."})


def _iterate_commands_within(command: ShellCommand) -> Iterator[ShellCommand]:
    """The commands whose output makes words of ``command``, or that it reads."""
    seen = [*command.nested]
    fed = command.input
    if fed is not None and fed is not command:
        seen += fed.nested
    for inner in seen:
        yield inner
        yield from inner.upstream
        yield from _iterate_commands_within(inner) if inner.nested else ()


def _fetches(commands: Iterator[ShellCommand]) -> bool:
    return any(get_program_name(word) in _FETCHERS for command in commands for word in command.words[:1])


def _decodes(command: ShellCommand) -> bool:
    flags = find_short_flags(command.args)
    match command.name:
        case "base64" | "base32" | "gbase64":
            return bool(flags & {"d", "D"}) or has_option(command.args, "--decode")
        case "xxd":
            return "r" in flags
        case "openssl":
            return "-d" in command.args
        case "tr" | "rev" | "gunzip" | "zcat" | "uudecode":
            return True
        case _:
            return False


_VALUE_LETTERS: Final = (
    (re.compile(r"(?:i?python|pypy)[\d.]*"), "WXQ"),
    (re.compile(r"node|nodejs|bun|deno"), "rC"),
    (re.compile(r"ruby[\d.]*"), "rIEC"),
    (re.compile(r"php[\d.]*"), "dcz"),
    (re.compile(r"lua[\d.]*|luajit"), "l"),
    (re.compile(r".*"), "oO"),
)
_VALUE_OPTIONS: Final = frozenset({"--require", "--import", "--loader", "--rcfile", "--init-file", "--conditions"})


def _list_program_args(command: ShellCommand) -> list[str]:
    """The arguments without values of options, so that the first operand is the script."""
    letters = next(letters for name, letters in _VALUE_LETTERS if name.fullmatch(command.name))
    kept: list[str] = []
    takes_next = False
    for arg in command.args:
        if takes_next:
            takes_next = False
            continue
        kept.append(arg)
        is_short = re.fullmatch(r"[-+]\w+", arg) is not None
        takes_next = arg in _VALUE_OPTIONS or (is_short and arg[-1] in letters)
    return kept


def _reads_program(command: ShellCommand) -> bool:
    """Whether a shell or an interpreter takes its program from standard input, or from what another command writes."""
    args = _list_program_args(command)
    for arg in args:
        if arg == "-" or arg == "/dev/stdin" or arg.startswith((PROCESS, "/dev/fd/", "/proc/self/fd/")):
            return True
        if command.name in SHELLS and re.fullmatch(r"-\w*s\w*", arg):
            return True
        if arg == "-m" or not arg.startswith(("-", "+")):
            return False
    return True


def _danger_of_remote(command: ShellCommand) -> str | None:
    is_runner = command.name in SHELLS or is_interpreter(command.name)
    if is_runner and _reads_program(command):
        upstream = list(command.upstream)
        if _fetches(iter(upstream)):
            return "remote content piped to an interpreter"
        if command.name in SHELLS and any(_decodes(other) for other in upstream):
            return "decoded content piped to a shell"
    starts_with_expansion = bool(command.words) and command.words[0].startswith((SPLIT, EXPANSION))
    is_runner = is_runner or command.name == "eval" or command.name in _SOURCES or starts_with_expansion
    if is_runner and _fetches(_iterate_commands_within(command)):
        return "execution of downloaded content"
    return None


def _danger_of_shell_payload(command: ShellCommand) -> str | None:
    if command.name not in SHELLS:
        return None
    if next(find_shell_payloads(command.args), None) is not None:
        return "shell command via -c"
    return "here-document to a shell" if command.documents else None


def _danger_of_fed_program(command: ShellCommand) -> str | None:
    """The danger of program text that does not come from a file."""
    name = command.name
    if name in _SOURCES:
        scripts = find_operands(command.args)[:1]
        is_made = any(script.startswith(PROCESS) or script == "/dev/stdin" for script in scripts)
        return "a script made by other commands" if is_made else None
    if name == "make" or name == "gmake":
        is_made = any(
            file == "-" or file.startswith(PROCESS)
            for file in find_option_values(command.args, "-f", "--file", "--makefile")
        )
        return "a script made by other commands" if is_made or has_option(command.args, "--eval") else None
    if name not in SHELLS and not is_interpreter(name):
        return None
    if not _reads_program(command):
        return None
    if any(PROCESS in arg for arg in command.args):
        return "a script made by other commands"
    if command.find_wrapper("xargs") is not None:
        return "commands from the input"
    if command.input is None:
        return "program text fed to an interpreter" if command.function else None
    return None if _only_reads_files(command) else "program text fed to an interpreter"


def _only_reads_files(command: ShellCommand) -> bool:
    """Whether standard input is a file, or ``cat`` of files: as if the file had been named."""
    fed = command.input
    if fed is None or fed.documents:
        return False
    if fed.reads_from:
        return all(not has_expansion(file) and not file.startswith("&") for file in fed.reads_from)
    upstream = list(command.upstream)
    return all(
        other.name == "cat" and find_operands(other.args) and not any(has_expansion(word) for word in other.words)
        for other in upstream
    )


_CODE_FLAGS: Final = (
    (re.compile(r"(?:i?python|pypy)[\d.]*(?:-dbg)?"), "c", ()),
    (re.compile(r"node|nodejs|bun"), "ep", ("--eval", "--print")),
    (re.compile(r"perl[\d.]*"), "eE", ()),
    (re.compile(r"ruby[\d.]*"), "e", ()),
    (re.compile(r"php[\d.]*"), "rBR", ("--run",)),
    (
        re.compile(r"(?:lua[\d.]*|luajit|osascript|rscript|r|julia|elixir|scala|groovy|guile|ghc|raku|sbcl|racket)"),
        "e",
        ("--eval",),
    ),
)


def _danger_of_one_liner(command: ShellCommand) -> str | None:
    for name, letters, words in _CODE_FLAGS:
        if name.fullmatch(command.name) and _has_code_flag(command, letters, words):
            return CODE_FLAG
    if command.name in ("deno", "bun") and command.args[:1] == ["eval"]:
        return CODE_FLAG
    return None


def _has_code_flag(command: ShellCommand, letters: str, words: Sequence[str]) -> bool:
    args = _list_program_args(command)
    for position, arg in enumerate(args):
        if arg in words or any(arg.startswith(f"{word}=") for word in words):
            return True
        if not arg.startswith("-") or arg == "--":
            return False  # the script, or its arguments
        if not arg.startswith("--") and any(letter in arg[1:] for letter in letters):
            # node takes no option for code: ``node -e --help`` runs nothing.
            is_refused = (
                command.name == "node" and args[position + 1 : position + 2] and args[position + 1].startswith("--")
            )
            return not is_refused
    return False


_AWKS: Final = frozenset({"awk", "gawk", "mawk", "nawk"})
_AWK_PIPE: Final = re.compile(r"system\s*\(|\|&?\s*(?:\"|getline)|print[^;{}\n|/]{0,200}\|&?\s*\w|@load")
_SED_RUNS: Final = re.compile(r"(?:^|[;\n{])\s*[\d,$!]*\s*e(?:\s|$)|([/|,#:@])[gpiImM0-9]*e[gpiImM0-9]*(?:[\s;}]|$)")
_ESCAPES: Final = (
    (
        frozenset(
            {
                "psql",
                "mysql",
                "mariadb",
                "sqlite3",
                "ed",
                "ex",
                "vi",
                "vim",
                "nvim",
                "view",
                "less",
                "man",
                "ftp",
                "gdb",
                "lldb",
            }
        ),
        re.compile(
            r"(?:^|[\s;:|+])\\?!\s*\w|^\s*\.(?:shell|system)\b|(?:^|;)\s*system\s|:(?:py|lua|perl|ruby|call system)"
            r"|\bsystem\s*\(|(?:^|\s)shell\s|to program|from program",
            re.IGNORECASE | re.MULTILINE,
        ),
    ),
)
"""Programs with a command of their own that starts a shell."""
_EXEC_OPTIONS: Final = {
    "rg": ("--pre",),
    "sort": ("--compress-program",),
    "tar": (
        "--to-command",
        "--checkpoint-action",
        "--use-compress-program",
        "-I",
        "-F",
        "--info-script",
        "--rsh-command",
    ),
    "git": ("--upload-pack", "--receive-pack", "--exec"),
    "rsync": ("-e", "--rsh", "--rsync-path"),
    "split": ("--filter",),
    "man": ("-P", "--pager", "-H"),
    "zip": ("-TT", "--unzip-command"),
    "scp": ("-S",),
    "sftp": ("-S",),
    "ssh": ("-o",),
    "wget": ("--use-askpass",),
    "less": ("+!",),
    "ctags": ("--sort-command",),
}
"""Options whose value a program runs. A value that only names a harmless program is let pass."""
_HARMLESS: Final = frozenset(
    {
        "cat",
        "less",
        "more",
        "true",
        ":",
        "ssh",
        "vi",
        "vim",
        "nano",
        "emacs",
        "code",
        "delta",
        "head",
        "bat",
        "pigz",
        "gzip",
    }
    | {
        "zstd",
        "xz",
        "bzip2",
        "lz4",
        "zstdmt",
        "pixz",
        "lbzip2",
        "subl",
        "nvim",
        "hx",
        "micro",
        "firefox",
        "chromium",
        "echo",
    }
    | {"sudo", "rsync", "dot", "show", "diff-so-fancy", "difftastic", "difft"}
)
_SSH_RUNS: Final = re.compile(r"(?i)proxycommand|localcommand|knownhostscommand|proxyusefdpass")


def runs_only_harmless(text: str) -> bool:
    """Whether ``text``, run by a shell, is a call of a pager, an editor, a packer or ssh."""
    if _SSH_RUNS.search(text) or not text.strip():
        return not text.strip()
    reading = read_command(text)
    names = {command.name for command in reading.commands}
    return not reading.doubts and names <= _HARMLESS and not any(command.writes_to for command in reading.commands)


def _reader_executes(command: ShellCommand) -> str | None:
    name, args = command.name, command.args
    for value in find_option_values(args, *_EXEC_OPTIONS.get(name, ())):
        is_plain = bool(_SSH_RUNS.search(value)) is False if name == "ssh" else runs_only_harmless(value)
        if not is_plain or (name == "rg" and value):
            return "a reading tool told to execute a program"
    texts = [*args, *_list_input_texts(command)] if name in _AWKS or name in ("sed", "gsed") else []
    if name in _AWKS and any(len(text) > _SCRIPT_CHARS_MAX or _AWK_PIPE.search(text) for text in texts):
        return "a reading tool told to execute a program"
    if name in ("sed", "gsed") and any(
        len(text) > _SCRIPT_CHARS_MAX or _SED_RUNS.search(text) for text in _list_sed_scripts(args)
    ):
        return "a reading tool told to execute a program"
    for programs, pattern in _ESCAPES:
        if name in programs and any(pattern.search(text) for text in [*args, *_list_input_texts(command)]):
            return "a shell started from inside a program"
    return None


_SCRIPT_CHARS_MAX: Final = 8_192


def _list_sed_scripts(args: Sequence[str]) -> list[str]:
    given = list(find_option_values(args, "-e", "--expression"))
    return given or find_operands(args)[:1]


def _list_input_texts(command: ShellCommand) -> list[str]:
    """The texts that a command reads from its standard input, as far as the line shows them."""
    fed = command.input
    documents = fed.documents if fed is not None else []
    return [*documents, *(" ".join(other.args) for other in command.upstream), *_iterate_documents(command.upstream)]


def _iterate_documents(commands: Iterator[ShellCommand]) -> Iterator[str]:
    for command in commands:
        yield from command.documents


def _danger_of_made_text(command: ShellCommand) -> str | None:
    """The danger of commands that are not known before they run."""
    words = command.words
    if words and (has_expansion(words[0]) or (command.wrappers and "{}" in words[0])):
        is_of_eval = command.group is not None and command.group.name == "eval"
        return None if is_of_eval or _danger_of_remote(command) else NAME_BY_EXPANSION
    if command.name == "eval" and any(has_expansion(word) for word in words):
        return "a text that is made and then run (eval)"
    if command.find_wrapper("xargs") is not None and command.name in WRAPPERS:
        return "commands from the input"
    if command.name == "parallel" and not _is_parallel_command(command.args):
        return "commands from the input"
    return None


def _is_parallel_command(args: Sequence[str]) -> bool:
    return any(not arg.startswith("-") for arg in args) or bool({"--version", "--help"} & set(args))


# --- variables -------------------------------------------------------------------------------------------------------

_RUN_VARIABLES: Final = parse_name_set(
    """
    GIT_SSH_COMMAND GIT_SSH GIT_EDITOR GIT_PAGER GIT_EXTERNAL_DIFF GIT_ASKPASS GIT_SEQUENCE_EDITOR GIT_PROXY_COMMAND
    GIT_CONFIG_PARAMETERS EDITOR VISUAL PAGER MANPAGER LESSOPEN LESSCLOSE BROWSER BASH_ENV ENV PROMPT_COMMAND PS4
    LD_PRELOAD LD_AUDIT DYLD_INSERT_LIBRARIES PYTHONSTARTUP PERL5OPT PERL5DB RUBYOPT SUDO_ASKPASS SSH_ASKPASS
    RSYNC_RSH CVS_RSH TAR_OPTIONS PSQL_PAGER PSQL_EDITOR SYSTEMD_PAGER FCEDIT MAKEFLAGS
    """
)
"""Variables whose value a program runs."""
_SUBSCRIPT_RUNS: Final = re.compile(r"\[[^\]\n]{0,200}(?:\$\(|`)")
_ARITHMETIC_BUILTINS: Final = frozenset(
    {
        "[[",
        "[",
        "test",
        "let",
        "printf",
        "read",
        "unset",
        "declare",
        "typeset",
        "local",
        "export",
        "readonly",
        "mapfile",
        "wait",
    }
)


def _danger_of_variables(command: ShellCommand) -> str | None:
    set_here = [*command.assignments, *(word for wrapper in command.wrappers for word in wrapper[1:])]
    if command.name in ("export", "declare", "typeset", "local", "readonly"):
        set_here += command.args
    for text in set_here:
        found = ASSIGNMENT.match(text)
        if found is None:
            continue
        name, value = found[0].rstrip("+="), text[found.end() :]
        is_run = name in _RUN_VARIABLES or re.fullmatch(r"GIT_CONFIG_(?:KEY|VALUE)_\d+", name)
        if is_run and not runs_only_harmless(value):
            return "a variable whose value is run"
    evaluated = [*command.assignments, *(command.args if command.name in _ARITHMETIC_BUILTINS else ())]
    return "a subscript that runs commands" if any(_SUBSCRIPT_RUNS.search(text) for text in evaluated) else None


# --- databases -------------------------------------------------------------------------------------------------------

_SQL_CLIENTS: Final = frozenset(
    {
        "psql",
        "mysql",
        "mariadb",
        "sqlite3",
        "sqlite",
        "sqlcmd",
        "duckdb",
        "clickhouse-client",
        "clickhouse",
        "bq",
        "cockroach",
    }
    | {
        "usql",
        "mycli",
        "pgcli",
        "litecli",
        "sqlplus",
        "isql",
        "cqlsh",
        "snowsql",
        "bteq",
        "db2",
        "tsql",
        "osql",
        "hive",
        "beeline",
    }
    | {"trino", "presto", "impala-shell", "spark-sql", "athenacli", "rqlite", "turso", "mssql-cli", "influx"}
)
_SQL_DROP: Final = re.compile(
    r"(?i)\bdrop\s+(?:table|database|schema|view|index|keyspace|user|role|owned|collection|materialized)\b|\bdrop\s+column\b"
)
_SQL_TRUNCATE: Final = re.compile(r"(?i)\btruncate\s+(?:table\s+)?\w")
_SQL_DELETE: Final = re.compile(r"(?i)\bdelete\s+from\b")
_SQL_WHERE: Final = re.compile(r"(?i)\bwhere\b")
_SQL_STATEMENT: Final = re.compile(
    r"(?i)(?:^|;)\s*drop\s+(?:table|database|schema)\s+(?:if\s+exists\s+)?[\w\"`.\[]+\s*(?:cascade\s*)?(?:;|$)"
)
_MONGO: Final = re.compile(
    r"(?i)dropdatabase|\.drop\s*\(|\.(?:deletemany|remove)\s*\(\s*(?:\{\s*\})?\s*\)|dropuser|dropcollection"
)
_REDIS: Final = frozenset({"flushall", "flushdb", "shutdown", "debug", "replicaof", "slaveof", "swapdb"})
_REDIS_LINE: Final = re.compile(r"(?im)^\s*(?:flushall|flushdb|shutdown)\b")


def _danger_of_sql(command: ShellCommand) -> Iterator[str]:
    name = command.name
    if name in ("mongo", "mongosh"):
        if any(_MONGO.search(text) for text in [*command.args, *_list_input_texts(command)]):
            yield "dropping a database"
    elif name in ("redis-cli", "valkey-cli", "keydb-cli"):
        is_word = any(arg.lower() in _REDIS for arg in command.args)
        if is_word or any(_REDIS_LINE.search(text) for text in _list_input_texts(command)):
            yield "dropping a database"
    elif name in _SQL_CLIENTS:
        yield from _danger_of_sql_text(
            "\n".join([" ".join(command.words), *_list_input_texts(command), *_list_own_input_texts(command)])
        )
    elif name in ("drop", "delete", "truncate"):
        yield from _danger_of_sql_text(" ".join(command.words))


def _list_own_input_texts(command: ShellCommand) -> list[str]:
    return [document for other in (command, *command.upstream) for document in other.documents]


def _danger_of_sql_text(text: str) -> Iterator[str]:
    if _SQL_DROP.search(text):
        yield "SQL DROP"
    for statement in text.split(";"):
        found = _SQL_DELETE.search(statement)
        if found is not None and not _SQL_WHERE.search(statement, found.end()):
            yield "SQL DELETE without WHERE"
            break
    if _SQL_TRUNCATE.search(text):
        yield "SQL TRUNCATE"


_NO_CLIENTS: Final = parse_name_set(
    """
    echo printf cat grep egrep fgrep rg ag git gh glab sed awk gawk mawk tee head tail sort jq logger man less cut
    tr wc test [ [[
    """
)


def _danger_of_statement(command: ShellCommand) -> str | None:
    """The danger of dropping a database through an unknown client."""
    if command.name in _NO_CLIENTS or not command.words:
        return None
    texts = [*command.args, *(arg.partition("=")[2] for arg in command.args if arg.startswith("-") and "=" in arg)]
    return "SQL DROP" if any(_SQL_STATEMENT.search(text) for text in texts) else None


# --- services, the agent, containers, clouds, git --------------------------------------------------------------------


def _danger_of_services(command: ShellCommand) -> str | None:
    flags = find_short_flags(command.args)
    match command.name:
        case "service" | "rc-service" if {"stop", "restart", "reload", "force-reload"} & set(command.args[1:]):
            return "stopping or restarting a system service"
        case "pkill" if {"-9", "-KILL", "-SIGKILL"} & set(command.args) or _is_sigkill(command.args):
            return "killing processes by name with SIGKILL"
        case "killall" if {"9", "r"} & flags or _is_sigkill(command.args):
            return "killing processes by name with SIGKILL"
        case "kill":
            finders = [*command.nested]
            if command.find_wrapper("xargs"):
                finders += command.upstream
            return "killing processes found by name" if any(c.name in ("pgrep", "pidof") for c in finders) else None
        case _:
            return None


def _is_sigkill(args: Sequence[str]) -> bool:
    given = [*find_option_values(args, "-s", "--signal"), *(arg[1:] for arg in args if arg.startswith("-"))]
    return any(value.upper().removeprefix("SIG") in ("KILL", "9") for value in given)


_AGENT: Final = re.compile(r"hermes(?:-worker|-agent|-gateway)?")


def _danger_to_worker(command: ShellCommand) -> str | None:
    plain = find_operands(command.args)
    if _AGENT.fullmatch(command.name):
        if plain[:1] == ["update"]:
            return "updating the agent from within"
        if plain[:1] == ["gateway"] and plain[1:2] and plain[1] in ("stop", "restart"):
            return "stopping or restarting the agent"
        is_detached = command.is_detached or command.find_wrapper("nohup") or command.find_wrapper("setsid")
        if plain[:1] == ["gateway"] and is_detached:
            return "starting the agent outside its supervisor"
    if command.name in ("pkill", "killall") and any("hermes" in word.lower() for word in plain):
        return "killing the agent's processes"
    if command.name == "launchctl" and any("hermes" in word.lower() for word in plain):
        return "stopping or restarting the agent"
    return None


def _danger_of_containers(command: ShellCommand) -> str | None:
    if command.name not in ("docker", "podman", "nerdctl", "docker-compose", "podman-compose"):
        return None
    plain = find_operands(command.args)
    is_compose = command.name.endswith("-compose") or plain[:1] == ["compose"]
    if is_compose and {"restart", "stop", "kill", "down", "rm"} & set(plain[:4]):
        return "stopping or restarting containers"
    verb = plain[1:2] if plain[:1] == ["container"] else plain[:1]
    if verb and verb[0] in ("restart", "stop", "kill"):
        return "stopping or restarting containers"
    mounts = find_option_values(command.args, "-v", "--volume", "--mount")
    if any(re.match(r"/:|.*(?:source|src)=/(?:,|$)", mount) for mount in mounts):
        return "a container with all rights"
    return None


_CLOUDS: Final = parse_name_set(
    """
    gcloud az doctl heroku fly flyctl ibmcloud oci linode-cli hcloud scw exo netlify railway supabase aliyun tccli
    openstack ovh vultr-cli
    """
)
_CLOUD_VERBS: Final = re.compile(
    r"(?:delete|destroy|rm|remove|purge|terminate|undeploy)(?:-.*)?|.*:(?:destroy|delete|remove|rm)"
)
_AWS_VERBS: Final = re.compile(
    r"(?:delete|terminate|purge|remove|deregister|release|revoke|disable|stop|schedule-key-deletion)-.*"
)


def _danger_of_clouds(command: ShellCommand) -> str | None:
    plain = find_operands(command.args)[:8]
    is_cloud = command.name in _CLOUDS and any(_CLOUD_VERBS.fullmatch(word) for word in plain)
    is_aws = command.name == "aws" and any(_AWS_VERBS.fullmatch(word) for word in plain)
    is_api = (
        command.name in ("gh", "glab")
        and plain[:1] == ["api"]
        and any(value.upper() == "DELETE" for value in find_option_values(command.args, "-X", "--method"))
    )
    return "deleting from a cloud" if is_cloud or is_aws or is_api else None


_GIT_VALUES: Final = frozenset(
    {"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env", "--super-prefix"}
)
_GIT_RUNS: Final = re.compile(
    r"(?i)alias\..+|core\.(?:pager|editor|sshcommand|fsmonitor|hookspath|askpass|gitproxy)|pager\..+|diff\.external|diff\..+\.(?:command|textconv)"
    r"|filter\..+\.(?:clean|smudge|process)|credential\..*helper|sequence\.editor|gpg\.(?:.+\.)?program|merge\..+\.driver|(?:diff|merge)tool\..+\.(?:cmd|path)"
    r"|browser\..+\.(?:cmd|path)|interactive\.difffilter|protocol\..*allow|uploadpack\..*hook|remote\..+\.(?:uploadpack|receivepack|proxy|vcs)"
    r"|include(?:if)?\..*path|trailer\..+\.(?:cmd|command)|man\..+\.(?:cmd|path)|init\.templatedir|ssh\.variant"
)


def _split_git_settings(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """The settings git is called with, and its arguments from the verb on."""
    given: list[str] = []
    at = 0
    while at < len(args) and args[at].startswith("-"):
        takes_next = args[at] in _GIT_VALUES
        if args[at] == "-c" and at + 1 < len(args):
            given.append(args[at + 1])
        elif args[at].startswith("--config-env"):
            given.append(args[at].partition("=")[2].partition("=")[0] + "=!")
        at += 2 if takes_next else 1
    return given, list(args[at:])


def _git_setting_runs(setting: str) -> bool:
    key, _, value = setting.partition("=")
    if not _GIT_RUNS.fullmatch(key):
        return False
    if key.lower().startswith("alias.") and not value.startswith("!"):
        return next(iter(danger_rows.find_row_reasons("git", value.split())), None) is not None
    is_path = key.lower() in ("core.hookspath", "init.templatedir", "core.fsmonitor") or key.lower().startswith(
        ("include", "protocol")
    )
    if is_path:
        return value.lower() not in ("", "/dev/null", "true", "false", "never", "user")
    helper = value.split(" ")[0] if key.lower().startswith("credential.") else ""
    return not (
        re.fullmatch(r"cache|store|osxkeychain|manager|libsecret", helper)
        or runs_only_harmless(value.removeprefix("!"))
    )


def _danger_of_git(command: ShellCommand) -> Iterator[str]:
    if command.name != "git":
        return
    given, args = _split_git_settings(command.args)
    yield from danger_rows.find_row_reasons("git", args)
    verb, rest = "".join(args[:1]), args[1:]
    flags = find_short_flags(rest)
    if verb == "push" and any(arg.startswith("+") for arg in rest):
        yield "git push with force"
    if verb == "push" and any(arg.startswith(":") for arg in rest):
        yield "git push that deletes"
    if (
        verb == "branch"
        and ("d" in flags or has_option(rest, "--delete"))
        and ("f" in flags or has_option(rest, "--force"))
    ):
        yield "git branch deletion with force"
    plain = find_operands(rest)
    if verb == "config" and plain[1:]:
        given.append(f"{plain[-2]}={plain[-1]}")
    elif verb == "clone":
        given += find_option_values(rest, "-c", "--config")
    if any(map(_git_setting_runs, given)) or any(word.startswith("ext::") for word in plain):
        yield "a command that git runs"


def _danger_of_sudo(command: ShellCommand) -> str | None:
    sudo = command.find_wrapper("sudo")
    options = sudo[1:] if sudo else command.args if command.name == "sudo" else []
    risky = find_short_flags(options) & {"S", "A", "s", "l", "i"}
    is_risky = risky or {"--stdin", "--askpass", "--shell", "--list", "--login"} & set(options)
    return "sudo with a stdin, askpass, shell or list flag" if is_risky else None


def _dangers_by_rows(command: ShellCommand) -> Iterator[str]:
    if command.name == "git":
        return  # its options come before its verb
    name, args = command.name, command.args
    if is_interpreter(name):
        # ``python -m twine upload`` and ``python manage.py flush`` are called by their own names as well.
        words = [arg for arg in _list_program_args(command) if arg != "-m"]
        at = next((n for n, word in enumerate(words) if not word.startswith("-")), len(words))
        name, args = get_program_name("".join(words[at : at + 1])), words[at + 1 :]
    yield from danger_rows.find_row_reasons(name, args)


RULES: Final[tuple[Rule, ...]] = (
    _danger_of_powershell,
    _danger_of_remote,
    _danger_of_shell_payload,
    _danger_of_fed_program,
    _danger_of_one_liner,
    _reader_executes,
    _danger_of_disk,
    _danger_of_statement,
    _danger_of_network,
    _danger_to_worker,
    _danger_of_services,
    _danger_of_containers,
    _danger_of_clouds,
    _danger_of_sudo,
    _danger_of_variables,
    _danger_of_made_text,
)
FULL_RULES: Final[tuple[FullRule, ...]] = (
    _danger_of_delete,
    _danger_of_permissions,
    _danger_of_sql,
    _danger_of_overwrite,
    _dangers_by_rows,
    _danger_of_git,
)
_RULED: Final = (
    _POWER
    | _POWERSHELL
    | _SQL_CLIENTS
    | _CLOUDS
    | frozenset(_TARGET_OPTIONS)
    | frozenset(_EXEC_OPTIONS)
    | parse_name_set(
        """
    rm find mkfs dd kill init telinit systemctl chmod chown chgrp tee truncate sed gsed awk gawk mawk eval source .
    make mongo mongosh redis-cli valkey-cli service rc-service pkill killall hermes hermes-worker docker podman
    nerdctl docker-compose podman-compose aws git gh glab nc ncat netcat socat ed ex vi vim remove-item del su
    runuser script fd fdfind
    """
    )
)
"""Programs that a rule above names; an unknown program may run one of them."""


def find_reasons(commands: Sequence[ShellCommand]) -> Iterator[str]:
    """The reasons why any of ``commands`` is dangerous; a reason may come more than once."""
    for command in commands:
        for full_rule in FULL_RULES:
            yield from full_rule(command)
        for rule in RULES if command.is_sure else (*NEVER, *RULES):
            found = rule(command)
            if found is not None:
                yield found
    yield from _danger_of_made_executable(commands)
    yield from _danger_of_running_written(commands)


def _danger_of_made_executable(commands: Sequence[ShellCommand]) -> Iterator[str]:
    """The danger of ``chmod +x`` of something that the same line then runs."""
    made: set[str] = set()
    for command in commands:
        if command.words and command.words[0].removeprefix("./") in made:
            yield "making a file executable and running it"
            return
        if command.name == "chmod" and any(
            re.fullmatch(r"[ugoa]*\+[rws]*x\w*|[0-7]?7[0-7]{2}", arg) for arg in command.args
        ):
            made |= {word.removeprefix("./") for word in find_operands(command.args)[1:]}


def _danger_of_running_written(commands: Sequence[ShellCommand]) -> Iterator[str]:
    """The danger of a file that the line writes and then runs."""
    made: set[str] = set()
    for command in commands:
        if made and any(_normalize_file_path(script) in made for script in _iterate_script_files(command)):
            yield "running a file that the same line writes"
            return
        made |= {_normalize_file_path(target) for target in find_written_paths(command) if target}
        made -= {"/dev/null", "/dev/stdout", "/dev/stderr"}


def _normalize_file_path(word: str) -> str:
    return posixpath.normpath(word) if word else word


def _iterate_script_files(command: ShellCommand) -> Iterator[str]:
    """The files a command runs as programs."""
    words = command.words
    if words and "/" in words[0]:
        yield words[0]
    name = command.name
    if name in SHELLS or is_interpreter(name):
        scripts = find_operands(_list_program_args(command))[:1]
        yield from scripts
        fed = command.input
        yield from fed.reads_from if fed is not None and not scripts else ()
        yield from (
            word
            for other in command.upstream
            if other.name == "cat" and not scripts
            for word in find_operands(other.args)
        )
    elif name in _SOURCES:
        yield from find_operands(command.args)[:1]
    elif name in _AWKS or name in ("make", "gmake", "psql", "sed", "xargs", "parallel"):
        yield from find_option_values(command.args, "-f", "--file")
