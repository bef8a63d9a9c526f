"""First tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("sha256", name="uq_api_keys_sha256"),
    )
    op.create_table(
        "attempts",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("deployment", sa.Text(), nullable=False),
        sa.Column("generation", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("replica", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ready_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("directory", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_attempts"),
    )
    op.create_index("ix_attempts_deployment", "attempts", ["deployment"])
    op.create_index("ix_attempts_generation", "attempts", ["generation"])
    op.create_table(
        "deployments",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("served_name", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("visible", sa.Boolean(), nullable=False),
        sa.Column("current_generation", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("retired_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("name", name="pk_deployments"),
    )
    op.create_index(
        "uq_deployments_standing_served_name",
        "deployments",
        ["served_name"],
        unique=True,
        sqlite_where=sa.text("retired_at IS NULL"),
        postgresql_where=sa.text("retired_at IS NULL"),
    )
    op.create_table(
        "gateways",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("revision_seen", sa.BigInteger(), nullable=False),
        sa.Column("beat_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("inflight", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_gateways"),
    )
    op.create_table(
        "images",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("inspection", sa.Text(), nullable=False),
        sa.Column("built_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_images"),
    )
    op.create_table(
        "leases",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            sa.Identity(always=False),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("resource", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("generation", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_leases"),
    )
    op.create_index(
        "uq_leases_exclusive",
        "leases",
        ["host", "kind", "resource"],
        unique=True,
        sqlite_where=sa.text("kind IN ('gpu', 'ports')"),
        postgresql_where=sa.text("kind IN ('gpu', 'ports')"),
    )
    op.create_index("uq_leases_owner", "leases", ["owner", "kind", "resource"], unique=True)
    op.create_table(
        "proofs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("deployment", sa.Text(), nullable=False),
        sa.Column("generation", sa.Text(), nullable=False),
        sa.Column("inference_hash", sa.Text(), nullable=False),
        sa.Column("passed", sa.Boolean(), nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_proofs"),
    )
    op.create_index("ix_proofs_deployment", "proofs", ["deployment"])
    op.create_index("ix_proofs_generation", "proofs", ["generation"])
    op.create_index("ix_proofs_inference_hash", "proofs", ["inference_hash"])
    op.create_table(
        "revision",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_revision"),
    )
    op.create_table(
        "generations",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("deployment", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["deployment"], ["deployments.name"], name="fk_generations_deployment"),
        sa.PrimaryKeyConstraint("id", name="pk_generations"),
    )
    op.create_index("ix_generations_deployment", "generations", ["deployment"])
    op.create_table(
        "backends",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("generation", sa.Text(), nullable=False),
        sa.Column("replica", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Text(), nullable=True),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["generation"], ["generations.id"], name="fk_backends_generation"),
        sa.PrimaryKeyConstraint("id", name="pk_backends"),
    )
    op.create_index("ix_backends_generation", "backends", ["generation"])
    op.create_table(
        "routes",
        sa.Column("served_name", sa.Text(), nullable=False),
        sa.Column("deployment", sa.Text(), nullable=False),
        sa.Column("generation", sa.Text(), nullable=True),
        sa.Column("visible", sa.Boolean(), nullable=False),
        sa.Column("max_waiting", sa.BigInteger(), nullable=False),
        sa.Column("retry_after_s", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["deployment"], ["deployments.name"], name="fk_routes_deployment"),
        sa.ForeignKeyConstraint(["generation"], ["generations.id"], name="fk_routes_generation"),
        sa.PrimaryKeyConstraint("served_name", name="pk_routes"),
    )
    op.create_index("ix_routes_deployment", "routes", ["deployment"])
    # The one row that every change of what gateways read counts up.
    op.execute("INSERT INTO revision (id, number) VALUES (1, 0)")


def downgrade() -> None:
    for table in (
        "routes",
        "backends",
        "generations",
        "revision",
        "proofs",
        "leases",
        "images",
        "gateways",
        "deployments",
        "attempts",
        "api_keys",
    ):
        op.drop_table(table)
