"""Preferences: the loss and its gradient against TRL's formula, what is a pair, and pairs of recorded attempts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.trace import ModelCall, Span, SpanKind
from holdfast.learn.batch import Samples
from holdfast.learn.dpo import DPO, NO_PAIR, preference_loss, recorded_pairs, sums, with_advantages
from holdfast.learn.sft import Example, divide, read_examples, sequences, tokenise
from holdfast.learn.train import OptimizerConfig, Trainer
from holdfast.policies.chat_template import ByteTemplate
from holdfast.policies.lm import ModelShape, Transformer

BETA = 0.3
SHAPE = ModelShape(width=16, layers=1, heads=2, context=64)


def pairs(count: int = 3) -> Samples:
    rng = np.random.default_rng(0)
    return sequences(
        [(rng.integers(0, 256, 6 + n % 4).tolist(), [False] * 3 + [True] * (3 + n % 4)) for n in range(2 * count)]
    )


def logps(net: Transformer, batch: Samples) -> torch.Tensor:
    """log π of each answer, one sequence at a time."""
    found = []
    for start, end in zip(batch.bounds, batch.bounds[1:], strict=False):
        ids, marks = torch.tensor(batch.ids[start:end]).long(), torch.tensor(batch.action_mask[start:end])
        each = net(ids[None])[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        found.append(each[marks[1:]].sum())
    return torch.stack(found)


def test_loss_and_gradient_are_those_of_trls_formula() -> None:
    batch, policy, reference = pairs(), Transformer(SHAPE, seed=0), Transformer(SHAPE, seed=1)
    now, before = logps(policy, batch), logps(reference, batch).detach()
    # trl.DPOTrainer, loss_type="sigmoid": logits = (π_chosen − π_rejected) − (ref_chosen − ref_rejected)
    logits = (now[0::2] - now[1::2]) - (before[0::2] - before[1::2])
    loss = -F.logsigmoid(BETA * logits).mean()
    loss.backward()  # type: ignore[no-untyped-call]

    how = DPO(beta=BETA)
    settings = replace(how._settings(1), optimizer=OptimizerConfig(max_grad_norm=1e9))
    trainer = Trainer(Transformer(SHAPE, seed=0), settings, seed=0)
    margin = how._margins(trainer, batch, before.double().numpy())
    np.testing.assert_allclose(margin, logits.detach().numpy(), rtol=1e-5, atol=1e-5)
    assert preference_loss(BETA, margin).mean() == pytest.approx(float(loss.detach()), rel=1e-5)
    trainer.step(with_advantages(batch, BETA, margin))
    for (name, wanted), found in zip(policy.named_parameters(), trainer.model.parameters(), strict=True):
        assert wanted.grad is not None and found.grad is not None, name
        np.testing.assert_allclose(found.grad.numpy(), wanted.grad.numpy(), atol=1e-6, rtol=1e-4)


def test_the_gradient_does_not_depend_on_the_pieces_that_a_batch_is_cut_into() -> None:
    batch, margin = pairs(4), np.array([0.5, -1.0, 2.0, 0.0])
    found = []
    for most in (16, 4096):
        settings = replace(DPO()._settings(1), max_tokens_per_batch=most)
        trainer = Trainer(Transformer(SHAPE, seed=0), settings, seed=0)
        trainer.step(with_advantages(batch, BETA, margin))
        found.append([p.grad.numpy() for p in trainer.model.parameters() if p.grad is not None])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-7)


def test_learning_makes_the_chosen_answer_likelier_than_the_rejected_one() -> None:
    batch, how = pairs(), DPO(beta=BETA)
    trainer = Trainer(Transformer(SHAPE, seed=0), replace(how._settings(30), optimizer=OptimizerConfig()), seed=0)
    before = sums(trainer, batch)
    for _ in range(30):
        trainer.step(with_advantages(batch, BETA, how._margins(trainer, batch, before)))
    assert (how._margins(trainer, batch, before) > 1.0).all()


@pytest.mark.parametrize("beta", [0.0, -1.0, float("inf"), float("nan")])
def test_a_beta_that_means_nothing_is_refused(beta: float) -> None:
    with pytest.raises(BadInput, match=r"dpo.beta"):
        DPO(beta=beta)


# Rows ----------------------------------------------------------------------------------------------------------------

ASK = {"role": "user", "content": "hi"}
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("yes", "no"))


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "hi", "chosen": "yes", "rejected": "no"},
        {"prompt": [ASK], "chosen": [GOOD], "rejected": [BAD]},
        {"chosen": [ASK, GOOD], "rejected": [ASK, BAD]},  # TRL's implicit prompt
        {"messages": [ASK], "chosen": "yes", "rejected": "no"},
        {"prompt": "hi", "chosen": [ASK, GOOD], "rejected": [ASK, BAD]},  # the prompt is said twice
    ],
)
def test_all_forms_of_a_pair_are_the_same_tokens(row: dict[str, Any]) -> None:
    [example], skipped = read_examples([("row 1", None, row)], is_pairs=True)
    assert not skipped.total
    [found], _ = tokenise(ByteTemplate(), [example], longest=64)
    prompt = ByteTemplate().prompt([ASK], ())
    for (ids, marks), end in zip(found.sequences, (GOOD, BAD), strict=True):
        answer = ByteTemplate().answer([ASK, end], ())
        assert ids == [*prompt, *answer] and marks == [False] * len(prompt) + [True] * len(answer)


def test_only_the_last_answers_are_learnt_and_earlier_ones_are_context() -> None:
    before = [ASK, {"role": "assistant", "content": "hm"}, ASK]
    row = {"chosen": [*before, GOOD], "rejected": [*before, BAD]}
    [example], _ = read_examples([("row 1", None, row)], is_pairs=True)
    [found], _ = tokenise(ByteTemplate(), [example], longest=64)
    assert [sum(marks) for _, marks in found.sequences] == [4, 3]  # "yes" and "no", each with its end


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"prompt": "hi", "completion": "yes"}, 'it is none of {"prompt": ..., "chosen"'),
        ({"prompt": "hi", "chosen": "yes", "rejected": ""}, "it is none of"),
        ({"prompt": "hi", "chosen": "yes", "rejected": "yes"}, "its two answers are the same"),
        ({"prompt": "hi", "chosen": "yes", "rejected": [ASK]}, "there is nothing of the assistant's to learn"),
    ],
)
def test_what_is_no_pair_is_left_out_with_its_reason(row: dict[str, Any], why: str) -> None:
    found, skipped = read_examples([("row 1", None, row)], is_pairs=True)
    assert not found and why in next(iter(skipped.counts))


def test_pairs_stay_together_when_they_are_divided_and_drawn() -> None:
    rows = [("", None, {"prompt": f"{n}", "chosen": "yes", "rejected": "no"}) for n in range(12)]
    made, _ = tokenise(ByteTemplate(), read_examples(rows, is_pairs=True)[0], longest=64)
    data = divide(made, 0.25, seed=0, is_whole=True)
    assert data.units == 9 and data.held_out is not None and len(data.held_out) == 6
    assert data.places(np.array([0, 4])).tolist() == [0, 1, 8, 9]


# Recorded attempts ---------------------------------------------------------------------------------------------------


def attempt(task: str, text: str, worth: float | None, *, state: RolloutState = RolloutState.SUCCEEDED) -> Experience:
    call = ModelCall(model="m", messages=(ASK,), response={"role": "assistant", "content": text}, finish_reason="stop")
    span = Span(seq=1, kind=SpanKind.MODEL, name="llm", started_at=0.0, model=call)
    signals = () if worth is None else (RewardTerm(name="success", value=worth, source="test"),)
    return Experience(
        rollout=f"{task}/{text}",
        run="run-1",
        task=task,
        split=Split.TRAIN,
        is_final=True,
        state=state,
        spans=(span,),
        breakdown=RewardBreakdown(signals=signals),
    )


def paired(experiences: Sequence[Experience]) -> tuple[list[list[int]], dict[str, int]]:
    found, skipped = recorded_pairs(ByteTemplate(), experiences, longest=64, vocabulary=300)
    return [ids for one in found for ids, _ in one.sequences], dict(skipped.counts)


def test_the_best_and_the_worst_attempt_at_a_task_are_a_pair() -> None:
    tried = [attempt("a", "so", 0.5), attempt("a", "yes", 1.0), attempt("a", "no", 0.0), attempt("a", "?", None)]
    found, skipped = paired([*tried, attempt("a", "boom", -1.0, state=RolloutState.FAILED)])
    [wanted], _ = tokenise(ByteTemplate(), [Example(place="", messages=[ASK, GOOD], rejected=[ASK, BAD])], longest=64)
    assert found == [ids for ids, _ in wanted.sequences] and not skipped


def test_attempts_that_are_as_good_as_each_other_are_no_pair() -> None:
    found, skipped = paired([attempt("a", "yes", 1.0), attempt("a", "no", 1.0), attempt("b", "yes", 1.0)])
    assert not found and skipped == {NO_PAIR: 3}
