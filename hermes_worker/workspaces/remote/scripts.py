"""The shell scripts that we run on hosts, for any POSIX shell with GNU's or busybox's programs. They take arguments,
and write to stderr what is for us and not for a model.

Theory of operation of a command. ``SUPERVISOR`` starts the command in a session of its own and reads its standard
input, over which nothing more comes then. When that ends, the worker is gone or wants the command ended: a *watch* ends
everything that the command started, which it knows by its group and by a variable in the environment. So a command
never outlives the worker that waits for it, and no worker has to be asked.
"""

from __future__ import annotations

import shlex
from typing import Final

from hermes_worker.workspaces.guardian import TAG_VARIABLE

MISSING: Final = 61
OUTSIDE: Final = 62
FOLDER: Final = 63
NO_FILE: Final = 64
NO_FOLDER: Final = 65
READ_ONLY: Final = 66
BROKEN: Final = 67
FULL: Final = 68
FOREIGN: Final = 69

_FIND: Final = f"""
root=$1; path=$2
real=$(readlink -f -- "$root" 2>/dev/null && printf x) || exit {MISSING}
real=${{real%?x}}
canonical() {{
  found=$(readlink -f -- "$1" 2>/dev/null && printf x) || return {MISSING}
  found=${{found%?x}}
  case "$found/" in "$real"/*) return 0;; esac
  return {OUTSIDE}
}}
"""
"""``canonical PATH`` puts into ``$found`` where a path leads. ``$real`` is where the root is."""

PREPARE: Final = f"""
umask 077
mkdir -p -- "$1" || exit 1
[ -O "$1" ] || exit {FOREIGN}
mark=${{1%/*}}/.${{1##*/}}.id
if [ ! -e "$mark" ]; then
  printf %s "$2" > "$mark.$2" && ln -- "$mark.$2" "$mark" 2>/dev/null
  rm -f -- "$mark.$2"
fi
cat -- "$mark" || exit 1
for program in setsid readlink stat sha256sum head grep du; do command -v "$program" >/dev/null || exit 127; done
"""
"""ROOT ID: makes the workspace unless it is there, and writes its id: the one given when it was made."""

REMOVE: Final = """
for root; do rm -rf -- "$root" "${root%/*}/.${root##*/}.id" "${root%/*}/.${root##*/}.processes"; done
"""

ROOTS: Final = """
[ -d "$1" ] && [ -O "$1" ] || exit 0
cd -P -- "$1" || exit 1
for name in *; do [ -d "$name" ] && [ ! -L "$name" ] && printf '%s\\0' "$name"; done
exit 0
"""
"""DIRECTORY: the names of the workspaces in it."""

READ: Final = (
    _FIND
    + f"""
canonical "$path" || exit $?
[ -e "$found" ] || exit {MISSING}
[ -d "$found" ] && exit {FOLDER}
[ -f "$found" ] || exit {NO_FILE}
printf '%s\\0' "${{found#"$real"}}" >&2
[ "$3" = 0 ] && exit 0
exec head -c "$3" -- "$found"
"""
)
"""ROOT PATH LIMIT: writes the content; over stderr, where it was below the root."""

CANONICAL: Final = (
    _FIND
    + f"""
up=$path
while canonical "$up"; code=$?; [ $code = {MISSING} ] && [ "$up" != / ] && [ ! -L "$up" ]; do
  up=${{up%/*}}; up=${{up:-/}}
done
[ $code = 0 ] || exit $code
printf '%s\\0' "${{found#"$real"}}${{path#"$up"}}" >&2
"""
)
"""ROOT PATH: over stderr, where a path leads, below the root. Folders on the way need not be there."""

WRITE: Final = (
    _FIND
    + f"""
folder=${{path%/*}}; name=${{path##*/}}
canonical "$folder" || {{ [ $? = {MISSING} ] || exit {OUTSIDE}; }}
quota=$5
if [ "$quota" != 0 ] && [ $(($(du -sk -- "$real" | cut -f1) + $3 / 1024)) -gt "$quota" ]; then exit {FULL}; fi
[ -z "$6" ] || umask "$6"
mkdir -p -- "$folder" || exit 1
canonical "$folder" && [ "$found" = "$real${{folder#"$root"}}" ] || exit {OUTSIDE}
file=$found/$name
[ -L "$file" ] && exit {OUTSIDE}
[ -d "$file" ] && exit {FOLDER}
mode=
if [ -e "$file" ]; then
  [ -f "$file" ] || exit {NO_FILE}
  [ -w "$file" ] || exit {READ_ONLY}
  mode=$(stat -c %a -- "$file")
fi
new=$found/.$7.hermes-tmp
trap 'rm -f -- "$new"' EXIT
set -C
head -c "$3" > "$new" || exit 1
set +C
case "$(sha256sum < "$new")" in "$4 "*) ;; *) exit {BROKEN};; esac
[ -z "$mode" ] || chmod "$mode" -- "$new"
mv -f -- "$new" "$file"
"""
)
"""ROOT PATH SIZE SHA256 QUOTA_KB UMASK NAME: replaces a file by what comes over stdin. The path is canonical."""

HASH: Final = (
    _FIND
    + f"""
canonical "$path" && [ "$found" = "$real${{path#"$root"}}" ] && [ -f "$found" ] && [ -w "$found" ] || exit {MISSING}
sha256sum < "$found"
"""
)

UNLINK: Final = (
    _FIND
    + f"""
folder=${{path%/*}}
canonical "$folder" || exit $?
[ "$found" = "$real${{folder#"$root"}}" ] || exit {OUTSIDE}
file=$found/${{path##*/}}
[ -e "$file" ] || exit {MISSING}
[ -d "$file" ] && exit {FOLDER}
[ -f "$file" ] && [ ! -L "$file" ] || exit {NO_FILE}
rm -f -- "$file"
"""
)

ENTRIES: Final = (
    _FIND
    + f"""
canonical "$path" || exit $?
[ -e "$found" ] || exit {MISSING}
[ -d "$found" ] || exit {NO_FOLDER}
cd -P -- "$found" || exit {READ_ONLY}
[ -n "$3" ] || exit 0
for name in .* *; do
  case $name in .|..) continue;; esac
  [ -e "$name" ] || [ -L "$name" ] || continue
  if [ -d "$name" ]; then printf '%s/\\0' "$name"; else printf '%s\\0' "$name"; fi
done
"""
)
"""ROOT PATH LIST: the names in a folder; with an empty LIST, whether it is one."""

SPACE: Final = """
[ "$(df -Pk -- "$1" | { read -r _; read -r _ _ _ free _; printf %s "$free"; })" -ge "$2" ]
"""
"""ROOT KB: whether so much is free."""

_STATE: Final = (
    "__hermes_state() { __hermes_status=$?; set +v; "
    'if [ -z "${__hermes_seen-}" ]; then __hermes_seen=1; '
    "{ command pwd -P; command printf '\\0'; command env -0; } >&3 || :; fi; "
    "return $__hermes_status; }; "
    "trap '{ __hermes_state; } 2>/dev/null' EXIT; "
    '__hermes_command=$1; shift; eval "$__hermes_command"; '
    "{ __hermes_state; } 2>/dev/null"
)
"""Shell text that runs a command as ``shell`` does, for any shell."""

SUPERVISOR: Final = f"""
exec 3>&2 2>&1 4<&0
seal=$1; root=$2; folder=$3; size=$4; quota=$5; mask=$6; tag=$7; limits=$8; length=$9
cd -P -- "$folder" || {{ printf '\\n%s folder - -\\n' "$seal" >&3; exit 1; }}
take() {{
  [ "$1" = 0 ] || dd bs="$1" count=1 iflag=fullblock <&4 2>/dev/null || dd bs=1 count="$1" <&4 2>/dev/null
}}
variables=$(take "$size"; printf x)
command=$(take "$length"; printf x)
read -r go <&4; [ "$go" = go ] || exit 0
eval "$limits" 2>/dev/null
[ -z "$mask" ] || umask "$mask"
unset OLDPWD
export {TAG_VARIABLE}="$tag"
env -0 >&3; printf '\\0' >&3
eval "${{variables%x}}"
shell=sh
command -v bash >/dev/null 2>&1 && shell='bash --noprofile --norc'
setsid $shell -c {shlex.quote(_STATE)} "${{shell%% *}}" "${{command%x}}" </dev/null 4<&- &
pid=$!
export {TAG_VARIABLE}=
slow=; printf 'a\\0b' | grep -qF b || slow=slow
members() {{
  if [ -n "$slow" ]; then
    for one in /proc/[0-9]*; do
      tr '\\0' '\\n' < "$one/environ" 2>/dev/null | grep -qxF "{TAG_VARIABLE}=$tag" && echo "${{one#/proc/}}"
    done
    return 0
  fi
  grep -lsF "{TAG_VARIABLE}=$tag" /proc/[0-9]*/environ 2>/dev/null | while IFS=/ read -r _ _ one _; do echo "$one"; done
}}
end() {{
  kill -TERM "-$pid" $(members)
  for round in 1 2 3 4 5; do
    [ -n "$(members)" ] || return 0
    sleep 0.2
  done
  for round in 1 2 3 4 5; do
    alive=$(members)
    [ -n "$alive" ] || break
    kill -KILL "-$pid" $alive
  done
}}
exec 1>/dev/null 2>/dev/null
trap '' HUP PIPE TERM INT
( exec 3>&-; cat <&4; end ) &
watch=$!
exec 4<&-
excess=-
if [ "$quota" != 0 ]; then
  ( exec 3>&-
    while sleep 2; do [ "$(du -sk -- "$root" | cut -f1)" -le "$quota" ] || {{ kill -USR1 $$; end; exit; }}; done
  ) </dev/null &
  meter=$!
  trap 'excess=workspace' USR1
fi
while wait "$pid"; code=$?; kill -0 "$pid" 2>/dev/null; do :; done
left=-
if [ -n "$(members)" ]; then
  sleep 0.3
  [ -z "$(members)" ] || {{ left=left; end; }}
fi
kill -KILL "-$pid"
[ -z "${{meter-}}" ] || kill -KILL "$meter" 2>/dev/null
printf '\\n%s %s %s %s\\n' "$seal" "$code" "$left" "$excess" >&3
kill -KILL "$watch" 2>/dev/null
exit 0
"""
"""SEAL ROOT FOLDER SIZE QUOTA_KB UMASK TAG LIMITS LENGTH: runs a command. Its output and errors come over stdout. Over
stderr come the variables it began with, where it was at its end and what it exported then, and a line that begins with
SEAL and says how it ended. The input is SIZE bytes, the variables
of the session as shell text, and LENGTH bytes, the command: an argument would be too short for it.
Nothing is begun before the line ``go`` comes behind them."""
