"""Scripts by a seeded grammar, and what a real bash runs of them.

Every program on the PATH is a fake that writes its words down, or a real wrapper (``env``, ``xargs``, ``timeout``) that
only starts others. No script names a path, so nothing outside its temporary folder can be touched.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FAKES: Final = ("rm", "dd", "git", "curl", "mkfs", "reboot", "docker", "sudo", "cat", "tee", "sh")
WRAPPERS: Final = ("env", "xargs", "timeout", "nice", "nohup", "setsid", "stdbuf", "find", "bash")

_END: Final = "=end=of=command="
_FAKE: Final = """#!{sh}
printf '%s\\0' '{name}' "$@" '{end}' >> "$GUARD_LOG"
[ {name} = sudo ] && [ $# -gt 0 ] && exec "$@"
exit 0
"""
_EACH: Final = """command_not_found_handle() { printf '%s\\0' "$@" '=end=of=command=' >> "$GUARD_LOG"; return 127; }
export -f command_not_found_handle
IFS= read -rd '' script < "$1"
eval "$script"
"""
_DRIVER: Final = """
cd "$1" || exit 1
for ((number = 0; number < $2; number++)); do
  export GUARD_LOG="$1/$number.log"
  timeout -s KILL 2 bash --noprofile --norc -c "$3" each "$1/$number.sh" < /dev/null > /dev/null 2>&1
done
"""


def executed(scripts: list[str], folder: Path, *, timeout_s: float = 120) -> list[list[list[str]]]:
    """For each script the commands, as lists of words, that bash ran."""
    programs = folder / "bin"
    if not programs.exists():
        _make_programs(programs)
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    for number, script in enumerate(scripts):
        (work / f"{number}.sh").write_bytes(script.encode(errors="surrogateescape"))
    bash = shutil.which("bash")
    assert bash is not None
    subprocess.run(
        [bash, "--noprofile", "--norc", "-c", _DRIVER, "driver", str(work), str(len(scripts)), _EACH],
        env={"PATH": str(programs), "LC_ALL": "C.UTF-8", "HOME": str(work)},
        cwd=work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=timeout_s,
        check=False,
    )
    return [_logged(work / f"{number}.log") for number in range(len(scripts))]


def _make_programs(folder: Path) -> None:
    folder.mkdir(parents=True)
    shell = shutil.which("dash") or shutil.which("sh")
    for name in FAKES:
        path = folder / name
        path.write_text(_FAKE.format(sh=shell, name=name, end=_END))
        path.chmod(0o755)
    for name in WRAPPERS:
        real = shutil.which(name)
        if real is not None:
            (folder / name).symlink_to(real)


def _logged(path: Path) -> list[list[str]]:
    if not path.exists():
        return []
    commands: list[list[str]] = []
    words: list[str] = []
    for field in path.read_bytes().decode(errors="surrogateescape").split("\0")[:-1]:
        if field == _END and words:
            commands.append(words)
            words = []
        else:
            words.append(field)
    return commands


class Grammar:
    """Makes scripts of everything bash has, one after the other from one seed."""

    def __init__(self, seed: int, *, is_mutating: bool = True) -> None:
        """With ``is_mutating``, two scripts in five are damaged, so that quotes and brackets go astray."""
        self._is_mutating = is_mutating
        self._random = random.Random(seed)
        self._count = 0

    def scripts(self, count: int) -> Iterator[str]:
        for _ in range(count):
            yield self.script()

    def script(self) -> str:
        text = self._list(0)
        if self._is_mutating and self._random.random() < 0.4:
            text = self._mutated(text)
        return text

    def _mutated(self, text: str) -> str:
        for _ in range(self._random.randint(1, 3)):
            at = self._random.randrange(len(text) + 1)
            match self._random.randrange(3):
                case 0:
                    text = text[:at] + self._random.choice(_NASTY) + text[at:]
                case 1:
                    text = text[:at] + text[at + 1 :]
                case _:
                    end = self._random.randrange(at, min(at + 6, len(text)) + 1)
                    text = text[:at] + text[end:] + self._random.choice(_NASTY)
        return text.replace("\0", "").replace("/", "")

    def _pick(self, *makers: object) -> str:
        maker = self._random.choice(makers)
        return maker if isinstance(maker, str) else maker()  # type: ignore[operator,no-any-return]

    def _name(self) -> str:
        name = self._random.choice(FAKES[:-1])
        spelled: tuple[str, ...] = (name,) * 8
        spelled += (f"'{name}'", f"{name[0]}\\{name[1:]}", f'{name[0]}""{name[1:]}', f"{name[0]}\\\n{name[1:]}")
        spelled += (f"$'\\x{ord(name[0]):x}'{name[1:]}", f"{{{name},}}" if self._random.random() < 0.3 else name)
        return self._random.choice(spelled)

    def _label(self) -> str:
        self._count += 1
        return f"w{self._count}"

    def _word(self, depth: int) -> str:
        label = self._label()
        simple = (label, f"-{label}", f"'{label} x'", f'"{label} y"', f"{label}\\ z", f"$'{label}\\t'", f'$"{label}"')
        odd = (
            f"{label}#x",
            f"'{label}\\'",
            f'"{label}\\\\"',
            f'"{label}\'"',
            f"'{label}\"'",
            f"{label}\\\nb",
            '"$\'"',
            "{}",
            f"{{{label},b}}",
            f"x{{{label},{{c,d}}}}",
            f"{label}=v",
            "\\\\",
            f'"{label}\\\nq"',
            "'#'",
            '"#"',
            "\\#",
            f"{label}{{",
            f"}}{label}",
            "]]",
            "if",
            "done",
            "esac",
            f"'{label}\nn'",
            f'"{label}\nn"',
            "$",
            "'$'",
            "a\\'b",
            f"$'{label}\\''",
            f"$'\\\\'{label}",
            f"'{label}\x1b]0;'",
            f'"{label}\x1b[0m"',
            "~",
            "=",
            "*.none",
            "[x]",
            "!",
        )
        if depth > 3:
            return self._random.choice(simple)
        roll = self._random.random()
        if roll < 0.55:
            return self._random.choice(simple)
        return self._random.choice(odd) if roll < 0.8 else self._expansion(depth + 1)

    def _expansion(self, depth: int) -> str:
        inner = self._list(depth + 1, is_short=True)
        quotable = inner.replace("\\", "").replace("`", "")
        return self._pick(
            f"$({inner})",
            f'"$({inner})"',
            f'"a $({inner}) b"',
            f"$( {inner}\n)",
            f"`{quotable}`",
            f"<({inner})",
            f"${{x:-$({inner})}}",
            f'"${{x:-$({inner})}}"',
            f"$(( 1 + $({inner}) ))",
            "$((1+(2*3)))",
            '"$((1 << 2))"',
            "${x:-a b}",
            '"${x:-"q r"}"',
            "${#x}",
            "$x",
            '"$@"',
            "$[1+2]",
            "${x//\\}/y}",
            "${x:-'}'}",
            f"$(({inner}) )",
            f'"$( (echo; {inner}) )"',
            "$(case a in a) echo;; esac)",
            f"$(case b in a) echo;; (b) {inner};; esac)",
            f"$(# it's a comment )\n{inner})",
            f"$(cat <<EOF\nit's $({inner})\nEOF\n)",
            "$'a\\'b'",
            '"`echo`"',
        )

    def _simple(self, depth: int) -> str:
        words = " ".join(self._word(depth) for _ in range(self._random.randint(0, 3)))
        prefix = self._pick(
            "", "", "", "", "A=1 ", "A=$(true) ", "A='x y' B= ", ">out ", "2>&1 ", "<in ", "a[1 + 2]=3 "
        )
        wrapper = self._pick(
            *("",) * 14,
            "env ",
            "env A=1 ",
            "env -u B ",
            "env --chdir . ",
            "timeout 5 ",
            "timeout --signal KILL 5 ",
            "nice -n 5 ",
            "nohup ",
            "stdbuf -oL ",
            "command ",
            "command -p ",
            "exec ",
            "builtin command ",
            "xargs ",
            "xargs -n 1 ",
            "xargs --max-args 1 ",
            "sudo ",
            "setsid -w ",
            "time ",
            "time -p ",
            "! ",
            "eval ",
            "\\time ",
        )
        suffix = self._pick(
            "", "", "", "", " >out", " 2>/dev/null", " >&2", " &>out", " 2>&1 >out", " <<< 'a b'", " {fd}>out"
        )
        return f"{prefix}{wrapper}{self._name()} {words}{suffix}".replace("/dev/null", "out")

    def _payload(self, depth: int) -> str:
        inner = self._list(depth + 1, is_short=True).replace("'", "")
        return self._pick(
            f"bash -c '{inner}'",
            f"eval '{inner}'",
            f"bash -o pipefail -c '{inner}'",
            f"trap '{inner}' EXIT",
            f"eval {self._simple(depth)}",
            f"env -S'{self._name()} a'",
            f"bash <<'EOF'\n{inner}\nEOF\n",
            f"env bash -ec '{inner}'",
            f"find . -maxdepth 0 -exec {self._name()} {{}} \\;",
            f"echo a | xargs -I% bash -c '{inner}'",
            f"bash <<< '{inner}'",
            f"mapfile -C '{inner} #' -c 1 <<< a",
        )

    def _document(self, depth: int) -> str:
        inner = self._list(depth + 1, is_short=True)
        name, label = self._name(), self._label()
        return self._pick(
            f"{name} <<EOF\n{label} it's\nEOF\n",
            f"{name} <<'EOF'\n$({inner})\nEOF\n",
            f"{name} <<EOF\n$({inner})\nEOF\n",
            f"{name} <<-EOF\n\t{label}\n\tEOF\n",
            f"{name} <<EOF\n\tEOF\n'\nEOF\n",
            f"{name} <<'EOF'\nends in \\\nEOF\n",
            f"{name} <<EOF\njoined \\\nEOF\nstill\nEOF\n",
            f'{name} <<E"O"F\n`{label}\nEOF\n',
            f"{name} <<\\EOF\n$(\nEOF\n",
            f"{name} <<A <<B\nx\nA\n'\nB\n",
            f"{name} <<EOF; {inner}\n{label}\nEOF\n",
            f'{name} <<EOF | {inner}\n"\nEOF\n',
            f"{name} <<$EOF\n'\n$EOF\n",
            f'{name} << "E F"\n\'\nE F\n',
            f"{name} <<EOF\n\\\\\nEOF\n",
            f"{name} <<EOF\nEOF \n\\$(\nEOF\n",
            f"{{ {name} <<EOF\n{label}\nEOF\n}}",
            f"({name} <<EOF\n)\nEOF\n)",
            f"{name} <<EOF\n\\\nEOF\nEOF\n{inner}\n",
            f"{name} <<EOF && {inner}\n${{x:-$({self._name()})}}\nEOF\n",
            f"if {name} <<EOF\nthen\nEOF\nthen {inner}; fi",
        )

    def _compound(self, depth: int) -> str:
        one, two = self._list(depth + 1, is_short=True), self._list(depth + 1, is_short=True)
        label = f"f{self._label()}"
        return self._pick(
            f"if {one}; then {two}; fi",
            f"if false; then {one}; else {two}; fi",
            f"if false; then :; elif {one}; then {two}; fi",
            f"for x in a b; do {one}; done",
            f"for x in 'a b' $({one}); do {two}; done",
            f"for ((i = 0; i < 1; i++)); do {one}; done",
            f"while {one} && false; do {two}; done",
            f"until {one}; do {two}; break; done",
            f"{{ {one}; }}",
            f"({one})",
            f"( {one}\n)",
            f"case a in (a|b) {one};; *) {two};; esac",
            f"case 'a b' in a\\ b) {one} ;& c) {two} ;; esac",
            f"case x in x) {one}\nesac",
            f"case a in\n# it's )\na) {one};;\nesac",
            f"case rm in @(rm|dd)) {one};; esac",
            "case x in [)]) rm a;; x) dd;; esac",
            f"{label}() {{ {one}; }}; {label}",
            f"function {label} {{ {one}; }}; {label}",
            f"function {label} () ( {one} ); {label}",
            f"{label} () {{\n{one}\n}}\n{label} a",
            f"coproc {{ {one}; }}",
            f"coproc N {{ {one}; }}",
            f"coproc {one}",
            f"[[ a =~ (rm|a) ]] && {one}",
            f"[[ $x == rm* || ( -z $x && a < b ) ]] && {one}",
            f'[[ -n "$({one})" ]]',
            f"[[ a == @(a|b) ]] && {one}",
            f"[[ 'a b' =~ ^a\\ b$ ]] && {one}",
            f"[[ a =~ [)] ]] || {one}",
            f"(( 1 < 2 )) && {one}",
            f"(( x = 1, (2) )); {one}",
            f"(({one}) ); {two}",
            f"((1)) # it's\n{one}",
            f"(true)#'\n{one}\n#'",
            f"a=(rm x $({one}) '(' [3]=b); {two}",
            f"declare -a b=(rm 'x y'); {one}",
            f"a[$({one})]=1",
            f"let 'x = 1'; {one}",
            f"time -p {one}",
            f"! {{ {one}; }} || {two}",
            f"{{ {one}; }} 2>&1 | tee out",
            f"select x in; do {one}; done",
            f"{one} &\n{two}",
            f"{one} | {two}",
            f"{one} |& {two}",
            f"{one} &&\n\n{two}",
            f"{one} || # it's\n{two}",
            f"{one} && \\\n {two}",
            f"{one} |\\\n {two}",
            f"{one} \\\n#x\n{two}",
            f"# note \\\n{one}",
            f"echo \\\\\n{one}",
            f"echo '\\'\n{one}",
            f"echo a#'b'\n{one}",
            f"{one}; # x'\n{two}",
            f"echo \\\r\n{one}",
            f"true \x1b]0;\n{one}\n\x07",
            f"echo ok\r\n{one}",
            f"x=1; {one}; x='",
            f"if :; then\n#'\n{one}\nfi",
            f"{{ {one}\n}}>out",
            f"true &>out;{one}",
            f"true >&out;{one}",
            f"true 2>&1&{one}",
            f"{one};;{two}",
            f"&{one}",
            f"for x do {one}; done",
            f"echo $(( 1 ))#'\n{one}\n#'",
            f"true <(:)#'\n{one}\n'",
            f"A=1 if {one}\nfi",
            f"cat <<EOF $(\n{one}\n)\nx\nEOF\n",
            f"[ a = b ] || {one}",
            f"shopt -s extglob\necho !(x|y)\n{one}",
            f'echo "`# \'`"\n{one}',
            f"coproc {label} ({one})",
            f"x=${{y:-\n'}}'\n}}; {one}",
        )

    def _list(self, depth: int, *, is_short: bool = False) -> str:
        if depth > 3:
            return f"{self._name()} {self._label()}"
        makers = [self._simple] * 5 + ([self._compound] * 4 + [self._document, self._payload] if depth < 3 else [])
        count = 1 if is_short else self._random.randint(1, 3)
        parts = [self._random.choice(makers)(depth) for _ in range(count)]
        return self._random.choice(("; ", "\n", " && ", " | ", "\n", " & ")).join(parts)


_NASTY: Final = (
    "'",
    '"',
    "\\",
    "\n",
    "#",
    "`",
    "(",
    ")",
    "{",
    "}",
    "$",
    ";",
    "&",
    "|",
    "<",
    ">",
    "\r",
    "\t",
    " ",
    "$(",
    "${",
    "$((",
    "))",
    "<<EOF\n",
    "\\\n",
    "\\\\",
    "EOF\n",
    "\nEOF\n",
    " in ",
    " esac ",
    " done\n",
    ";;",
    "[[ ",
    " ]]",
    "$'",
    '$"',
    " #",
    "\x1b]0;",
    "\x07",
    "!",
    "=(",
    "a=",
    "<(",
    ">(",
    "<<<",
    "<<-E\n",
    "then ",
    "do\n",
    "time ",
    "coproc ",
    "function ",
    "() ",
    "*",
    "?(",
    "@(",
    "~",
    "{a,b}",
    "\x01",
    "\xa0",
    "\v",
)
