"""The store: tables, admission and the line, adoption, the gateway's functions, config versions."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

FILES = ("tables", "line", "slots", "warm", "adoption", "gateway", "config", "reaping", "purging", "reclaim", "grants")


def upgrade() -> None:
    """Run the plain SQL beside this directory, in order, in Alembic's transaction."""
    cursor = op.get_bind().connection.cursor()
    for name in FILES:
        # Through the driver's own cursor: SQLAlchemy would pass parameters, and `%` would need doubling.
        cursor.execute((Path(__file__).parents[1] / f"{revision}_{name}.sql").read_text())


def downgrade() -> None:
    raise RuntimeError("migrations go forward only: restore a backup to go back")
