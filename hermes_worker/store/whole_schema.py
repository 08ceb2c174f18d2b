"""The schema with the tables of all features: what walks over *all* tables asks here and not ``store.tables``.

A feature's table comes into being when its module is imported, which a process does that uses the feature. A check of
the schema or a new sealing of all texts that walks over the tables there are by chance would look whole and miss some.
"""

from __future__ import annotations

from itertools import chain

import sqlalchemy as sa

from hermes_worker import installed
from hermes_worker.extension import load_reference
from hermes_worker.store.tables import metadata


def load_schema() -> sa.MetaData:
    """Load the schema of the database: the tables of the kernel, and all that features declare."""
    for reference in chain.from_iterable(one.tables for one in installed.get_installed().list_bringing("tables")):
        load_reference(reference)
    return metadata


def list_owned_tables(owner: str) -> list[sa.Table]:
    """List the tables of features that declare ``owner``, a column, as the one that says whose a row is: ``run_pk``,
    ``session_pk`` or ``tenant``."""
    return [table for table in load_schema().sorted_tables if table.info.get("owner") == owner]
