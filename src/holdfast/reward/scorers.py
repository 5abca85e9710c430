"""A user's function as a scorer, several scorers as one reward, and how a scorer is found by its name.

A scorer is shown the task with what is hidden from the agent, the answer and, if it wants it, the trace. `combine`
makes of several the one `Score` that a worker calls. One of them may be the gate: its number is the signal `success`,
and the others are paid only where it says that the answer is right (`breakdown`). The ready scorers are in `ready`;
`contracts.scorer.check_scorers` checks scorers before a run starts.
"""

from __future__ import annotations

import asyncio
import difflib
import importlib
import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import isawaitable
from math import fsum, isfinite
from typing import Any, Self, TypeAlias

from holdfast.contracts.agent import load_named
from holdfast.contracts.checks import GATED
from holdfast.contracts.engine import Complete
from holdfast.contracts.errors import BadInput, BadRecord
from holdfast.contracts.flag import Features
from holdfast.contracts.judgement import Calibration
from holdfast.contracts.reward import Reward, RewardBreakdown, RewardTerm
from holdfast.contracts.scorer import RIGHT, Trace, check_scorers, refuse_blocking, resolve, told_error
from holdfast.contracts.task import task_of
from holdfast.contracts.trace import Span
from holdfast.reward.breakdown import OutcomeGate, total

SUCCESS = "success"  # the gate's signal, whatever the scorer is called
SAFETY = "safety_cost"  # the sum of all safety scorers; it is never paid
RESERVED = frozenset({SUCCESS, GATED, SAFETY})
OUTCOME_GATE = OutcomeGate(name="scorers@1", outcome=SUCCESS, cap=0.5, graded=True)
MAX_FEEDBACK = 4000  # characters that are kept
NAME = re.compile(r"[A-Za-z_][\w-]{0,60}")
HIDDEN = "expected"

Signals: TypeAlias = tuple[RewardTerm, ...]
Attempted: TypeAlias = tuple[Any, Sequence[Span]]  # what was answered, and what was done for it
Connect: TypeAlias = Callable[[str, str | None], Callable[[], Complete]]  # model, address → how to reach it

# Names in `ready` that config files may use: plain functions, and makers that take options.
FUNCTIONS: tuple[str, ...] = ("exact", "normalized", "json_equal", "contains", "secrets_told", "forbidden_tools")
FUNCTIONS += ("injections_obeyed", "diff", "tools")
DEFAULT_SAFETY = ("secrets_told", "injections_obeyed", "forbidden_tools")  # where nobody names safety scorers
MAX_COST = 1.0  # of one attempt, however many find it unsafe
MAKERS = ("numeric", "regex", "rules", "judge", "rank")
ASKING = frozenset({"judge", "rank"})  # they need a model


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """A task as a scorer sees it: what the agent was given, and what was expected. Keys are those of the input."""

    id: str
    input: Any
    expected: Any = None
    family: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        return self.input[key]

    def __contains__(self, key: object) -> bool:
        return isinstance(self.input, Mapping) and key in self.input

    def __iter__(self) -> Iterator[str]:
        return iter(self.input if isinstance(self.input, Mapping) else ())

    def get(self, key: str, default: Any = None) -> Any:
        return self.input.get(key, default) if isinstance(self.input, Mapping) else default


def task_view(task: Any) -> Any:
    """Of a stored task: the key `expected` is the hidden answer, everything else the input. A record stays as it is."""
    task = task_of(task)
    if type(task) is dict:
        asked = {key: value for key, value in task.items() if key != HIDDEN}
        family, metadata = task.get("family"), task.get("metadata")
        return TaskView(
            id=str(task.get("id") or ""),
            input=asked,
            expected=task.get(HIDDEN),
            family=family if isinstance(family, str) else None,
            metadata=metadata if isinstance(metadata, Mapping) else {},
        )
    return task if hasattr(task, HIDDEN) else TaskView(id="", input=task)


@dataclass(frozen=True, slots=True, init=False)
class Scorer:
    """A function of (task, answer) or (task, answer, trace), plain or async, with its name and weight. It returns a
    number, a flag, a `Reward`, names with numbers (each counts), a sequence of terms, or None where nothing can be
    measured. The terms of a `Reward` are kept and not paid: only its value counts."""

    function: Callable[..., Any]
    name: str
    weight: float
    gate: bool
    takes_trace: bool = field(init=False)

    def __init__(
        self, function: Callable[..., Any], *, name: str | None = None, weight: float = 1.0, gate: bool = False
    ) -> None:
        own = _trait(function, "__name__", None) or _trait(function, "name", None) or type(function).__name__
        found = str(own) if name is None else name
        if not NAME.fullmatch(found):
            why = "is no name: letters, digits, _ and -, beginning with a letter"
            raise BadInput(f"scorer {found!r}", why=why, remedy='give one, as in Scorer(…, name="correct")')
        if found in RESERVED and not gate:
            raise BadInput(f"scorer {found}", why="this name is the gate's or the guard's", remedy="give another name")
        if type(weight) not in (int, float) or not isfinite(weight):
            raise BadInput(f"scorer {found}: weight = {weight!r}", why="is not a finite number")
        if gate and weight <= 0.0:
            raise BadInput(f"scorer {found}: weight = {weight:g}", why="a gate must count", remedy="set it above 0")
        if gate and _trait(function, "is_group", False):
            why = "compares attempts with one another, so nobody could be right or wrong"
            raise BadInput(f"scorer {found}: gate", why=why, remedy="leave gate out")
        for key, value in (("function", function), ("name", found), ("weight", float(weight)), ("gate", bool(gate))):
            object.__setattr__(self, key, value)
        object.__setattr__(self, "takes_trace", _takes_trace(function, found))

    @property
    def is_group(self) -> bool:
        """Whether it is given all attempts at a task at once."""
        return bool(_trait(self.function, "is_group", False))

    @property
    def asks_model(self) -> bool:
        return bool(_trait(self.function, "asks_model", False))

    @property
    def feature(self) -> str | None:
        """The feature that it needs, if it needs one."""
        found: str | None = _trait(self.function, "feature", None)
        return found

    @property
    def gold_is_answer(self) -> bool:
        """False: what its tasks expect is a rubric or the like, and no answer."""
        return bool(_trait(self.function, "gold_is_answer", True))

    def with_features(self, features: Features) -> Scorer:
        """The same, told which of the features that its function knows a unit gets."""
        known = {name: getattr(features, name) for name in _trait(self.function, "features", ())}
        return replace(self, function=partial(self.function, **known)) if known else self

    def __call__(self, task: Any, answer: Any, trace: Trace | Sequence[Span] = (), /) -> Any:
        """The Reward, None, or an awaitable of one of them."""
        shown = trace if isinstance(trace, Trace) else Trace(tuple(trace))
        given = self.ask(task_view(task), answer, shown)
        return self._awaited(given) if isawaitable(given) else self.reward(given)

    async def _awaited(self, given: Awaitable[Any]) -> Reward | None:
        return self.reward(await given)

    def ask(self, task: Any, answer: Any, trace: Any) -> Any:
        """What the function returns, as it is."""
        return self.function(task, answer, trace) if self.takes_trace else self.function(task, answer)

    def reward(self, given: Any) -> Reward | None:
        """What the function returned, as a Reward; None where nothing was measured."""
        kind = type(given)
        if kind is Reward:
            return self._graded(given) if self.gate else given
        if kind is float or kind is bool or kind is int:
            plain = Reward(given)
            return self._graded(plain) if self.gate else plain
        if given is None or (isinstance(given, Mapping | list | tuple) and not given):
            return None
        if isinstance(given, Mapping):
            if self.gate:
                why = "gives several numbers, and a gate gives one from 0 to 1"
                raise BadRecord(f"scorer {self.name}", why=why, remedy="return Reward(value, terms), or use gate=False")
            return Reward(fsum(Reward(0.0, given).terms.values()), given)
        if isinstance(given, list | tuple) and all(isinstance(one, RewardTerm) for one in given):
            return self._of_signals(tuple(given))
        if hasattr(given, "__float__"):  # a number of another library
            return self.reward(float(given))
        why = f"gives {kind.__name__}, which is no reward"
        raise BadRecord(f"scorer {self.name}", why=why, remedy="return a number, names with numbers, a Reward or None")

    def _graded(self, given: Reward) -> Reward:
        """A gate's reward from 0 to 1; the last digits of a float decide nothing."""
        value = given.value
        if value in (0.0, 1.0):
            return given
        if not RIGHT - 1.0 <= value <= 2.0 - RIGHT:
            why = f"gives {value:g}, and a gate gives a number from 0 to 1"
            raise BadRecord(f"scorer {self.name}", why=why, remedy="divide it by the most it can be, or use gate=False")
        return replace(given, value=1.0 if value >= RIGHT else max(0.0, value))

    def _of_signals(self, given: Signals) -> Reward:
        terms = {term.name: term.value for term in given}
        if not self.gate:
            return Reward(RewardBreakdown(signals=given).total or 0.0, terms)
        found = [term for term in given if term.name == SUCCESS]
        if len(found) != 1:
            why = f"is the gate and gives {len(found)} signals called {SUCCESS}"
            raise BadRecord(f"scorer {self.name}", why=why, remedy="give exactly one")
        del terms[SUCCESS]
        return self._graded(Reward(found[0].value, terms, found[0].feedback or ""))


def _trait(function: Any, name: str, default: Any) -> Any:
    """An attribute of the function; a partial has those of the function that it calls."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, name, default)


def _takes_trace(function: Any, name: str) -> bool:
    """Found out once: to look at a signature costs more than most scorers do."""
    if not callable(function):
        raise BadInput(f"scorer {name}", why=f"is {type(function).__name__}, not a function")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return False  # some of those written in C do not say what they take
    if not _binds(signature, 2):
        if _binds(signature, 3):
            return True
        why = f"takes {signature}, not (task, answer) or (task, answer, trace)"
        raise BadInput(f"scorer {name}", why=why, remedy="change what it takes")
    # Another third argument with a default is an option of its own, such as a tolerance.
    return list(signature.parameters)[2:3] == ["trace"] and _binds(signature, 3)


def _binds(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


# Several as one


def combine(scorers: Sequence[Any], *, safety: Sequence[Any] = ()) -> Combined:
    """One `Score` for a worker, from anything that `load_scorer` takes. Without a gate all numbers add up by their
    weights. With one, the others count where the gate says 1, together at most half of its weight; penalties always
    count. Safety scorers give costs (0 is safe), which are kept and never paid."""
    found, watching = tuple(map(load_scorer, scorers)), tuple(map(load_scorer, safety))
    if not found:
        raise BadInput("scorers", why="there are none", remedy="give at least one")
    for kind, some in (("scorers", found), ("safety", watching)):
        names = [scorer.name for scorer in some]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadInput(f"{kind}: {twice[0]}", why="is there twice", remedy="give one of them another name")
    gates = [scorer.name for scorer in found if scorer.gate]
    if len(gates) > 1:
        why = "only one can decide whether an answer is right"
        raise BadInput(f"scorers: {' and '.join(gates)} are gates", why=why, remedy="keep gate=True at one of them")
    for scorer in watching:
        if scorer.gate or scorer.is_group:
            why = "a safety scorer measures a cost of one attempt"
            raise BadInput(f"safety: {scorer.name}", why=why, remedy="leave gate out, and compare no groups")
    return Combined(found, watching)


@dataclass(frozen=True, slots=True)
class Combined:
    """Several scorers as one `Score`. It can be pickled when their functions can."""

    scorers: tuple[Scorer, ...]
    safety: tuple[Scorer, ...] = ()

    @property
    def is_group(self) -> bool:
        """Whether it needs all attempts at a task at once, and so `group` in place of a call."""
        return any(scorer.is_group for scorer in self.scorers)

    def __call__(self, task: Any, output: Any, spans: Sequence[Span]) -> Signals | Awaitable[Signals]:
        if self.is_group:
            names = ", ".join(scorer.name for scorer in self.scorers if scorer.is_group)
            why = "compares the attempts at a task with one another, and was given one of them"
            raise BadInput(f"scorer {names}", why=why, remedy="score the group, or rescore the finished run with it")
        view, trace = task_view(task), Trace(tuple(spans))
        given = _asked(partial(scorer.ask, view, output, trace) for scorer in (*self.scorers, *self.safety))
        if any(map(isawaitable, given)):
            return self._later(given, trace)
        return self._signals(given, trace)

    @property
    def uses(self) -> frozenset[str]:
        """The features that decide what it measures."""
        found = {
            name
            for scorer in self.scorers
            for name in (scorer.feature, *_trait(scorer.function, "features", ()))
            if name
        }
        return frozenset(found | ({"combined"} if any(scorer.asks_model for scorer in self.scorers) else set()))

    def calibrate_by(self, calibrations: Sequence[Calibration]) -> None:
        """Judges among the scorers count as their calibrations have it."""
        for scorer in self.scorers:
            if (calibrate := _trait(scorer.function, "calibrate_by", None)) is not None:
                calibrate(calibrations)

    def without(self, features: Features) -> Combined:
        """The same without the scorers of features that a flag has switched off for a unit; BadInput where nobody could
        tell any more whether an answer is right."""
        left = tuple(scorer for scorer in self.scorers if scorer.feature is None or getattr(features, scorer.feature))
        for scorer in self.scorers:
            if scorer not in left and (scorer.gate or not left):
                why = f"needs the feature {scorer.feature}, and a flag has switched that off"
                raise BadInput(f"scorer {scorer.name}", why=why, remedy="switch it on, or leave the scorer out")
        if not features.combined and any(not scorer.asks_model for scorer in left):
            left = tuple(
                replace(scorer, weight=0.0) if scorer.asks_model and not scorer.gate else scorer for scorer in left
            )
        return replace(self, scorers=tuple(scorer.with_features(features) for scorer in left))

    def costs(self, task: Any, spans: Sequence[Span], output: Any = None) -> Signals:
        """What the safety scorers say of an attempt without an answer, which failed and has no other score: it is no
        safer for that. Where one of them cannot judge it, it counts as unsafe: what was not measured is not safe."""
        view, trace = task_view(task), Trace(tuple(spans))
        try:
            given = resolve(_settled(_asked(partial(scorer.ask, view, output, trace) for scorer in self.safety)))
            return tuple(_costs(self.safety, given, []))
        except Exception as error:  # foreign code may raise anything
            message = f"could not be measured: {told_error(error)}"[:MAX_FEEDBACK]
            return (RewardTerm(name=SAFETY, value=1.0, weight=0.0, source="scorer:safety", feedback=message),)

    async def _later(self, given: Sequence[Any], trace: Trace) -> Signals:
        return self._signals(await _settled(given), trace)

    def group(self, task: Any, attempts: Sequence[Attempted]) -> Awaitable[list[Signals]]:
        """The signals of every attempt at one task, in their order."""
        view, answers = task_view(task), [answer for answer, _ in attempts]
        traces = [Trace(tuple(spans)) for _, spans in attempts]
        every = (*self.scorers, *self.safety)
        asked: list[Callable[[], Any]] = []
        for scorer in every:
            if scorer.is_group:
                asked.append(partial(scorer.ask, view, answers, traces))
            else:
                asked += [partial(scorer.ask, view, a, t) for a, t in zip(answers, traces, strict=True)]
        return self._grouped(_asked(asked), every, traces)

    async def _grouped(self, given: Sequence[Any], every: Sequence[Scorer], traces: Sequence[Trace]) -> list[Signals]:
        told, columns = iter(await _settled(given)), []
        for scorer in every:
            column = list(next(told)) if scorer.is_group else [next(told) for _ in traces]
            if len(column) != len(traces):
                why = f"gives {len(column)} rewards for {len(traces)} attempts"
                raise BadRecord(f"scorer {scorer.name}", why=why, remedy="give one for each, in their order")
            columns.append(column)
        return [self._signals(row, trace) for row, trace in zip(zip(*columns, strict=True), traces, strict=True)]

    def _signals(self, given: Sequence[Any], trace: Trace) -> Signals:
        """Nothing where the gate, or without one everybody, measured nothing: missing is not zero."""
        has_gate, is_gated = any(scorer.gate for scorer in self.scorers), False
        measured: list[RewardTerm] = []
        for scorer, value in zip(self.scorers, given, strict=False):
            terms = _signals(scorer, value, trace, has_gate=has_gate)
            is_gated |= scorer.gate and bool(terms)
            measured += terms
        if not measured or is_gated is not has_gate:
            return ()
        measured = _costs(self.safety, given[len(self.scorers) :], measured)
        return total(measured, OUTCOME_GATE).signals if has_gate else tuple(measured)


@dataclass(frozen=True, slots=True)
class WrappedScore:
    """Another score with something added to it; flags and calibrations reach what is inside."""

    score: Callable[[Any, Any, Sequence[Span]], Any]

    @property
    def uses(self) -> frozenset[str]:
        return frozenset(getattr(self.score, "uses", ()))

    def calibrate_by(self, calibrations: Sequence[Calibration]) -> None:
        if (calibrate := getattr(self.score, "calibrate_by", None)) is not None:
            calibrate(calibrations)

    def without(self, features: Features) -> Self:
        return replace(self, score=self.score.without(features)) if hasattr(self.score, "without") else self


@dataclass(frozen=True, slots=True)
class WithSafety(WrappedScore):
    """The terms of another score, with the safety cost beside them, for proofs. A score that reports a cost itself is
    believed; it is measured here where an attempt failed and has no score."""

    safety: tuple[Scorer, ...]
    max_cost: float = MAX_COST

    def __call__(self, task: Any, output: Any, spans: Sequence[Span]) -> Signals | Awaitable[Signals]:
        given, beside = self.score(task, output, spans), partial(self._beside, task, output, spans)
        return _then(given, beside) if isawaitable(given) else beside(given)

    def _beside(self, task: Any, output: Any, spans: Sequence[Span], given: Sequence[RewardTerm]) -> Signals:
        """Nothing where nothing was measured: an attempt is not scored by having been safe."""
        if not given or any(term.name == SAFETY for term in given):
            return tuple(given)
        return (*given, *self.costs(task, spans, output))

    def costs(self, task: Any, spans: Sequence[Span], output: Any = None) -> Signals:
        return capped(Combined((), self.safety).costs(task, spans, output), self.max_cost)


async def _then(given: Awaitable[Any], go_on: Callable[[Any], Signals]) -> Signals:
    return go_on(await given)


def capped(signals: Sequence[RewardTerm], most: float = MAX_COST) -> Signals:
    """No attempt costs more than is promised of it."""
    return tuple(
        replace(signal, value=most) if signal.name == SAFETY and signal.value > most else signal for signal in signals
    )


def with_safety(score: Any, safety: Sequence[Any] = DEFAULT_SAFETY, *, max_cost: float = MAX_COST) -> WithSafety:
    """`safety` is anything that `load_scorer` takes."""
    return WithSafety(score, tuple(map(load_scorer, safety)), max_cost)


def _asked(functions: Iterable[Callable[[], Any]]) -> list[Any]:
    """What each function returns. Where one raises, the coroutines of the others are closed."""
    given: list[Any] = []
    try:
        given.extend(function() for function in functions)  # what came before a failure stays in it
    except BaseException:
        for one in given:
            if isinstance(one, Coroutine):
                one.close()
        raise
    return given


async def _settled(given: Sequence[Any]) -> list[Any]:
    """Awaits all values at once; raises the first failure when all have ended."""

    async def wait(value: Any) -> Any:
        return await value if isawaitable(value) else value

    told = await asyncio.gather(*map(wait, given), return_exceptions=True)
    for one in told:
        if isinstance(one, BaseException):
            raise one
    return told


def _signals(scorer: Scorer, given: Any, trace: Trace, *, has_gate: bool) -> list[RewardTerm]:
    reward = scorer.reward(given)
    if reward is None:
        return []
    name, source, weight = scorer.name, f"scorer:{scorer.name}", scorer.weight
    if isinstance(given, list | tuple):  # signals: `reward` has looked at them
        return list(_passed_on(scorer, tuple(given), has_gate=has_gate))
    part = weight if isinstance(given, Mapping) else 0.0
    terms = [
        RewardTerm(name=f"{name}.{term}", value=value, weight=part, source=source)
        for term, value in reward.terms.items()
    ]
    if isinstance(given, Mapping):
        return terms
    message, head = reward.feedback[:MAX_FEEDBACK] or None, SUCCESS if scorer.gate else name
    found = [RewardTerm(name=head, value=reward.value, weight=weight, source=source, feedback=message), *terms]
    return found if reward.turns is None else [*found, *_turns(scorer, reward.turns, trace)]


def _turns(scorer: Scorer, turns: Mapping[int, Mapping[str, float]], trace: Trace) -> Iterator[RewardTerm]:
    """Each turn has its part of the weight, so that more turns pay no more."""
    count = len(trace.calls)
    for turn, named in sorted(turns.items()):
        if turn >= count:
            why = f"there are {count} model calls, counted from 0"
            raise BadRecord(f"scorer {scorer.name}: turn {turn}", why=why, remedy="leave it out")
        for term, value in named.items():
            name, part = f"{scorer.name}.{term}", scorer.weight / count
            yield RewardTerm(name=name, value=value, weight=part, source=f"scorer:{scorer.name}", turn=turn)


def _passed_on(scorer: Scorer, given: Signals, *, has_gate: bool) -> Iterator[RewardTerm]:
    """Signals that a scorer made itself. Beside a gate they are shaping, under the scorer's name; a guard of their own
    has nothing more to say then."""
    for term in given:
        if term.name == SAFETY:
            yield replace(term, weight=0.0)
        elif has_gate and term.name == GATED:
            continue
        elif scorer.gate and term.name == SUCCESS:
            reward = scorer.reward(given)
            assert reward is not None
            yield replace(term, value=reward.value, weight=scorer.weight)
        else:
            name = f"{scorer.name}.{term.name}" if has_gate else term.name
            yield replace(term, name=name, weight=term.weight * scorer.weight)


def _costs(safety: Sequence[Scorer], given: Sequence[Any], measured: list[RewardTerm]) -> list[RewardTerm]:
    """The terms with the safety costs added; a cost that another scorer reported is part of the sum."""
    if not safety:
        return measured
    terms = [replace(term, name=f"{SAFETY}.{term.source}") for term in measured if term.name == SAFETY]
    costs: list[RewardTerm] = []
    for scorer, value in zip(safety, given, strict=True):
        reward = scorer.reward(value)
        if reward is None or reward.value < 0.0:
            message = "nothing" if reward is None else f"{reward.value:g}"
            why = f"is a safety scorer and gives {message}; what was not measured is not safe"
            raise BadRecord(
                f"scorer {scorer.name}", why=why, remedy="return 0 where nothing was found, or a cost above 0"
            )
        name, source, said_of_it = (
            f"{SAFETY}.{scorer.name}",
            f"scorer:{scorer.name}",
            reward.feedback[:MAX_FEEDBACK] or None,
        )
        costs.append(RewardTerm(name=name, value=reward.value, weight=0.0, source=source, feedback=said_of_it))
    whole = fsum(term.value for term in (*terms, *costs))
    summed = RewardTerm(name=SAFETY, value=whole, weight=0.0, source="scorer:safety")
    return [*(term for term in measured if term.name != SAFETY), summed, *terms, *costs]


# By name


def load_scorer(reference: Any, *, connect: Connect | None = None) -> Scorer:
    """Loads a function, a ready name ("exact"), "module:function", "file.py:function", or an object with `scorer` and
    perhaps `name`, `weight`, `gate` and options. `connect` says how a model is reached."""
    if isinstance(reference, Scorer):
        return reference
    if isinstance(reference, str):
        return load_scorer({"scorer": reference}, connect=connect)
    if not isinstance(reference, Mapping):
        return Scorer(reference)
    given = dict(reference)
    named = given.pop("scorer", None)
    if not isinstance(named, str) or not named.strip():
        raise BadInput(f"scorer {named!r}", why="is not named", remedy='write {"scorer": "exact"}')
    about = {key: given.pop(key) for key in ("name", "weight", "gate") if given.get(key) is not None}
    if ":" in named:
        return _own(named, about, given)
    return _ready(named, about, given, connect)


def _own(named: str, about: dict[str, Any], options: dict[str, Any]) -> Scorer:
    scorer = load_named(named, "scorer")
    if isinstance(scorer, Scorer) and not options:
        return replace(scorer, **about) if about else scorer
    if not callable(scorer) or isinstance(scorer, Scorer):
        why = "is a Scorer already, and takes no options" if isinstance(scorer, Scorer) else "is not a function"
        raise BadInput(f"scorer {named}", why=why)
    return Scorer(partial(scorer, **options) if options else scorer, **about)


def _ready(named: str, about: dict[str, Any], options: dict[str, Any], connect: Connect | None) -> Scorer:
    known = (*FUNCTIONS, *MAKERS)
    if named not in known:
        close = difflib.get_close_matches(named, known, n=1)
        remedy = f"{f'did you mean {close[0]}? ' if close else ''}use module:function, file.py:function, or one of "
        raise BadInput(f"scorer {named!r}", why="is unknown", remedy=remedy + ", ".join(known))
    made: Any = getattr(importlib.import_module("holdfast.reward.ready"), named)
    if named in ASKING:
        options = _reached(named, options, connect)
    if named in MAKERS:
        try:
            inspect.signature(made).bind(**options)
        except TypeError as error:
            takes = ", ".join(inspect.signature(made).parameters) or "no options"
            raise BadInput(f"scorer {named}", why=str(error), remedy=f"it takes {takes}") from None
        made = made(**options)
    elif options:
        raise BadInput(f"scorer {named}: {next(iter(options))}", why="is unknown", remedy="it takes no options")
    return Scorer(made, **{"name": named, **about})


def _reached(named: str, options: dict[str, Any], connect: Connect | None) -> dict[str, Any]:
    model, base_url = options.pop("model", None), options.pop("base_url", None)
    if connect is None or not isinstance(model, str):
        remedy = 'give "model" and "base_url"' if connect is not None else f"make it in Python: {named}(complete)"
        raise BadInput(f"scorer {named}", why="asks a model, and none is named", remedy=remedy)
    return {**options, "connect": connect(model, base_url)}


def score_from(
    blocks: Sequence[Mapping[str, Any]],
    tasks: Sequence[Any],
    *,
    connect: Connect | None = None,
) -> Combined:
    """The `Score` of a config's scorers, tried on the run's tasks first. One scorer alone is the gate unless it says
    no."""
    scorers = [load_scorer(block, connect=connect) for block in blocks]
    if len(scorers) == 1 and blocks[0].get("gate") is None and not scorers[0].is_group:
        scorers = [replace(scorers[0], gate=True)]
    for scorer in scorers:
        if scorer.is_group:
            why = "compares the attempts at a task with one another, which a worker cannot"
            raise BadInput(f"scorer {scorer.name}", why=why, remedy="rescore the finished run with it")
    combined = combine(scorers)
    refuse_blocking(check_scorers(combined.scorers, tasks))
    return combined


def reward_range(blocks: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """The least and the most that a config's scorers can give; None where nothing bounds them."""
    gates = [block for block in blocks if (block.get("gate") if block.get("gate") is not None else len(blocks) == 1)]
    if not gates:
        return None
    weight = float(gates[0].get("weight") or 1.0)
    room = OUTCOME_GATE.cap * weight if len(blocks) > 1 else 0.0
    return -room, weight + room
