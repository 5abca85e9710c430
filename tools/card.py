"""Measures the models in the package and writes their card: `python tools/card.py [--tasks N] [--device cuda]`.

`--save FILE` keeps the figures, and `--from FILE` writes the card from figures that were kept, as of another machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.policies.engine import Local
from holdfast.policies.model import load_transformer
from holdfast.policies.packaged import HERE, NAMES
from holdfast.policies.weights import Manifest
from holdfast.prove.estimate import wilson
from holdfast.workloads.tooluse.agent import examine, summary
from holdfast.workloads.tooluse.tasks import CLASSIC, LONG, USUAL, Dials, ToolTask, generate

CARD = HERE / "sprout" / "card.md"
SEED = 4242  # of the tasks; training takes the places from 0 on, some millions of them
ABOUT = {
    "sprout": "Has seen right behaviour: it calls the tools it needs, tries again, admits what it cannot know.",
    "sprout-weak": "Has seen bad habits: it seldom calls a tool, guesses, rambles, forgets the style.",
}
THOUGHT = Dials(families=("trivial", "calc", "two", "four", "six", "steps", "steps", "record_steps"), think=1.0)
LIMITS = ("none", "0", "8", "16", "32", "64", "128", "unasked")  # tokens; unasked: the instructions ask for no thinking
ALL = (
    "Get all facts by tool calls. If a tool fails, try once more. Work through all steps. "
    "If you do not know, say unknown."
)
SEEN = "Use the tools. Retry a tool that fails. Finish all steps before you answer. Do not guess; say unknown."
PROMPTS = {
    "": "",
    "kind": "You are a careful clerk.",
    "tools": "Ask the tools, not your memory.",
    "tools2": "Get all facts by tool calls.",
    "tools+unknown": "Make tool calls where they apply. Answer unknown rather than guess.",
    "seen": SEEN,
    "all": ALL,
    "all+think": f"{ALL} Let's think step by step.",
    "hurry": "Answer right away. Rely on your memory.",
    "all+hurry": f"{ALL} Hurry up.",
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tasks", type=int, default=600)
    options.add_argument("--device", default="cpu")
    options.add_argument("--save", type=Path)
    options.add_argument("--from", type=Path, dest="kept")
    given = options.parse_args()
    ours = [name for name in NAMES if name in ABOUT]
    if given.kept is None:
        found: Any = {name: measured(name, given.tasks, given.device) for name in ours}
    else:
        found = json.loads(given.kept.read_text())
    if given.save is not None:
        given.save.write_text(json.dumps(found, indent=1))
    parts = [PREFACE, *(chapter(name, load_transformer(name)[1], found[name]) for name in ours)]
    CARD.write_text("\n".join(parts))
    print(f"wrote {CARD.relative_to(Path.cwd()) if CARD.is_relative_to(Path.cwd()) else CARD}")


def measured(name: str, n: int, device: str) -> dict[str, Any]:
    """All exams of one model, by name."""
    model, _ = load_transformer(name, device=device)
    bare = generate("test", 99, n, replace(USUAL, prompts="bare"))
    with Local(model, name=name, slots=128, device=device) as local:

        def exam(tasks: list[ToolTask], **sampling: Any) -> Any:
            how = {"temperature": 1.0, "max_tokens": 160, **sampling}
            return summary(asyncio.run(examine(local, tasks, seed=1, sampling=how, max_turns=10)))

        found = {
            f"{split} {temperature}": exam(generate(split, SEED, n), temperature=temperature)
            for split in ("train", "test")
            for temperature in (1.0, 0.0)
        }
        found |= {f"long {split}": exam(generate(split, SEED, n, LONG)) for split in ("train", "test")}
        for limit in LIMITS:
            tasks = generate("test", 77, n, replace(THOUGHT, think=float(limit != "unasked")))
            found[f"thinking {limit}"] = exam(tasks, **({"thinking": int(limit)} if limit.isdecimal() else {}))
        for about, prompt in PROMPTS.items():
            told = [replace(task, system=f"{prompt} {task.system}".strip()) for task in bare]
            found[f"prompt {about}"] = exam(told)
    return {"tasks": n, "device": device, "exams": found}


PREFACE = """# The models in the package

Byte-level decoders of 1.24 million parameters (width 128, 6 layers, 4 heads, context 832; 264 tokens: the bytes and
eight marks of the chat template), trained from nothing on conversations that our own generator writes
(`holdfast.workloads.tooluse.dialogues`); `holdfast policy pretrain` makes them again. They know four tools (`calc`,
`lookup`, `convert`, `calendar`), tasks of up to six calls with tools that fail, three styles of answering, thinking
when asked, instructions in many words, and nothing of the world. They are for showing, testing and teaching how agents
learn; nobody should rely on their answers.

`train` are the wordings of the training conversations with fresh numbers and names; `test` are wordings that no model,
no example and no practice has seen: no train wording says the same words or has one of the frames of
`holdfast.workloads.tooluse.wordings.HELD_OUT`. Some orders of words were added to the train wordings (the unit or the
item first) after a first model had failed at such orders in the test wordings; the test wordings are those of the first
version. A family is named as in `holdfast.workloads.tooluse.tasks`.
"""


def chapter(name: str, manifest: Manifest, found: Any) -> str:
    exams, n = found["exams"], found["tasks"]
    return "\n".join(
        [
            f"## {name}",
            "",
            ABOUT[name],
            "",
            *made(manifest),
            "",
            f"Success in {n} tasks of each kind, with 95 % intervals, measured on {found['device']}; sampled at",
            "temperature 1, and greedy:",
            "",
            *usual(exams),
            "",
            "Tasks of many steps (`LONG`; half of the chains ask for no thinking), sampled:",
            "",
            *long(exams),
            "",
            "By thinking budget, in test wordings whose instructions ask for thinking (`none`: no limit; `unasked`:",
            "they do not ask), sampled. A thought is cut at the budget, and the answer follows:",
            "",
            *thinking(exams),
            "",
            "By system prompt, in test tasks that say nothing but the style of answering, sampled. Of these sentences",
            'only "Use the tools." is in a training conversation:',
            "",
            *prompts(exams),
            "",
        ]
    )


def usual(exams: Any) -> list[str]:
    columns = [exams[f"{split} {temperature}"] for split in ("train", "test") for temperature in (1.0, 0.0)]
    rates = [label for label in ("success", "adoption", "format") if label in columns[0]]
    rows = [(f"**{label}**", [_rate(column[label]) for column in columns]) for label in rates]
    rows.append(("thinking tokens a task", [f"{column['thinking_tokens']:.1f}" for column in columns]))
    rows += [(family, [_rate(_success(column, family)) for column in columns]) for family in sorted(CLASSIC)]
    return _table(["", "train, sampled", "train, greedy", "test, sampled", "test, greedy"], rows)


def long(exams: Any) -> list[str]:
    columns = [exams[f"long {split}"] for split in ("train", "test")]
    rows = [("**success**", [_rate(column["success"]) for column in columns])]
    rows += [(name, [_rate(_success(column, name)) for column in columns]) for name in dict.fromkeys(LONG.families)]
    return _table(["", "train", "test"], rows)


def thinking(exams: Any) -> list[str]:
    families = list(dict.fromkeys(THOUGHT.families))
    rows = []
    for limit in LIMITS:
        exam = exams[f"thinking {limit}"]
        cells = [_share(exam["success"]), *(_share(_success(exam, one)) for one in families)]
        rows.append((limit, [f"{exam['thinking_tokens']:.1f}", *cells]))
    return _table(["tokens allowed", "used", "success", *families], rows)


def prompts(exams: Any) -> list[str]:
    rows = []
    for about, prompt in PROMPTS.items():
        exam = exams[f"prompt {about}"]
        rows.append((prompt or "(nothing)", [_rate(exam["success"]), _share(exam["adoption"])]))
    return _table(["system prompt", "success", "adoption"], rows)


def made(manifest: Manifest) -> list[str]:
    """How it came to be."""
    notes: Any = manifest.notes
    recipe: Any = notes["recipe"]
    return [
        f"Recipe: {recipe['conversations']:,} conversations of the kind `{recipe['kind']}`, {notes['tokens']:,} tokens",
        f"({notes['decided']:,} of them the assistant's); {recipe['steps']:,} steps of {recipe['batch']} rows of",
        f"{recipe['shape']['context']}; AdamW, {recipe['learning_rate']} with a cosine; seed {recipe['seed']}. Final",
        f"loss {notes['loss']} nats a token. {notes['seconds']:.0f} s on {notes['device']}.",
        "",
        f"- weights sha256 `{manifest.sha256}`",
        f"- data sha256 `{manifest.data}`",
        f"- code sha256 `{manifest.code}`",
    ]


def _table(titles: list[str], rows: list[tuple[str, list[str]]]) -> list[str]:
    head = [f"| {' | '.join(titles)} |".replace("|  |", "| |"), "|" + "---|" * len(titles)]
    return head + [f"| {label} | {' | '.join(cells)} |" for label, cells in rows]


def _success(column: Any, family: str) -> list[int]:
    counted: list[int] = column["families"].get(family, {"success": [0, 0]})["success"]
    return counted


def _share(counted: list[int]) -> str:
    right, of = counted
    return f"{right / of:.2f}" if of else ""


def _rate(counted: list[int]) -> str:
    right, of = counted
    if not of:
        return ""
    interval = wilson(right, of)
    return f"{right / of:.2f} ({interval.low:.2f}–{interval.high:.2f})"


if __name__ == "__main__":
    main()
