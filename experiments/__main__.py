"""`python -m experiments NAME`: each experiment can be stopped and called again, and takes at most an hour."""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from experiments.code_trials import code, redteam
from experiments.privacy_trial import privacy
from experiments.safety_trial import safety
from experiments.turns import turns
from holdfast.contracts.errors import HoldfastError


class Experiments(TyperGroup):
    """Turns an error of ours into one line and its exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            print(f"experiments: error: {error}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from None


app = typer.Typer(
    cls=Experiments,
    help="Experiments with rewards, each with several seeds; they can be stopped and go on.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command(short_help="Patches chosen under six rewards: who cheats.")(code)
app.command(short_help="Tampered and over-edited patches: what is found.")(redteam)
app.command(short_help="Canaries in conversations: what a privacy budget keeps in.")(privacy)
app.command(short_help="A tempting unsafe tool: penalties against a constraint.")(safety)
app.command(short_help="Tasks of several steps: credit by turn, on and off.")(turns)

if __name__ == "__main__":
    app(prog_name="python -m experiments")
