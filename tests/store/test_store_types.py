"""The store knows the types of its rows: what is still ``Any`` there is listed, and no row is read without its type."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import hermes_worker.store

STORE = Path(hermes_worker.store.__file__).parent
UNTYPED = {
    "engine/lent.py": "connections of a caller's library, which may not be installed",
    "runs/views.py has_kind": "a condition of SQLAlchemy",
    "rewinds.py RewoundPart": "the fields of a dataclass, as JSON",
    "features/forks/rows.py open_fork": "columns to be written",
    "features/forks/rows.py load_replies": "replies, as JSON",
    "engine/prepared.py": "drivers, and statements that are compiled for them, have no types of their own",
    "engine/database.py": "hooks of SQLAlchemy, which hands in connections of drivers without types",
    "hooks/calls.py HookFacts": "the data of an event, as JSON",
    "hooks/calls.py HookCalls": "columns to be written",
    "hooks/calls.py _load_texts": "the data of an event, as JSON",
    "hooks/pending_calls.py _build_insert": "a statement, before it is prepared",
    "engine/sealing.py SealedText": "what SQLAlchemy hands to a type",
    "engine/stored_texts.py": "what SQLAlchemy hands to its listeners before it executes",
    "engine/pooler.py": "a connection of the driver, as above",
    "sessions.py Sessions": "columns to be written",
    "sessions.py list_turn_messages": "rows of a transcript, as JSON",
    "rows.py _build_record_fields": "the fields of a dataclass, spread into it and into the one that extends it",
    "runs/status_reasons.py _to_facts": "the fields of a dataclass, of which some are found out later",
    "runs/waits.py _redact_request": "what a tool asks, as above",
    "runs/approval_history.py ClosedQuestion": "what a tool asked, as above",
    "runs/call_ledger.py": "a call of a stored reply, as JSON",
    "runs/children.py _find_argument": "one call of a stored reply, as JSON",
    "search/finding.py _TsQuery": "what SQLAlchemy hands to a type",
    "access/principals.py _load_pairs": "the second column of two, which is a time once and a count twice",
}
"""Where ``Any`` stands for something of ours, and why."""
OF_SQLALCHEMY = {
    "Column",
    "ColumnElement",
    "CompoundSelect",
    "CursorResult",
    "Label",
    "Result",
    "ReturningUpdate",
    "Select",
}
"""Its types take those of the columns, which a ``NamedTuple`` says for us."""
_GIVES_ROWS = {"first", "one", "all", "one_or_none", "fetchall", "fetchone"}
_NO_COLUMNS = {
    "close",
    "freeze",
    "rowcount",
    "scalar",
    "scalar_one_or_none",
    "scalars",
    "scalar_one",
    "mappings",
    "keys",
    "inserted_primary_key",
    *_GIVES_ROWS,
}


def sources() -> Iterator[tuple[str, ast.Module]]:
    """The modules that hold SQL: those of the store, and the rows of features."""
    for path in sorted([*STORE.rglob("*.py"), *STORE.parent.glob("features/*/*rows.py")]):
        if "migrations" not in path.parts:
            place = path.relative_to(STORE if STORE in path.parents else STORE.parent)
            yield place.as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def places_of_any(file: str, tree: ast.Module) -> Iterator[str]:
    """The file and the outermost definition of each ``Any`` that is no parameter of a type of SQLAlchemy."""
    for statement in tree.body:
        name = getattr(statement, "name", "")
        parents = {child: parent for parent in ast.walk(statement) for child in ast.iter_child_nodes(parent)}
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node.id == "Any" and not _is_of_sqlalchemy(parents.get(node)):
                yield file if file in UNTYPED else f"{file} {name}".strip()


def _is_of_sqlalchemy(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Subscript) and ast.unparse(node.value).removeprefix("sa.") in OF_SQLALCHEMY


def test_any_stands_only_where_it_is_listed() -> None:
    found = {place for file, tree in sources() for place in places_of_any(file, tree)}
    assert found - set(UNTYPED) == set(), "say the type, or list the place and why there is none"
    assert set(UNTYPED) - found == set(), "typed by now: take it from the list"


def untyped_reads(tree: ast.Module) -> Iterator[str]:
    """Columns that are read from rows of SQLAlchemy by name, which no type checker can check."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            rows = {name for name, value in _bindings(function) if _gives_rows(value)}
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and node.attr not in _NO_COLUMNS and _is_row(node.value, rows):
                    yield f"{function.name}: {ast.unparse(node)}"


def _bindings(function: ast.FunctionDef) -> list[tuple[str, ast.expr]]:
    """What is assigned to names, and what they run over; twice, so that one name may stand for another."""
    found: list[tuple[str, ast.expr]] = []
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found.append((name, value))
            case (
                ast.For(target=ast.Name(id=name), iter=value) | ast.comprehension(target=ast.Name(id=name), iter=value)
            ):
                found.append((name, value))
            case _:
                pass
    results = {name: value for name, value in found if _gives_rows(value)}
    through = [
        (name, results[value.id]) for name, value in found if isinstance(value, ast.Name) and value.id in results
    ]
    return found + through


def _gives_rows(value: ast.expr) -> bool:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return value.func.attr == "execute" or (value.func.attr in _GIVES_ROWS and _gives_rows(value.func.value))
    return False


def _is_row(value: ast.expr, rows: set[str]) -> bool:
    match value:
        case ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)):
            return name in rows
        case _:
            return _gives_rows(value)


def test_no_column_is_read_from_a_row_without_a_type() -> None:
    found = {file: list(untyped_reads(tree)) for file, tree in sources()}
    assert {file: reads for file, reads in found.items() if reads} == {}, "give the rows a NamedTuple (rows_of, row_of)"


@pytest.mark.parametrize(
    ("code", "is_refused"),
    [
        ("row = connection.execute(one).first()\n    return row.pk", True),
        ("return connection.execute(one).one().pk", True),
        ("rows = connection.execute(one)\n    return [row.pk for row in rows]", True),
        ("rows = connection.execute(one).all()\n    return rows[0].pk", True),
        ("return [row.pk for row in rows_of(connection.execute(one), Row)]", False),
        ("return {pk: name for pk, name in connection.execute(one)}", False),
        ("done = connection.execute(one)\n    return done.rowcount", False),
    ],
)
def test_the_search_tells_rows_with_a_type_from_those_without(code: str, is_refused: bool) -> None:
    assert bool(list(untyped_reads(ast.parse(f"def f():\n    {code}\n")))) is is_refused
