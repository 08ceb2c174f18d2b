"""The tables of docs/providers.md, made from rows: ``python -m hermes_worker.models.provider_tables`` writes them
there."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from hermes_worker.models.catalog import ProviderRow, provider_rows, wire_rows


def render_providers() -> str:
    """The table of all providers: name, address and source."""
    head = ("provider", "also called", "address", "key", "wire", "source", "asked for real")
    return _render_table(head, map(_render_provider, provider_rows().values()))


def render_wires() -> str:
    """The table of all wires."""
    rows = (
        (f"`{row.name}`", f"`[{row.extra}]`" if row.extra else "", "yes" if row.is_called else "unverified live")
        for row in wire_rows().values()
    )
    return _render_table(("wire", "extra", "spoken to its vendor"), rows)


def _render_provider(row: ProviderRow) -> Sequence[str]:
    return (
        f"`{row.name}`",
        ", ".join(f"`{name}`" for name in row.aliases),
        f"`{row.base_url}`" if row.base_url else row.address_form or "yours",
        ", ".join(f"`{name}`" for name in row.key_variables) or "none",
        f"`{row.wire or row.home_wire or 'chat_completions'}`{', by model' if row.model_wires else ''}",
        row.source,
        "yes" if row.is_called else "not called",
    )


def _render_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(page: Path) -> None:
    """Write the tables between their marks in ``page``."""
    text = page.read_text(encoding="utf-8")
    for mark, table in (("providers", render_providers()), ("wires", render_wires())):
        begin, end = f"<!-- {mark}:begin -->", f"<!-- {mark}:end -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{table}\n{end}{rest.partition(end)[2]}"
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/providers.md"))
