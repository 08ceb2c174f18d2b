"""Commands that surely only read: a rewind asks nobody about them. Whatever is not known counts as an effect."""

from __future__ import annotations

import pytest

from hermes_worker.safety.reading import is_reading

READING = (
    "ls -la",
    "/bin/ls; pwd",
    "cat README.md | head -20",
    "cd src && grep -rn 'rm -rf' . 2>/dev/null | wc -l",
    "ls > /dev/null 2>&1",
    "find . -name '*.py' -newer setup.py",
    "sed -n '10,20p' setup.py",
    "sed -n 5p a.txt",
    "sort names | uniq -c | sort -rn",
    "if [ -f a ]; then cat a; else echo none; fi",
    "cat $(ls *.txt)",
    "rg -n TODO src",
)
WITH_EFFECTS = (
    "",
    "rm x",
    "make deploy",
    "ls > listing",
    "ls &> listing",
    "cat a | tee b",
    "cat $(rm x)",
    "cat <(rm x)",
    "echo `rm x`",
    "cat <<END\n$(rm x)\nEND",
    "ls() { rm x; }; ls",
    "PATH=. ls",
    "for PATH in .; do ls; done",
    "fo\\\nr PATH in .; do ls; done",
    "./ls",
    "$tool x",
    "sudo cat x",
    "xargs cat < names",
    "sh -c ls",
    "find . -delete",
    "find . -exec rm {} ;",
    "find . $more",
    "sed -i s/a/b/ x",
    "sed -n 'w out' x",
    "sed -n '1e rm x' x",
    "sed -n p -e 'w x' a",
    "sed -n 1p -i x",
    "sort -o x x",
    "sort -uo x x",
    "sort --outp=x x",
    "uniq a b",
    "printf -v PATH .",
    "tree -o x",
    "rg --pre rm x",
    "git push",
    "git status",
    "git -c alias.status='!rm x' status",
    "git diff --output=x",
    "git grep -O x",
    "git $verb",
    "cat < /dev/tcp/example.org/80",
    "trap 'rm x' EXIT; ls",
    "coproc rm x",
    "if true; then rm x; fi",
    "cat 'unfinished",
)


@pytest.mark.parametrize("command", READING)
def test_a_command_of_readers_only_reads(command: str) -> None:
    assert is_reading(command)


@pytest.mark.parametrize("command", WITH_EFFECTS)
def test_whatever_may_have_an_effect_is_no_reading(command: str) -> None:
    assert not is_reading(command)
