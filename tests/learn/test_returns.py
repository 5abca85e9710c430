from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from holdfast.contracts.errors import BadInput
from holdfast.learn.returns import gae, group_relative, normalise, normalise_then_sum, turn_credit

EXACT: dict[str, float] = {"rtol": 0.0, "atol": 1e-12}


def flags(*places: int, steps: int) -> np.ndarray:
    array = np.zeros(steps, np.bool_)
    array[list(places)] = True
    return array


def scene(seed: int, steps: int, columns: int, dtype: Any = np.float64) -> dict[str, Any]:
    """Random rewards, values and ends of both kinds, with the values that follow them."""
    rng = np.random.default_rng(seed)
    rewards, values, cut_values = rng.normal(size=(3, steps, columns)).astype(dtype)
    terminated, truncated = rng.random((2, steps, columns)) < 0.2
    end_values = rng.normal(size=columns).astype(dtype)
    return {
        "rewards": rewards,
        "values": values,
        "terminated": terminated,
        "truncated": truncated,
        "cut_values": cut_values,
        "end_values": end_values,
    }


def slow_gae(s: dict[str, Any], gamma: float, lam: float) -> np.ndarray:
    """The recursion, one step at a time."""
    steps, columns = s["rewards"].shape
    advantages = np.zeros((steps, columns))
    for b in range(columns):
        a_next, v_next = 0.0, s["end_values"][b]
        for t in reversed(range(steps)):
            if s["terminated"][t, b]:
                a_next, v_next = 0.0, 0.0
            elif s["truncated"][t, b]:
                a_next, v_next = 0.0, s["cut_values"][t, b]
            a_next = s["rewards"][t, b] + gamma * v_next - s["values"][t, b] + gamma * lam * a_next
            advantages[t, b], v_next = a_next, s["values"][t, b]
    return advantages


# --- gae ---------------------------------------------------------------------------------------------------------


def worked(r: Any, v: Any, ended: tuple[int, ...] = (), cut: tuple[int, ...] = (), **how: Any) -> Any:
    """By hand: ends and cuts by their steps; γ = λ = ½ unless told."""
    steps = len(r)
    given = {"terminated": flags(*ended, steps=steps), "truncated": flags(*cut, steps=steps), "gamma": 0.5, "lam": 0.5}
    return gae(np.asarray(r, np.float64), np.asarray(v, np.float64), **(given | how))


def test_gae_of_a_terminated_episode_is_the_one_worked_by_hand() -> None:
    advantages, returns = worked([1, 1, 1], [0.5, 0.4, 0.3], (2,), gamma=0.99, lam=0.95)
    assert_allclose(advantages, [2.358806675, 1.55535, 0.7], **EXACT)
    assert_allclose(returns, [2.858806675, 1.95535, 1.0], **EXACT)
    given = worked([0, 1], [0.5, 0.2], (1,), end_values=5.0)[0]
    assert_allclose(given[1], 0.8, **EXACT)  # after termination no value counts, even when one is given


def test_an_open_end_continues_with_the_value_after_it_and_a_cut_with_its_final_observation() -> None:
    # δ = (1 + ½·4 − 2, 1 + ½·6 − 4) = (1, 0), A = (1 + ¼·0, 0)
    advantages, returns = worked([1, 1], [2, 4], end_values=6.0)
    assert_allclose(advantages, [1.0, 0.0], **EXACT)
    assert_allclose(returns, [3.0, 4.0], **EXACT)
    # Cut after step 1, where V(final observation) = 8; step 2 belongs to another episode.
    # δ₂ = 1 − 100 = −99 (terminated); δ₁ = 1 + ½·8 − 4 = 1; δ₀ = 1 + ½·4 − 2 = 1; A₀ = 1 + ¼·1
    unread = {"cut_values": np.array([np.nan, 8.0, np.nan]), "end_values": np.nan}  # what is not read may be anything
    advantages, returns = worked([1, 1, 1], [2, 4, 100], (2,), (1,), **unread)
    assert_allclose(advantages, [1.25, 1.0, -99.0], **EXACT)
    assert_allclose(returns, [3.25, 5.0, 1.0], **EXACT)


@given(
    st.integers(0, 999), st.integers(1, 12), st.integers(1, 9), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.booleans()
)
def test_gae_is_the_recursion_one_step_at_a_time(
    seed: int, steps: int, columns: int, gamma: float, lam: float, turned: bool
) -> None:
    s = scene(seed, steps, columns)
    given_to = {k: np.asfortranarray(v) for k, v in s.items()} if turned else s  # any memory layout
    advantages, returns = gae(**given_to, gamma=gamma, lam=lam)
    assert_allclose(advantages, slow_gae(s, gamma, lam), rtol=0.0, atol=1e-11)
    assert_array_equal(returns, advantages + s["values"])


def test_a_column_by_itself_gives_what_it_gives_beside_others() -> None:
    s = scene(1, 20, 5)
    alone = {k: v[..., 3] for k, v in s.items()}
    together, _ = gae(**s, gamma=0.99, lam=0.95)
    assert_array_equal(gae(**alone, gamma=0.99, lam=0.95)[0], together[:, 3])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_function_keeps_the_floating_type(dtype: Any) -> None:
    s = scene(2, 6, 3, dtype)
    advantages, returns = gae(**s, gamma=0.99, lam=0.95)
    wide = {k: v.astype(np.float64) if v.dtype != np.bool_ else v for k, v in s.items()}
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    assert_allclose(advantages, slow_gae(wide, 0.99, 0.95), rtol=0.0, atol=tolerance)
    others = (
        normalise(advantages),
        group_relative(s["rewards"]),
        turn_credit(s["rewards"][:, 0], 1.0, mix=0.5),
    )
    assert {a.dtype for a in (advantages, returns, *others)} == {np.dtype(dtype)}


GOOD = scene(3, 4, 2)
BAD_GAE: list[tuple[dict[str, Any], str]] = [
    ({"values": np.zeros((4, 3))}, "shapes differ"),
    ({"values": np.zeros((4, 2, 1))}, "shapes differ"),
    ({"terminated": np.zeros(4, np.bool_)}, "shapes differ"),
    ({"terminated": np.zeros((4, 2))}, "must be bool"),
    ({"rewards": np.zeros((4, 2), np.int64)}, "must be float32 or float64"),
    ({"values": np.zeros((4, 2), np.float32)}, "one type"),
    ({"cut_values": None, "truncated": np.ones((4, 2), np.bool_), "terminated": np.zeros((4, 2), np.bool_)}, "final"),
    ({"cut_values": np.zeros((3, 2))}, "cut_values of shape"),
    ({"end_values": None, "truncated": np.zeros((4, 2), np.bool_), "terminated": np.zeros((4, 2), np.bool_)}, "after"),
    ({"end_values": 1.0}, "one for each trajectory"),
    ({"rewards": np.full((4, 2), np.nan)}, "not finite"),
    ({"values": np.full((4, 2), -np.inf)}, "not finite"),
    ({"gamma": 1.01}, "gamma = 1.01"),
    ({"lam": float("nan")}, "lam = nan"),
    ({k: v[:0] for k, v in GOOD.items() if k != "end_values"}, "not empty"),
]


@pytest.mark.parametrize(("wrong", "says"), BAD_GAE, ids=[says for _, says in BAD_GAE])
def test_gae_refuses_what_it_would_have_to_guess(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        gae(**(GOOD | {"gamma": 0.99, "lam": 0.95} | wrong))


# --- normalise ---------------------------------------------------------------------------------------------------


def test_normalised_numbers_are_those_worked_by_hand_and_the_clip_comes_last() -> None:
    # mean 2, population variance 2 (of 0, 2, 4, 2): divided by √2 when ε = 0
    x = np.array([0.0, 2.0, 4.0, 2.0])
    assert_allclose(normalise(x, eps=0.0), np.array([-1.0, 0.0, 1.0, 0.0]) * np.sqrt(2.0), **EXACT)
    assert_allclose(normalise(x, eps=2.0), [-1.0, 0.0, 1.0, 0.0], **EXACT)
    assert_allclose(normalise(x, eps=2.0, clip=0.5), [-0.5, 0.0, 0.5, 0.0], **EXACT)
    assert_allclose(normalise(x.reshape(2, 2), eps=2.0), [[-1.0, 0.0], [1.0, 0.0]], **EXACT)
    assert not normalise(np.full(7, 0.1)).any()  # equal numbers are exactly 0


@pytest.mark.parametrize("wrong", [{"eps": -1.0}, {"clip": 0.0}])
def test_normalise_refuses(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        normalise(np.zeros(2), **wrong)


# --- groups ------------------------------------------------------------------------------------------------------


def test_group_advantages_are_those_worked_by_hand() -> None:
    rewards = np.array([[1.0, 0.0, 0.0, 1.0], [4.0, 0.0, 0.0, 0.0], [0.3, 0.3, 0.3, 0.3]])
    # means ½, 1, 0.3; std ½, √3, 0
    three = np.sqrt(3.0)
    scaled = [[1, -1, -1, 1], [three, -1 / three, -1 / three, -1 / three], [0, 0, 0, 0]]
    plain = [[0.5, -0.5, -0.5, 0.5], [3, -1, -1, -1], [0, 0, 0, 0]]
    assert_allclose(group_relative(rewards), scaled, **EXACT)
    assert_allclose(group_relative(rewards, scale=False), plain, **EXACT)


def test_ids_in_any_order_give_what_rows_give() -> None:
    rng = np.random.default_rng(4)
    rewards, order = rng.integers(0, 5, (6, 4)).astype(np.float64), rng.permutation(24)
    ids = np.repeat(np.array([7, -3, 100, 0, 2, 1]), 4)
    flat = group_relative(rewards.ravel()[order], ids[order])
    assert_allclose(flat, group_relative(rewards).ravel()[order], **EXACT)


eighths = st.integers(-80, 80).map(lambda n: n / 8.0)  # exact when added to and multiplied by two


@given(st.lists(st.tuples(eighths, st.integers(0, 3)), min_size=1, max_size=16), eighths, st.booleans())
def test_a_shift_of_all_rewards_changes_nothing_and_a_scale_nothing_but_the_unscaled(
    pairs: list[tuple[float, int]], shift: float, scale: bool
) -> None:
    rewards, ids = np.array([r for r, _ in pairs]), np.array([g for _, g in pairs])
    advantages = group_relative(rewards, ids, scale=scale)
    assert_allclose(group_relative(rewards + shift, ids, scale=scale), advantages, rtol=0.0, atol=1e-11)
    by = 1.0 if scale else 1024.0
    assert_array_equal(group_relative(rewards * 1024.0, ids, scale=scale), advantages * by)
    sums = np.bincount(ids, weights=advantages)
    assert_allclose(sums, 0.0, atol=1e-10)  # what one gains, the others of its group lose


def test_unscored_rewards_and_wrong_shapes_are_refused() -> None:
    for rewards, ids in [
        (np.zeros(4), None),
        (np.zeros((2, 2)), np.zeros((2, 2), np.int64)),
        (np.zeros(4), np.zeros(3, np.int64)),
        (np.array([1.0, np.nan]), np.zeros(2, np.int64)),
        (np.zeros(4, np.int64), np.zeros(4, np.int64)),
    ]:
        with pytest.raises(BadInput):
            group_relative(rewards, ids)
    assert group_relative(np.zeros(0), np.zeros(0, np.int64)).shape == (0,)


# --- turns -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcomes", "lengths", "mix"),
    [
        (np.zeros(1), np.array([3]), 0.5),  # one turn belongs to nobody
        (np.zeros(1), np.array([3, 1]), 0.5),  # an episode without an outcome
        (np.zeros(2), np.array([5, -1]), 0.5),
        (np.zeros(2), None, 0.5),
        (0.0, None, -0.1),
    ],
)
def test_turn_credit_refuses(outcomes: Any, lengths: Any, mix: float) -> None:
    with pytest.raises(BadInput):
        turn_credit(np.zeros(4), outcomes, lengths, mix=mix)


# --- normalise, then sum -----------------------------------------------------------------------------------------


def test_the_sum_stays_within_its_limit_and_keeps_its_order() -> None:
    rng = np.random.default_rng(0)
    terms, weights, strata = rng.normal(size=(5, 8)), rng.random(5), np.zeros(8, np.int64)
    free = normalise_then_sum(terms, weights, strata, limit=1e9)
    held = normalise_then_sum(terms, weights, strata, limit=0.25)
    assert np.abs(held).max() == pytest.approx(0.25) and (np.argsort(held) == np.argsort(free)).all()


def test_terms_that_do_not_fit_are_refused() -> None:
    ones, same = np.ones((2, 3)), np.zeros(3, np.int64)
    for weights, strata, limit in ((np.ones(3), same, 1.0), (np.ones(2), same[:2], 1.0), (-np.ones(2), same, 1.0)):
        with pytest.raises(BadInput, match="normalise then sum"):
            normalise_then_sum(ones, weights, strata, limit=limit)
    with pytest.raises(BadInput, match="limit = 0"):
        normalise_then_sum(ones, np.ones(2), same, limit=0.0)


def test_groups_without_spread_and_groups_of_one_give_exactly_zero() -> None:
    sums = np.array([[0.1 + 0.2, 0.3, 0.3], [1e9 + 0.1, 1e9 + 0.1, 1e9 + 0.1]])  # equal but for the rounding
    assert not group_relative(sums).any()
    assert not group_relative(np.array([5.0]), np.array([0])).any()
    tiny = np.asarray([[0.0, 2e-290]])  # a spread whose square is nothing is none
    assert not group_relative(tiny).any() and group_relative(tiny, scale=False).any()


def test_turn_credit_is_the_one_worked_by_hand_and_episodes_do_not_touch() -> None:
    turns = np.array([1.0, 0.0, 4.0])  # outcome 10; a quarter of the turns' own
    assert_allclose(turn_credit(turns, 10.0, mix=0.25), [7.75, 7.5, 8.5], **EXACT)
    assert_array_equal(turn_credit(turns, 10.0, mix=0.0), [10.0, 10.0, 10.0])
    assert_array_equal(turn_credit(turns, 10.0, mix=1.0), turns)
    outcomes, lengths = np.array([10.0, 7.0, 0.0]), np.array([3, 0, 1])
    credit = turn_credit(np.array([*turns, 2.0]), outcomes, lengths, mix=0.25)
    assert_allclose(credit, [7.75, 7.5, 8.5, 0.5], **EXACT)


def test_terms_are_normalised_within_their_stratum_before_they_are_summed() -> None:
    """Two terms of a thousandfold spread move alike: z is −1 and 1 in each, and only the weights differ."""
    terms, same = np.asarray([[0.0, 1000.0], [1.0, 0.0]]), np.zeros(2, np.int64)
    assert normalise_then_sum(terms, np.asarray([1.0, 0.25]), same, limit=9.0) == pytest.approx([-0.75, 0.75])
    assert normalise_then_sum(terms, np.asarray([1.0, 1.0]), same, limit=9.0) == pytest.approx([0.0, 0.0])
    strata = np.asarray([0, 0, 1, 1, 2])
    found = normalise_then_sum(np.asarray([[0.0, 2.0, 100.0, 100.0, 7.0]]), np.ones(1), strata, limit=9.0)
    assert found == pytest.approx([-1.0, 1.0, 0.0, 0.0, 0.0])
