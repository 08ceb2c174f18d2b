"""paths below the home are stored relative to it

No table changes, and code of the version before reads the new form as a path. Rows that name such a path absolutely are
rewritten behind this revision, a few at a time, so that nobody waits for a transaction over all sessions
(``store.home_rows``).
"""

revision = "0264"
down_revision = "0261"
branch_labels = None
depends_on = None
works_with = "0103"


def upgrade() -> None:
    """Leave the schema as it is."""
