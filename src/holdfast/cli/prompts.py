"""What commands that search for a prompt have in common: their options, what they report, and the page of a search."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from holdfast.cli.options import Output, StoreOptions, written_whole
from holdfast.cli.show import left
from holdfast.contracts.errors import BadInput
from holdfast.contracts.lines import folded

if TYPE_CHECKING:
    from holdfast.contracts.settings import OptimizeSettings
    from holdfast.policies.prompt import Prompt
    from holdfast.store.store import Store

DOCUMENTED = "--prompt-optimization-"
PROMPT = "prompt"  # as --policy: the prompt is improved, of the line that the settings name; else of this name
SHOWN = 12  # prompts on the terminal, and those that they name; the page and --json have all of them
NUMBER = re.compile(r"\bnumber (\d+)")  # as a prompt is named where another one is explained
EXPLAINED = (
    "score: mean reward on the search tasks. gain: what it is expected to gain over number 0, drawn towards 0 while "
    "little was seen. tokens, seconds: of an answer. * the best, + nobody beats it in reward, tokens and seconds."
)
MODEL_ENV, URL_ENV = "HOLDFAST_REFLECTION_MODEL", "HOLDFAST_REFLECTION_URL"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """The search for a better prompt; each option goes over what `prompt_search` in the settings says."""

    search: Annotated[
        bool, Option("--search", f"{DOCUMENTED}search", help="Search for a better prompt, and prove it.")
    ] = False
    rollouts: Annotated[
        int | None,
        Option("--rollouts", f"{DOCUMENTED}rollouts", metavar="N", min=1, help="Of search and proof, at most."),
    ] = None
    tokens: Annotated[
        int | None, Option("--tokens", f"{DOCUMENTED}tokens", metavar="N", min=1, help="The same in tokens.")
    ] = None
    candidate: Annotated[
        list[str] | None, Option(metavar="TEXT", help="A prompt of yours to try; may be given several times.")
    ] = None
    reflection_model: Annotated[
        str | None,
        Option(
            "--reflection-model",
            f"{DOCUMENTED}reflection-model",
            metavar="NAME",
            help=f"A chat model that reads failures and writes prompts; else {MODEL_ENV}.",
        ),
    ] = None
    reflection_url: Annotated[
        str | None,
        Option(
            "--reflection-url",
            f"{DOCUMENTED}reflection-url",
            metavar="URL",
            help=f"Its endpoint; else {URL_ENV}, or that of the prompt's model.",
        ),
    ] = None

    def refuse(self, beside: str = "") -> None:
        """BadInput where one is given and nothing is searched for, or what is to be done keeps its own settings."""
        for field in fields(self):
            if getattr(self, field.name) not in (None, False, []):
                why = f"cannot be given with {beside}" if beside else "is of the search for a prompt"
                remedy = "leave it out" if beside else "add --search"
                raise BadInput(f"--{field.name.replace('_', '-')}", why=why, remedy=remedy)

    def over(self, settings: OptimizeSettings, *, is_asked: bool) -> OptimizeSettings:
        """The settings with these options in their place; they mean nothing where no prompt is searched for."""
        from holdfast.contracts.settings import PromptSearchBlock, override

        if not is_asked and not self.search:
            self.refuse()
            return settings
        block = (settings.prompt_search or PromptSearchBlock()).model_dump()
        block |= {name: getattr(self, name) for name in ("rollouts", "tokens") if getattr(self, name) is not None}
        block["candidates"] = [*block["candidates"], *(self.candidate or ())]
        model = self.reflection_model or os.environ.get(MODEL_ENV)
        url = self.reflection_url or os.environ.get(URL_ENV)
        if model is None and self.reflection_url is not None and block["reflection"] is None:
            why = "is the address of a model that is not named"
            raise BadInput("--reflection-url", why=why, remedy="give --reflection-model")
        known = block["reflection"] or {}
        if model is not None or (known and url is not None):
            block["reflection"] = {
                **known,
                "model": model or known["model"],
                "base_url": url or known.get("base_url"),
            }
        return override(settings, prompt_search=block)


def searched_in(store: Store, run: str) -> list[tuple[dict[str, Any], Path]]:
    """Returns every search of a run and writes its page."""
    from holdfast.pipeline.prompts import searches

    return [(one, write_prompt_page(store, one)) for one in searches(store, run)]


def write_prompt_page(store: Store, search: Mapping[str, Any]) -> Path:
    """The page of a search, among the reports."""
    from holdfast.operate.prompt_page import render
    from holdfast.store.artifacts import write_atomically

    path = store.reports / f"{search['run']}-prompts-{search['iteration'] + 1}.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, render(search).encode())
    return path


def reported(search: Mapping[str, Any], page: Path | None) -> dict[str, Any]:
    """A search under the keys that the operations guide's report has for it; docs/prompts.md lists them."""
    prompts: Sequence[Mapping[str, Any]] = search["prompts"]
    shown = (
        "number",
        "version",
        "by",
        "parents",
        "note",
        "rollouts",
        "score",
        "gain",
        "tokens",
        "seconds",
        "is_best",
        "on_front",
    )
    return {
        "baseline_prompt": prompts[0]["texts"],
        "optimized_prompt": search["optimized"],
        "candidates": [
            {**{name: prompt[name] for name in shown}, "prompt": prompt["texts"], "dropped": prompt["why"]}
            for prompt in prompts
        ],
        "refused": search["refused"],
        "rounds": search["round"],
        "spent": search["spent"],
        "budget": search["budget"],
        "held_out": search["held_out"],
        "nothing_found": search["nothing"],
        "stopped": search["stopped"],
        "page": page,
    }


def search_lines(search: Mapping[str, Any], page: Path | None) -> Iterator[str]:
    """At most 80 columns: what was tried, what it scored and why it was dropped, also where nothing was better."""
    tried = [one for one in search["prompts"] if one["rollouts"]]
    spent = ", ".join(
        f"{search['spent'].get(name, 0):,.6g} of {limit:,.6g} {name}" for name, limit in search["budget"].items()
    )
    yield f"prompts: {max(0, len(tried) - 1)} tried in {search['round']} rounds, {spent}"
    yield "    #  by              runs  score   gain  tokens  seconds"
    shown = rows_shown(tried)
    for one in shown:
        score = "    -" if one["score"] is None else f"{one['score']:.2f}".rjust(5)
        gain = "" if one["gain"] is None else f"{one['gain']:+.2f}"
        mark = "*" if one["is_best"] else " "
        beside = _figure(one["tokens"], ",.0f", 6) + "  " + _figure(one["seconds"], ".2f", 7)
        name = f"{one['number']:>2}{'+' if one['on_front'] else ' '} {one['by'][:14]:<14}"
        yield f"  {mark}{name} {one['rollouts']:>5}  {score}  {gain:>5}  {beside}"
        yield from folded(f"{one['note']}: {one['why']}" if one["note"] else one["why"], " " * 7)
    yield from folded(EXPLAINED, "     ")
    if len(tried) > len(shown):
        yield f"     and {len(tried) - len(shown)} more, on the page and with --json"
    if idle := len(search["prompts"]) - len(tried):
        yield f"     {idle} more were written and not run"
    if search["refused"]:
        yield f"     {len(search['refused'])} proposals were refused, the last one:"
        yield from folded(search["refused"][-1], " " * 7)
    for name, text in (search["optimized"] or {}).items():
        if isinstance(text, str) and text != search["prompts"][0]["texts"].get(name):
            yield from folded(f"{name}: {text}", "  > ")
    if page is not None:
        yield from left("prompts", page, "  ")


def _figure(value: float | None, form: str, width: int) -> str:
    return ("-" if value is None else format(value, form)).rjust(width)


def rows_shown(tried: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The first prompts and the winner, with its parents and every prompt that a row names."""
    by_number = {one["number"]: one for one in tried}
    wanted = [one["number"] for one in tried[:SHOWN]]
    wanted += [number for one in tried if one["is_best"] for number in (one["number"], *one["parents"])]
    for number in wanted:  # which grows: what is named may name others
        named = NUMBER.findall(by_number[number]["why"]) if number in by_number else ()
        wanted += [int(one) for one in named if int(one) not in wanted]
    return [one for one in tried if one["number"] in wanted]


def held_out_lines(search: Mapping[str, Any]) -> Iterator[str]:
    """Describes the proof on held-out tasks."""
    from holdfast.operate.prompt_page import headline

    yield from folded(f"held out: {headline(search)}")
    for reason in () if search["held_out"] is None else search["held_out"]["reasons"]:
        yield from folded(reason, "  ")


# Prompts of the store ------------------------------------------------------------------------------------------------


def prompt_in(store: Store, name: str) -> Prompt | None:
    """A release that is a prompt, or the prompt of that number in a run's last search; None: it is something else."""
    from holdfast.contracts.policy import policy_from
    from holdfast.pipeline.prompts import searches
    from holdfast.policies.prompt import Prompt
    from holdfast.store.store import find_release

    run, mark, number = name.partition("#")
    if not mark:
        release = find_release(store, name)
        kept = release.manifest.get("policy")
        policy = policy_from(kept) if isinstance(kept, Mapping) and "type" in kept else None
        return policy if isinstance(policy, Prompt) else None
    found_searches = searches(store, store.runs.get(run).id)
    tried = {str(one["number"]): one for search in found_searches[-1:] for one in search["prompts"]}
    if number not in tried:
        why = f"has prompts 0 to {len(tried) - 1}" if tried else "searched for no prompt"
        raise BadInput(f"version {name}", why=why, remedy="'holdfast policy show RUN' lists them")
    return Prompt(tried[number]["texts"])


def first_of(version: str) -> str:
    """Names the prompt to compare with by default: the first of its line, or the one that its search began with."""
    run, mark, _ = version.partition("#")
    return f"{run}#0" if mark else f"{version.rpartition('@')[0]}@1"


def show_search(at: StoreOptions, name: str) -> Output | None:
    """Shows the searches of a run; None for anything else than a run that searched."""
    from holdfast.contracts.errors import NotFound

    if "@" in name or "#" in name or not name.startswith("run-"):
        return None
    try:
        with at.existing() as opened:
            found = searched_in(opened, opened.runs.get(name).id)
    except NotFound:
        return None
    lines = [line for one in found for line in (*search_lines(*one), *held_out_lines(one[0]))]
    return Output({"prompt_optimization": [reported(*one) for one in found]}, "\n".join(lines)) if found else None


def show_prompt(version: str, prompt: Prompt) -> Output:
    payload = {"version": version, "id": prompt.version, **prompt.manifest}
    lines = [f"{version}  {prompt.version}"]
    lines += [f"model  {prompt.model}"] if prompt.model else []
    lines += [f"sampling  {json.dumps(dict(prompt.sampling))}"] if prompt.sampling else []
    for name, text in prompt.texts.items():
        lines += ["", f"{name}:", *(text if isinstance(text, str) else json.dumps(text)).splitlines()]
    return Output(payload, "\n".join(lines))


def diff_prompts(old: tuple[str, Prompt], new: tuple[str, Prompt]) -> Output:
    """Marks dropped words as [-…-] and added ones as {+…+}, like `git diff --word-diff`."""
    from holdfast.operate.prompt_page import prompt_changes

    (before, first), (after, second) = old, new
    changes = prompt_changes(first.texts, second.texts)
    marks = {"same": "{}", "dropped": "[-{}-]", "added": "{{+{}+}}"}
    lines = [f"{before} → {after}"]
    for name, parts in changes:
        lines += ["", f"{name}:", *"".join(marks[kind].format(text) for kind, text in parts).splitlines()]
    lines += [] if changes else ["the texts are the same"]
    payload = {
        "before": before,
        "after": after,
        "changes": {name: [list(part) for part in parts] for name, parts in changes},
    }
    return Output(payload, "\n".join(lines))


def export_prompt(version: str, prompt: Prompt, folder: Path) -> Output:
    try:
        is_taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
        if not is_taken:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"cannot be made: {error.strerror or error}"
        raise BadInput(f"folder {folder}", why=why, remedy="name another folder") from error
    if is_taken:
        raise BadInput(str(folder), why="is there already, and nothing is overwritten", remedy="name another folder")
    texts = {f"{name}.txt": text for name, text in prompt.texts.items() if isinstance(text, str) and is_plain(name)}
    whole = json.dumps({"version": version, "id": prompt.version, **prompt.manifest}, indent=2, ensure_ascii=False)
    for name, text in {**texts, "prompt.json": f"{whole}\n"}.items():
        with written_whole(folder / name) as file:
            file.write(text)
    files = sorted([*texts, "prompt.json"])
    about = {"version": version, "folder": folder.absolute(), "files": files}
    return Output(about, "\n".join([*left(f"{version} written to", folder), *(f"  {name}" for name in files)]))


def is_plain(name: str) -> bool:
    """Whether a text's name can be a file's."""
    return all(letter.isalnum() or letter in "_-" for letter in name)
