"""`holdfast rescore RUN`: another scorer on what is stored, without running an agent again."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.options import DEFAULT_STORE, Json, Project, StoreAt

EPILOG = """The rollouts keep their rewards: the second scoring lies beside the first, under its name."""


def rescore(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run whose rollouts are scored.")],
    scorer: Annotated[list[str], typer.Option("--scorer", metavar="NAME", help="exact, FILE.py:FUNCTION, ...")],
    gate: Annotated[
        bool, typer.Option("--gate/--no-gate", help="The first scorer says whether an answer is right.")
    ] = True,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="What the scoring is called.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=0, max=10_000, help="At most so many that changed.")] = 10,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Score a run's stored rollouts by other scorers, keep that beside the first scoring, and compare the two.

    Told are how far they agree, which rollouts change, and what a proof's verdict would have been.
    """
    from holdfast.api.stored import rescore as scored_again

    blocks = [{"scorer": one, "gate": gate and not place} for place, one in enumerate(scorer)]
    found = scored_again(run, blocks, name=name, store=store, project=project)
    if json:
        from dataclasses import asdict

        from holdfast.cli.show import print_json
        from holdfast.contracts.records import encode

        verdicts = [None if one is None else encode(one) for one in (found.old_verdict, found.new_verdict)]
        told = {"run": found.run.id, "name": found.name, "comparison": asdict(found.comparison)}
        print_json({**told, "errors": dict(found.errors), "old_verdict": verdicts[0], "new_verdict": verdicts[1]})
        return
    print(found)
    changed = found.changed
    if changed and limit:
        from holdfast.cli.show import count, print_table

        print(f"\n{count(len(changed), 'rollout')} changed, the largest change first:")
        rows = [(row["id"], _number(row["old"]), _number(row["new"]), _turn(row)) for row in changed[:limit]]
        print_table(("~rollout", ">was", ">is", "answer"), rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _turn(row: dict[str, object]) -> str:
    return f"{_word(row['was_right'])} → {_word(row['is_right'])}"


def _word(is_right: object) -> str:
    return "not checked" if is_right is None else "right" if is_right else "wrong"
