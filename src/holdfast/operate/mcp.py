"""The tools of `holdfast control mcp` (Model Context Protocol): judge, compare, evaluate, look things up.

Each tool is a name, a JSON Schema and a function. All are read-only, except the commands of `control`, which are listed
only for a token that may give them. An invalid call gets the tool's error in one line; inputs and answers have size
limits. No model is called but the judges that are configured; what they say is kept. Modules that need the statistics
are imported where they are used: a client waits for the first answer. Input lines are repaired first: half a surrogate
pair becomes U+FFFD, and too deep nesting becomes null.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from holdfast.contracts.commands import LONGEST as LONGEST_ID
from holdfast.contracts.commands import LONGEST_WHY, Forbidden, Role
from holdfast.contracts.errors import BadInput, BadRecord, HoldfastError, StoreError
from holdfast.contracts.judgement import EvalItem
from holdfast.contracts.limits import RefusalLimiter
from holdfast.contracts.records import decode, encode
from holdfast.operate import control
from holdfast.operate.auth import TokenGuard, digest
from holdfast.pipeline.judges import court, remedy_for
from holdfast.reward.diff import minimality
from holdfast.reward.evaluation import CHANGE_S, Evaluation, TaskResult, TooLong, evaluate, parts, result_from, within
from holdfast.reward.judges.calibration import probability, weight
from holdfast.reward.judges.ensemble import Opinion
from holdfast.reward.judges.judge import CRITERIA, RULES_NAME, Judge
from holdfast.reward.tools import problems
from holdfast.store.store import Store, find_release, open_store

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

LONGEST = 200_000  # characters of one input text
LARGEST = 1_000_000  # of one call in all
MOST_OUT = 200_000  # characters of an answer
MOST_FILES = 200
PAGE = 100
ALL = 2**31  # more rollouts than a run has
INSTRUCTIONS = """Holdfast measures agents and improves them. Judge a text, compare two, evaluate a change \
to source code, and look up runs, decisions about versions, tool adoption and thinking budgets. A verdict of \
"unknown" means that nothing is known, not that it is good."""

ORDER = "control_"  # prefix of the command tools
ORDERED = ("id", "subject", "why", "dry_run")
REMEDY = "give an operator's token in HOLDFAST_TOKEN"
Clock = Callable[[], float]
Note = Callable[[str, Mapping[str, Any], HoldfastError], None]  # action, arguments, error


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    name: str
    says: str
    schema: Mapping[str, Any]
    act: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    is_write: bool = False  # changes something in the store


def _text(says: str, most: int = LONGEST, **more: Any) -> dict[str, Any]:
    return {"type": "string", "maxLength": most, "description": says, **more}


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _files(says: str) -> dict[str, Any]:
    """One text, or several texts by path."""
    many = {"type": "object", "additionalProperties": _text("A file's text."), "maxProperties": MOST_FILES}
    return {"anyOf": [_text(says), many], "description": f"{says} Or an object of path and text."}


PAGED = {"type": "integer", "minimum": 1, "maximum": PAGE, "description": "At most so many."}
TASK, CONTEXT = _text("What was asked for.", minLength=1), _text("What the answer had to go by.")
EXPECTED = _text("The right answer, where it is known.")
RUN = _text("A run's id, or the beginning of it.", 200, minLength=1)
JUDGE = _object(
    ("task", "output"),
    task=TASK,
    output=_text("The answer to be judged."),
    context=CONTEXT,
    expected=EXPECTED,
    criterion={"type": "string", "enum": sorted(CRITERIA), "description": "Only by this one; else by all."},
    messages={
        "type": "array",
        "items": {"type": "object"},
        "maxItems": MOST_FILES,
        "description": "The conversation, the answer last: what the embedded verifier reads.",
    },
)
COMPARE = _object(
    ("task", "first", "second"),
    task=TASK,
    first=_text("One answer."),
    second=_text("The other."),
    context=CONTEXT,
    expected=EXPECTED,
)
CHANGE = _object(
    ("task", "before", "after"),
    task=TASK,
    before=_files("The text before."),
    after=_files("The text after."),
    path=_text("Of the file, where it is one: its ending tells the language.", 1000, minLength=1),
    reference=_files("The least fix, where one is known."),
    tests=_files("The visible tests."),
    passed={"type": "boolean", "description": "What a hidden check said; leave it out where none was run."},
)
RUNS = _object(run=RUN, most=PAGED, before=_text("Begin behind this run.", 200, minLength=1))
ADOPTION = _object(("run",), run=RUN, most=PAGED)
DECISIONS = _object(
    policy=_text("Only this policy's.", 200, minLength=1),
    version=_text("One version, as policy@number: its decision is made once more from the samples.", 200, minLength=1),
    most=PAGED,
)


class ToolFunctions:
    """The functions of the tools. Each call opens the store: it may be created, moved or removed meanwhile."""

    def __init__(
        self, url: str, project: str, *, clock: Clock, judges: Sequence[Judge] = (), base_url: str | None = None
    ) -> None:
        self._url, self._project, self._clock = url, project, clock
        self._judges, self._base_url = judges, base_url
        self._refusals = RefusalLimiter(clock)

    @contextmanager
    def opened(self) -> Iterator[Store]:
        with open_store(self._url, project=self._project, create=False, migrate=False) as store:
            yield store

    def judge(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        asked = dict(arguments)
        only, messages = asked.pop("criterion", None), asked.pop("messages", None)
        try:
            item = decode(EvalItem, {**asked, **({"detail": {"messages": messages}} if messages else {})})
        except BadRecord as error:
            raise BadInput(error.what, why=error.why, remedy=error.remedy) from None
        with self._calibrations() as store:
            opinions = self._opinions(item, [only] if only else sorted(CRITERIA), store)
            return {
                "artifact": opinions[0].artefact,
                "opinions": [self._opinion(opinion, store) for opinion in opinions],
            }

    def _opinion(self, one: Opinion, store: Store | None) -> dict[str, Any]:
        """An opinion with what each judge said, how far it is believed and, where it is open, what would settle it."""
        names = ("criterion", "holds", "probability", "by", "why")
        lines = []
        for word in one.judgements:
            if word.judge != RULES_NAME:
                calibration = (
                    None if store is None else store.judgements.calibration(word.judge, word.criterion, word.prompt)
                )
                sure = None if calibration is None or word.score is None else probability(calibration, word.score)
                counts = calibration is not None and weight(calibration) > 0.0
                about = {"judge": word.judge, "grade": word.grade, "score": word.score, "why": word.why}
                lines.append({**about, "probability": sure, "counts": counts})
        confidence = None if one.holds is None or one.probability is None else max(one.probability, 1 - one.probability)
        asked = [judge.name for judge in self._judges]
        return {
            **{name: getattr(one, name) for name in names},
            "outcome": one.outcome.value,
            "confidence": confidence,
            "judgements": lines,
            "failed": list(one.failed),
            "remedy": remedy_for(one, asked, self._base_url),
        }

    @contextmanager
    def _calibrations(self) -> Iterator[Store | None]:
        """The store, which knows how far judges are believed; None without judges, or where there is no store yet."""
        with ExitStack() as stack:
            store = None
            if self._judges:
                with suppress(StoreError):
                    store = stack.enter_context(self.opened())
            yield store

    def compare(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        payload = {name: self._evaluated(arguments, name) for name in ("first", "second")}
        better, why = _better(payload["first"], payload["second"])
        return {"better": better, "why": why, **{name: _evaluation(evaluation) for name, evaluation in payload.items()}}

    def evaluate(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        result = result_from(dict(arguments), "change")
        if not result.change:
            raise BadInput("change", why="before and after are the same", remedy="give what was changed")
        try:
            size = within(CHANGE_S, lambda: _size(result))
        except (TooLong, RecursionError, MemoryError):
            raise BadInput("change", why="is too large to be measured in time", remedy="give parts of it") from None
        return {**_evaluation(self._judged(result)), "size": size}

    def runs(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        from holdfast.operate import views

        with self.opened() as store:
            now, most = self._clock(), arguments.get("most", 20)
            last = store.runs.get(arguments["before"]).id if "before" in arguments else None
            named = (
                [store.runs.get(arguments["run"])] if "run" in arguments else store.runs.newest(most=most, before=last)
            )
            for run in named:  # a page asks again until the count is complete; here nobody does
                store.figures.totals(run.id, most=ALL)
            if "run" not in arguments:
                return views.runs(store, now=now, most=most, before=last)
            payload = dict(views.run(store, named[0].id, now=now))
            payload.pop("settings")  # too long: it lists every task
            return payload

    def decisions(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        with self.opened() as store:
            if "version" in arguments:
                return _explained(store, arguments["version"])
            policies = [arguments["policy"]] if "policy" in arguments else store.releases.policies()
            entries = [entry for policy in policies for entry in store.releases.history(policy)]
            decided = [entry for entry in entries if entry.body.get("decision")]
            newest = sorted(decided, key=lambda entry: -entry.seq)[: arguments.get("most", 20)]
            live = {policy: store.releases.live(policy) for policy in policies[:PAGE]}
            return {
                "live": {policy: None if release is None else release.id for policy, release in live.items()},
                "decisions": [{"seq": entry.seq, "at": entry.at, "who": entry.who, **entry.body} for entry in newest],
            }

    def adoption(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        from holdfast.operate import views

        with self.opened() as store:
            return views.tools(store, arguments["run"], now=self._clock(), most=arguments.get("most", PAGE))

    def budgets(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        from holdfast.operate import views

        with self.opened() as store:
            most = arguments.get("most", 20)
            if "run" in arguments:
                return views.budgets(store, arguments["run"], now=self._clock(), most=most)
            return {"runs": [encode(totals) for totals in store.budgets.by_run(most=most)]}

    def order(self, action: str, token: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Executes a command through `control`, as the token's current caller."""
        with self.opened() as store:
            caller = TokenGuard(store, self._clock).who(token)
            if caller is not None:
                return control.answer(
                    store, _body(action, arguments), caller, now=self._clock(), refusals=self._refusals
                )
        error = Forbidden(f"{ORDER}{action}", why="the token is not good any more", remedy=REMEDY)
        self.note(token, action, arguments, error)
        raise error

    def note(self, token: str | None, action: str, arguments: Mapping[str, Any], error: HoldfastError) -> None:
        """Notes in the ledger a command that was refused before `control` saw it; without a store, nothing is noted."""
        with suppress(StoreError), self.opened() as store:
            caller = TokenGuard(store, self._clock).who(token)
            known = store.tokens.find(digest(token)) if token and token.isascii() else None
            stranger = "mcp, without a token" if known is None else f"{known.label}, whose {known.id} is not good"
            who, role = (stranger, "none") if caller is None else (caller.label, str(caller.role))
            whose: dict[str, Any] = {"who": who, "role": role, "now": self._clock()}
            control.note(store, _body(action, arguments), error, **whose, refusals=self._refusals)

    def may_order(self, token: str | None) -> bool:
        """Whether the token is an operator's; without a store it is not."""
        if not token:
            return False
        try:
            with self.opened() as store:
                caller = TokenGuard(store, self._clock).who(token)
        except StoreError:
            return False
        return caller is not None and caller.role.may(Role.OPERATOR)

    def _opinions(self, item: EvalItem, criteria: list[str], store: Store | None) -> list[Opinion]:
        return asyncio.run(court(self._judges, store).opinions(item, criteria))

    def _judged(self, result: TaskResult) -> Evaluation:
        with self._calibrations() as store:
            return evaluate(result, parts(judge=lambda item: self._opinions(item, sorted(CRITERIA), store)))

    def _evaluated(self, arguments: Mapping[str, Any], name: str) -> Evaluation:
        texts = {key: arguments[key] for key in ("task", "context", "expected") if key in arguments}
        return self._judged(result_from({**texts, "output": arguments[name]}, name))


def _body(action: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A call in the form that `control` reads."""
    args = {name: value for name, value in arguments.items() if name not in ORDERED}
    return {**{name: value for name, value in arguments.items() if name in ORDERED}, "action": action, "args": args}


def looking(desk: ToolFunctions) -> tuple[Tool, ...]:
    """The read-only tools."""
    rows = (
        ("judge_artifact", "Judge one answer: faithful, relevant, minimal, safe, correct.", JUDGE, desk.judge),
        ("compare_artifacts", "Tell which of two answers to a task is better, and why.", COMPARE, desk.compare),
        (
            "evaluate_diff",
            "Evaluate a change: how large against the least one, scaffolding, tampering.",
            CHANGE,
            desk.evaluate,
        ),
        ("query_runs", "List runs, newest first, or look at one with its counts and rewards.", RUNS, desk.runs),
        ("query_decisions", "What was decided about versions, by what evidence.", DECISIONS, desk.decisions),
        ("tool_adoption", "Whether tools are used where tasks need them.", ADOPTION, desk.adoption),
        ("thinking_budgets", "What was allowed, used and wasted.", _object(run=RUN, most=PAGED), desk.budgets),
    )
    return tuple(Tool(name=name, says=says, schema=schema, act=act) for name, says, schema, act in rows)


def ordering(desk: ToolFunctions, token: str | None) -> tuple[Tool, ...]:
    """One tool for each command, if the token may give commands."""
    if token is None or not desk.may_order(token):
        return ()
    tools = []
    for name, action in control.ACTIONS.items():
        schema = _object(
            ("id", "subject", "why"),
            id=_text(
                "An id of your own: a command with it is executed once, however often it is sent.",
                LONGEST_ID,
                minLength=1,
            ),
            subject=_text(f"Which {action.subject}.", control.LONGEST_NAME, minLength=1),
            why=_text("The reason, for the ledger.", LONGEST_WHY, minLength=1),
            dry_run={"type": "boolean", "description": "Only report what would change."},
            **{
                each: _text(
                    argument.help,
                    control.LONGEST_NAME,
                    **({"enum": list(argument.choices)} if argument.choices else {}),
                )
                for each, argument in action.args.items()
            },
        )
        act = partial(desk.order, name, token)
        tools.append(Tool(name=f"{ORDER}{name}", says=action.help, schema=schema, act=act, is_write=True))
    return tuple(tools)


def answer(
    tools: Mapping[str, Tool], name: str, arguments: Mapping[str, Any], *, note: Note = lambda *_: None
) -> Mapping[str, Any]:
    """Checks a call and returns the tool's answer. HoldfastError: what is wrong, in one line.

    A command that is refused here goes to `note`.
    """
    try:
        tool = _checked_tool(tools, name, arguments)
    except HoldfastError as error:
        if name.startswith(ORDER):
            note(name.removeprefix(ORDER), arguments, error)
        raise
    found = tool.act(arguments)
    size = len(json.dumps(found))
    if size > MOST_OUT:
        why = f"its answer has {size} characters, more than {MOST_OUT}"
        raise BadInput(name, why=why, remedy="ask for less: most, run, criterion")
    return found


def _checked_tool(tools: Mapping[str, Tool], name: str, arguments: Mapping[str, Any]) -> Tool:
    """The tool, after a check of the arguments."""
    if name not in tools and name.startswith(ORDER):
        raise Forbidden(name[:80], why="is for operators", remedy=REMEDY)
    if name not in tools:
        raise BadInput(f"tool {name[:80]!r}", why="is unknown", remedy=f"use {', '.join(tools)}")
    tool = tools[name]
    size = len(json.dumps(arguments))
    if size > LARGEST:
        raise BadInput(f"{name}: {size} characters", why=f"are more than {LARGEST}", remedy="give less at a time")
    if wrong := problems(tool.schema, arguments, name):
        raise BadInput(wrong[0][:400], remedy="see its schema")
    return tool


def server(
    looked: tuple[Tool, ...], orders: Callable[[], tuple[Tool, ...]], *, version: str, note: Note = lambda *_: None
) -> Server[Any]:
    """The SDK's server with these tools. `orders` is called each time: the token may be revoked meanwhile."""
    import mcp.types as types
    from mcp.server.lowlevel import Server

    def known() -> dict[str, Tool]:
        return {tool.name: tool for tool in (*looked, *orders())}

    async def on_list(_ctx: Any, _params: Any) -> types.ListToolsResult:
        found = await asyncio.to_thread(known)
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    description=tool.says,
                    input_schema=dict(tool.schema),
                    annotations=types.ToolAnnotations(
                        read_only_hint=not tool.is_write, destructive_hint=tool.is_write, idempotent_hint=True
                    ),
                )
                for tool in found.values()
            ]
        )

    async def on_call(_ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            payload = await asyncio.to_thread(lambda: answer(known(), params.name, params.arguments or {}, note=note))
        except HoldfastError as error:
            line = " ".join(str(error).splitlines())
            return types.CallToolResult(content=[types.TextContent(type="text", text=line)], is_error=True)
        text = types.TextContent(type="text", text=json.dumps(payload, ensure_ascii=False))
        return types.CallToolResult(content=[text], structured_content=dict(payload))

    return Server("holdfast", version=version, instructions=INSTRUCTIONS, on_list_tools=on_list, on_call_tool=on_call)


async def serve(app: Server[Any]) -> None:
    """Serves over stdin and stdout, until the client disconnects."""
    from mcp.server.stdio import stdio_server

    stdin: Any = lines(0)  # the SDK only iterates over its lines
    async with stdio_server(stdin=stdin) as (incoming, outgoing):
        await app.run(incoming, outgoing, app.create_initialization_options())


def _size(result: TaskResult) -> dict[str, Any]:
    references = dict(result.references) or None
    spent = minimality.total_excess(result.change, references)
    findings = minimality.unneeded_scaffolding(result.change, references)
    value = minimality.multiplier(
        spent.excess, minimality.scaffold_amount(findings), reference_cost=spent.reference_cost
    )
    return {
        "cost": round(spent.cost, 4),
        "reference_cost": None if references is None else round(spent.reference_cost, 4),
        "excess": round(spent.excess, 4),
        "multiplier": round(min(value, minimality.BROKEN) if spent.is_broken else value, 4),
        "scaffolding": [f"{finding.path}:{finding.line} {finding.rule}" for finding in findings[:PAGE]],
    }


def _evaluation(one: Evaluation) -> dict[str, Any]:
    verdicts = [
        {"part": verdict.part, "holds": verdict.holds, "reasons": list(verdict.reasons)} for verdict in one.verdicts
    ]
    return {"decision": one.decision, "score": one.score, "reasons": list(one.reasons), "verdicts": verdicts}


def _better(first: Evaluation, second: Evaluation) -> tuple[str, str]:
    """Compares by score where a known answer gates both; else the one is better whose failures the other shares."""
    if first.score is not None and second.score is not None:
        if first.score == second.score:
            return "neither", f"both score {first.score:.3f}"
        better = "first" if first.score > second.score else "second"
        return better, f"scores {first.score:.3f} and {second.score:.3f}"
    behind = {"second": _behind(first, second), "first": _behind(second, first)}
    for name, other in (("first", "second"), ("second", "first")):
        if behind[other] and not behind[name]:
            return name, f"the other one: {'; '.join(behind[other])}"
    if behind["first"]:
        return "unknown", f"each fails where the other does not: {'; '.join(behind['first'] + behind['second'])}"
    return "unknown", "no rule tells them apart, and no right answer is known"


def _behind(one: Evaluation, other: Evaluation) -> list[str]:
    """Reasons of the other's failures in parts where this one does not fail."""
    failed = {verdict.part for verdict in one.verdicts if verdict.holds is False}
    parts_ = [verdict for verdict in other.verdicts if verdict.holds is False and verdict.part not in failed]
    return [reason for verdict in parts_ for reason in verdict.reasons]


def _explained(store: Store, version: str) -> dict[str, Any]:
    from holdfast.operate.publication import recompute_decision

    release = find_release(store, version)
    decision = recompute_decision(store, release)
    records = {"release": release, "decision": decision.decision, "recomputed": decision.again}
    payload = {name: None if one is None else encode(one) for name, one in records.items()}
    return {**payload, "agrees": decision.agrees, "problems": list(decision.problems), "proof": decision.proof}


DEEPEST = 64  # levels; other parsers give up at about two hundred
ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.S
)
TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.S)


async def lines(descriptor: int) -> AsyncIterator[str]:
    """The repaired lines of a descriptor. Other readers of it, such as child processes, get an empty file."""
    import anyio

    async for line in anyio.wrap_file(_taken(descriptor)):
        yield readable(line)


def _taken(descriptor: int) -> TextIO:
    mine, nothing = os.dup(descriptor), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)
    # Never closed: a thread may still wait for a line at the end.
    return open(mine, encoding="utf-8", errors="replace", closefd=False)


def readable(line: str) -> str:
    if "\\u" in line:
        line = ESCAPE.sub(lambda match: "\\ufffd" if match["half"] else match[0], line)
    return _cut(line) if line.count("[") + line.count("{") > DEEPEST else line


def _cut(line: str) -> str:
    """Replaces too deeply nested values by null."""
    kept, depth, after = list[str](), 0, 0
    for match in TOKEN.finditer(line):
        if match[0] in ("[", "{"):
            depth += 1
            if depth == DEEPEST + 1:
                kept.append(line[after : match.start()])
        elif match[0] in ("]", "}"):
            if depth == DEEPEST + 1:
                kept.append("null")
                after = match.end()
            depth -= 1
    return "".join([*kept, line[after:]])
