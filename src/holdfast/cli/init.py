"""`holdfast init NAME`: a project of four short files that runs at once on the embedded model, to be changed then."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.onward import step
from holdfast.cli.options import Json
from holdfast.contracts.errors import BadInput

CONFIG = "holdfast.toml"
AGENT_PY = '''"""The agent: what is to become better. Any client may be used: ctx.base_url and ctx.api_key answer."""


async def agent(task, ctx):
    messages = [{"role": "system", "content": ctx.prompt("system")}, {"role": "user", "content": task["question"]}]
    call = await ctx.ask(messages, max_tokens=24)
    return call.response.get("content") or ""
'''
SCORE_PY = '''"""The scorer: what an answer is worth, from 0 to 1. It sees `task.expected`, which the agent does not."""


def correct(task, answer):
    return float(answer.strip() == task.expected)
'''
TOML = """\
agent = "agent.py:agent"
scorers = ["score.py:correct"]
model = "local/sprout"  # embedded; a Hugging Face folder is "local/PATH"
worker_count = 32

[tasks]
file = "tasks.jsonl"
held_out = 0.5  # of them are proved on, and never learnt from

[resources]
system = "If unsure: unknown."

[improve]
policy = "{name}"  # the line of versions: {name}@1, {name}@2 ...
steps = 12
step_tasks = 8
samples = 8
learning_rate = 1e-3
prove = {{ max_seed_spread = 0.15, max_sample_spread = 0.15 }}
"""
WORDS = [
    "apple",
    "arrow",
    "autumn",
    "basket",
    "bell",
    "bird",
    "blanket",
    "boat",
    "book",
    "bottle",
    "branch",
    "bread",
    "brick",
    "bridge",
    "broom",
    "brush",
    "bucket",
    "butter",
    "button",
    "cable",
    "cake",
    "candle",
    "carpet",
    "castle",
    "cedar",
    "chair",
    "chalk",
    "cheese",
    "cherry",
    "circle",
    "clock",
    "cloud",
    "coffee",
    "copper",
    "coral",
    "corn",
    "cotton",
    "cradle",
    "crown",
    "curtain",
    "desk",
    "diamond",
    "dinner",
    "door",
    "drum",
    "eagle",
    "engine",
    "feather",
    "fence",
    "field",
    "finger",
    "flag",
    "flower",
    "forest",
    "fork",
    "garden",
    "gate",
    "glass",
    "glove",
    "grape",
    "hammer",
    "harbor",
    "hill",
    "honey",
    "horse",
    "house",
    "iron",
    "island",
    "jacket",
    "juice",
    "kettle",
    "kitchen",
    "kite",
    "ladder",
    "lake",
    "lamp",
    "leaf",
    "lemon",
    "letter",
    "lime",
    "lion",
    "maple",
    "market",
    "meadow",
    "melon",
    "mirror",
    "monkey",
    "moon",
    "morning",
    "mountain",
    "nail",
    "needle",
    "north",
    "oak",
    "ocean",
    "olive",
    "orange",
    "oven",
    "paint",
    "paper",
    "pencil",
    "pepper",
    "piano",
    "pillow",
    "pine",
    "planet",
    "plate",
    "pocket",
    "pond",
    "potato",
    "radio",
    "rain",
    "ribbon",
    "ring",
    "river",
    "road",
    "rocket",
    "roof",
    "rope",
    "rose",
    "sail",
    "salt",
    "school",
    "seed",
    "shell",
    "ship",
    "shoe",
    "silver",
    "snow",
    "soap",
    "soup",
    "spoon",
    "spring",
    "star",
    "station",
    "stone",
    "storm",
    "sugar",
    "summer",
    "sun",
    "table",
    "tea",
    "thread",
    "ticket",
    "tiger",
    "tomato",
    "tower",
    "train",
    "tree",
    "trumpet",
    "valley",
    "violin",
    "wagon",
    "wall",
    "water",
    "wheel",
    "wind",
    "window",
    "winter",
    "wolf",
    "yard",
]


def files(name: str) -> dict[str, str]:
    """What the project is made of, by path."""
    tasks = "".join(f'{{"question": "Please write {word}.", "expected": "{word}"}}\n' for word in WORDS)
    return {"agent.py": AGENT_PY, "score.py": SCORE_PY, "tasks.jsonl": tasks, CONFIG: TOML.format(name=name)}


def init(
    folder: Annotated[Path, typer.Argument(metavar="NAME", help="The folder to make; its name is the policy's.")],
    json: Json = False,
) -> None:
    """Write a project of four short files, agent.py, score.py, tasks.jsonl and holdfast.toml, that runs at once.

    Nothing that is there is overwritten.
    """
    from holdfast.cli.files import written_whole
    from holdfast.contracts.release import check_name

    name = folder.resolve().name
    check_name("NAME", name)
    made = {folder / file: text for file, text in files(name).items()}
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"NAME {folder}", why="is a file", remedy="give another name")
    if taken := [path for path in made if path.exists()]:
        raise BadInput(f"{taken[0]}", why="is there already, and nothing is overwritten", remedy="give another name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"NAME {folder}", why=f"cannot be made: {error.strerror}") from error
    for path, text in made.items():
        with written_whole(path) as file:
            file.write(text)
    command = f"holdfast improve {shlex.quote(str(folder / CONFIG))}"
    if json:
        from holdfast.cli.show import print_json

        print_json({"files": [str(path) for path in made], "next": command})
        return
    width = max(len(str(path)) for path in made)
    for path, what in zip(made, ("the agent", "what an answer is worth", "the tasks", "the settings"), strict=True):
        print(f"{path!s:<{width}}  {what}")
    print("next:")
    print("\n".join(step(command, "about a minute")))
