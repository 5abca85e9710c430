"""`holdfast tokens …`: who may look, give orders, or administer over HTTP. A token is shown once, when it is made."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import show
from holdfast.cli.options import DEFAULT_STORE, Json, Project, StoreAt, Why, existing, who
from holdfast.contracts.commands import Role
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from holdfast.contracts.commands import Token

app = typer.Typer(
    help="Who may look, and who may give orders.", add_completion=False, no_args_is_help=True, rich_markup_mode=None
)

TokenText = Annotated[str, typer.Argument(metavar="TOKEN", help="Its id, as in tok-3; never the token itself.")]
Days = Annotated[
    float | None, typer.Option("--days", metavar="N", min=0.001, max=36_500, help="How long it is good; else for good.")
]
Again = Annotated[
    float | None,
    typer.Option("--days", metavar="N", min=0.001, max=36_500, help="How long it is good; else as the old one was."),
]
DAY_S = 86_400.0


@app.command()
def add(
    label: Annotated[str, typer.Argument(metavar="LABEL", help="Whose it is: the name that the ledger will have.")],
    role: Annotated[Role, typer.Option(help="viewer looks, operator gives orders, admin makes tokens.")] = Role.VIEWER,
    days: Days = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Make a token, and show it: this once, for only its hash is kept."""
    from holdfast.contracts.release import check_name
    from holdfast.operate.auth import digest, mint

    check_name("label", label)
    made, now = mint(), time.time()
    with existing(store, project) as opened:
        kept = opened.tokens.add(label, role, digest(made), now, _until(now, days), who=who()).result()
    _made(kept, made, json=json)


@app.command("list")
def list_(store: StoreAt = DEFAULT_STORE, project: Project = "default", json: Json = False) -> None:
    """List the tokens, oldest first."""
    now = time.time()
    with existing(store, project) as opened:
        found = opened.tokens.all()
    if json:
        show.print_json([{**_told(one), "good": one.is_good(now)} for one in found])
    elif found:
        rows = [(one.id, one.label, str(one.role), show.moment(one.created_at)[:16], _life(one, now)) for one in found]
        show.print_table(("token", "~label", "role", "made", "good"), rows)
    else:
        print("no tokens; 'holdfast tokens add LABEL --role operator' makes one")


@app.command()
def rotate(
    token: TokenText,
    grace_hours: Annotated[
        float, typer.Option(metavar="N", min=0, max=8760, help="How long the old one is good yet.")
    ] = 24.0,
    days: Again = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Replace a token; the old one is good for a while yet.

    The new one has the same label and role, and lives as long as the old one was to.
    """
    from holdfast.operate.auth import digest, mint

    _refuse_secret(token)
    made, now = mint(), time.time()
    with existing(store, project) as opened:
        kept = opened.tokens.rotate(
            token, digest(made), who(), now, grace_s=grace_hours * 3600, expires_at=_until(now, days)
        ).result()
    _made(kept, made, json=json)


@app.command()
def revoke(
    token: TokenText,
    why: Why = "by hand",
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Take a token back; whoever uses it is out within a second."""
    _refuse_secret(token)
    with existing(store, project) as opened:
        kept = opened.tokens.revoke(token, who(), why, time.time()).result()
    if json:
        show.print_json(_told(kept))
    else:
        print(f"{kept.id} of {kept.label} is no good any more")


def _refuse_secret(token: str) -> None:
    """Whoever gives the token itself must not find it in an error, which others may read."""
    if "hf_" in token:
        raise BadInput("TOKEN", why="this is a token, not the id of one", remedy="'holdfast tokens list' has the ids")


def _until(now: float, days: float | None) -> float | None:
    return None if days is None else now + days * DAY_S


def _made(kept: Token, made: str, *, json: bool) -> None:
    if json:
        show.print_json({**_told(kept), "token": made})
        return
    print(f"{kept.id}: {kept.role} {kept.label}, {_life(kept, kept.created_at)}; the token is shown this once:")
    print(made)


def _told(token: Token) -> dict[str, object]:
    """All that is known of it but its hash."""
    times = {"created_at": token.created_at, "expires_at": token.expires_at, "revoked_at": token.revoked_at}
    return {"id": token.id, "label": token.label, "role": str(token.role), **times}


def _life(token: Token, now: float) -> str:
    if token.revoked_at is not None:
        return f"revoked {show.moment(token.revoked_at)[:16]}"
    if token.expires_at is None:
        return "for good"
    return f"{'until' if token.is_good(now) else 'until then:'} {show.moment(token.expires_at)[:16]}"
