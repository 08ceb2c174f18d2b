"""A run that was begun under the first schema there was is finished by today's workers."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.script import ScriptDirectory
from support.rig import rig_on, sink_call
from support.store import Store, new_run, opened

from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.core.events import PlannedCall
from hermes_worker.core.messages import ModelReply, ToolRequest, dump_canonical_json
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus
from hermes_worker.lab.sink import make_sink_tools
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.store import migrate as migrate_module
from hermes_worker.store.whole_schema import load_schema
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef

pytestmark = pytest.mark.faults


def half_done(store: Store, directory: Path) -> str:
    """A run whose first reply is written and whose call nobody has claimed."""
    catalog = build_default_catalog(*make_sink_tools(directory / "sink", work_s=0.0))
    steps = [{"calls": [sink_call("once", f"s{n}")]} for n in range(3)]
    new = new_run(
        input=f"scripted: {dump_canonical_json({'steps': steps, 'final': 'done'})}",
        tools=f"[{','.join(catalog.render_definitions(catalog.names))}]",
        workspace=WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(directory / "workspace")).to_json(),
    )
    run_id = store.runs.create(new).run_id
    request = ToolRequest(id="call_0", name="sink_once", arguments=dump_canonical_json({"mark": "s0"}))
    planned = PlannedCall(name="sink_once", replay=Replay.ONCE, segment=0)
    store.runs.commit_reply(store.turn(run_id), ModelReply(text="", tool_requests=(request,)), [planned])
    return run_id


def write_as_it_was(source: Store, url: str) -> None:
    """Bring a database to the first schema, and write into it what of the rows of ``source`` it knows."""
    engine = sa.create_engine(url)
    config = migrate_module._build_config()
    [first] = ScriptDirectory.from_config(config).get_bases()
    with engine.begin() as old, source.database.read() as new:
        config.attributes["connection"] = old
        command.upgrade(config, first)
        known = sa.MetaData()
        known.reflect(old)
        for table in load_schema().sorted_tables:
            if table.name not in known.tables:
                continue
            names = [column.name for column in known.tables[table.name].c if column.name in table.c]
            rows = new.execute(sa.select(*(table.c[name] for name in names))).mappings().all()
            if rows:
                old.execute(sa.insert(known.tables[table.name]), [dict(row) for row in rows])
    engine.dispose()


def test_a_run_begun_under_the_first_schema_is_finished(tmp_path: Path, own_valkey: EmbeddedValkey) -> None:
    url = f"sqlite:///{tmp_path / 'old.db'}"
    with opened(f"sqlite:///{tmp_path / 'source.db'}") as source:
        run_id = half_done(source, tmp_path)
        write_as_it_was(source, url)
    with rig_on(tmp_path, database_url=url, broker_url=own_valkey.url) as rig:  # (which migrates, as a deploy does)
        rig.submitted.append(run_id)
        [run] = rig.ended(run_id)
        assert (run.status, run.iteration, run.output) == (RunStatus.COMPLETED, 4, "done")
        assert [effect.mark for effect in rig.effects()] == ["s0", "s1", "s2"]
        assert rig.broken_invariants(asked_before=1) == []
