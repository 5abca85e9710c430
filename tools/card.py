"""Measures the models in the package and writes their card: `python tools/card.py [--tasks N]`, 600 of each split."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from holdfast.policies.engine import Local
from holdfast.policies.model import HERE, NAMES, load_transformer
from holdfast.policies.weights import Manifest
from holdfast.prove.estimate import wilson
from holdfast.workloads.tooluse.agent import examine, summary
from holdfast.workloads.tooluse.tasks import FAMILIES, generate

CARD = HERE / "sprout" / "card.md"
SEED = 4242  # of the tasks; training takes the places from 0 on, some millions of them
ABOUT = {
    "sprout": "Has seen right behaviour: it calls the tools it needs, tries again, admits what it cannot know.",
    "sprout-weak": "Has seen bad habits: it seldom calls a tool, guesses, rambles, forgets the style.",
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tasks", type=int, default=600)
    tasks = options.parse_args().tasks
    parts = [PREFACE]
    for name in NAMES:
        model, manifest = load_transformer(name)
        with Local(model, name=name, slots=128) as local:
            found = {
                (split, temperature): summary(
                    asyncio.run(
                        examine(
                            local,
                            generate(split, SEED, tasks),
                            seed=1,
                            sampling={"temperature": temperature, "max_tokens": 96},
                        )
                    )
                )
                for split in ("train", "test")
                for temperature in (1.0, 0.0)
            }
        parts.append(chapter(name, manifest, found, tasks))
    CARD.write_text("\n".join(parts))
    print(f"wrote {CARD.relative_to(Path.cwd()) if CARD.is_relative_to(Path.cwd()) else CARD}")


PREFACE = """# The models in the package

Byte-level decoders of 1.24 million parameters (width 128, 6 layers, 4 heads, context 512; 264 tokens: the bytes and
eight marks of the chat template), trained from nothing on conversations that our own generator writes
(`holdfast.workloads.tooluse.dialogues`); `holdfast sprout train` makes them again. They know four tools (`calc`,
`lookup`, `convert`, `calendar`), three styles of answering, thinking when asked, and nothing of the world. They are for
showing, testing and teaching how agents learn; nobody should rely on their answers.

`train` are the wordings of the training conversations with fresh numbers and names; `test` are wordings that no model,
no example and no practice has seen. A family is named as in `holdfast.workloads.tooluse.tasks`.
"""


def chapter(name: str, manifest: Manifest, found: Any, tasks: int) -> str:
    columns = [found[split, temperature] for split in ("train", "test") for temperature in (1.0, 0.0)]
    rows = [
        (f"**{label}**", [_rate(column[label]) for column in columns]) for label in ("success", "adoption", "format")
    ]
    rows.append(("thinking tokens a task", [f"{column['thinking_tokens']:.1f}" for column in columns]))
    rows += [(family, [_rate(_success(column, family)) for column in columns]) for family in sorted(FAMILIES)]
    table = [f"| {label} | {' | '.join(cells)} |" for label, cells in rows]
    return "\n".join(
        [
            f"## {name}",
            "",
            ABOUT[name],
            "",
            *made(manifest),
            "",
            f"{tasks} tasks of each split, success with 95 % intervals; sampled at temperature 1, and greedy:",
            "",
            "| | train, sampled | train, greedy | test, sampled | test, greedy |",
            "|---|---|---|---|---|",
            *table,
            "",
        ]
    )


def made(manifest: Manifest) -> list[str]:
    """How it came to be."""
    notes: Any = manifest.notes
    recipe: Any = notes["recipe"]
    return [
        f"Recipe: {recipe['conversations']:,} conversations of the kind `{recipe['kind']}`, {notes['tokens']:,} tokens",
        f"({notes['decided']:,} of them the assistant's); {recipe['steps']:,} steps of {recipe['batch']} rows of 512;",
        f"AdamW, {recipe['learning_rate']} with a cosine; seed {recipe['seed']}. Final loss {notes['loss']} nats",
        f"a token. {notes['seconds']:.0f} s on {notes['device']}.",
        "",
        f"- weights sha256 `{manifest.sha256}`",
        f"- data sha256 `{manifest.data}`",
        f"- code sha256 `{manifest.code}`",
    ]


def _success(column: Any, family: str) -> list[int]:
    counted: list[int] = column["families"].get(family, {"success": [0, 0]})["success"]
    return counted


def _rate(counted: list[int]) -> str:
    right, of = counted
    if not of:
        return ""
    interval = wilson(right, of)
    return f"{right / of:.2f} ({interval.low:.2f}–{interval.high:.2f})"


if __name__ == "__main__":
    main()
