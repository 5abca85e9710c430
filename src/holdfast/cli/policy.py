"""`holdfast policy …`: train a model on examples, talk to it, serve it; show, compare and export models and prompts.

A model is one of the package, a folder, a checkpoint of the store, or a release. `pipeline.sft` trains; `improve` and
`prove` practise and prove.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from holdfast.cli.options import (
    CommandSet,
    DeviceOption,
    DtypeOption,
    Host,
    Json,
    Output,
    Port,
    StoreOptions,
    TokenOptions,
    address_of,
    needing,
    store_flags,
)
from holdfast.cli.show import fold, left, near, progress, step
from holdfast.contracts.artifacts import Artifacts
from holdfast.contracts.engine import Complete
from holdfast.contracts.errors import BadInput, HoldfastError
from holdfast.contracts.lines import folded
from holdfast.contracts.run import RunState
from holdfast.contracts.trace import ModelCall
from holdfast.policies.packaged import NAMES

if TYPE_CHECKING:
    from holdfast.collect.chat_format import TokenBytes
    from holdfast.contracts.run import Status
    from holdfast.learn.sft import SFT
    from holdfast.pipeline.run import RunSpec
    from holdfast.pipeline.sft import Taught
    from holdfast.policies.model import Model
    from holdfast.policies.prompt import Prompt
    from holdfast.store.store import Store


ROUNDS = 8  # answers to one question: a model that calls tools for ever is stopped
COMMANDS = {
    "/system TEXT": "give it other instructions; without text, take them away",
    "/tools [on|off|NAMES]": "which tools it has",
    "/think [on|off|N]": "ask it to think first, forbid it, or let it use at most N tokens",
    "/new": "forget what was said",
    "/help": "this list",
    "/quit": "the end",
}


class Quit(Exception):
    """The user ends the conversation."""


class Talk:
    """What was said so far, and how the next answer is to be made."""

    def __init__(
        self,
        complete: Complete,
        *,
        tools: Mapping[str, Mapping[str, Any]],
        call: Callable[[str, str], str],
        write: Callable[[str], object],
        system: str | None = None,
        think: str = "",
        sampling: Mapping[str, Any],
    ) -> None:
        self._complete, self._tools, self._call, self._write = complete, tools, call, write
        self.system, self.sampling, self.offered = system, dict(sampling), list(tools)
        self._think, self.is_thinking = think, False  # the words that ask for it, and whether they are said
        self.messages: list[Mapping[str, Any]] = []
        self._last = ""  # what kind of thing was written last

    def order(self, line: str) -> str:
        """Obey a line that begins with `/`; the answer to it."""
        name, _, words = line.strip().partition(" ")
        obey = {
            "/system": self._order_system,
            "/tools": self._order_tools,
            "/think": self._order_think,
            "/new": self._order_new,
            "/help": lambda words: "\n".join(f"{order:<22} {what}" for order, what in COMMANDS.items()),
            "/quit": self._order_quit,
        }.get(name)
        if obey is None:
            raise BadInput(name, why="is no order", remedy="/help lists them")
        return obey(words.strip())

    def _order_system(self, words: str) -> str:
        self.system = words or None
        return f"instructions: {words or 'none'}"

    def _order_tools(self, words: str) -> str:
        names = words.replace(",", " ").split()
        if unknown := [name for name in names if name not in (*self._tools, "on", "off")]:
            raise BadInput(f"tool {unknown[0]}", why="is unknown", remedy=f"there are {', '.join(self._tools)}")
        if names:
            self.offered = {"on": list(self._tools), "off": []}.get(names[0], names)
        return "\n".join(
            f"{'on ' if name in self.offered else 'off'} {name}: {tool['function'].get('description', '')}"
            for name, tool in self._tools.items()
        )

    def _order_think(self, words: str) -> str:
        if words not in ("", "on", "off") and not words.isdecimal():
            raise BadInput(f"/think {words}", why="is not a number", remedy="give on, off or a number of tokens")
        self.is_thinking = words != "off"
        self.sampling.pop("thinking", None)
        if words not in ("", "on"):
            self.sampling["thinking"] = int(words) if self.is_thinking else 0
        return (
            f"thinking: at most {self.sampling['thinking']} tokens"
            if words.isdecimal()
            else f"thinking: {words or 'on'}"
        )

    def _order_new(self, words: str) -> str:
        self.messages.clear()
        return "forgotten"

    def _order_quit(self, words: str) -> str:
        raise Quit

    @property
    def opening(self) -> str:
        """The system message; empty: there is none."""
        return " ".join(filter(None, [self._think if self.is_thinking else "", self.system]))

    async def say(self, text: str) -> list[ModelCall]:
        """Ask, run the tools that are called, and go on until there is an answer. A failed question is taken back."""
        before = len(self.messages)
        self.messages.append({"role": "user", "content": text})
        calls: list[ModelCall] = []
        try:
            for _ in range(ROUNDS):
                call = await self._hear()
                calls.append(call)
                self.messages.append(call.response)
                asked = call.response.get("tool_calls") or ()
                if not asked:
                    break
                self.messages += [self._answered(one) for one in asked]
        except BaseException:
            del self.messages[before:]
            raise
        finally:
            self._end()
        return calls

    async def _hear(self) -> ModelCall:
        from holdfast.collect.chat_format import pieces

        opening = [{"role": "system", "content": self.opening}] if self.opening else []
        offered = [self._tools[name] for name in self.offered]
        how = {**self.sampling, **({"tools": offered} if offered else {})}
        if "seed" in how:
            how["seed"] += len(self.messages)  # each answer its own chance
        async for piece in pieces(self._complete, [*opening, *self.messages], **how):
            if isinstance(piece, ModelCall):
                return piece
            self._show("thought", piece.get("reasoning_content") or "")
            self._show("answer", piece.get("content") or "")
            for delta in piece.get("tool_calls") or ():
                function = delta.get("function") or {}
                if function.get("name"):
                    self._end()
                    self._show("call", f"{function['name']} ")
                self._show("call", function.get("arguments") or "")
        raise HoldfastError("model", why="its answer broke off", remedy="ask again")

    def _answered(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        function = asked["function"]
        name, arguments = str(function["name"]), str(function.get("arguments") or "")
        result = self._call(name, arguments) if name in self.offered else "error: unknown tool"
        self._end()
        self._show("result", result)
        return {"role": "tool", "tool_call_id": str(asked.get("id") or "call_0"), "content": result}

    def _show(self, kind: str, text: str) -> None:
        if not text:
            return
        if self._last != kind:
            self._end()
            self._write({"thought": "(", "answer": "", "call": "-> ", "result": "<- "}[kind])
        self._last = kind
        self._write("".join(letter if letter.isprintable() or letter in "\n\t" else "�" for letter in text))

    def _end(self) -> None:
        if self._last:
            self._write(")\n" if self._last == "thought" else "\n")
        self._last = ""


def record(question: str, messages: Sequence[Mapping[str, Any]], calls: Sequence[ModelCall], *, system: str) -> str:
    """One question and all that came of it, as a line of JSON."""
    last = calls[-1]
    return json.dumps(
        {
            "system": system or None,
            "say": question,
            "answer": last.response.get("content"),
            "finish_reason": last.finish_reason,
            "model": last.model,
            "messages": list(messages),
            "tokens": sum(call.completion_tokens or 0 for call in calls),
        },
        ensure_ascii=False,
    )


PORT = 8377
app = CommandSet("Models and prompts: serve, chat, train, show, diff, export.")
sprout_app = CommandSet("The embedded model.")

ModelOption = Annotated[str, Option("--model", metavar="MODEL", help="sprout, tiny-tools, or a folder with a model.")]


@app.command("serve")
@sprout_app.command("serve")
def serve_model(
    tokens: TokenOptions,
    model: ModelOption = "sprout",
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    host: Host = "127.0.0.1",
    port: Port = PORT,
) -> None:
    """Serve a model at an OpenAI-compatible endpoint until Ctrl-C."""
    with needing("serve"):
        from holdfast.collect import endpoint
    opened, token = open_model(model, device, dtype), tokens.read()
    with endpoint.listen(host, port, token=token) as listening, opened as (complete, name, spell):
        print(f"{name} at http://{address_of(listening)}/v1 (Ctrl-C ends it)", flush=True)
        endpoint.server(endpoint.app(complete, name=name, token=token, token_bytes=spell)).run(sockets=[listening])


@app.command()
@sprout_app.command()
def chat(
    model: ModelOption = "sprout",
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    say: Annotated[
        list[str] | None, Option(metavar="TEXT", help="Say this and end; can be given several times.")
    ] = None,
    system: Annotated[
        str | None, Option(metavar="TEXT", help="Its instructions; without it, sprout's usual ones.")
    ] = None,
    tools: Annotated[bool, Option("--tools/--no-tools", help="Whether it has tools.")] = True,
    think: Annotated[str | None, Option(metavar="N", help="on, off, or at most N tokens.")] = None,
    temperature: Annotated[float, Option(metavar="X", min=0.0, max=2.0, help="0: no chance.")] = 0.0,
    max_tokens: Annotated[int, Option(metavar="N", min=1, help="In one answer.")] = 256,
    seed: Annotated[int, Option(metavar="N", min=0, help="Of its chance.")] = 0,
    remember: Annotated[
        bool, Option("--remember", help="Keep what was said; sprout itself only knows single questions.")
    ] = False,
    json: Json = False,
) -> None:
    """Chat with a model; its tools really run. Piped lines are sent one by one."""
    from holdfast.contracts.lines import say as tell
    from holdfast.workloads.tooluse.tasks import THINK
    from holdfast.workloads.tooluse.tools import SPECS, Toolbox, ToolWorld

    box = Toolbox(ToolWorld(records=RECORDS))
    with open_model(model, device, dtype) as (complete, _, _):
        talk = Talk(
            complete,
            tools=SPECS,
            call=box.call,
            write=(lambda text: None) if json else (lambda text: print(text, end="", flush=True)),
            system=usual_instructions(tools=tools) if system is None else system or None,
            think=THINK,
            sampling={"temperature": temperature, "max_tokens": max_tokens, "seed": seed},
        )
        if not tools:
            talk.order("/tools off")
        if think is not None:
            talk.order(f"/think {think}")
        if system is None and not json:
            tell(fold(f"instructions: {talk.opening} (--system gives others)"))
        converse(talk, spoken_lines(say), is_json=json, is_strict=say is not None, is_kept=remember)


@app.command()
@sprout_app.command()
def card() -> None:
    """Print the card of the models in the package: what they can do, and how they were made."""
    with needing("learn"):
        from holdfast.policies.model import card
    print(card().rstrip())


@app.command()
@sprout_app.command("train")
def pretrain(
    output: Annotated[Path, Argument(metavar="FOLDER", help="Where the weights go.")],
    kind: Annotated[str, Option(metavar="KIND", help="strong (sprout) or weak (sprout-weak).")] = "strong",
    steps: Annotated[int | None, Option(metavar="N", min=1, help="As in the recipe, or so many.")] = None,
    conversations: Annotated[int | None, Option(metavar="N", min=1, help="As in the recipe, or so many.")] = None,
    batch: Annotated[int | None, Option(metavar="N", min=1, help="Rows of 512 tokens a step.")] = None,
    seed: Annotated[int, Option(metavar="N", min=0, help="Of its first weights.")] = 0,
    device: Annotated[str, Option(metavar="NAME", help="cpu or cuda.")] = "cpu",
) -> Output:
    """Train a model like those in the package from scratch: minutes on one large GPU, hours on a CPU."""
    with needing("learn"):
        from holdfast.workloads.pretraining import RECIPES, plant
    if kind not in RECIPES:
        raise BadInput(f"--kind {kind}", why="is unknown", remedy=f"use {' or '.join(RECIPES)}")
    if output.exists() and not (output / "manifest.json").is_file() and any(output.iterdir()):
        raise BadInput(str(output), why="is there and holds no weights", remedy="name another folder")
    usual = RECIPES[kind]
    recipe = replace(
        usual,
        seed=seed,
        steps=steps or usual.steps,
        conversations=conversations or usual.conversations,
        batch=batch or usual.batch,
    )
    with progress(f"training {recipe.kind}", recipe.steps) as advance:
        done = 0

        def observe(step: int, loss: float) -> None:
            nonlocal done
            advance(step - done, now=f"loss {loss:.4f}")
            done = step

        manifest = plant(recipe, output, created_at=time.time(), device=device, observe=observe)
    made = f"{output}: loss {manifest.notes['loss']:.4f} nats a token, sha256 {manifest.sha256[:16]}…"
    following = f'next:\n  holdfast policy chat --model {output} --say "What is 417 * 23?"'
    return Output({"folder": output, "sha256": manifest.sha256, "notes": manifest.notes}, f"{made}\n{following}")


def usual_instructions(*, tools: bool) -> str:
    """Returns the instructions that sprout was trained under. A caller may send them; no server adds them."""
    from holdfast.workloads.tooluse.tasks import STYLES, USE, USE_NOT

    return f"{USE if tools else USE_NOT} {STYLES['full']}"


RECORDS = {
    "oak.price": "12",
    "oak.color": "brown",
    "ship.owner": "Mara",
    "ship.weight": "340 kg",
    "fair.date": "2031-05-04",
}


def spoken_lines(say: list[str] | None) -> Iterator[str]:
    """Yields the user's lines: given as options, piped or typed."""
    if say is not None:
        yield from say
    elif not sys.stdin.isatty():
        yield from map(str.strip, sys.stdin)
    else:
        import readline  # noqa: F401  -- input() then has a history and can be edited

        print("/help lists commands, /quit ends")
        while True:
            try:
                yield input("> ").strip()
            except EOFError:
                print()
                return


def converse(talk: Talk, spoken: Iterator[str], *, is_json: bool, is_strict: bool, is_kept: bool) -> None:
    """Line by line, each a conversation of its own unless it is kept. Strictly, a question that fails ends it."""
    from holdfast.contracts.lines import say as complain

    with asyncio.Runner() as runner:
        for line in spoken:
            try:
                if line.startswith("/"):
                    print(talk.order(line), file=sys.stderr if is_json else sys.stdout)
                elif line:
                    if not is_kept:
                        talk.messages.clear()
                    before = len(talk.messages)
                    calls = runner.run(talk.say(line))
                    if is_json:
                        print(record(line, talk.messages[before:], calls, system=talk.opening), flush=True)
            except Quit:
                return
            except HoldfastError as error:
                if is_strict:
                    raise
                complain(f"holdfast: error: {error}")
            except KeyboardInterrupt:
                if not sys.stdin.isatty() or is_strict:
                    raise
                print("(stopped)")


@contextmanager
def open_model(
    model: str, device: str | None = None, dtype: str | None = None
) -> Iterator[tuple[Complete, str, TokenBytes]]:
    """Opens a model: what completes chats, its name, and the bytes of its tokens."""
    from holdfast.collect.chat_format import spell_byte

    with needing("learn"):
        from holdfast.policies.engine import Local
        from holdfast.policies.lm import Transformer
        from holdfast.policies.model import Model as Policy
        from holdfast.policies.model import load

    net, sha256 = load(Policy(model, device=device or "auto", dtype=dtype or "auto"), None)
    spell = spell_byte if isinstance(net, Transformer) else net.template.token_bytes
    name = Path(model).resolve().name
    with Local(net, name=name, version=sha256[:12]) as local:
        yield local, name, spell


VERSION_HELP = "A model of the package, a folder, a checkpoint or a release."
VersionText = Annotated[str, Argument(metavar="VERSION", help=VERSION_HELP)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """What `train` is asked for: by the options, and by the file where they say nothing."""

    model: str | None
    examples: Path | str | None
    source: dict[str, Any]  # run, least, columns, system
    placed: dict[str, Any]  # lora, device, dtype
    how: SFT


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """How `train` learns. What is not given is the file's, or the learner's own default."""

    algorithm: Annotated[
        str | None,
        Option(metavar="NAME", help="sft: what is said; dpo: what is preferred; reward_model: to score answers."),
    ] = None
    from_run: Annotated[str | None, Option(metavar="RUN", help="Learn from its rollouts in place of a file.")] = None
    least: Annotated[float | None, Option(metavar="X", help="Of a run: the reward from which on it is learnt.")] = None
    lora: Annotated[int | None, Option(metavar="RANK", min=0, help="Train adapters of this rank; 0: all weights.")] = (
        None
    )
    device: DeviceOption = None
    dtype: DtypeOption = None
    lr: Annotated[float | None, Option(metavar="X", help="Learning rate; 1e-4, of dpo 1e-5.")] = None
    epochs: Annotated[int | None, Option(metavar="N", min=1, help="Passes over the examples; 3, of dpo 1.")] = None
    batch: Annotated[int | None, Option(metavar="N", min=1, help="Examples for one update; 16.")] = None
    beta: Annotated[float | None, Option(metavar="X", help="Of dpo: how hard it is held to the old model; 0.1.")] = None
    max_tokens: Annotated[int | None, Option(metavar="N", min=1, help="Leave longer examples out.")] = None
    held_out: Annotated[float | None, Option(metavar="X", help="Share that only measures; 0.1.")] = None
    skip: Annotated[
        float | None, Option(metavar="X", help="Share that may be left out because it cannot be used; 0.1.")
    ] = None
    save_every: Annotated[int | None, Option(metavar="N", min=1, help="Updates between two checkpoints.")] = None
    column: Annotated[
        list[str] | None, Option(metavar="NAME=COLUMN", help="As in prompt=ask or user=customer; several times.")
    ] = None
    system: Annotated[str | None, Option(metavar="TEXT", help="The first message of rows that have none.")] = None
    seed: Annotated[int | None, Option(metavar="N", min=0, help="Of the split and the order; 0.")] = None
    epsilon: Annotated[float | None, Option(metavar="X", help="Privacy budget: differentially private learning.")] = (
        None
    )
    delta: Annotated[float | None, Option(metavar="X", help="Of --epsilon; N^-1.1 for N units, at most 1e-5.")] = None
    unit: Annotated[str | None, Option(metavar="NAME", help="What --epsilon protects: conversation or user.")] = None
    clip: Annotated[float | None, Option(metavar="X", help="Longest gradient of one unit; 0.1.")] = None

    def over(self, config: Path | None, model: str | None, examples: Path | None) -> TrainRequest:
        """These options over those of the file."""
        from holdfast.contracts.settings import SftBlock, TrainSettings, load_train
        from holdfast.learn.dp import Privacy
        from holdfast.pipeline.sft import KINDS

        kept = TrainSettings(sft=SftBlock()) if config is None else load_train(config)
        block: dict[str, Any] = getattr(kept, kept.taught).model_dump(exclude_none=True)
        kind = self.algorithm or kept.taught
        if kind not in KINDS:
            raise BadInput(f"--algorithm {kind}", why="is unknown", remedy=f"use {' or '.join(KINDS)}")
        if config is not None and getattr(kept, kind) is None:
            raise BadInput(f"--algorithm {kind}", why=f"{config} says how another one learns", remedy="leave it out")
        if self.beta is not None and kind != "dpo":
            raise BadInput(f"--beta {self.beta:g}", why="is of dpo", remedy="add --algorithm dpo")
        source = {name: block.pop(name, None) for name in ("run", "least", "columns", "system")}
        given = {
            "run": self.from_run,
            "least": self.least,
            "system": self.system,
            "columns": _columns(self.column) or None,
        }
        source |= {name: value for name, value in given.items() if value is not None}
        file, lora = block.pop("examples", None), block.pop("lora", None)
        names = ("lr", "epochs", "batch", "beta", "max_tokens", "held_out", "skip", "save_every")
        block |= {name: value for name in names if (value := getattr(self, name)) is not None}
        seed = self.seed if self.seed is not None else kept.seed or 0
        private = {} if kept.privacy is None else kept.privacy.model_dump()
        private |= {name: one for name in PRIVACY if (one := getattr(self, name)) is not None}
        if private and "epsilon" not in private:
            raise BadInput(
                f"--{next(iter(private))}", why="there is no budget", remedy="add --epsilon, as in --epsilon 8"
            )
        return TrainRequest(
            model=model or kept.model,
            examples=examples or file,
            source=source,
            placed={
                "lora": self.lora if self.lora is not None else lora,
                "device": self.device or kept.device,
                "dtype": self.dtype or kept.dtype,
            },
            how=KINDS[kind](**block, seed=seed, privacy=Privacy(**private) if private else None),
        )


REWARD_MODEL = "reward_model"
NO_STORE = "check --store; 'holdfast improve', 'holdfast policy train' and 'holdfast quickstart' make one"
PRIVACY = ("epsilon", "delta", "unit", "clip")


@app.command()
def train(
    at: StoreOptions,
    how: TrainOptions,
    model: Annotated[str | None, Argument(metavar="MODEL", help=VERSION_HELP)] = None,
    examples: Annotated[
        Path | None, Argument(metavar="EXAMPLES", help="JSONL, CSV, Parquet, or a `datasets` folder.")
    ] = None,
    config: Annotated[
        Path | None,
        Option(metavar="FILE", help="TOML or JSON with model, sft, dpo or reward_model, privacy; options go over it."),
    ] = None,
    resume: Annotated[str | None, Option(metavar="RUN", help="Take up a run that stopped.")] = None,
) -> Output:
    """Fine-tune a model on the assistant's turns of examples (SFT); the result is a checkpoint in the store.

    A row is {"messages": [...], "tools": [...]}, {"prompt": ..., "completion": ...} or {"question": ..., "answer":
    ...}; with --algorithm dpo or reward_model it is {"prompt": ..., "chosen": ..., "rejected": ...}. --epsilon learns
    with differential privacy. Ctrl-C stops it; --resume goes on from the last checkpoint.
    """
    with needing("learn"):
        from holdfast.pipeline.sft import KINDS, resumed_spec, sft_spec
    if resume is not None:
        if model is not None or config is not None:
            other = "MODEL" if model is not None else "--config"
            raise BadInput(other, why="and --resume were both given", remedy="give one of them")
        with at.open(create=False) as opened:
            run = opened.runs.get(resume)
            if run.kind not in KINDS:
                raise BadInput(f"run {run.id}", why=f"is of the kind {run.kind}", remedy="resume it by its own command")
            return _drive(opened, resumed_spec(run.settings), run.id)
    asked = how.over(config, model, examples)
    if asked.model is None:
        raise BadInput("MODEL", why="is missing", remedy="name a model and its examples, or give --resume RUN")
    named = _by_itself(asked.model)
    if named is not None and asked.source["run"] is None:
        spec = sft_spec(_placed(named, **asked.placed), asked.examples, **asked.source, how=asked.how)
        with at.open() as opened:  # only now that all is checked
            return _drive(opened, spec, None)
    with at.open(create=False) as opened:
        if asked.source["run"] is not None:
            asked.source["run"] = opened.runs.get(asked.source["run"]).id
        policy = _placed(named or _policy(opened, asked.model), **asked.placed)
        return _drive(opened, sft_spec(policy, asked.examples, **asked.source, how=asked.how), None)


@app.command()
def export(
    version: VersionText,
    folder: Annotated[Path, Argument(metavar="FOLDER", help="Where it goes; nothing may be there.")],
    at: StoreOptions,
    adapters: Annotated[
        bool, Option("--adapters", help="Its adapters alone, as peft and vLLM read them; a few MB.")
    ] = False,
) -> Output:
    """Write a version as files: a whole model that transformers and vLLM read, adapters merged into the weights; or a
    prompt, each text by its name, and prompt.json with all of it."""
    prompt = _prompt(at, version)
    if prompt is not None:
        from holdfast.cli.prompts import export_prompt

        if adapters:
            raise BadInput("--adapters", why=f"{version} is a prompt, which has none", remedy="leave it out")
        return export_prompt(version, prompt, folder)
    with needing("learn"):
        from holdfast.policies.model import export as write
    named = _by_itself(version)
    if named is not None:
        write(named, None, folder, adapters=adapters)
    else:
        with at.existing(NO_STORE) as opened:
            write(_policy(opened, version), opened.files, folder, adapters=adapters)
    files = sorted(file.name for file in folder.iterdir())
    talk = step(f"holdfast policy chat --model {near(folder)}", "talk to it")
    lines = [*left(f"{version} written to", folder), *(() if adapters else ("next:", *talk))]
    return Output({"version": version, "folder": folder.absolute(), "files": files}, "\n".join(lines))


@app.command("show")
def show_(version: VersionText, at: StoreOptions) -> Output:
    """Show where a version comes from: its base model, what was trained, and its chain of checkpoints; of a prompt its
    texts, and of a run that searched for one (or RUN#NUMBER) what was tried."""
    from holdfast.cli.prompts import show_prompt, show_search

    if (search := show_search(at, version)) is not None:
        return search
    _check_known(at, version)
    if (prompt := _prompt(at, version)) is not None:
        return show_prompt(version, prompt)
    named = _by_itself(version)
    from holdfast.pipeline.sft import earlier_spending, spending

    if named is not None:
        payload = _model_record(named, None, [])
    else:
        with at.existing(NO_STORE) as opened:
            policy = _policy(opened, version)
            line = [] if policy.checkpoint is None else opened.checkpoints.lineage(policy.checkpoint)
            payload = _model_record(policy, opened.files, [checkpoint.id for checkpoint in line])
            payload["privacy"] = earlier_spending(opened, policy.checkpoint)
    lines = []
    for name, value in payload.items():
        if name == "privacy":
            lines += [line for report in value for line in folded(f"{name:<12} {spending(report)}")]
        elif value not in (None, [], {}):
            shown = " → ".join(value) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else value
            lines += folded(f"{name.replace('_', ' '):<12} {shown}")
    return Output(payload, "\n".join(lines))


@app.command()
def diff(
    version: VersionText,
    at: StoreOptions,
    other: Annotated[
        str | None, Argument(metavar="OTHER", help="To this one; else from the first of its line or run to VERSION.")
    ] = None,
) -> Output:
    """Show what changed from one prompt to another, word by word."""
    from holdfast.cli.prompts import diff_prompts, first_of

    prompts = []
    for name in (version, other or first_of(version)):
        prompt = _prompt(at, name) if name else None
        if prompt is None:
            remedy = "name prompts, as in support@2, or RUN#3 of a search"
            raise BadInput(f"version {name or version}", why="is no prompt", remedy=remedy)
        prompts.append((name, prompt))
    return diff_prompts(*(reversed(prompts) if other is None else prompts))


# Finding what is meant -----------------------------------------------------------------------------------------------


def _by_itself(name: str) -> Model | None:
    """A model that is found without a store: one of the package, or a folder."""
    with needing("learn"):
        from holdfast.policies.model import Model

    return Model(name) if name in NAMES or Path(name).is_dir() else None


def _prompt(at: StoreOptions, name: str) -> Prompt | None:
    """A release that is a prompt, or RUN#NUMBER of a search; None where it is neither."""
    from holdfast.cli.prompts import prompt_in

    if "#" not in name and ("@" not in name or Path(name).is_dir()):
        return None
    _check_known(at, name)
    with at.existing(NO_STORE) as opened:
        return prompt_in(opened, name)


def _check_known(at: StoreOptions, name: str) -> None:
    """BadInput for a name that is nothing, with one that is like it, before PyTorch takes its seconds to load."""
    from holdfast.pipeline.versions import is_checkpoint

    whole, _, place = name.rpartition("@")
    if name in NAMES or Path(name).is_dir() or "#" in name:
        return
    with at.existing(NO_STORE) as opened:
        policies = opened.releases.policies()
        releases = [release.id for policy in policies for release in opened.releases.of_policy(policy)]
        is_release = place.isdecimal() and any(
            release.startswith(whole) and release.endswith(f"@{place}") for release in releases
        )
        if is_release or is_checkpoint(opened, place):
            return
        runs = [run.id for run in opened.runs.newest()]
    if any(run.startswith(name) for run in runs):
        remedy = f"'holdfast run rollouts {name}' lists what it did"
        raise BadInput(f"run {name}", why="searched for no prompt", remedy=remedy)
    close = get_close_matches(name, [*NAMES, *releases, *runs, *policies], n=2, cutoff=0.5)
    others = f"did you mean {' or '.join(close)}?" if close else f"there is {', '.join([*NAMES, *releases[:4]])}"
    why = "is no model of the package, no folder, no checkpoint, no release and no run"
    raise BadInput(f"version {name!r}", why=why, remedy=others)


def _policy(store: Store, name: str) -> Model:
    from holdfast.pipeline.versions import policy_for, resolve
    from holdfast.policies.model import Model
    from holdfast.store.store import find_release

    policy = policy_for(store, resolve(store, find_release(store, name).id if "@" in name else name))
    if not isinstance(policy, Model):
        why = "it is a prompt: its model answers from an address"
        raise BadInput(f"version {name}", why=why, remedy="name one with weights")
    return policy


def _placed(policy: Model, lora: int | None, device: str, dtype: str) -> Model:
    """Sets the adapters, the device and the precision that were asked for."""
    from holdfast.policies.device import AUTO, placed

    if (device, dtype) != (AUTO, AUTO):
        policy = replace(policy, device=device, dtype=dtype)
    placed(policy.device, policy.dtype)  # refused before anything is written
    if lora is None or lora == policy.lora:
        return policy
    if policy.checkpoint is not None:
        what = f"--lora {lora}"
        why = f"checkpoint {policy.checkpoint} was trained with {policy.lora or 'none'}"
        raise BadInput(what, why=why, remedy="leave it out, or export the checkpoint first")
    return replace(policy, lora=lora)


def _columns(given: list[str] | None) -> dict[str, str]:
    found = {}
    for one in given or ():
        name, is_pair, column = one.partition("=")
        if not is_pair or not column:
            raise BadInput(f"--column {one}", why="is not NAME=COLUMN", remedy="as in --column prompt=question")
        found[name] = column
    return found


# What is told --------------------------------------------------------------------------------------------------------


def _drive(store: Store, spec: RunSpec, resume: str | None) -> Output:
    from holdfast.cli.drive import drive
    from holdfast.pipeline.sft import result_of

    status, _, code = drive(store, spec, resume)
    taught = result_of(store, status.run_id) if status.run_state is RunState.COMPLETED else None
    result = None if taught is None else _record(taught)
    lines = [*_lines(store_flags(store.url, store.project), status, taught)]
    if taught is not None and result is not None and taught.kind == REWARD_MODEL and taught.why is None:
        result["scorer"] = {"scorer": "judge", "model": str(taught.policy.folder(store.files))}
        lines += ["as a scorer:", f"  {json.dumps(result['scorer'])}"]
    return Output({"status": status, "result": result}, "\n".join(lines), code)


def _record(found: Taught) -> dict[str, Any]:
    return {
        "version": found.policy.checkpoint,
        "policy": found.policy.manifest,
        "examples": found.prepared.record(),
        "updates": found.updates,
        "held_out_loss": {"before": found.before, "after": found.after, "each": list(found.losses)},
        "taken_back": found.taken_back,
        "why": found.why,
        "privacy": found.privacy,
    }


def _lines(at: str, status: Status, found: Taught | None) -> Iterator[str]:
    from holdfast.pipeline.sft import spending

    why = f" ({status.error}, at {status.lesson})" if status.error else ""
    yield from folded(f"{status.run_id} {status.run_state.replace('_', ' ')} in {status.elapsed_s:.0f} s{why}")
    if found is None:
        yield "next:"
        yield from step(f"holdfast policy train --resume {status.run_id}{at}", "go on where it stopped")
        return
    data = found.prepared
    counted = f"{data.sequences} to learn from with {data.tokens:,} tokens of the assistant's, {data.held_out} held out"
    yield from folded(f"examples    {counted}", "  ")
    for reason, count in data.skipped.items():
        yield from folded(f"left out    {count}: {reason} (first: {data.first[reason]})", "  ")
    if found.policy.checkpoint is None or found.why is not None:
        yield from folded(f"learnt      nothing: {found.why}", "  ")
        return
    yield f"  learnt      {found.updates} updates, {found.taken_back} taken back"
    if found.before is not None and found.after is not None:
        worse = ": it is worse; try fewer epochs or a smaller --lr" if found.after > found.before else ""
        yield from folded(f"held out    loss {found.before:.4f} → {found.after:.4f}{found.measure}{worse}", "  ")
    if found.privacy is not None:
        yield from folded(f"privacy     {spending(found.privacy)}", "  ")
    yield from folded(f"version     {found.policy.checkpoint}", "  ")
    yield "next:"
    yield from step(f"holdfast policy export {found.policy.checkpoint} FOLDER{at}", "for other programs")
    yield from step(f"holdfast release add {found.policy.checkpoint} --policy NAME{at}", "into service")


def _model_record(policy: Model, files: Artifacts | None, line: list[str]) -> dict[str, Any]:
    from holdfast.policies import model

    where = policy.folder(files)
    net, sha256 = model.load(policy, files)
    trained = sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad)
    return {
        "model": policy.name,
        "format": "Hugging Face" if model.is_foreign(where) else "holdfast",
        "checkpoint": policy.checkpoint,
        "line": line,
        "lora": policy.lora or None,
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        "trained": trained if policy.checkpoint is not None else None,
        "folder": near(where),
        "sha256": sha256,
        "resources": dict(policy.resources),
    }
