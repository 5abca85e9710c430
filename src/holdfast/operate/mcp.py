"""What other programs may ask of Holdfast by the Model Context Protocol: judge, compare, evaluate, look things up.

Each tool is a name, a JSON Schema and a function. Everything is read-only, but for the orders of `control`, which are
there only for a token that may give them. Whatever is wrong with a call comes back as the tool's error, in one line;
texts that come in and answers that go out have a limit. No model is called, and nothing here leaves the process.
What needs the statistics is imported by whoever needs it: a client waits for the first answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.contracts.commands import LONGEST as LONGEST_ID
from holdfast.contracts.commands import LONGEST_WHY, Forbidden, Role
from holdfast.contracts.errors import BadInput, BadRecord, HoldfastError, StoreError
from holdfast.contracts.judgement import EvalItem
from holdfast.contracts.records import decode, encode
from holdfast.operate import control, wire
from holdfast.operate.auth import TokenGuard, digest
from holdfast.reward.diff import minimality, scaffold
from holdfast.reward.evaluation import CHANGE_S, Evaluation, TaskResult, evaluate, parts, result_from
from holdfast.reward.judges.ensemble import Opinion, cascade
from holdfast.reward.judges.judge import CRITERIA
from holdfast.reward.judges.rules import RuleJudge
from holdfast.reward.timeout import TooLong, within
from holdfast.reward.tools import problems
from holdfast.store.find import find_release
from holdfast.store.store import Store, open_store

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

LONGEST = 200_000  # characters of one text that comes in
LARGEST = 1_000_000  # of all that one call brings
MOST_OUT = 200_000  # characters of an answer
MOST_FILES = 200
PAGE = 100
ALL = 2**31  # more rollouts than a run has
INSTRUCTIONS = """Holdfast measures agents and improves them. Judge a text by rules, compare two, evaluate a change \
to source code, and look up runs, decisions about versions, tool adoption and thinking budgets. A verdict of \
"unknown" means that nothing is known, not that it is good."""

ORDER = "control_"  # what the names of orders begin with
ORDERED = ("id", "subject", "why", "dry_run")
REMEDY = "give an operator's token in HOLDFAST_TOKEN"
Clock = Callable[[], float]
Note = Callable[[str, Mapping[str, Any], HoldfastError], None]  # action, what came with it, why not


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    name: str
    says: str
    schema: Mapping[str, Any]
    act: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    changes: bool = False  # something in the store


def _text(says: str, most: int = LONGEST, **more: Any) -> dict[str, Any]:
    return {"type": "string", "maxLength": most, "description": says, **more}


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _files(says: str) -> dict[str, Any]:
    """One text, or several by path."""
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
RUNS = _object(
    run=RUN,
    most=PAGED,
    before=_text("Begin behind this run.", 200, minLength=1),
)
ADOPTION = _object(("run",), run=RUN, most=PAGED)
DECISIONS = _object(
    policy=_text("Only this policy's.", 200, minLength=1),
    version=_text("One version, as policy@number: its decision is made once more from the samples.", 200, minLength=1),
    most=PAGED,
)


class ToolFunctions:
    """The functions behind the tools. The store is opened for each call: it may come, go or be moved meanwhile."""

    def __init__(self, url: str, project: str, *, clock: Clock) -> None:
        self._url, self._project, self._clock = url, project, clock

    @contextmanager
    def opened(self) -> Iterator[Store]:
        with open_store(self._url, project=self._project, create=False, migrate=False) as store:
            yield store

    def judge(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        asked = dict(given)
        only = asked.pop("criterion", None)
        found = self._opinions(_artefact(asked), [only] if only else sorted(CRITERIA))
        return {"artifact": found[0].artefact, "opinions": [_opinion(one) for one in found]}

    def compare(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        told = {name: self._evaluated(given, name) for name in ("first", "second")}
        better, why = _better(told["first"], told["second"])
        return {"better": better, "why": why, **{name: _evaluation(one) for name, one in told.items()}}

    def evaluate(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        result = result_from(dict(given), "change")
        if not result.change:
            raise BadInput("change", why="before and after are the same", remedy="give what was changed")
        try:
            size = within(CHANGE_S, lambda: _size(result))
        except (TooLong, RecursionError, MemoryError):
            raise BadInput("change", why="is too large to be measured in time", remedy="give parts of it") from None
        return {**_evaluation(self._judged(result)), "size": size}

    def runs(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        from holdfast.operate.look import views

        with self.opened() as store:
            now, most = self._clock(), given.get("most", 20)
            last = store.runs.get(given["before"]).id if "before" in given else None
            named = [store.runs.get(given["run"])] if "run" in given else store.runs.newest(most=most, before=last)
            for run in named:  # nobody looks again here, as a page does until all is counted
                store.figures.totals(run.id, most=ALL)
            if "run" not in given:
                return views.runs(store, now=now, most=most, before=last)
            told = dict(views.run(store, named[0].id, now=now))
            told.pop("settings")  # as long as the run has tasks
            return told

    def decisions(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        with self.opened() as store:
            if "version" in given:
                return _explained(store, given["version"])
            policies = [given["policy"]] if "policy" in given else store.releases.policies()
            entries = [one for policy in policies for one in store.releases.history(policy)]
            decided = [one for one in entries if one.body.get("decision")]
            newest = sorted(decided, key=lambda one: -one.seq)[: given.get("most", 20)]
            live = {policy: store.releases.live(policy) for policy in policies[:PAGE]}
            return {
                "live": {policy: None if one is None else one.id for policy, one in live.items()},
                "decisions": [{"seq": one.seq, "at": one.at, "who": one.who, **one.body} for one in newest],
            }

    def adoption(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        from holdfast.operate.look import views

        with self.opened() as store:
            return views.tools(store, given["run"], now=self._clock(), most=given.get("most", PAGE))

    def budgets(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        from holdfast.operate.look import views

        with self.opened() as store:
            most = given.get("most", 20)
            if "run" in given:
                return views.budgets(store, given["run"], now=self._clock(), most=most)
            return {"runs": [encode(one) for one in store.budgets.by_run(most=most)]}

    def order(self, action: str, token: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Through the one desk for orders, by whoever the token belongs to now."""
        with self.opened() as store:
            caller = TokenGuard(store, self._clock).who(token)
            if caller is not None:
                return control.answer(store, _body(action, given), caller, now=self._clock())
        error = Forbidden(f"{ORDER}{action}", why="the token is not good any more", remedy=REMEDY)
        self.note(token, action, given, error)
        raise error

    def note(self, token: str | None, action: str, given: Mapping[str, Any], error: HoldfastError) -> None:
        """Put on record that an order was refused before it came to the desk; where there is no store, nothing is."""
        with suppress(StoreError), self.opened() as store:
            caller = TokenGuard(store, self._clock).who(token)
            known = store.tokens.find(digest(token)) if token and token.isascii() else None
            stranger = "mcp, without a token" if known is None else f"{known.label}, whose {known.id} is not good"
            who, role = (stranger, "none") if caller is None else (caller.label, str(caller.role))
            control.note(store, _body(action, given), error, who=who, role=role, now=self._clock())

    def may_order(self, token: str | None) -> bool:
        """Whether an operator asks; without a store there is nobody who could."""
        if not token:
            return False
        try:
            with self.opened() as store:
                caller = TokenGuard(store, self._clock).who(token)
        except StoreError:
            return False
        return caller is not None and caller.role.may(Role.OPERATOR)

    def _opinions(self, artefact: EvalItem, criteria: list[str]) -> list[Opinion]:
        rules = RuleJudge(clock=self._clock)

        async def ask() -> list[Opinion]:
            return [
                await cascade(CRITERIA[name], artefact, (), rules=rules, calibrated=lambda *_: None)
                for name in criteria
            ]

        return asyncio.run(ask())

    def _judged(self, result: TaskResult) -> Evaluation:
        return evaluate(result, parts(judge=lambda artefact: self._opinions(artefact, sorted(CRITERIA))))

    def _evaluated(self, given: Mapping[str, Any], name: str) -> Evaluation:
        texts = {key: given[key] for key in ("task", "context", "expected") if key in given}
        return self._judged(result_from({**texts, "output": given[name]}, name))


def _body(action: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A call as the desk for orders reads it."""
    args = {name: value for name, value in given.items() if name not in ORDERED}
    return {**{name: value for name, value in given.items() if name in ORDERED}, "action": action, "args": args}


def looking(desk: ToolFunctions) -> tuple[Tool, ...]:
    """The tools that change nothing."""
    rows = (
        ("judge_artifact", "Judge one answer by rules: faithful, relevant, minimal, safe, correct.", JUDGE, desk.judge),
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
    """One for each order, where the token may give any."""
    if token is None or not desk.may_order(token):
        return ()
    found = []
    for name, action in control.ACTIONS.items():
        schema = _object(
            ("id", "subject", "why"),
            id=_text("Any of your own: an order is obeyed once, however often it comes.", LONGEST_ID, minLength=1),
            subject=_text(f"Which {action.subject}.", control.LONGEST_NAME, minLength=1),
            why=_text("The reason, for the ledger.", LONGEST_WHY, minLength=1),
            dry_run={"type": "boolean", "description": "Only tell what it would come to."},
            **{
                each: _text(one.help, control.LONGEST_NAME, **({"enum": list(one.choices)} if one.choices else {}))
                for each, one in action.args.items()
            },
        )
        act = partial(desk.order, name, token)
        found.append(Tool(name=f"{ORDER}{name}", says=action.help, schema=schema, act=act, changes=True))
    return tuple(found)


def answer(
    tools: Mapping[str, Tool], name: str, given: Mapping[str, Any], *, note: Note = lambda *_: None
) -> Mapping[str, Any]:
    """What a tool says to a call that was looked at first. HoldfastError: what is wrong with it, in one line.

    An order that is refused before it comes to its desk goes to `note`.
    """
    try:
        tool = _asked(tools, name, given)
    except HoldfastError as error:
        if name.startswith(ORDER):
            note(name.removeprefix(ORDER), given, error)
        raise
    found = tool.act(given)
    size = len(json.dumps(found))
    if size > MOST_OUT:
        why = f"its answer has {size} characters, more than {MOST_OUT}"
        raise BadInput(name, why=why, remedy="ask for less: most, run, criterion")
    return found


def _asked(tools: Mapping[str, Tool], name: str, given: Mapping[str, Any]) -> Tool:
    """The tool, once the call fits it."""
    if name not in tools and name.startswith(ORDER):
        raise Forbidden(name[:80], why="is for operators", remedy=REMEDY)
    if name not in tools:
        raise BadInput(f"tool {name[:80]!r}", why="is unknown", remedy=f"use {', '.join(tools)}")
    tool = tools[name]
    size = len(json.dumps(given))
    if size > LARGEST:
        raise BadInput(f"{name}: {size} characters", why=f"are more than {LARGEST}", remedy="give less at a time")
    if wrong := problems(tool.schema, given, name):
        raise BadInput(wrong[0][:400], remedy="see its schema")
    return tool


def server(
    looked: tuple[Tool, ...],
    orders: Callable[[], tuple[Tool, ...]],
    *,
    version: str,
    note: Note = lambda *_: None,
) -> Server[Any]:
    """The SDK's server over these tools. `orders` is asked anew each time: a token may be revoked meanwhile."""
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
                        read_only_hint=not tool.changes, destructive_hint=tool.changes, idempotent_hint=True
                    ),
                )
                for tool in found.values()
            ]
        )

    async def on_call(_ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            told = await asyncio.to_thread(lambda: answer(known(), params.name, params.arguments or {}, note=note))
        except HoldfastError as error:
            line = " ".join(str(error).splitlines())
            return types.CallToolResult(content=[types.TextContent(type="text", text=line)], is_error=True)
        text = types.TextContent(type="text", text=json.dumps(told, ensure_ascii=False))
        return types.CallToolResult(content=[text], structured_content=dict(told))

    return Server("holdfast", version=version, instructions=INSTRUCTIONS, on_list_tools=on_list, on_call_tool=on_call)


async def serve(app: Server[Any]) -> None:
    """Over stdin and stdout, until the other side hangs up."""
    from mcp.server.stdio import stdio_server

    stdin: Any = wire.lines(0)  # of a file the SDK asks no more than its lines
    async with stdio_server(stdin=stdin) as (incoming, outgoing):
        await app.run(incoming, outgoing, app.create_initialization_options())


def _artefact(given: dict[str, Any]) -> EvalItem:
    try:
        return decode(EvalItem, given)
    except BadRecord as error:
        raise BadInput(error.what, why=error.why, remedy=error.remedy) from None


def _opinion(one: Opinion) -> dict[str, Any]:
    return {
        "criterion": one.criterion,
        "outcome": one.outcome.value,
        "holds": one.holds,
        "probability": one.probability,
        "by": one.by,
        "why": one.why,
    }


def _size(result: TaskResult) -> dict[str, Any]:
    references = dict(result.references) or None
    spent = minimality.weigh(result.change, references)
    found = minimality.surplus(result.change, references)
    value = minimality.multiplier(spent.excess, scaffold.amount(found), reference_cost=spent.reference_cost)
    return {
        "cost": round(spent.cost, 4),
        "reference_cost": None if references is None else round(spent.reference_cost, 4),
        "excess": round(spent.excess, 4),
        "multiplier": round(min(value, minimality.BROKEN) if spent.is_broken else value, 4),
        "scaffolding": [f"{one.path}:{one.line} {one.rule}" for one in found[:PAGE]],
    }


def _evaluation(one: Evaluation) -> dict[str, Any]:
    verdicts = [{"part": each.part, "holds": each.holds, "reasons": list(each.reasons)} for each in one.verdicts]
    return {"decision": one.decision, "score": one.score, "reasons": list(one.reasons), "verdicts": verdicts}


def _better(first: Evaluation, second: Evaluation) -> tuple[str, str]:
    """By the score where a known answer gates both; else only where one holds in all that the other does, and more."""
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
    """Why the other fails, in parts in which this one does not."""
    failed = {each.part for each in one.verdicts if each.holds is False}
    parts_ = [each for each in other.verdicts if each.holds is False and each.part not in failed]
    return [reason for each in parts_ for reason in each.reasons]


def _explained(store: Store, version: str) -> dict[str, Any]:
    from holdfast.operate.explain import recount

    release = find_release(store, version)
    found = recount(store, release)
    return {
        "release": encode(release),
        "decision": None if found.decision is None else encode(found.decision),
        "recomputed": None if found.again is None else encode(found.again),
        "agrees": found.agrees,
        "problems": list(found.problems),
        "proof": found.proof,
    }
