"""A network that learns in an environment of Gymnasium: `hf.improve(env="CartPole-v1", policy=hf.Network())`."""

from __future__ import annotations

from typing import Any

from holdfast.api.driving import Started
from holdfast.api.inputs import Options, options_of
from holdfast.api.results import Result, result_of
from holdfast.api.stored import StoreAddress
from holdfast.contracts.errors import BadInput
from holdfast.contracts.release import Stage
from holdfast.pipeline.control import EnvProof, improve_env


def start_env(
    env: Any, policy: Any, *, name: str | None, algorithm: Any, given: dict[str, Any], options: Options
) -> Started[Result]:
    """`given` is what belongs to agents and tasks: an environment has none of it."""
    if strange := [key for key, value in given.items() if value is not None]:
        why = "is for agents and tasks, and an environment has neither"
        raise BadInput(strange[0], why=why, remedy="leave it out, or leave env out")
    chosen = options_of(options, "alpha", "min_effect", "reward_range", "iterations", "stage")
    proof = EnvProof(alpha=chosen["alpha"], min_effect=chosen["min_effect"], reward_range=chosen.get("reward_range"))
    spec = improve_env(
        env,
        policy,
        name=name,
        algorithm=algorithm,
        proof=proof,
        iterations=chosen["iterations"],
        stage=None if chosen["stage"] is None else Stage(chosen["stage"]),
        seed=chosen["seed"],
    )
    place = StoreAddress(str(chosen["store"]), chosen["project"])
    store = None
    try:
        store = place.open(create=True)
        return Started(place, store, spec, result_of)
    except BaseException:
        spec.runtime.close()
        if store is not None:
            store.close()
        raise
