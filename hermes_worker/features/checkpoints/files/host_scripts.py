"""The scripts that checkpoints run on hosts, for any POSIX shell with GNU's or busybox's programs, like
``remote.scripts``. The first argument of each is the root of the workspace.

Theory of operation. A path that ``find .`` writes never holds two slashes in a row, whatever a file is called, so two
slashes divide what is listed. No link is followed: a script goes to the folder of a file, asks where it is, and uses
the bare name there. A command that works meanwhile may still win a race; it runs as the same user, and gains nothing by
it that it could not do itself.
"""

from __future__ import annotations

import shlex
from typing import Final

from hermes_worker.features.checkpoints.rules import DEPTH_MAX
from hermes_worker.workspaces.remote.scripts import BROKEN, FOLDER, FULL, MISSING, NO_FOLDER, OUTSIDE

LACKING: Final = 127
PROGRAMS: Final = "find stat xargs readlink sha1sum sha256sum head dd du"
"""The programs that the scripts need beside the shell."""

_ROOT: Final = f"""
unset CDPATH
for program in {PROGRAMS}; do command -v "$program" >/dev/null || exit {LACKING}; done
cd -P -- "$1" 2>/dev/null || exit {MISSING}
real=$(pwd -P; printf x)
real=${{real%?x}}
[ "$real" != / ] || real=
"""
_AT: Final = f"""
here() {{
  [ "$(pwd -P; printf x)" = "$real${{1#.}}
x" ] || return {OUTSIDE}
}}
at() {{
  cd -P -- "$real/" || return 1
  [ "$1" != . ] || return 0
  [ -d "$1" ] || return {MISSING}
  cd -P -- "$1" 2>/dev/null && here "$1" || return {OUTSIDE}
}}
is_file() {{ [ -f "$1" ] && [ ! -L "$1" ] && [ -r "$1" ]; }}
"""
"""``at FOLDER``, as ``find`` writes it, goes there; not over a link. ``$real`` is where the root is."""

_HASH: Final = """
print_hash() { size=$1; shift; { printf 'blob %s\\0' "$size"; exec "$@"; } 2>/dev/null | sha1sum; }
hash_of() { sum=$(print_hash "$@"); sum=${sum%% *}; }
"""
"""``hash_of SIZE COMMAND...`` puts into ``$sum`` what git calls what the command writes; ``print_hash`` begins a line
with it. Few processes: there is one of these for each file."""

LIST: Final = (
    _ROOT
    + f"""
export TZ=UTC
mark=${{1%/*}}/.${{1##*/}}.id; known=$2; digest=$3
shift 3
id=$(cat -- "$mark" 2>/dev/null)
list() {{
  find . -maxdepth {DEPTH_MAX + 2} \\( -type d \\( "$@" \\) -prune \\) -o \\( -type f -o -type l \\) \\
    -exec stat -c '//%f %s %i %Y %Z %y %z %n' -- {{}} + 2>/dev/null
  code=$?
  [ $code = 0 ] || find . -maxdepth {DEPTH_MAX + 2} -type d \\( "$@" \\) -prune -o -type d -exec sh -c '
for one; do [ -r "$one" ] && [ -x "$one" ] || printf "//closed %s\\n" "$one"; done' sh {{}} + 2>/dev/null
  printf '//end %s\\n' $code
}}
printf '%s %s\\n' "${{id:--}}" "$(date +%s)"
if [ "$known" = "${{id:--}}" ]; then
  sum=$(list "$@" | sha256sum)
  [ "${{sum%% *}}" != "$digest" ] || {{ printf '//same\\n'; exit 0; }}
fi
list "$@"
"""
)
"""ROOT ID DIGEST TEST...: the id of the workspace and the time; then ``//same`` where the rest would have the SHA-256
DIGEST, or, of each file and link, its mode, size, number, times and path; of folders that cannot be read ``//closed``;
and ``//end`` with how ``find`` ended. TEST are the words that tell ``find`` which folders it does not look into."""

_EACH: Final = """
real=$1; last=; shift
for one; do
  kind=${one%% *}; rest=${one#* }; size=${rest%% *}; path=${rest#* }
  folder=${path%/*}; name=./${path##*/}
  if [ "$folder" != "$last" ]; then at "$folder"; code=$?; last=$folder; fi
"""
_HASHED: Final = (
    _AT
    + _HASH
    + _EACH
    + """
  if [ $code = 0 ] && [ "$kind" = l ] && [ -L "$name" ]; then print_hash "$size" readlink -n -- "$name"
  elif [ $code = 0 ] && [ "$kind" = f ] && is_file "$name"; then print_hash "$size" cat -- "$name"
  else echo -; fi
done
exit 0
"""
)
HASHES: Final = (
    _ROOT
    + f"""
head -c "$2" | xargs -0 sh -c {shlex.quote(_HASHED)} sh "$real"
"""
)
"""ROOT LENGTH: for each ``KIND SIZE PATH`` of the input, which end in NUL, a line that begins with the name that git
has for the content, or with ``-``. KIND is ``f`` or ``l``, for a link."""

_SHOWN: Final = (
    _AT
    + _EACH
    + """
  if [ $code != 0 ]; then :
  elif [ "$kind" = l ]; then [ ! -L "$name" ] || readlink -n -- "$name" | head -c "$size"
  elif is_file "$name"; then head -c "$size" -- "$name"; fi
done
exit 0
"""
)
CONTENTS: Final = (
    _ROOT
    + f"""
head -c "$2" | xargs -0 sh -c {shlex.quote(_SHOWN)} sh "$real"
"""
)
"""ROOT LENGTH: as ``HASHES``, the contents in a row; no more than SIZE of each."""

_SENT: Final = (
    _AT
    + """
real=$1; last=; flags=
shift
sent() {
  [ -n "$flags" ] || return 0
  printf '%s\\n' "$flags"
  [ $# = 0 ] || sha1sum -- "$@" 2>/dev/null
  printf '//\\n'
  [ $# = 0 ] || cat -- "$@" 2>/dev/null
}
for one; do
  folder=${one%/*}; name=./${one##*/}
  if [ "$folder" != "$last" ] || [ ${#flags} -ge 500 ]; then
    sent "$@"; set --; flags=
    at "$folder"; code=$?; last=$folder
  fi
  if [ $code = 0 ] && is_file "$name"; then set -- "$@" "$name"; flags=${flags}f
  else flags=${flags}-; fi
done
sent "$@"
exit 0
"""
)
SENT: Final = (
    _ROOT
    + f"""
head -c "$2" | xargs -0 sh -c {shlex.quote(_SENT)} sh "$real" | head -c "$3"
"""
)
"""ROOT LENGTH LIMIT: for the paths of the input, which end in NUL, and those of a folder together: a line with a letter
for each, ``f`` or ``-`` for what cannot be read; of each that can, a line that begins with the SHA-1 of its content; a
line ``//``; and the contents in a row. It is cut after LIMIT bytes. Two programs for many files: ``for`` goes through
the words that it was begun with, so what it has gathered can stand in their place."""

ONE: Final = (
    _ROOT
    + _AT
    + f"""
at "${{4%/*}}" || exit $?
name=./${{4##*/}}
if [ "$2" = l ]; then
  [ -L "$name" ] || exit {MISSING}
  readlink -n -- "$name" | head -c "$3"
else
  is_file "$name" || exit {MISSING}
  exec head -c "$3" -- "$name"
fi
"""
)
"""ROOT KIND LIMIT PATH: the content of one file, whatever its size is now."""

IS_THERE: Final = _ROOT

PUT: Final = (
    _ROOT
    + _AT
    + _HASH
    + f"""
count=$2; quota=$3; draft=./.$5.hermes-tmp; total=$6
exec 4<&0
[ -z "$4" ] || umask "$4"
if [ "$quota" != 0 ] && [ $(($(du -sk -- "$real/" | cut -f1) + total / 1024)) -gt "$quota" ]; then exit {FULL}; fi
trap 'rm -f -- "$draft"' EXIT
fully=; printf x | dd bs=1 count=1 iflag=fullblock >/dev/null 2>&1 && fully=1
take() {{
  if [ "$1" = 0 ]; then return 0
  elif [ -n "$fully" ]; then dd bs="$1" count=1 iflag=fullblock <&4 2>/dev/null
  else dd bs=1 count="$1" <&4 2>/dev/null; fi
}}
made() {{
  cd -P -- "$real/" || return 1
  rest=${{1#.}}; rest=${{rest#/}}; way=.
  while [ -n "$rest" ]; do
    part=${{rest%%/*}}
    case $rest in */*) rest=${{rest#*/}};; *) rest=;; esac
    [ -d "./$part" ] || mkdir -- "./$part" 2>/dev/null || return {NO_FOLDER}
    cd -P -- "./$part" 2>/dev/null || return {NO_FOLDER}
    way=$way/$part
    here "$way" || return {OUTSIDE}
  done
}}
gone() {{
  folder=${{path%/*}}; name=./${{path##*/}}
  at "$folder" || {{ code=$?; [ $code = {MISSING} ] && return 0; return $code; }}
  [ -e "$name" ] || [ -L "$name" ] || return 0
  [ -L "$name" ] || [ ! -d "$name" ] || return {FOLDER}
  rm -f -- "$name" 2>/dev/null || return 1
  while [ "$folder" != . ]; do
    at "${{folder%/*}}" && rmdir -- "./${{folder##*/}}" 2>/dev/null || return 0
    folder=${{folder%/*}}
  done
}}
written() {{
  folder=${{path%/*}}; name=./${{path##*/}}
  if ! made "$folder"; then take "$size" >/dev/null; return {NO_FOLDER}; fi
  if [ "$mode" = l ]; then
    target=$(take "$size"; printf x)
    ln -s -- "${{target%x}}" "$draft" 2>/dev/null || return 1
    hash_of "$size" readlink -n -- "$draft"
  else
    set -C
    true 2>/dev/null > "$draft"; code=$?
    set +C
    if [ $code != 0 ]; then take "$size" >/dev/null; return 1; fi
    take "$size" >> "$draft"
    hash_of "$size" cat -- "$draft"
    had=; old=
    if [ -f "$name" ] && [ ! -L "$name" ]; then
      had=f; [ ! -x "$name" ] || had=x
    fi
    [ "$had" != "$mode" ] || old=$(stat -c %a -- "$name")
    old=${{old#"${{old%???}}"}}
    if [ -n "$old" ]; then chmod "$old" "$draft"; elif [ "$mode" = x ]; then chmod +x "$draft"; fi
  fi
  [ "$sum" = "$sha" ] || {{ rm -f -- "$draft"; return {BROKEN}; }}
  [ ! -L "$name" ] || rm -f -- "$name"
  if [ -d "$name" ]; then rm -f -- "$draft"; return {FOLDER}; fi
  mv -f -- "$draft" "$name" 2>/dev/null || {{ rm -f -- "$draft"; return 1; }}
}}
number=0
while [ $number -lt "$count" ]; do
  read -r mode size length sha <&4 || exit {BROKEN}
  path=$(take "$length"; printf x); path=${{path%x}}
  if [ "$mode" = - ]; then gone; else written; fi
  printf '%s\\n' $?
  number=$((number + 1))
done
"""
)
"""ROOT COUNT QUOTA_KB UMASK NAME TOTAL: makes COUNT files what the input says, and writes a line with a code for each.
Of each come a line ``MODE SIZE LENGTH SHA``, LENGTH bytes of path and SIZE bytes of content. MODE is ``f``, ``x`` for a
file that may be executed, ``l`` for a link, ``-`` for what must not be there. TOTAL are the bytes of all contents."""
