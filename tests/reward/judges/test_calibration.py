"""What a judge's numbers are worth: maps, agreement, error and corrected means against oracles and worked numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from holdfast.contracts.errors import BadInput
from holdfast.contracts.judgement import EvalItem, JudgeStatus, Label, Maker
from holdfast.reward.judges.calibration import (
    LEAST,
    agreement,
    auroc,
    best_labels,
    brier,
    calibrate,
    corrected,
    cross_fitted,
    drift,
    ece,
    effect,
    estimated,
    injected,
    isotonic,
    judged_difference,
    label_set,
    mean,
    model_preference,
    order,
    order_averaged,
    padded,
    pair_messages,
    paired,
    ppi,
    probability,
    probe,
    read_preference,
    reasons_against,
    score_preference,
    self_preference,
    weight,
)
from holdfast.reward.judges.judge import CRITERIA, LlmJudge
from tests.reward.voices import Scripted, Voice, call, judgement

ON = CRITERIA["correctness"]


def artefact(n: int) -> EvalItem:
    return EvalItem(task="t", output=str(n))


def label(n: int, holds: bool | None, **changes: Any) -> Label:
    given = {"artefact": artefact(n).sha256, "criterion": ON.id, "maker": Maker.PROGRAM, "who": "rule:x", "at": 1.0}
    return Label(**{**given, "holds": holds, **changes})


def scene(n: int, error: float, *, seed: int = 0, base: float = 0.4) -> tuple[list[Any], dict[str, Label]]:
    """A judge that errs with this probability, and how it stands beside the labels."""
    rng = np.random.default_rng(seed)
    holds = rng.random(n) < base
    says = np.where(rng.random(n) < error, ~holds, holds)
    scores = np.clip(np.where(says, 0.9, 0.1) + rng.normal(0, 0.03, n), 0, 1)
    judged = [judgement(artefact(k), "m", float(score)) for k, score in enumerate(scores)]
    return judged, best_labels([label(k, bool(h)) for k, h in enumerate(holds)])


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=60))
def test_the_map_is_that_of_an_independent_solver(points: list[tuple[int, bool]]) -> None:
    x, y = np.array([p[0] / 20 for p in points]), np.array([float(p[1]) for p in points])
    values, place = np.unique(x, return_inverse=True)
    weights = np.bincount(place).astype(float)
    wanted = isotonic_regression(np.bincount(place, y) / weights, weights=weights).x
    xs, ys = isotonic(x, y)
    assert np.interp(values, xs, ys) == pytest.approx(wanted, abs=1e-9)
    assert (np.diff(ys) >= 0).all()


def test_kappa_is_agreement_beyond_chance() -> None:
    """20 yes-yes, 5 yes-no, 10 no-yes, 15 no-no: pₒ = 0.7, pₑ = 0.5, κ = 0.4 (the textbook example)."""
    said = [True] * 25 + [False] * 25
    known = [True] * 20 + [False] * 5 + [True] * 10 + [False] * 15
    found = agreement(said, known)
    assert (found.accuracy, found.kappa, found.base_rate) == (pytest.approx(0.7), pytest.approx(0.4), 0.6)
    assert found.low == pytest.approx(0.4 - 1.96 * (0.7 * 0.3 / 50) ** 0.5 / 0.5, abs=1e-3)
    lazy = agreement([True] * 95 + [True] * 5, [True] * 95 + [False] * 5)
    assert (lazy.accuracy, lazy.kappa) == (0.95, 0.0)  # 95 % right, and no better than a stamp
    assert agreement([True] * 5, [True] * 5).kappa is None


def test_errors_and_a_corrected_mean_worked_by_hand() -> None:
    """p = 0.6, q₁ = 0.9, q₀ = 0.8: θ = (0.6 + 0.8 − 1) / 0.7."""
    assert brier([0.8, 0.4], [1, 0]) == pytest.approx((0.04 + 0.16) / 2)
    assert ece([0.1, 0.1, 0.9, 0.9], [0, 0, 1, 0], bins=2) == pytest.approx(0.5 * 0.1 + 0.5 * 0.4)
    assert auroc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]) == pytest.approx(0.75)
    assert auroc([0.5, 0.5], [0, 1]) == 0.5
    assert auroc([0.5, 0.6], [1, 1]) is None
    xs, ys = isotonic([0.1, 0.2, 0.3, 0.4, 0.5], [0, 1, 0, 1, 1])
    assert (xs.tolist(), ys.tolist()) == ([0.1, 0.2, 0.3, 0.4, 0.5], [0.0, 0.5, 0.5, 1.0, 1.0])
    found = corrected(600, 1000, sensitivity=(90, 100), specificity=(80, 100))
    assert (found.raw, found.rate) == (0.6, pytest.approx(0.4 / 0.7))
    assert found.low < found.rate < found.high
    perfect = corrected(50, 100, sensitivity=(10**9, 10**9), specificity=(10**9, 10**9))
    assert perfect.rate == 0.5 and perfect.high - perfect.low == pytest.approx(2 * 1.96 * 0.05, rel=0.05)


def test_the_corrected_interval_holds_what_it_promises() -> None:
    """2000 worlds: the truth is within the 95 % interval about as often as that, and the raw mean is off."""
    rng = np.random.default_rng(4)
    theta, q1, q0, n, m1, m0 = 0.3, 0.9, 0.75, 400, 80, 120
    inside = off = 0
    for _ in range(2000):
        yes = rng.binomial(n, theta * q1 + (1 - theta) * (1 - q0))
        found = corrected(
            int(yes), n, sensitivity=(int(rng.binomial(m1, q1)), m1), specificity=(int(rng.binomial(m0, q0)), m0)
        )
        inside += found.low <= theta <= found.high
        off += abs(found.raw - theta) > 0.05
    assert 0.93 <= inside / 2000 <= 0.985
    assert off / 2000 > 0.99


@pytest.mark.parametrize(
    ("yes", "n", "sensitivity", "specificity"),
    [
        (1, 2, (0, 0), (1, 1)),  # nothing that holds was labelled
        (1, 2, (5, 10), (5, 10)),  # a coin
        (3, 2, (5, 10), (9, 10)),
    ],
)
def test_a_mean_that_cannot_be_corrected_is_refused(yes: int, n: int, sensitivity: Any, specificity: Any) -> None:
    with pytest.raises(BadInput, match="corrected mean"):
        corrected(yes, n, sensitivity=sensitivity, specificity=specificity)


def test_a_good_judge_is_trusted_and_its_map_is_measured_on_labels_it_did_not_see() -> None:
    judged, known = scene(400, 0.05)
    found = calibrate(ON, judged, known, now=9.0)
    assert (found.standing, found.n, found.makers, found.at) == (JudgeStatus.TRUSTED, 400, {"program": 400}, 9.0)
    assert found.measures["kappa"] is not None and found.measures["kappa"] > 0.8
    assert found.measures["ece"] is not None and found.measures["ece"] < 0.05
    assert 0.85 < probability(found, 0.9) < 1.0 and probability(found, 0.1) < 0.15
    assert weight(found) == pytest.approx(1 / found.measures["brier"])


def test_overconfidence_is_mapped_away() -> None:
    judged, known = scene(600, 0.3)
    loud = [replace(one, score=0.99 if one.score > 0.5 else 0.01) for one in judged]
    found = calibrate(ON, loud, known, now=1.0)
    assert found.measures["ece_raw"] > 0.2 > 0.1 > found.measures["ece"]
    assert 0.5 < probability(found, 0.99) < 0.8


def test_a_judge_below_its_floor_is_demoted_and_weighs_nothing() -> None:
    judged, known = scene(400, 0.4)
    found = calibrate(ON, judged, known, now=1.0)
    assert found.standing is JudgeStatus.DIAGNOSTIC
    assert found.reasons[0].startswith("kappa 0.") and found.reasons[0].endswith("< 0.4")
    assert weight(found) == 0.0 == weight(None)


def test_fifty_labels_do_not_make_a_weak_judge_count_by_luck() -> None:
    """A true κ of 0.30 reached the floor of 0.4 with 50 labels in 22 % of cases, when its estimate was compared."""
    rng, n, counts = np.random.default_rng(3), 400, 0
    for _ in range(n):
        truth = rng.random(LEAST) < 0.5
        said = truth ^ (rng.random(LEAST) < 0.35)  # κ = 1 − 2 · 0.35
        found = agreement(said, truth)
        measures = {"kappa": found.kappa, "kappa_low": found.low, "ece": 0.05}
        counts += not reasons_against(ON, LEAST, measures)
    assert counts / n <= 0.05
    sure = {"kappa": 0.8, "kappa_low": 0.63, "ece": 0.05}
    assert reasons_against(ON, LEAST, sure) == []


@pytest.mark.parametrize(("truth", "noise"), [(0.6, 0.0), (0.9, 0.0), (0.6, 0.1), (0.85, 0.1)])
def test_labels_drawn_from_what_is_judged_give_a_narrower_interval_that_holds(truth: float, noise: float) -> None:
    """PPI++ over 400 worlds of 100 labels among 1000 scores; with noisy labels, told how noisy they are."""
    rng, held, widths, alone = np.random.default_rng(5), 0, [], []
    for _ in range(400):
        y = rng.random(1000) < truth
        scores = np.where(y, rng.beta(6.8, 1.2, 1000), rng.beta(1.6, 6.4, 1000))
        known = (y[:100] ^ (rng.random(100) < noise)).astype(float)
        found = ppi(scores[:100], known, scores[100:], noise=noise)
        labels = ppi(scores[:100], known, np.zeros(0), noise=noise)
        held += found.low <= truth <= found.high
        widths.append(found.high - found.low)
        alone.append(labels.high - labels.low)
    assert held / 400 >= 0.95 * 0.95
    assert np.mean(widths) < 0.8 * np.mean(alone) if noise == 0.0 else np.mean(widths) < np.mean(alone)


def test_noise_that_nobody_knows_makes_the_interval_wider_and_is_told() -> None:
    rng = np.random.default_rng(9)
    names = [f"{n:08x}" for n in range(400)]
    scores = {name: float(rng.random()) for name in names}
    labels = {
        name: Label(artefact=name.rjust(64, "0"), criterion=ON.id, maker=Maker.PERSON, who="ann", holds=s > 0.5, at=0.0)
        for name, s in list(scores.items())[:120]
    }
    open_, known = estimated(scores, labels), estimated(scores, labels, noise=0.0)
    assert open_.low <= known.low and known.high <= open_.high and (open_.low, open_.high) != (known.low, known.high)
    assert "up to 10%" in open_.text and open_.method == "PPI++"
    sure = {name: replace(one, maker=Maker.PROGRAM) for name, one in labels.items()}
    assert estimated(scores, sure).noise == (0.0, 0.0)
    with pytest.raises(BadInput, match="holdfast reward judge calibrate"):
        estimated(scores, {})
    judged, truth = scene(600, 0.15)
    made = calibrate(ON, judged, truth, now=1.0)
    shifted = estimated(scores, {}, made, noise=0.0)
    assert shifted.method == "Rogan-Gladen" and shifted.labels == 600
    assert judged_difference(made, 0.05, 0.1)[0] > 0.05  # errors shrink a difference


def test_too_few_labels_and_a_bias_are_reasons_and_who_abstained_is_left_out() -> None:
    judged, known = scene(LEAST - 1, 0.0)
    assert calibrate(ON, judged, known, now=1.0).reasons == (f"{LEAST - 1} labels < {LEAST}",)
    judged, known = scene(400, 0.02)
    found = calibrate(ON, judged, known, now=1.0, reasons=["padding gains 0.2"])
    assert (found.standing, found.reasons) == (JudgeStatus.DIAGNOSTIC, ("padding gains 0.2",))
    silent = [replace(one, grade=None, score=None) if k < 50 else one for k, one in enumerate(judged)]
    found = calibrate(ON, silent, known, now=1.0)
    assert (found.n, found.abstained) == (350, 50)


def test_a_calibration_is_of_one_judge_asked_in_one_way() -> None:
    judged, known = scene(60, 0.1)
    others = [*judged, replace(judged[0], judge="n")], [*judged, replace(judged[0], prompt="c" * 64)], []
    for criterion, mixed in [*((ON, one) for one in others), (CRITERIA["safety"], judged)]:
        with pytest.raises(BadInput, match="needs judgements of one judge"):
            calibrate(criterion, mixed, known, now=1.0)


def test_other_labels_are_another_label_set_and_a_persons_comes_before_a_programs() -> None:
    labels = [label(1, True), label(2, False)]
    assert label_set(labels) == label_set(labels[::-1])
    assert label_set(labels) != label_set([label(1, True), label(2, True)])
    assert label_set(labels) != label_set([label(1, True), label(2, False, maker=Maker.PERSON)])
    found = best_labels(
        [label(1, True), label(1, False, maker=Maker.PERSON, who="ann"), label(2, None), label(3, True)]
    )
    assert {one.artefact: (one.holds, one.maker) for one in found.values()} == {
        artefact(1).sha256: (False, Maker.PERSON),
        artefact(3).sha256: (True, Maker.PROGRAM),
    }


def test_the_map_never_sees_what_it_is_measured_on() -> None:
    """With scores that are noise, a map fitted and measured on the same labels would look good; this one does not."""
    rng = np.random.default_rng(1)
    names = [artefact(n).sha256 for n in range(300)]
    x, y = rng.random(300), (rng.random(300) < 0.5).astype(float)
    xs, ys = isotonic(x, y)
    assert brier(np.interp(x, xs, ys), y) < 0.25 < brier(cross_fitted(x, y, names), y) + 0.01


def test_drift_is_an_alarm_when_verdicts_change() -> None:
    then = {str(n): 0.9 if n % 2 else 0.1 for n in range(200)}
    assert not drift(then, then).alarm
    few = {**then, "0": 0.9, "1": 0.1}
    assert not drift(then, few).alarm
    many = {key: (1 - score if int(key) < 30 else score) for key, score in then.items()}
    found = drift(then, many)
    assert (found.alarm, found.changed, found.to_yes) == (True, 30, 15) and "30 of 200 verdicts changed" in found.why
    kinder = {key: 0.9 if int(key) < 18 else score for key, score in then.items()}
    assert drift(then, kinder).why.endswith("9 of 9 changes went to yes")
    with pytest.raises(BadInput, match="nothing was judged both times"):
        drift(then, {"x": 0.5})


def test_the_mean_for_a_gate_is_corrected_by_the_calibration() -> None:
    judged, known = scene(600, 0.15)
    found = calibrate(ON, judged, known, now=1.0)
    others, truth_of_them = scene(1000, 0.15, seed=7, base=0.2)
    share = sum(bool(one.holds) for one in truth_of_them.values()) / 1000
    answer = mean(found, [one.score for one in others])
    assert answer.low <= share <= answer.high
    assert abs(answer.rate - share) < abs(answer.raw - share)


def answers(n: int, tasks: int | None = None) -> list[EvalItem]:
    return [EvalItem(task=f"task {k % (tasks or n)}", output=f"It is {k}.") for k in range(n)]


def test_an_effect_is_the_mean_of_paired_differences() -> None:
    found = effect("padding", [0.2, 0.4, 0.6, None], [0.4, 0.6, 0.8, 0.9])
    assert (found.n, found.mean, found.raised) == (3, pytest.approx(0.2), pytest.approx(1 / 3))
    assert found.low == pytest.approx(0.2) == pytest.approx(found.high)
    assert found.reason == "padding gains 0.200 (at least 0.200)"
    worse = effect("padding", [0.9, 0.8], [0.1, 0.2])
    assert worse.mean < 0 and worse.reason is None
    assert effect("padding", [None], [0.5]).reason is None


def test_what_is_padded_or_injected_says_the_same_in_its_conversation() -> None:
    talk = EvalItem(task="t", output="4", detail={"messages": [{"role": "assistant", "content": "4"}]})
    for made in (padded(talk), padded(talk, 1), injected(talk)):
        assert "4" in made.output and made.output != "4"
        assert made.detail["messages"][-1]["content"] == made.output
        assert made.sha256 != talk.sha256


async def test_a_judge_that_pays_for_length_or_obeys_the_answer_is_found_out() -> None:
    """Their judge: 0.8 when the text is longer than 50 letters."""
    long = Scripted("long", lambda one: 0.8 if len(one.output) > 50 else 0.2)
    found = await probe(long, ON, answers(40, tasks=20))
    assert any(reason.startswith("padding gains 0.6") for reason in found.reasons)
    deaf = Scripted("deaf", lambda one: 0.7)
    assert (await probe(deaf, ON, answers(40, tasks=20))).reasons == []
    assert set(found.payload) == {"padding", "instructions", "order"}
    naive = Scripted("naive", lambda one: 1.0 if "yes" in one.output else 0.3)
    found = await probe(naive, ON, answers(40))
    assert any(reason.startswith("instructions gains 0.7") for reason in found.reasons)


def leaning(bias: float, noise: float, seed: int = 0) -> Any:
    """A judge of pairs that knows who is better, leans to whoever comes first, and wavers."""
    rng = np.random.default_rng(seed)

    async def prefer(a: EvalItem, b: EvalItem) -> float:
        better = 1.2 if int(a.output[6:-1]) % 7 > int(b.output[6:-1]) % 7 else -1.2
        return float(1 / (1 + np.exp(-(better + bias + rng.normal(0, noise)))))

    return prefer


async def test_both_orders_averaged_take_the_order_out() -> None:
    pairs = [
        (EvalItem(task="t", output=f"It is {k}."), EvalItem(task="t", output=f"It is {k + 3}.")) for k in range(500)
    ]
    found = await order(leaning(bias=1.0, noise=0.5), pairs)
    assert found.n == 500
    assert found.raw > 0.1  # one order alone: more than one verdict in ten follows it
    assert found.corrected < 0.02 and found.reason is None
    fair = await order(leaning(bias=0.0, noise=0.0), pairs)
    assert (fair.raw, fair.corrected) == (0.0, 0.0)


async def test_a_preference_both_ways_is_antisymmetric_and_scores_one_by_one_know_no_order() -> None:
    a, b = EvalItem(task="t", output="It is 3."), EvalItem(task="t", output="It is 1.")
    prefer = leaning(bias=0.8, noise=0.0)
    forth, back = await order_averaged(prefer, a, b), await order_averaged(prefer, b, a)
    assert forth is not None and back is not None and forth + back == pytest.approx(1.0)
    assert forth > 0.5
    assert await order_averaged(score_preference(lambda one: None), a, b) is None
    prefer = score_preference(lambda one: {"It is 3.": 0.9, "It is 1.": 0.5}[one.output])
    assert (await prefer(a, b), await prefer(b, a)) == (pytest.approx(0.9), pytest.approx(0.1))


def test_a_judge_that_likes_its_own_hand_is_found_out() -> None:
    some = answers(80)
    made: dict[str, Any] = {"criterion": ON.id, "maker": Maker.PROGRAM, "who": "r", "at": 1.0}
    known = {one.sha256: Label(artefact=one.sha256, holds=k % 2 == 0, **made) for k, one in enumerate(some)}
    authors = {one.sha256: "m" if k % 4 < 2 else "n" for k, one in enumerate(some)}
    rng = np.random.default_rng(2)
    scores = [0.5 + (0.2 if k % 2 == 0 else 0.0) + (0.15 if k % 4 < 2 else 0.0) for k in range(80)]
    judged = [judgement(one, "m", score + rng.normal(0, 0.02)) for one, score in zip(some, scores, strict=True)]
    found = self_preference(judged, authors, known, own="m")
    assert found.n == 40 and found.mean == pytest.approx(0.15, abs=0.02) and found.reason is not None
    fair = self_preference(judged, authors, known, own="x")
    assert (fair.n, fair.reason) == (0, None)  # it wrote none of them


async def test_a_model_is_shown_both_and_answers_in_a_word() -> None:
    voice = Voice(lambda said: call("first", likely=0.8))
    judge = LlmJudge(name="m", complete=voice, clock=lambda: 1.0)
    a, b = EvalItem(task="t", output="4"), EvalItem(task="t", output="5")
    prefer = model_preference(judge, ON)
    assert await prefer(a, b) == pytest.approx(0.8)
    assert await order_averaged(prefer, a, b) == pytest.approx(0.5)  # always the first: no preference at all
    with pytest.raises(BadInput, match="must be to the same task"):
        await prefer(a, EvalItem(task="u", output="5"))
    assert "| 4" in pair_messages(ON, a, b)[1]["content"]
    words = {"second.": 0.0, "First": 1.0, "neither": 0.5, "both": None, "": None}
    assert {word: read_preference(call(word)) for word in words} == words
    some = [*answers(6, tasks=3), EvalItem(task="alone", output="x")]
    assert [(a.task, b.task) for a, b in paired(some, 2)] == [("task 0", "task 0"), ("task 1", "task 1")]
    assert paired([some[0], some[0]], 5) == []
