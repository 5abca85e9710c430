"""A rollout, a release or a policy by what a person typed: its id, or so much of the beginning that only one fits."""

from __future__ import annotations

from sqlalchemy import bindparam, func, select

from holdfast.contracts.errors import BadInput, NotFound
from holdfast.contracts.release import Release
from holdfast.contracts.rollout import Rollout
from holdfast.store import schema
from holdfast.store.store import Store

_r = schema.rollouts.c
NAMED = select(_r.key).where(_r.run == bindparam("run"), _r.name == bindparam("prefix"))
# Compared letter by letter: LIKE has wildcards, and in SQLite no capitals.
STARTING_WITH = (
    select(_r.name)
    .where(_r.run == bindparam("run"), func.substr(_r.name, 1, func.length(bindparam("prefix"))) == bindparam("prefix"))
    .order_by(_r.key)
    .limit(4)
)


def find_rollout(store: Store, text: str) -> Rollout:
    """From "RUN/NAME", where both may be cut short."""
    run_text, slash, prefix = text.partition("/")
    if not slash or not run_text or not prefix:
        remedy = "write RUN/NAME: 'holdfast runs' has the one, 'holdfast rollouts RUN' the other"
        raise NotFound(f"rollout {text!r}", why="is not the id of a rollout", remedy=remedy)
    run = store.runs.get(run_text).id
    return store.views.rollout(f"{run}/{full_name(store, run, prefix)}")


def full_name(store: Store, run: str, prefix: str) -> str:
    """The name that starts so, in the run with this id; an exact match wins over longer names."""
    named = {"run": store.runs.key(run), "prefix": prefix}
    if store.db.one(NAMED, named) is not None:
        return prefix
    found = [row[0] for row in store.db.all(STARTING_WITH, named)]
    if len(found) == 1 and prefix:
        return str(found[0])
    why = f"several start so: {', '.join(found[:3])}{', …' if len(found) > 3 else ''}" if found else "there is none"
    raise NotFound(f"rollout {run}/{prefix}", why=why, remedy=f"'holdfast rollouts {run}' lists them")


def find_release(store: Store, version: str) -> Release:
    """`policy@number`; the policy may be cut short, as the ids of runs may."""
    policy, _, number = version.rpartition("@")
    known = store.releases.policies()
    fits = [name for name in known if name.startswith(policy)] if policy and policy not in known else []
    return store.releases.get(f"{fits[0]}@{number}" if len(fits) == 1 else version)


def find_policy(store: Store, text: str) -> str:
    """Its name, which may be cut short."""
    known = store.releases.policies()
    fits = [name for name in known if name.startswith(text)] if text not in known else [text]
    if len(fits) != 1 or not text:
        why = "has no versions" if len(fits) < 2 else f"several start so: {', '.join(fits[:3])}"
        raise BadInput(f"policy {text!r}", why=why, remedy=f"there is {', '.join(known) or 'none'}")
    return fits[0]
