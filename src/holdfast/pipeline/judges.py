"""Judges by their names, and who is asked about an answer: the rules first, then each judge in turn.

How a judge is asked is `reward.judges`' business; whether it counts is in the store, by its calibrations.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast.contracts.errors import BadInput
from holdfast.contracts.judgement import Calibration, EvalItem
from holdfast.promote.gate import JUDGED
from holdfast.reward.judges.ensemble import Calibrated, EnsembleOutcome, Opinion, cascade
from holdfast.reward.judges.judge import CRITERIA, CachedJudge, FunctionJudge, Judge, LlmJudge, RuleJudge
from holdfast.store.store import Store

VERIFIER = "verifier"
READS = "detail.messages: the talk, the answer last"
LABEL = "let a person decide: holdfast reward label"


def is_verifier(name: str) -> bool:
    """The embedded one, or one in a folder: a verifier, or a checkpoint with a reward model."""
    return name == VERIFIER or (Path(name) / "manifest.json").is_file()


def judge_named(name: str, base_url: str | None) -> Judge:
    """The embedded verifier, one that `judge train` has put into a folder, or a model behind an endpoint."""
    if is_verifier(name):
        return connect_verifier(name)()
    if base_url is None:
        remedy = f"give --base-url, or use --judge {VERIFIER}"
        raise BadInput(f"--judge {name}", why="needs an endpoint", remedy=remedy)
    from holdfast.collect.client import Client

    client = Client(name, base_url, api_key=os.environ.get("OPENAI_API_KEY"), tries=2)
    return LlmJudge(name=name, complete=client, clock=time.time)


def connect_verifier(name: str) -> Callable[[], Judge]:
    """Returns what loads the verifier in any process; a missing PyTorch is found here."""
    if find_spec("torch") is None or find_spec("safetensors") is None:
        why = "needs PyTorch, which is not installed"
        raise BadInput(f"judge {name}", why=why, remedy="pip install 'holdfast[learn]'")
    return partial(_verifier, name)


def _verifier(name: str) -> Judge:
    from holdfast.policies import reward_model
    from holdfast.policies.verifier import load, probabilities

    if name != VERIFIER and reward_model.is_reward_model(name):
        reader = reward_model.load(name)
        named = f"reward_model@{reader.version}"
        return FunctionJudge(
            name=named, version=reader.version, clock=time.time, reads=READS, probabilities=reader.probabilities
        )
    using = load() if name == VERIFIER else load(Path(name))
    called = VERIFIER if name == VERIFIER else f"{VERIFIER}@{using.version}"
    about: dict[str, Any] = {"name": called, "version": using.version, "clock": time.time, "reads": READS}
    return FunctionJudge(**about, probabilities=partial(probabilities, using))


@dataclass(frozen=True, slots=True, kw_only=True)
class Court:
    """Who is asked after the rules, criterion by criterion, and how far each is believed."""

    tiers: Mapping[str, Sequence[Sequence[Judge]]]
    calibrated: Calibrated

    async def opinions(self, item: EvalItem, criteria: Sequence[str] = tuple(CRITERIA)) -> list[Opinion]:
        """Asks the rules about every criterion at the same time, and the judges about what the rules cannot tell."""
        rules, on = RuleJudge(clock=time.time), [CRITERIA[name] for name in criteria]
        asked = (
            cascade(criterion, item, self.tiers.get(criterion.id, ()), rules=rules, calibrated=self.calibrated)
            for criterion in on
        )
        return await asyncio.gather(*asked)


def court(judges: Sequence[Judge], store: Store | None) -> Court:
    """Asks every judge about every criterion; its word counts where it is calibrated, for which a store is needed."""
    asked = judges if store is None else [CachedJudge(judge, store.judgements) for judge in judges]
    tiers = {on.id: [[judge] for judge in asked] for on in CRITERIA.values()}
    return Court(tiers=tiers, calibrated=(lambda *_: None) if store is None else store.judgements.calibration)


def trusted_court(names: Sequence[str], base_url: str | None, store: Store) -> Court:
    """Each judge where it counts: what it says by a criterion that it is not calibrated on is not worth its price. One
    that counts nowhere is refused."""
    from holdfast.reward.judges.calibration import weight

    calibrated, tiers = store.judgements.calibration, dict[str, list[list[Judge]]]()
    for name in names:
        judge = judge_named(name, base_url)
        known = {on.id: calibrated(judge.name, on.id, judge.prompt(on)) for on in CRITERIA.values()}
        trusted = [
            criterion
            for criterion, calibration in known.items()
            if calibration is not None and weight(calibration) > 0.0
        ]
        if not trusted:
            why = "counts by no criterion" if any(known.values()) else "is calibrated on no criterion"
            raise BadInput(f"--judge {name}", why=why, remedy=calibrate_with(name, base_url))
        for criterion in trusted:
            tiers.setdefault(criterion, []).append([CachedJudge(judge, store.judgements)])
    return Court(tiers=tiers, calibrated=calibrated)


def judged_by(score: Any, primary: str) -> list[dict[str, str]]:
    """The judges whose word is what has to improve: of success the gate, of reward whatever is paid. Told as they are
    known in calibrations; a judge that cannot be reached is known by its scorer's name, which nothing is bound to."""
    while not hasattr(score, "scorers"):
        inner = getattr(score, "score", None)
        if inner is None:
            return []
        score = inner
    counting = [
        scorer
        for scorer in score.scorers
        if scorer.asks_model and (scorer.gate if primary == "success" else scorer.weight)
    ]
    return [_identity(one) for one in counting if primary in ("success", "reward")]


def _identity(scorer: Any) -> dict[str, str]:
    function = scorer.function
    on, made = getattr(function, "criterion", None), getattr(function, "made", None)
    if on is None or made is None:
        return {"judge": scorer.name, "criterion": "", "prompt": ""}
    asked = made()
    return {"judge": asked.name, "criterion": on.id, "prompt": asked.prompt(on)}


def with_calibrations(store: Store, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a candidate, with what is known by now of the judges that decided about it."""
    return {**manifest, JUDGED: [_with_calibration(store, one) for one in manifest[JUDGED]]}


def _with_calibration(store: Store, judge: Mapping[str, str]) -> dict[str, Any]:
    calibration = store.judgements.calibration(judge["judge"], judge["criterion"], judge["prompt"])
    if calibration is None:
        return {**judge, "standing": None}
    payload = {
        "standing": str(calibration.standing),
        "labels": calibration.n,
        "kappa_low": calibration.measures.get("kappa_low"),
    }
    return {**judge, **payload, "reasons": list(calibration.reasons), "stretch": _stretch(calibration)}


def _stretch(found: Calibration) -> list[float] | None:
    """Returns the range of factors that undo how a judge's errors shrink a difference. None: the judge
    may be no better than a coin."""
    from holdfast.reward.judges.calibration import judged_difference

    tiny = 1e-6  # so small that no end is cut
    low, high = judged_difference(found, tiny, tiny)
    return None if low < 0.0 else [low / tiny, high / tiny]


def calibrate_with(name: str, base_url: str | None, criterion: str | None = None) -> str:
    """The command that measures a judge."""
    more = ("" if criterion is None else f" --criterion {criterion}") + (f" --base-url {base_url}" if base_url else "")
    return f"holdfast reward judge calibrate --judge {name}{more}"


def remedy_for(opinion: Opinion, names: Sequence[str], base_url: str | None) -> str | None:
    """Suggests what would settle an open opinion; None where it is decided."""
    if opinion.outcome is EnsembleOutcome.DECIDED:
        return None
    if not names:
        return "configure a judge: --judge NAME --base-url URL, as in holdfast control mcp --judge gpt-4o-mini"
    if opinion.probability is not None or opinion.outcome is EnsembleOutcome.DISPUTED:
        return LABEL
    if opinion.failed:
        return "is the judge's endpoint running?"
    open_ = next((judgement for judgement in opinion.judgements if judgement.score is not None), None)
    name = opinion.criterion.partition("@")[0]
    return LABEL if open_ is None else f"{calibrate_with(open_.judge, base_url, name)} --labels FILE"
