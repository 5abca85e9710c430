"""Immutable versions of resources (prompts and the like), numbered within a project. Same content, same version."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from sqlalchemy import bindparam, func, insert, select, text

from holdfast.contracts.errors import NotFound
from holdfast.contracts.run import ResourceVersion
from holdfast.store import rows, schema
from holdfast.store.db import Db
from holdfast.store.sql import Transaction, canonical, to_json
from holdfast.store.writer import WriteFuture

_versions = schema.resources.c
_my_versions = _versions.project == bindparam("project")
SAME = select(schema.resources).where(_my_versions, _versions.sha256 == bindparam("sha256"))
NUMBER = select(func.coalesce(func.max(_versions.version), 0) + 1).where(_my_versions)
PUBLISH = insert(schema.resources).values(
    {name: bindparam(name) for name in ("project", "version", "sha256", "body", "created_at")}
)
GET_VERSION = select(schema.resources).where(_my_versions, _versions.version == bindparam("version"))
LOCK = text("LOCK TABLE resources IN SHARE ROW EXCLUSIVE MODE")  # Postgres: numbers are given one at a time
LATEST = select(schema.resources).where(_my_versions).order_by(_versions.version.desc()).limit(bindparam("most"))

MOST = 2**31 - 1  # what the column holds


class Versions:
    def __init__(self, db: Db, project: str) -> None:
        self._db, self._project = db, project

    def publish(self, resources: Mapping[str, Any], *, now: float) -> WriteFuture[ResourceVersion]:
        """The version with this content: the one that is there, or the next number."""
        body = canonical(to_json(resources))
        sha256 = hashlib.sha256(body.encode()).hexdigest()
        same = {"project": self._project, "sha256": sha256}

        def operation(tx: Transaction) -> ResourceVersion:
            row = tx.one(SAME, same)
            if row is None and not tx.is_sqlite:
                tx.run(LOCK, {})
                row = tx.one(SAME, same)
            if row is None:
                version = tx.one(NUMBER, {"project": self._project})[0]
                tx.run(PUBLISH, {**same, "version": version, "body": body, "created_at": now})
                row = tx.one(SAME, same)
            return rows.resource_version(row)

        return self._db.write(operation)

    def get(self, version: int) -> ResourceVersion:
        is_number = 0 < version <= MOST
        row = self._db.one(GET_VERSION, {"project": self._project, "version": version}) if is_number else None
        if row is None:
            raise NotFound(f"resources-{version}", why=f"there is none in project {self._project!r}")
        return rows.resource_version(row)

    def latest(self, most: int = 1) -> list[ResourceVersion]:
        """Newest first."""
        return [rows.resource_version(row) for row in self._db.all(LATEST, {"project": self._project, "most": most})]
