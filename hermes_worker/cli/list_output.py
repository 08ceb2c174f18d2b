"""Print a list in the form that ``-o`` names: a table, the same with exact times, JSON, YAML, or names alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import click

from hermes_worker.cli.layout import format_age, format_moment, render_table

_Command = TypeVar("_Command", bound=Callable[..., Any])
T = TypeVar("T")
FormatTime = Callable[[float | None], str]


def add_list_options(command: _Command, wide: str = "with exact times") -> _Command:
    """Add ``-o``, passed as ``output``, and ``--json``. ``wide`` says what that form adds."""
    output = click.option(
        "-o", "output", type=click.Choice(["wide", "json", "yaml", "name"]), help=f"wide: {wide}; name: only ids."
    )
    as_json = click.option("--json", "output", flag_value="json", help="One JSON object per line, as -o json.")
    found: _Command = output(as_json(command))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ListLayout(Generic[T]):
    """How the entries of a list are shown."""

    header: tuple[str, ...]
    row: Callable[[T, FormatTime], tuple[str, ...]]
    """The cells of an entry; times in them are formatted by the function that it is given."""
    document: Callable[[T], Mapping[str, Any]]
    name: Callable[[T], str]
    empty: str
    """What to say on stderr where the list is empty."""
    ids: Sequence[int] = ()
    whole: Sequence[int] = ()
    spared: Sequence[int] = ()


def print_list(found: Sequence[T], output: str | None, layout: ListLayout[T]) -> None:
    """Print a list. Times are relative, and exact in the form ``wide``."""
    if text := render_documents(found, output, layout.document, layout.name):
        click.echo(text)
    elif not found and output not in ("json", "yaml", "name"):
        click.echo(layout.empty, err=True)
    elif found:
        format_time = format_moment if output == "wide" else format_age
        rows = [layout.row(entry, format_time) for entry in found]
        click.echo(render_table(rows, layout.header, ids=layout.ids, whole=layout.whole, spared=layout.spared))


def print_entries(
    found: Collection[T],
    header: tuple[str, ...],
    row: Callable[[T], tuple[str, ...]],
    *,
    document: Callable[[T], Mapping[str, Any]] | None,
    empty: str | None = None,
    **columns: Sequence[int],
) -> None:
    """Print a list: a JSON object per line where ``document`` makes one of an entry, else a table with the ``columns``
    of ``render_table``. ``empty`` is said on stderr instead of a table without rows."""
    if document is not None:
        for entry in found:
            click.echo(json.dumps(document(entry)))
    elif found or empty is None:
        click.echo(render_table(map(row, found), header, **columns))
    else:
        click.echo(empty, err=True)


def render_documents(
    found: Sequence[T], output: str | None, document: Callable[[T], Mapping[str, Any]], name: Callable[[T], str]
) -> str:
    """Render a list for programs; empty for a form that is for people, and for an empty list."""
    match output:
        case "name":
            return "\n".join(map(name, found))
        case "json":
            return "\n".join(json.dumps(document(entry)) for entry in found)
        case "yaml" if found:
            import yaml

            # Over JSON, because YAML knows no numbers of ours, and no names of enumerations.
            documents = [json.loads(json.dumps(document(entry))) for entry in found]
            return str(yaml.safe_dump(documents, sort_keys=False, allow_unicode=True)).rstrip()
    return ""
