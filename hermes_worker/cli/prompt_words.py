"""A command whose argument is a task in words: what is said where the words are a command themselves."""

from __future__ import annotations

import shlex
from typing import Any

import click


class PromptCommand(click.Command):
    """A command that takes a task. One that is a verb of ``runs``, as in ``run list``, is refused with what was
    probably meant; behind ``--`` it is a task all the same."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" not in args:
            given, more, _ = self.make_parser(ctx).parse_args(list(args))
            self._refuse_commands(ctx, [*self._find_prompt(given), *more])
        return super().parse_args(ctx, args)

    def _find_prompt(self, given: dict[str, Any]) -> list[str]:
        names = [each.name for each in self.params if isinstance(each, click.Argument)]
        return [str(given[name]) for name in names if name is not None and isinstance(given.get(name), str)]

    def _refuse_commands(self, ctx: click.Context, words: list[str]) -> None:
        """Raise ``click.UsageError`` for words that are no task."""
        written, path = shlex.join(words), ctx.command_path
        is_chat = self.name == "chat"
        as_task = f"{path} {'-q' if is_chat else '--'} {shlex.quote(' '.join(words))}"
        if words == ["help"]:
            meant = f"did you mean '{path} --help'?"
        elif words and words[0] in _list_verbs(ctx):
            meant = f"{written!r} is a command: did you mean 'hermes-worker runs {written}'?"
        elif len(words) > 1 or (words and is_chat):
            meant = "a chat begins without words." if is_chat else "the task is one argument."
        else:
            return
        raise click.UsageError(f"{meant} To give an agent these words as its task, write: {as_task}", ctx)


def _list_verbs(ctx: click.Context) -> list[str]:
    root = ctx.find_root()
    tree = root.command
    runs = tree.get_command(root, "runs") if isinstance(tree, click.Group) else None
    return runs.list_commands(root) if isinstance(runs, click.Group) else []
