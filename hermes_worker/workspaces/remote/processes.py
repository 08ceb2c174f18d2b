"""Background processes on hosts: a daemon that is a shell script, and scripts that communicate with it by files.

Theory of operation. The daemon is started in a session of its own by a program that then ends, so it belongs to no
connection. It keeps ``DIRECTORY`` beside the workspace: ``state`` (a word, its own number and when it began; or how the
process ended), ``pipe`` (the process's standard input), and ``log.N``, its output from the byte N on, of which the last
are kept. It ends the process when its time is over, when it is told so by SIGTERM, and when its directory is gone. The
processes that it started are known by a variable of their environment, as for commands (``scripts.SUPERVISOR``).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from hermes_worker.workspaces.base import (
    EXCESS_SENTENCES,
    ExceededLimit,
    PathNotFound,
    ScriptAnswer,
    TerminalSize,
    WorkspaceError,
)
from hermes_worker.workspaces.guardian import TAG_VARIABLE
from hermes_worker.workspaces.processes import INPUT_BYTES_MAX, PROCESS_NAME, ProcessLook, ProcessOrder, ProcessState

_TAKEN: Final = 71
_NONE: Final = 72
_ENDED: Final = 73
_DEAF: Final = 74
_NO_PIPE: Final = 75

_STATES: Final = frozenset({"excess", *(state.value for state in ProcessState)})
"""What the first word of a state may be."""

_DAEMON: Final = f"""
root=$1; folder=$2; dir=$3; quota=$4; mask=$5; tag=$6; limits=$7; life=$8; half=$9; rows=${{10}}; columns=${{11}}
exec 0</dev/null 1>/dev/null 2>/dev/null
umask 077
say() {{ [ -d "$dir" ] && printf '%s\\n' "$*" > "$dir/.state" && mv -f -- "$dir/.state" "$dir/state"; }}
fail() {{ say "failed - - $*"; exit 1; }}
cd -P -- "$folder" || fail the folder in which it should start cannot be entered
mkfifo -- "$dir/pipe" "$dir/output" || fail no pipe can be made
variables=$(cat -- "$dir/env"; printf x)
command=$(cat -- "$dir/command"; printf x)
rm -f -- "$dir/env" "$dir/command"
shell=sh
command -v bash >/dev/null 2>&1 && shell='bash --noprofile --norc'
if [ "$rows" != - ] && ! command -v script >/dev/null; then
  fail there is no terminal here: the program script of util-linux is missing
fi
(
  export LC_ALL=C
  start=0; size=0; old=
  # Read to the end whatever becomes of it, so that nobody who writes is stopped.
  while said=$(dd bs=65536 count=1 2>&1 >> "$dir/log.$start"); do
    set -- $said
    [ "${{7:-0}}" -gt 0 ] || break
    size=$((size + $7))
    if [ "$size" -ge "$half" ]; then
      rm -f -- "$dir/log.$old"
      old=$start; start=$((start + size)); size=0
    fi
  done
  cat
) < "$dir/output" &
logger=$!
(
  eval "$limits" 2>/dev/null
  [ -z "$mask" ] || umask "$mask"
  unset OLDPWD
  export {TAG_VARIABLE}="$tag"
  eval "${{variables%x}}"
  __hermes_command=${{command%x}}
  if [ "$rows" = - ]; then
    exec setsid $shell -c 'eval "$1"' "${{shell%% *}}" "$__hermes_command" < "$dir/pipe" > "$dir/output" 2>&1
  fi
  export __hermes_command
  export SHELL=/bin/sh
  inner="stty rows $rows cols $columns; exec $shell -c 'c=\\$__hermes_command; unset __hermes_command; eval \\"\\$c\\"'"
  exec setsid script -qec "$inner" /dev/null < "$dir/pipe" > "$dir/output" 2>&1
) &
pid=$!
exec 5> "$dir/pipe"
members() {{
  grep -lsF "{TAG_VARIABLE}=$tag" /proc/[0-9]*/environ 2>/dev/null | while IFS=/ read -r _ _ one _; do echo "$one"; done
}}
end() {{
  kill -TERM "-$pid" $(members)
  for round in 1 2 3 4 5; do [ -n "$(members)" ] || return 0; sleep 0.1; done
  for round in 1 2 3 4 5; do
    alive=$(members)
    [ -n "$alive" ] || break
    kill -KILL "-$pid" $alive
  done
}}
why=
trap 'why=killed' TERM
trap '' HUP INT PIPE
began=$(sed 's/.*) //' "/proc/$$/stat" | cut -d ' ' -f 20)
say "running $$ $began"
last=$(($(date +%s) + life)); rounds=0
while kill -0 "$pid" && [ -z "$why" ]; do
  sleep 0.3 & wait $!
  [ -d "$dir" ] || why=killed
  [ -e "$dir/close" ] && exec 5>&-
  [ "$(date +%s)" -lt "$last" ] || why=timed_out
  rounds=$(((rounds + 1) % 10))
  if [ "$quota" != 0 ] && [ $rounds = 0 ] && [ "$(du -sk -- "$root" | cut -f1)" -gt "$quota" ]; then why=excess; fi
done
[ -z "$why" ] || end
wait "$pid"; code=$?
# What it left running ends with it, as after a command.
end; exec 5>&-
for round in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$logger" || break; sleep 0.1; done
kill -KILL "$logger"
[ -n "$why" ] || why=exited
say "$why $code -"
rm -f -- "$dir/pipe" "$dir/output"
"""
"""ROOT FOLDER DIRECTORY QUOTA_KB UMASK TAG LIMITS LIFE_S HALF ROWS COLUMNS: minds one process."""

_START: Final = f"""
dir=$1; size=$2; length=$3; daemon=$4; shift 4
umask 077
mkdir -p -- "${{dir%/*}}" || exit 1
mkdir -- "$dir" 2>/dev/null || exit {_TAKEN}
take() {{
  [ "$1" = 0 ] || dd bs="$1" count=1 iflag=fullblock 2>/dev/null || dd bs=1 count="$1" 2>/dev/null
}}
take "$size" > "$dir/env"; take "$length" > "$dir/command"
read -r go; [ "$go" = go ] || {{ rm -rf -- "$dir"; exit 1; }}
setsid /bin/sh -c "$daemon" hermes-process-daemon "$@" </dev/null >/dev/null 2>&1 &
round=0
while [ ! -e "$dir/state" ]; do
  round=$((round + 1)); [ $round -lt 150 ] || exit 1
  sleep 0.1
done
sleep 0.1
head -n 1 -- "$dir/state"
"""
"""DIRECTORY SIZE LENGTH DAEMON and what that is given: the input is as for ``scripts.SUPERVISOR``."""

_LOOK: Final = f"""
dir=$1
[ -e "$dir/state" ] || exit {_NONE}
read -r state pid began rest < "$dir/state"
if [ "$state" = running ]; then
  now=$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -d ' ' -f 20)
  if [ "$now" != "$began" ]; then
    read -r state pid began rest < "$dir/state"
    [ "$state" != running ] || state=lost
  fi
fi
all=$(ls "$dir" | sed -n 's/^log\\.//p' | sort -n)
set -- $all
printf '%s %s %s %s\\0' "$state" "$pid" "${{1:-0}}" "$rest" >&2
for one; do cat -- "$dir/log.$one" 2>/dev/null; done
exit 0
"""

_TELL: Final = f"""
dir=$1; last=$2; length=$3
[ -e "$dir/state" ] || exit {_NONE}
read -r state pid began rest < "$dir/state"
[ "$state" = running ] || exit {_ENDED}
[ ! -e "$dir/close" ] && [ -p "$dir/pipe" ] || exit {_NO_PIPE}
[ "$length" = 0 ] || timeout 5 sh -c 'exec head -c "$2" > "$1"' sh "$dir/pipe" "$length" || exit {_DEAF}
[ -z "$last" ] || : > "$dir/close"
"""

_KILL: Final = f"""
dir=$1
[ -e "$dir/state" ] || exit {_NONE}
read -r state pid began rest < "$dir/state"
[ "$state" = running ] || exit 0
[ "$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -d ' ' -f 20)" != "$began" ] || kill -TERM "$pid"
exit 0
"""


_REFUSALS: Final = {
    _ENDED: "the process reads nothing any more: it has ended",
    _DEAF: "the process does not read what is written to it",
    _NO_PIPE: "the process reads nothing any more: its input was closed",
}


RunScript = Callable[[Sequence[str], bytes], ScriptAnswer]
"""Runs a script with its arguments and its input to the end. Raises ``WorkspaceError``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteProcesses:
    """The processes of one workspace on a host."""

    run: RunScript
    host: str
    wall: str
    network: str | None
    root: str
    quota_kb: int
    umask: str
    limits: str

    def start(self, name: str, order: ProcessOrder, folder: str, given: tuple[bytes, bytes], tag: str) -> None:
        """Start a process. ``given`` are the variables as shell text, and the command."""
        variables, command = given
        size = order.terminal
        rows = (str(size.rows), str(size.columns)) if size else ("-", "-")
        daemon_options = (folder, self._locate_directory(name), str(self.quota_kb), self.umask, tag, self.limits)
        life = (str(int(order.lifetime_s)), str(order.log_bytes_max // 2), *rows)
        sizes = (str(len(variables)), str(len(command)))
        words = [_START, self._locate_directory(name), *sizes, _DAEMON, self.root, *daemon_options, *life]
        answer = self.run(words, variables + command + b"go\n")
        if answer.code == _TAKEN:
            raise WorkspaceError(f"there is a process called {name} already")
        said = answer.output.decode("utf-8", "replace").split(None, 3)
        if answer.code != 0 or not said:
            raise WorkspaceError(f"the process could not be started on {self.host}: what was to watch it said nothing")
        if said[0] == ProcessState.FAILED.value:
            self.remove_process(name)
            raise WorkspaceError(f"the process could not be started: {said[3].strip() if len(said) > 3 else '?'}")

    def read_look(self, name: str, log_bytes_max: int) -> ProcessLook:
        answer = self.run([_LOOK, self._locate_directory(name)], b"")
        _raise_for_answer(name, answer)
        words = answer.errors.split(b"\0")[0].decode("utf-8", "replace").split(None, 3)
        if len(words) < 3 or not words[2].isdecimal() or words[0] not in _STATES:
            raise WorkspaceError(f"the answer about the process {name} cannot be read; ask again")
        state, code, before = words[0], words[1], int(words[2])
        note = None
        if state == "excess":
            state, note = ProcessState.KILLED.value, EXCESS_SENTENCES[ExceededLimit.WORKSPACE]
        elif state == ProcessState.LOST.value:
            note = "what watched the process was killed, or its machine was started again"
        is_known = state not in (ProcessState.RUNNING.value, ProcessState.LOST.value, ProcessState.FAILED.value)
        codes = {ProcessState.KILLED.value: 130, ProcessState.TIMED_OUT.value: 124}
        exit_code = codes.get(state, int(code) if code.isdecimal() else None) if is_known else None
        return ProcessLook(
            state=ProcessState(state),
            output=answer.output[-log_bytes_max:],
            total=before + len(answer.output),
            exit_code=exit_code,
            note=note,
            sandbox=self.wall,
            network=self.network,
        )

    def write_input(self, name: str, data: bytes, *, is_last: bool) -> None:
        if len(data) > INPUT_BYTES_MAX:
            raise WorkspaceError(f"at most {INPUT_BYTES_MAX} bytes can be written to a process at once")
        _raise_for_answer(
            name, self.run([_TELL, self._locate_directory(name), "last" if is_last else "", str(len(data))], data)
        )

    def end(self, name: str) -> None:
        _raise_for_answer(name, self.run([_KILL, self._locate_directory(name)], b""))

    def remove_process(self, name: str) -> None:
        # Its daemon ends it when it finds that this is gone. Renamed first: what the daemon writes while the directory
        # is being emptied would keep it.
        self.run(['mv -f -- "$1" "$1.gone" 2>/dev/null; rm -rf -- "$1" "$1.gone"', self._locate_directory(name)], b"")

    def _locate_directory(self, name: str) -> str:
        if not PROCESS_NAME.fullmatch(name):
            raise PathNotFound(f"there is no process {name!r} in this workspace")
        parent, _, last = self.root.rpartition("/")
        return f"{parent}/.{last}.processes/{name}"


def wrap_in_terminal(command: str, size: TerminalSize) -> str:
    """``command`` as shell text that gives it a terminal, where the host has the program for it."""
    inner = f'stty rows {size.rows} cols {size.columns}; eval "$__hermes_in_terminal"'
    return (
        "command -v script >/dev/null || "
        "{ echo 'there is no terminal here: the program script of util-linux is missing'; exit 127; }\n"
        f"__hermes_in_terminal={shlex.quote(command)} SHELL=/bin/sh script -qec {shlex.quote(inner)} /dev/null"
    )


def _raise_for_answer(name: str, answer: ScriptAnswer) -> None:
    if answer.code == _NONE:
        raise PathNotFound(f"there is no process {name!r} in this workspace")
    if answer.code != 0:
        unusual = f"the process {name} cannot be used (exit code {answer.code})"
        raise WorkspaceError(_REFUSALS.get(answer.code, unusual))
