"""The quickstart: each split has its own place in it, the warm-up ends when it is warm, practice compares, and all of
it is one run of `improve`. Rollouts are scripted and the model is tiny; what it learns is real."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.algorithm import AlgorithmState
from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.contracts.flag import ALL_ON, Features
from holdfast.contracts.release import Stage
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import RolloutState, Split, Task
from holdfast.contracts.run import RunState
from holdfast.policies.model import Model, load
from holdfast.store.artifacts import FolderArtifacts
from holdfast.store.store import Store, open_store
from holdfast.workloads.tooluse.dialogues import corpus
from holdfast.workloads.tooluse.quickstart import QUICK, Quickstart, WarmUp, given, marked, practice_tasks, spec_for
from holdfast.workloads.tooluse.tasks import SPLITS, generate, to_input
from holdfast.workloads.tooluse.wordings import TEMPLATES
from tests.conftest import Files
from tests.learn.telling import Telling
from tests.pipeline.scene import ran, scripted
from tests.pipeline.test_improve import Played
from tests.workloads.scene import attempt, tiny

RIGHT, WRONG = (1.0, 1.0), (0.0, 0.0)  # success and style


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Quickstart:
    """For a model so small that it learns in no time."""
    warm_up = {"warm_up_target": 0.25, "warm_up_rounds": 2, "warm_up_updates": 1, "warm_up_batch": 2}
    sizes = {"test_tasks": 4, "probe_tasks": 8, "grpo_steps": 2, "grpo_tasks": 2, "grpo_samples": 3, "workers": 2}
    return Quickstart(model=tiny(tmp_path_factory.mktemp("weights") / "tiny"), seed=3, **warm_up, **sizes)  # type: ignore[arg-type]


def breakdown(marks: tuple[float, float]) -> RewardBreakdown:
    success = RewardTerm(name="success", value=marks[0], source="rule:tooluse")
    style = RewardTerm(name="format", value=marks[1], weight=0.1, source="rule:tooluse")
    return RewardBreakdown(signals=(success, style))


# The warm-up


def probed(state: AlgorithmState, count: int, right: int, **fields: Any) -> list[Experience]:
    asked = [given(task) for task in generate("val", 3, count)]
    tasks = [Task(name=f"probe-{n}", input=one, split=Split.VAL) for n, one in enumerate(asked)]
    breakdowns = [breakdown(RIGHT if n < right else WRONG) for n in range(count)]
    how = {"version": state.policy.version, **fields}
    return [attempt(task, n, None, input=task.input, breakdown=breakdowns[n], **how) for n, task in enumerate(tasks)]


@pytest.mark.parametrize(
    ("earlier", "right", "of", "is_warm"),
    [
        (0, 2, 8, True),  # a quarter is the target
        (0, 1, 8, False),
        (1, 1, 8, False),
        (2, 0, 8, True),  # two rounds are all it gets
        (0, 1, 4, True),  # of those that came back
        (0, 0, 0, False),  # none came back: that is no reason to stop
    ],
)
def test_the_warm_up_goes_on_until_its_target_or_its_last_round(
    settings: Quickstart, tmp_path: Path, earlier: int, right: int, of: int, is_warm: bool
) -> None:
    algorithm, telling = WarmUp(settings=settings), Telling(tmp_path)
    state = replace(algorithm.start(Model(settings.model)), step=earlier)
    assert len(algorithm.ask(state, ())) == 8
    found = telling.tell(algorithm, state, probed(state, of, right))
    assert found.metrics["phase"] == "warm-up" and bool(found.data.get("is_warm")) is is_warm
    assert found.metrics["success"] == (right / of if of else None)
    assert (found.candidate is None) is is_warm  # one that is warm has learnt nothing in this step
    assert ("loss" in found.metrics) is not is_warm
    assert bool(algorithm.ask(found, ())) is not is_warm


def test_a_round_of_the_warm_up_leaves_other_weights_behind(settings: Quickstart, tmp_path: Path) -> None:
    algorithm, telling = WarmUp(settings=settings), Telling(tmp_path)
    state = algorithm.start(Model(settings.model))
    found = telling.tell(algorithm, state, probed(state, 8, 0))
    assert telling.checkpoints[0].algorithm == "sft"
    before, after = (
        load(one, FolderArtifacts(tmp_path))[0].state_dict()["embed.weight"] for one in (state.policy, found.policy)
    )  # type: ignore[arg-type]
    assert not before.equal(after)


def test_a_round_whose_updates_were_all_taken_back_leaves_no_candidate_and_what_was_there_stays(
    settings: Quickstart, tmp_path: Path
) -> None:
    strays, telling = WarmUp(settings=replace(settings, warm_up_rate=1e30)), Telling(tmp_path)
    state = strays.start(Model(settings.model))
    found = telling.tell(strays, state, probed(state, 8, 0))
    assert found.metrics["update"]["restored"] and "checkpoint" not in found.metrics
    assert (found.candidate, telling.checkpoints, "trainer" in found.data) == (None, [], False)
    assert strays.ask(found, ())  # the next round tries again

    good = telling.tell(WarmUp(settings=settings), found, probed(found, 8, 0))
    after = telling.tell(strays, good, probed(good, 8, 0))
    assert after.candidate == good.candidate
    assert [one.id for one in telling.checkpoints] == [str(good.metrics["checkpoint"])]


def test_while_learning_is_switched_off_nothing_is_taught_and_the_course_goes_on(
    settings: Quickstart, tmp_path: Path
) -> None:
    algorithm, telling = WarmUp(settings=settings), Telling(tmp_path, Features(learning=False))
    state = algorithm.start(Model(settings.model))
    found = telling.tell(algorithm, state, probed(state, 8, 0))
    assert (found.candidate, found.metrics["skipped"]) == (None, "learning is switched off")
    assert algorithm.ask(found, ()) == ()


# The whole run


async def play(
    store: Store,
    settings: Quickstart,
    worth: Callable[[str], tuple[float, float] | None],  # of each rollout, by its name; None: a fault of ours
    features: Features = ALL_ON,
) -> Played:
    def signals(name: str) -> Mapping[str, float] | None:
        found = worth(name)
        return None if found is None else {"success": found[0], "format": found[1], "safety_cost": 0.0}

    runtime = scripted(signals, format=0.1, safety_cost=0.0)
    spec = replace(spec_for(settings), runtime=runtime, max_faults=0, look_s=0.01)
    return Played(store, await ran(store, spec, features=features))


def improving(name: str) -> tuple[float, float]:
    """Cold at first, warm after one round; practice differs; the candidate is right where the baseline is not."""
    if name.startswith("probe"):
        return WRONG if name.startswith("probe-0") else RIGHT
    if name.startswith("grpo"):
        return RIGHT if name.endswith("-0-0") else WRONG  # in the second group there is nothing to compare
    return RIGHT if "candidate" in name else WRONG


@pytest.fixture(scope="module")
def played(settings: Quickstart, template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """A whole run that improves."""
    with open_store(shutil.copy(template, tmp_path_factory.mktemp("store") / "store.db")) as store:
        yield asyncio.run(play(store, settings, improving))


def asked_of(played: Played, step: str) -> list[str]:
    """The tasks as the store keeps them, without how they are to be sampled."""
    kept = [{k: v for k, v in one.input.items() if k not in ("sampling", "max_turns")} for one in played.rollouts(step)]
    return [json.dumps(one, sort_keys=True) for one in kept]


def test_it_warms_up_practises_proves_decides_and_marks(played: Played) -> None:
    assert played.status.run_state is RunState.COMPLETED
    learning = [f"0/{n}/{what}" for n in range(4) for what in ("collect", "learn")]
    assert played.names == [
        "begin",
        "base",
        "0/start",
        *learning,
        "0/live",
        "0/prove/order",
        "0/prove/0",
        "0/decide",
        "marks",
    ]
    bodies = [played.body(f"0/{n}/learn") for n in range(4)]
    assert [one["phase"] for one in bodies] == ["warm-up", "warm-up", "grpo 1", "grpo 1"]
    made = played.store.checkpoints.of_run(played.status.run_id)
    assert [one.algorithm for one in made] == ["sft", "grpo", "grpo"]
    practice = bodies[2]
    assert (practice["success"], practice["reward"]) == (pytest.approx(1 / 6), pytest.approx(1.1 / 6))
    assert practice["update"]["delta_norm"] > 0
    assert (practice["audit"]["rollouts"], practice["audit"]["taught"]) == (6, 3)
    assert practice["audit"]["counts"] == {"zero_variance_group": 3}
    groups = [one.metadata["group"] for one in played.rollouts("0/2/collect")]
    assert groups == ["grpo-0-0-0"] * 3 + ["grpo-0-0-1"] * 3


def test_test_tasks_are_only_measured_validation_tasks_only_probed_train_tasks_only_practised(
    settings: Quickstart, played: Played
) -> None:
    steps = {Split.VAL: ["0/0/collect", "0/1/collect"], Split.TRAIN: ["0/2/collect", "0/3/collect"]}
    steps[Split.TEST] = ["0/prove/0"]
    for split, names in steps.items():
        assert {one.split for name in names for one in played.rollouts(name)} == {split}
    asked = {split: {text for name in names for text in asked_of(played, name)} for split, names in steps.items()}

    def drawn(split: str, seed: int, n: int) -> set[str]:
        return {json.dumps(to_input(task), sort_keys=True) for task in generate(split, seed, n)}

    assert asked[Split.TEST] == drawn("test", settings.seed, 4)
    assert asked[Split.VAL] == drawn("val", settings.seed, 8)
    assert asked[Split.TRAIN] == drawn("train", 3001, 2) | drawn("train", 3002, 2)  # other tasks in each step
    assert not any(asked[one] & asked[other] for one, other in combinations(asked, 2))


def fits(prompt: str, wording: str) -> bool:
    """Whether the question has the words of the wording, in their order."""
    first, *rest = re.split(r"{\w}", wording)
    return prompt.startswith(first) and prompt.endswith(rest[-1]) and all(part in prompt for part in rest)


def test_the_wordings_of_the_measurements_are_met_nowhere_else() -> None:
    known = {split: {text for texts in TEMPLATES[split].values() for text in texts} for split in SPLITS}
    assert all(not known[one] & known[other] for one, other in combinations(SPLITS, 2))
    asked = {
        "train": practice_tasks(3, 2, 100),
        "val": [given(task) for task in generate("val", 3, 100)],
        "test": [given(task) for task in generate("test", 3, 100)],
    }
    for split, tasks in asked.items():
        for task in tasks:
            form = "convert" if task["form"] == "by_calc" else task["form"]
            assert any(fits(task["prompt"], wording) for wording in TEMPLATES[split][form]), task["prompt"]
    with pytest.raises(BadInput, match="is not to be learnt from"):
        corpus("strong", "test", 0, 1)  # where the examples of the warm-up come from


def test_both_versions_are_measured_in_one_look_with_two_seeds_and_every_try_is_marked(played: Played) -> None:
    assert [one.name for one in played.rollouts("0/prove/0")] == [
        f"proof-0-{arm}-{n}-{seed}" for n in range(4) for seed in (0, 1) for arm in ("baseline", "candidate")
    ]
    marks = played.body("marks")
    assert (marks["tries"], marks["baseline"]["success"], marks["candidate"]["success"]) == (2, [0, 8], [8, 8])
    evidence = played.evidence()
    assert (evidence.episodes, evidence.comparisons["success"].difference) == (4, 1.0)
    assert evidence.comparisons["reward"].difference == pytest.approx(1.1)
    assert set(evidence.bands) == {"seed", "sample"}
    decision = played.decided().decision
    assert decision is not None and not decision.open  # four tasks prove nothing
    assert "population_below_minimum" in {reason.code for reason in decision.reasons}


async def test_what_is_proved_goes_live(settings: Quickstart, files: Files) -> None:
    with open_store(files.fresh()) as store:
        played = await play(store, replace(settings, test_tasks=100), improving)
        live = store.releases.live(played.status.run_id)
        assert live is not None and live.source == f"checkpoint:{played.checkpoints[-1]}"
        assert store.releases.get(f"{played.status.run_id}@1").stage is Stage.RETIRED


async def test_where_nothing_was_learnt_nothing_is_measured_and_nothing_is_marked(
    settings: Quickstart, files: Files
) -> None:
    with open_store(files.fresh()) as store:
        played = await play(store, settings, lambda name: RIGHT)
        assert not [name for name in played.names if "prove" in name]
        why = "nothing was learnt, so there is nothing to prove: 12 rollouts zero variance group"
        assert played.decided().why == why
        assert played.body("marks") == {"tries": 2}
        off = await play(store, settings, improving, Features(learning=False))
        assert str(off.decided().why).endswith(": learning is switched off")


def test_a_missing_rollout_is_missing_in_a_measurement_and_not_wrong(settings: Quickstart) -> None:
    state = AlgorithmState(base=Model(settings.model))
    right, unscored, failed = probed(state, 3, 1)
    dead = replace(unscored, breakdown=None, state=RolloutState.DEAD)
    found = marked([right, dead, replace(failed, breakdown=None, state=RolloutState.FAILED)])
    assert [one.success for one in found] == [True, False]  # the agent's own failure is wrong


def test_the_spec_is_known_by_its_settings(settings: Quickstart) -> None:
    spec = spec_for(settings)
    assert (spec.kind, spec.model_ref, spec.seed, spec.workers) == ("quickstart", f"local/{settings.model}", 3, 2)
    assert Quickstart(**json.loads(json.dumps(spec.settings))) == settings


def test_the_quick_form_is_the_same_with_less_of_everything() -> None:
    assert QUICK.model == Quickstart().model
    for name in ("test_tasks", "probe_tasks", "warm_up_rounds", "grpo_steps", "grpo_tasks", "grpo_samples"):
        assert 0 < getattr(QUICK, name) < getattr(Quickstart(), name)
