"""What a decision was worth: advantages and returns from rewards, values and ends.

Arrays are time-major, [T] or [T, B]: row t is step t of B trajectories side by side; float32 stays float32. Where an
episode ends inside a column the next one begins in the row below. Losses are `losses`, token streams are `batch`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from holdfast.contracts.errors import BadInput

Float = np.floating[Any]
Floats = NDArray[Float]
Bools = NDArray[np.bool_]
Ints = NDArray[np.integer[Any]]

NOISE = 64  # units in the last place: a spread below it is rounding of equal rewards, and not a signal


def gae(
    rewards: Floats,
    values: Floats,
    *,
    terminated: Bools,
    truncated: Bools,
    cut_values: Floats | None = None,
    end_values: Floats | float | None = None,
    gamma: float,
    lam: float,
) -> tuple[Floats, Floats]:
    """Aₜ = δₜ + γλ·[t is no end]·Aₜ₊₁,  δₜ = rₜ + γ Vₜ₊₁ − Vₜ;  Schulman et al. 2016, arXiv:1506.02438.

    Gives A and the returns A + V. Vₜ₊₁ is 0 where terminated (also if truncated as well), cut_values[t] = V(final
    observation) where truncated, end_values = V(observation after the last row) where a column is still open at its
    end, else values[t + 1]. cut_values and end_values are read nowhere else, and what is read must be there: no
    future is taken to be 0. A number that is not finite is refused."""
    shape = _same_shape(rewards=rewards, values=values, terminated=terminated, truncated=truncated)
    _check_unit(gamma=gamma, lam=lam)
    r_t, v_t = _table(rewards), _table(values, rewards.dtype)
    ended, cut = _flags(terminated), _flags(truncated)
    v_cut, v_end = _futures(r_t, ended, cut, cut_values, end_values)
    number = r_t.dtype.type
    a_t, returns, finite = _gae(r_t, v_t, ended, cut, v_cut, v_end, number(gamma), number(gamma * lam), number(0))
    if not finite:
        raise BadInput("advantages", why="a reward or a value is not finite", remedy="look for it before learning")
    return a_t.reshape(shape), returns.reshape(shape)


@njit(cache=True)
def _gae(
    rewards: Floats,
    values: Floats,
    terminated: Bools,
    truncated: Bools,
    cut_values: Floats,
    v_end: Floats,
    gamma: Float,
    gamma_lam: Float,
    zero: Float,
) -> tuple[Floats, Floats, bool]:
    # Flat, in unsigned places, in short loops and with constants in the type of the arrays: all so that they are
    # vectorised. In one loop, or with a place that might be below 0, they are not, and take four times as long.
    r, v, v_cut = rewards.reshape(-1), values.reshape(-1), cut_values.reshape(-1)
    ended, cut = terminated.reshape(-1), truncated.reshape(-1)
    both = np.empty((2, r.size), r.dtype)  # one piece of memory: two large ones are given back and faulted in each time
    a, returns = both[0], both[1]
    width = np.uintp(v_end.size)
    last = np.uintp(r.size) - width
    v_next = v[width:]
    for i in range(last):
        v_cut_i, v_next_i = v_cut[i], v_next[i]
        future = v_cut_i if cut[i] else v_next_i
        future = zero if ended[i] else future
        a[i] = r[i] + gamma * future - v[i]
    for b in range(width):
        v_cut_b, v_end_b = v_cut[last + b], v_end[b]
        future = v_cut_b if cut[last + b] else v_end_b
        future = zero if ended[last + b] else future
        a[last + b] = r[last + b] + gamma * future - v[last + b]
        returns[last + b] = a[last + b] + v[last + b]
    row = last
    while row:
        row -= width
        for b in range(width):
            a_next = a[row + b + width]
            a_next = zero if ended[row + b] | cut[row + b] else a_next
            a[row + b] += gamma_lam * a_next
        for b in range(width):
            returns[row + b] = a[row + b] + v[row + b]
    return a.reshape(rewards.shape), returns.reshape(rewards.shape), _all_finite(a, zero)


@njit(cache=True, fastmath={"reassoc"})
def _all_finite(x: Floats, zero: Float) -> bool:
    doubt = zero  # stays 0 unless something is infinite or not a number
    for i in range(x.size):
        doubt += x[i] * zero
    return bool(doubt == zero)


def normalise(x: Floats, *, eps: float = 1e-8, clip: float | None = None) -> Floats:
    """(x − mean) / √(variance + ε) over the whole batch, then cut to ±clip; population variance.

    Over the batch and never one trajectory by itself: that would give a trajectory of one step exactly 0. Equal numbers
    come back as exactly 0."""
    if eps < 0.0 or (clip is not None and not clip > 0.0):
        raise BadInput(f"normalise: eps = {eps}, clip = {clip}", why="eps must be at least 0 and clip above 0")
    wide = x.ravel().astype(np.float64)
    if not wide.size or not _spread(wide.min(), wide.max(), x.dtype):
        return np.zeros_like(x)
    scaled = (wide - wide.mean()) / np.sqrt(wide.var() + eps)
    held: Floats = scaled if clip is None else scaled.clip(-clip, clip)
    return held.astype(x.dtype).reshape(x.shape)


def group_relative(rewards: Floats, groups: Ints | None = None, *, scale: bool = True) -> Floats:
    """Aᵢ = (rᵢ − mean of its group) / std of its group;  GRPO, Shao et al. 2024, arXiv:2402.03300.

    rewards are [G, K] with a group in each row, or flat with the id of its group for each. The std is the
    population's. scale=False leaves the division out (Dr. GRPO, Liu et al. 2025, arXiv:2503.20783: it favours groups
    that are nearly all right or all wrong). A group without spread, or of one, gives exactly 0, so no ε is needed and
    scaling is exact."""
    if groups is None:
        if rewards.ndim != 2:
            raise BadInput(f"rewards of shape {rewards.shape}", why="must be [groups, members]", remedy="or give ids")
        ids = np.repeat(np.arange(rewards.shape[0]), rewards.shape[1])
    else:
        if rewards.ndim != 1:
            raise BadInput(f"rewards of shape {rewards.shape}", why="must be flat when group ids are given")
        _same_shape(rewards=rewards, groups=groups)
        ids = np.unique(groups, return_inverse=True)[1]
    _check_floats(rewards=rewards)
    if not np.isfinite(rewards).all():
        raise BadInput("rewards", why="one is not finite", remedy="leave out what was not scored")
    advantages = _by_group(rewards.ravel().astype(np.float64), ids, rewards.dtype, scale)
    return advantages.reshape(rewards.shape).astype(rewards.dtype)


def _by_group(rewards: NDArray[np.float64], ids: Ints, dtype: np.dtype[Any], scale: bool) -> NDArray[np.float64]:
    if not rewards.size:
        return rewards
    count = np.bincount(ids)
    low, high = np.full(count.size, np.inf), np.full(count.size, -np.inf)
    np.minimum.at(low, ids, rewards)
    np.maximum.at(high, ids, rewards)
    spread = _spread(low, high, dtype)
    mean = np.bincount(ids, weights=rewards) / count
    deviation = np.where(spread[ids], rewards - mean[ids], 0.0)
    if scale:
        std = np.sqrt(np.bincount(ids, weights=deviation**2) / count)
        # A spread so small that its square is 0 cannot be scaled by: it is none.
        deviation = np.where((std > 0.0)[ids], deviation / np.where(std > 0.0, std, 1.0)[ids], 0.0)
    return deviation


def normalise_then_sum(terms: Floats, weights: Floats, strata: Ints, *, limit: float) -> Floats:
    """sᵢ = Σₖ wₖ zᵢₖ,  zᵢₖ = (rᵢₖ − mean) / std of term k over the members of i's stratum;  GDPO, arXiv:2601.05242.

    A term with wide numbers then moves no more than one with narrow ones: only its weight counts. terms are [K, n], a
    row for each term; strata say which of the n members are compared. Where the largest |sᵢ| would pass the limit, all
    are scaled down by one number, so that their order stays and what is added on top of them stays on top."""
    _check_floats(terms=terms, weights=weights)
    if terms.ndim != 2 or weights.shape != terms.shape[:1] or strata.shape != terms.shape[1:]:
        why = f"terms {terms.shape}, weights {weights.shape}, strata {strata.shape}"
        raise BadInput("normalise then sum", why=why, remedy="give terms as [terms, members]")
    if not limit > 0.0 or (weights < 0.0).any():
        raise BadInput(f"normalise then sum: limit = {limit}", why="must be above 0, and no weight below it")
    summed = np.zeros(terms.shape[1], terms.dtype)
    for row, weight in zip(terms, weights, strict=True):
        summed += weight * group_relative(np.ascontiguousarray(row), strata)
    most = float(np.abs(summed).max(initial=0.0))
    return summed * terms.dtype.type(limit / most) if most > limit else summed


def turn_credit(turn_rewards: Floats, outcomes: Floats | float, lengths: Ints | None = None, *, mix: float) -> Floats:
    """cₖ = mix · rₖ + (1 − mix) · outcome, over the turns k of one episode.

    Turn rewards say which turn was good, the outcome says whether the episode was: mix = 0 gives every turn the
    outcome, mix = 1 only its own reward. With group-relative rewards on both sides this is MT-GRPO's turn-level
    advantage (Zeng et al. 2025, arXiv:2505.11821). turn_rewards hold the turns of all episodes one after the other,
    lengths how many each has, outcomes one number for each; without lengths it is one episode."""
    _check_floats(turn_rewards=turn_rewards)
    _check_unit(mix=mix)
    ends = np.asarray([turn_rewards.size] if lengths is None else lengths, np.int64)
    outcome = np.atleast_1d(np.asarray(outcomes, turn_rewards.dtype))
    if turn_rewards.ndim != 1 or outcome.shape != ends.shape or ends.sum() != turn_rewards.size or (ends < 0).any():
        why = f"{turn_rewards.shape} rewards, {outcome.shape} outcomes, {ends.shape} lengths adding up to {ends.sum()}"
        raise BadInput("turn credit", why=why, remedy="give each episode one outcome and its number of turns")
    own = turn_rewards.dtype.type(mix)
    credit: Floats = own * turn_rewards + (1 - own) * np.repeat(outcome, ends)
    return credit


def _same_shape(**arrays: NDArray[Any]) -> tuple[int, ...]:
    shapes = [array.shape for array in arrays.values()]
    if len(set(shapes)) != 1:
        pairs = ", ".join(f"{name} {shape}" for name, shape in zip(arrays, shapes, strict=True))
        raise BadInput("shapes differ", why=pairs, remedy="bring them to one shape: nothing is broadcast")
    return shapes[0]


def _check_floats(**arrays: NDArray[Any]) -> None:
    for name, array in arrays.items():
        if array.dtype != np.float64 and array.dtype != np.float32:
            raise BadInput(f"{name} of type {array.dtype}", why="must be float32 or float64")


def _check_unit(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0.0 <= number <= 1.0:
            raise BadInput(f"{name} = {number}", why="must be between 0 and 1")


def _table(array: Floats, dtype: np.dtype[Any] | None = None) -> Floats:
    """The array as [T, B]; one memory layout, so that one compiled kernel serves all."""
    _check_floats(array=array)
    if dtype is not None and array.dtype != dtype:
        raise BadInput(f"values of type {array.dtype}", why=f"the rewards are {dtype}", remedy="make them one type")
    if array.ndim not in (1, 2) or not array.size:
        raise BadInput(f"array of shape {array.shape}", why="must be [steps] or [steps, trajectories], and not empty")
    return _columns(array)


def _flags(array: Bools) -> Bools:
    if array.dtype != np.bool_:
        raise BadInput(f"ends of type {array.dtype}", why="must be bool")
    return _columns(array)


def _columns(array: NDArray[Any], dtype: np.dtype[Any] | None = None) -> NDArray[Any]:
    return np.ascontiguousarray(array[:, None] if array.ndim == 1 else array, dtype)


def _futures(
    r_t: Floats, ended: Bools, cut: Bools, cut_values: Floats | None, end_values: Floats | float | None
) -> tuple[Floats, Floats]:
    """V after a cut, [T, B], and V after the last row, [B]; refused where one is missing that will be read."""
    if cut_values is None:
        if cut.any() and (cut & ~ended).any():
            raise BadInput("cut_values", why="some steps are truncated", remedy="give V of their final observations")
        v_cut = r_t  # never read
    else:
        v_cut = _columns(cut_values, r_t.dtype)
        if v_cut.shape != r_t.shape:
            raise BadInput(f"cut_values of shape {cut_values.shape}", why=f"the rewards are {r_t.shape}")
    if end_values is None:
        if not (ended[-1] | cut[-1]).all():
            raise BadInput("end_values", why="some last steps are no ends", remedy="give V of what was seen after them")
        return v_cut, np.zeros_like(r_t[-1])
    v_end = np.ascontiguousarray(end_values, r_t.dtype)  # a single number becomes [1]
    if v_end.shape != r_t.shape[1:]:
        raise BadInput(f"end_values of shape {v_end.shape}", why=f"must be {r_t.shape[1:]}, one for each trajectory")
    return v_cut, v_end


def _spread(low: Any, high: Any, dtype: np.dtype[Any]) -> Any:
    return high - low > NOISE * np.finfo(dtype).eps * np.maximum(np.abs(low), np.abs(high))
