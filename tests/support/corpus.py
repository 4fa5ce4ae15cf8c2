"""Everything that a deployment has written down anywhere, as bytes that can be searched."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
from google.protobuf.message import Message
from psycopg.conninfo import conninfo_to_dict
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.workflowservice.v1 import QueryWorkflowRequest
from temporalio.client import Client

from tests.support.markers import Place
from tests.support.processes import Processes

KINDS: dict[str, tuple[str, ...]] = {
    # the first that is on a field's path counts: a heartbeat's details may lie inside a failure
    "heartbeats": ("heartbeat_details", "last_heartbeat_details"),
    "failures": ("failure", "last_failure", "continued_failure"),
    "summaries": ("user_metadata",),
    "memos": ("memo",),
    "search attributes": ("search_attributes",),
    "inputs": ("input",),
    "results": ("result", "outcome", "details"),
}
"""What a payload or a text of a history is -> the names of the fields that hold it."""


def leaves(message: Message, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], bytes]]:
    """Every text and every payload's bytes in a message, with the path of its fields. Payloads come decoded."""
    for descriptor, value in message.ListFields():
        yield from _leaves(value, (*path, descriptor.name))


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], bytes]]:
    if isinstance(value, Message):
        yield from leaves(value, path)
    elif isinstance(value, bytes):
        yield path, value
    elif isinstance(value, str):
        yield path, value.encode()
    elif isinstance(value, Mapping):
        for key in value:
            yield path, str(key).encode()
            yield from _leaves(value[key], path)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _leaves(item, path)


def kind_of(path: tuple[str, ...]) -> str:
    return next((kind for kind, names in KINDS.items() if any(name in path for name in names)), "other fields")


class Corpus:
    """Places, filled by and by. What goes away with its agent has to be taken while the agent is there."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}

    def add(self, place: str, where: str, content: bytes) -> None:
        self.places.setdefault(place, Place(place)).add(where, content)

    def take_message(self, of: str, where: str, message: Message) -> None:
        for path, content in leaves(message):
            self.add(f"{of}: {kind_of(path)}", f"{where} {'.'.join(path)}", content)

    async def take_temporal(self, client: Client) -> None:
        """Histories, visibility, descriptions with their pending activities, and the pages."""
        async for listed in client.list_workflows():
            self.take_message("visibility", listed.id, listed.raw_info)
            handle = client.get_workflow_handle(listed.id, run_id=listed.run_id)
            self.take_message("description", listed.id, (await handle.describe()).raw_description)
            async for event in handle.fetch_history_events():
                where = f"{listed.id} event {event.event_id} {EventType.Name(event.event_type)}"
                self.take_message("history", where, event)
            self.add("current details", listed.id, await metadata(client, listed.id, listed.run_id))

    async def take_descriptions(self, client: Client) -> None:
        """What is pending now: attempts, their last failures and heartbeats."""
        async for listed in client.list_workflows('ExecutionStatus = "Running"'):
            described = await client.get_workflow_handle(listed.id, run_id=listed.run_id).describe()
            self.take_message("description", listed.id, described.raw_description)
            self.add("current details", listed.id, await metadata(client, listed.id, listed.run_id))

    def take_files(self, place: str, directory: Path, pattern: str = "**/*") -> None:
        for path in sorted(directory.glob(pattern)):
            if path.is_file() and not path.is_symlink():
                try:
                    content = path.read_bytes()
                except FileNotFoundError:
                    continue  # gone with its agent, or recycled by its server, since it was listed
                self.add(place, str(path.relative_to(directory)), content)

    def take_sqlite(self, place: str, database: Path) -> None:
        """The files as they lie there, and each value by itself: a long one is scattered over pages."""
        for path in sorted(database.parent.glob(f"{database.name}*")):
            self.add(f"{place}, raw", path.name, path.read_bytes())
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            connection.text_factory = bytes
            tables = [
                row[0].decode() for row in connection.execute("select name from sqlite_master where type='table'")
            ]
            for table in tables:
                for row in connection.execute(f'select * from "{table}"'):  # noqa: S608 - a name from the database
                    for value in row:
                        if isinstance(value, bytes):
                            self.add(f"{place}, rows", table, value)

    def take_postgres(self, place: str, bin_dir: Path, dsn: str) -> None:
        """A dump of every table."""
        address = conninfo_to_dict(dsn)
        done = subprocess.run(
            [bin_dir / "pg_dump", "--host", str(address["host"]), "--port", str(address["port"]),
             "--username", str(address["user"]), "--no-password", str(address["dbname"])],
            env={**os.environ, "PGPASSWORD": str(address["password"])}, capture_output=True, check=True, timeout=60,
        )  # fmt: skip
        for number, line in enumerate(done.stdout.splitlines(), 1):
            self.add(place, f"line {number}", line)

    async def take_all(self, processes: Processes) -> None:
        """Everything that is written down by now, by the servers and by the processes."""
        await self.take_temporal(processes.client)
        for name, page in (await processes.metrics_pages()).items():
            self.add(f"{name} metrics", "page", page)
        for name, log in processes.logs.items():
            for number, line in enumerate(log.read_bytes().splitlines(), 1):
                self.add(f"{name} log", f"line {number}", line)
        self.take_files("state directory", processes.state_dir)
        self.take_postgres("Postgres dump", processes.postgres.bin_dir, processes.dsn)
        self._take_postgres_files(processes)
        assert processes.temporal.database is not None
        self.take_sqlite("Temporal's database", processes.temporal.database)

    def _take_postgres_files(self, processes: Processes) -> None:
        """What was deleted is still there, and in the log of what was written."""
        with psycopg.connect(processes.dsn, autocommit=True) as connection:
            connection.execute("checkpoint")
            database = connection.execute("select oid from pg_database where datname = current_database()").fetchone()
        assert database is not None
        data = processes.directory / "postgres" / "data"
        self.take_files("Postgres files", data, f"base/{database[0]}/*")
        self.take_files("Postgres files", data, "pg_wal/*")


async def metadata(client: Client, workflow_id: str, run_id: str) -> bytes:
    """The answer that the Temporal UI shows as current details, undecoded."""
    answer = await client.workflow_service.query_workflow(
        QueryWorkflowRequest(
            namespace=client.namespace,
            execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
            query=WorkflowQuery(query_type="__temporal_workflow_metadata"),
        )
    )
    return b"".join(payload.data for payload in answer.query_result.payloads)
