"""Every rule of the config file, with the exact line a user gets when it is broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast.contracts.errors import BadInput
from holdfast.contracts.settings import (
    BLOCKS,
    KEYS,
    ConstraintBlock,
    GrpoBlock,
    ImproveBlock,
    OptimizeSettings,
    ProveBlock,
    SafetyReward,
    ToolReward,
    left_by,
    load_settings,
    override,
    settings_from,
)

TASK = {"prompt": "What is 2 + 2?", "expected": "4"}
DOCUMENTED = {
    "optimize": [{"prompt": "What is 2 + 2?", "expected": "4"}],
    "validate": [{"prompt": "What is 3 + 3?", "expected": "6"}],
    "resources": {"system_prompt": "You are a concise assistant."},
    "worker_count": 2,
    "poll_interval_ms": 50,
    "heartbeat_interval_ms": 1000,
    "completion_poll_interval_ms": 60,
    "completion_timeout_secs": 30,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str | bytes, name: str = "c.json") -> OptimizeSettings:
    Path(name).write_bytes(text.encode() if isinstance(text, str) else text)
    return load_settings(name)


def refusal(text: str | bytes, name: str = "c.json") -> str:
    with pytest.raises(BadInput) as caught:
        load(text, name)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_documented_example_is_read(folder: Path) -> None:
    settings = load(json.dumps(DOCUMENTED))
    assert settings.train == (TASK,)
    assert settings.val == ({"prompt": "What is 3 + 3?", "expected": "6"},)
    assert settings.record() | DOCUMENTED == settings.record()


def test_what_is_left_out_has_its_documented_default(folder: Path) -> None:
    settings = load(json.dumps({"optimize": [TASK]}))
    none = (
        "agent", "scorers", "model", "base_url", "proxy_url", "queue_limit", "lease_secs", "completion_timeout_secs",
    )  # fmt: skip
    none += ("rl_optimizer", "improve", "constraint", "safety_reward")
    assert settings.record() == dict.fromkeys(none) | {
        "optimize": [TASK], "validate": [], "resources": {}, "worker_count": 2, "worker_kind": "tasks",
        "max_attempts": 3, "max_faults": 5, "attempt_timeout_secs": 300.0, "retry_initial_ms": 500,
        "retry_max_ms": 30_000, "poll_interval_ms": 50, "heartbeat_interval_ms": 1000,
        "completion_poll_interval_ms": 60, "seed": 0, "deterministic": False, "thinking_budgets": False,
        "thinking_mode": "auto",
    }  # fmt: skip
    assert settings.lease_s == 5.0


EVERY: dict[str, Any] = DOCUMENTED | {
    "agent": "pkg.mod:agent",
    "scorers": [{"scorer": "numeric", "tolerance": 0.01, "gate": True, "weight": 1}, {"scorer": "pkg.mod:brief"}],
    "model": "openai/gpt-4o-mini", "base_url": "http://127.0.0.1:8000/v1", "proxy_url": "http://127.0.0.1:8788",
    "lora": 8, "device": "cuda:1", "dtype": "bfloat16", "vllm": ["http://127.0.0.1:8000/v1"],
    "worker_kind": "processes", "max_attempts": 5, "max_faults": 2, "attempt_timeout_secs": 1.5,
    "retry_initial_ms": 10, "retry_max_ms": 20, "queue_limit": 100, "lease_secs": 2.5, "seed": 7,
    "deterministic": True, "thinking_budgets": True, "thinking_mode": "forcing", "thinking_allocation": "learnt",
    "rl_optimizer": {
        "enabled": False, "channels": ["exact_match"], "constraint": None,
        "gae": {
            "gamma": 1.0, "lambda": 0.5, "normalize_advantages": False, "clip_advantages": 3.0,
            "normalize_returns": True, "clip_returns": 4.0, "normalization_epsilon": 1e-6,
            "turn_credit": 0.25,
        },
        "ppo": {
            "clip_epsilon": 0.1, "value_loss_coefficient": 0.0, "entropy_coefficient": 0.0, "mini_batch_size": 8,
            "gradient_accumulation_steps": 2, "epochs": 3, "kl_penalty_coefficient": 0.1, "target_kl": 0.01,
            "max_kl": 0.02, "learning_rate": 1e-4, "max_grad_norm": 0.5, "clip_epsilon_high": 0.3,
            "aggregate": "sequence_norm_constant", "constant": 64.0, "importance_cap": 2.0, "piece_tokens": 512,
        },
        "critic": {"mode": "shared", "learning_rate": 0.05, "epochs": 8},
    },
    "train_on": "planner", "leave": ["ip", "mac"],
    "prompt_search": {
        "candidates": ["a", {"system": "b"}], "proposers": ["edits"], "phrases": ["c"], "rollouts": 9, "tokens": 8,
        "money": 0.5, "prices": [0.1, 0.2], "token_price": 0.01, "second_price": 0.02, "forbidden": ["d"],
        "allowed": ["e"],
        "reflection": {"model": "m", "base_url": "http://127.0.0.1:8000/v1"},
    },
    "grpo": {
        "learning_rate": None, "turn_credit": 0.3, "scale": False, "clip_low": 0.1, "clip_high": 0.3, "epochs": 2,
        "minibatch": 8, "aggregate": "sequence", "constant": None, "reference_kl": 0.01, "behaviour_kl": 0.02,
        "entropy": 0.001, "importance_cap": 2.0, "max_kl": 0.5, "piece_tokens": 1024,
    },
    "constraint": {
        "cost": "harm", "budget": 0.1, "proportional": 0.5, "integral": 0.0, "derivative": 0.25, "smoothing": 0.0,
        "most": 3.0,
    },
    "safety": [{"scorer": "secrets_told"}],
    "tool_reward": {"choice": 0.1, "structure": 0.0, "utility": 0.05, "error_handling": 0.02},
    "safety_reward": {
        "blocked_penalty": 2.0, "default_reason_code_penalty": 0.5, "prompt_injection_penalty": 0.75,
        "secret_leak_penalty": 3.0, "reason_code_penalties": {"house.rule": 0.125}, "penalties": "each",
        "hard_gate_reason_codes": ["house.rule"], "hard_gate_reason_prefixes": [], "hard_gate_reward_ceiling": -1.0,
        "hard_gate_penalty": 0.0, "blocked_event_triggers_hard_gate": False, "reject_rollout_on_hard_gate": True,
    },
    "improve": {
        "policy": "tools", "iterations": 3, "steps": 4, "step_tasks": 5, "samples": 6, "learning_rate": None,
        "algorithm": "ppo",
        "budget_s": 60.0, "follow": "run-1-ab", "follow_least": 7, "stage": "canary", "constraint": None,
        "prove": {
            "seeds": 3, "batch": 8, "primary": "reward", "alpha": 0.01, "min_effect": 0.02, "min_reward_delta": 0.03,
            "max_safety_regression": 0.04, "max_seed_spread": 0.1, "max_sample_spread": 0.2, "max_cost": 2.0,
            "reward_range": [-1.0, 1.1], "cluster": "user", "reuse_live": True, "confirm_live": False,
        },
    },
}  # fmt: skip


def test_every_field_can_be_set_and_read_back(folder: Path) -> None:
    given = {
        name: EVERY[name]
        for name in (
            "constraint", "safety_reward", "tool_reward", "improve", "grpo", "rl_optimizer", "prompt_search",
        )
    }  # fmt: skip
    for name, block in {**given, "improve.prove": EVERY["improve"]["prove"]}.items():
        assert set(block) == set(BLOCKS[name])
    assert {*EVERY, "tasks", "safety_waived"} == set(KEYS)  # which take the place of the lists and of safety scorers
    settings = load(json.dumps(EVERY))
    assert settings.record() == EVERY
    assert settings.lease_s == 2.5
    assert OptimizeSettings.model_validate(settings.record()) == settings


def test_settings_that_an_older_version_kept_are_read_back_as_they_were(folder: Path) -> None:
    """A run is known by the hash of what it kept: keys that came later are not in it, unless somebody sets them."""
    older = json.loads(json.dumps(EVERY))
    del older["grpo"], older["improve"]["algorithm"], older["rl_optimizer"]["critic"]
    for key in ("clip_epsilon_high", "aggregate", "constant", "importance_cap", "piece_tokens"):
        del older["rl_optimizer"]["ppo"][key]
    assert load(json.dumps(older)).record() == older


@pytest.mark.parametrize(("old", "new"), [("train", "optimize"), ("val", "validate")])
def test_older_keys_mean_the_same(folder: Path, old: str, new: str) -> None:
    assert load(json.dumps({old: [TASK]})) == load(json.dumps({new: [TASK]}))
    expected = f"c.json: {old}: is the older name of {new}, which is there too; keep one of the two"
    assert refusal(json.dumps({old: [TASK], new: [TASK]})) == expected


def test_scorers_are_named_alone_as_objects_or_in_a_list(folder: Path) -> None:
    weighed = {"scorer": "m:f", "weight": 0.5}
    for key, given, blocks in (
        ("scorer", "exact", [{"scorer": "exact"}]),
        ("scorer", {"scorer": "numeric", "tolerance": 0.1}, [{"scorer": "numeric", "tolerance": 0.1}]),
        ("scorers", ["exact", weighed], [{"scorer": "exact"}, weighed]),
    ):
        assert load(json.dumps({"optimize": [TASK], key: given})).record()["scorers"] == blocks


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"scorer": 3}, "scorers[0] = 3: is a whole number, not a name or an object; write "),
        ({"scorers": []}, "scorers: is empty; name a scorer, or leave it out"),
        ({"scorers": ["exact", {}]}, 'scorers[1].scorer = null: is not a name such as "exact" or "module:function"'),
        ({"scorer": {"scorer": "a", "gate": 1}}, "scorers[0].gate = 1: is not true or false"),
        ({"scorer": {"scorer": "a", "weight": "1"}}, 'scorers[0].weight = "1": is not a finite number'),
        ({"scorer": {"scorer": "a", "name": " "}}, 'scorers[0].name = " ": is not some text'),
        ({"scorer": "a", "scorers": "b"}, "scorer: is the same as scorers, which is there too; keep one of the two"),
        # settings are stored: no password in them
        ({"scorer": {"scorer": "judge", "base_url": "http://me:pw@host/v1"}}, "scorers[0].base_url: carries a user"),
    ],
)
def test_a_scorer_that_cannot_be_one_is_refused(folder: Path, given: dict[str, Any], expected: str) -> None:
    assert refusal(json.dumps({"optimize": [TASK], **given})).startswith(f"c.json: {expected}")


def test_a_task_is_an_object_or_a_prompt_alone(folder: Path) -> None:
    """Only asking a model needs a prompt: an agent of one's own may want something else."""
    tasks = {"optimize": ["hello", {"prompt": "hi", "expected": "ho"}, {"board": [[0, 1]]}]}
    assert load(json.dumps(tasks)).train == ({"prompt": "hello"}, *tasks["optimize"][1:])


def test_a_flag_of_improve_is_named_as_it_was_given(folder: Path) -> None:
    settings = load(json.dumps({"optimize": [TASK]}))
    for flags, said in (({"policy": ""}, '--policy "": is blank'), ({"budget_s": 1e12}, "--budget 1000000000000.0: ")):
        with pytest.raises(BadInput, match=rf"^{said}"):
            override(settings, improve=flags)
    assert override(settings, improve={"policy": "p"}).improve == ImproveBlock(policy="p")


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("grpo", GrpoBlock()),
        ("improve", ImproveBlock()),
        ("improve.prove", ProveBlock()),
        ("constraint", ConstraintBlock()),
        ("safety_reward", SafetyReward()),
        ("tool_reward", ToolReward()),
    ],
)
def test_every_key_of_these_blocks_is_documented_with_its_default(name: str, block: BaseModel) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs/config.md").read_text(encoding="utf-8")
    section = text.partition(f"## `{name}`\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| `")]
    told = {key.strip("`"): default for keys, default, _ in rows for key in keys.split(", ")}
    assert list(told) == [key for key in BLOCKS[name] if key != "prove"]
    for key, default in told.items():
        value = getattr(block, key)
        told_value = None if default == "none" else json.loads(default.strip("`"))
        assert told_value == (list(value) if isinstance(value, tuple) else value), key


def test_toml_says_the_same(folder: Path) -> None:
    text = 'worker_count = 3\n[resources]\nsystem_prompt = "x"\n[[optimize]]\nprompt = "hi"\n'
    same = {"worker_count": 3, "resources": {"system_prompt": "x"}, "optimize": [{"prompt": "hi"}]}
    assert load(text, "c.toml") == load(json.dumps(same))


def test_a_byte_order_mark_is_no_obstacle(folder: Path) -> None:
    assert load(b"\xef\xbb\xbf" + json.dumps({"val": ["hi"]}).encode()).val == ({"prompt": "hi"},)


NOTHING = "optimize, validate: there is nothing to run; put at least one task into one of them, or name a file: tasks"
ABOVE_0 = "must be above 0; set it to 1 or more"
SECONDS = "must be above 0; set it to more than 0"
NOT_WHOLE = "not a whole number; give a whole number"
KNOWN, LISTED = f"the keys are {', '.join(KEYS)}", "docs/config.md has all of them"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"worker_count": 0}, f"worker_count = 0: {ABOVE_0}"),
        ({"worker_count": -3}, f"worker_count = -3: {ABOVE_0}"),
        ({"worker_count": 10_001}, "worker_count = 10001: must be at most 10000; set it to 10000 or less"),
        ({"worker_count": "2"}, f'worker_count = "2": is text, {NOT_WHOLE}'),
        ({"worker_count": 2.0}, f"worker_count = 2.0: is a number, {NOT_WHOLE}"),
        ({"worker_count": True}, f"worker_count = true: is true or false, {NOT_WHOLE}"),
        ({"worker_count": None}, f"worker_count = null: is null, {NOT_WHOLE}"),
        ({"poll_interval_ms": 0}, f"poll_interval_ms = 0: {ABOVE_0}"),
        ({"heartbeat_interval_ms": 0}, f"heartbeat_interval_ms = 0: {ABOVE_0}"),
        ({"completion_poll_interval_ms": 0}, f"completion_poll_interval_ms = 0: {ABOVE_0}"),
        ({"completion_timeout_secs": 0}, f"completion_timeout_secs = 0: {SECONDS}"),
        ({"completion_timeout_secs": "5"}, 'completion_timeout_secs = "5": is text, not a number; give a number'),
        ({"attempt_timeout_secs": 0}, f"attempt_timeout_secs = 0: {SECONDS}"),
        ({"lease_secs": 0}, f"lease_secs = 0: {SECONDS}"),
        ({"max_attempts": 0}, f"max_attempts = 0: {ABOVE_0}"),
        ({"queue_limit": 0}, f"queue_limit = 0: {ABOVE_0}"),
        # more than the store's column can hold
        ({"queue_limit": 2**31}, "queue_limit = 2147483648: must be at most 2147483647; set it to 2147483647 or less"),
        ({"retry_initial_ms": 0}, f"retry_initial_ms = 0: {ABOVE_0}"),
        ({"retry_max_ms": 0}, f"retry_max_ms = 0: {ABOVE_0}"),
        ({"seed": -1}, "seed = -1: must be at least 0; set it to 0 or more"),
        ({"worker_kind": "threads"}, 'worker_kind = "threads": is not one of its values; use tasks or processes'),
        ({"resources": ["x"]}, 'resources = ["x"]: is a list, not an object; give an object'),
        ({"model": " "}, 'model = " ": is blank or has control characters; give its name, or leave it out'),
        ({"model": 3}, "model = 3: is a whole number, not text; give text"),
        ({"agent": "agent"}, 'agent = "agent": is not module:function; write it as in'),
        ({"agent": "a:b c"}, 'agent = "a:b c": is not module:function; write it as in'),
        ({"base_url": "ftp://x"}, 'base_url = "ftp://x": is not an http or https address; write it as in'),
        # the password itself is not repeated
        ({"base_url": "https://me:secret@host/v1"}, "base_url: carries a user name or password, and settings are"),
        # each is fine alone
        ({"retry_max_ms": 100}, "retry_max_ms = 100: must not be below retry_initial_ms = 500; raise the one or"),
        ({"lease_secs": 1.5}, "lease_secs = 1.5: must be at least two heartbeats, 2 s; raise it, or lower"),
        ({"worker_cont": 3}, f"worker_cont = 3: unknown key; did you mean worker_count? {LISTED}"),
        ({"tran": []}, f"tran = []: unknown key; did you mean train? {LISTED}"),
        ({"zzz": 3}, f"zzz = 3: unknown key; {KNOWN}"),
        ({"rl_optimizer": 3}, "rl_optimizer = 3: is a whole number, not an object; give an object"),
        ({"rl_optimizer": {"enabled": 1}}, "rl_optimizer.enabled = 1: is a whole number, not true or false; give"),
        ({"rl_optimizer": {"enable": True}}, "rl_optimizer.enable = true: unknown key; did you mean enabled? docs"),
        ({"rl_optimizer": {"gae": {"gamma": 2}}}, "rl_optimizer.gae.gamma = 2: must be at most 1.0; set it to 1.0 or"),
        ({"rl_optimizer": {"gae": {"lam": 1}}}, "rl_optimizer.gae.lam = 1: unknown key; did you mean lambda? docs"),
        # what is off is checked all the same
        ({"rl_optimizer": {"enabled": False, "ppo": {"epochs": 0}}}, "rl_optimizer.ppo.epochs = 0: must be above 0;"),
        ({"rl_optimizer": {"critic": {"mode": "joint"}}}, 'rl_optimizer.critic.mode = "joint": is not one of its'),
        ({"rl_optimizer": {"ppo": {"constant": 9}}}, "rl_optimizer.ppo.constant = 9.0: goes with aggregate"),
        ({"grpo": {"clip_low": 2}}, "grpo.clip_low = 2: must be at most 1.0; set it to 1.0 or less"),
        ({"grpo": {"turn_credits": 0.1}}, "grpo.turn_credits = 0.1: unknown key; did you mean turn_credit? docs"),
        ({"grpo": {"learning_rate": 0}}, "grpo.learning_rate = 0: must be above 0; set it to more than 0"),
        ({"grpo": {"importance_cap": 0.5}}, "grpo.importance_cap = 0.5: must be at least 1"),
        ({"grpo": {"aggregate": "sequence_norm_constant"}}, "grpo.constant = null: goes with aggregate"),
        (
            {"grpo": {"learning_rate": 1e-3}, "improve": {"learning_rate": 1e-3}},
            "improve.learning_rate: is the older name of grpo.learning_rate, which is there too; keep one of the two",
        ),
        ({"improve": {"algorithm": "ppo", "learning_rate": 1}}, "improve.learning_rate = 1: is GRPO's; set"),
        ({"improve": {"algorithm": "grpo", "follow": "run-1"}}, 'improve.algorithm = "grpo": conversations that are'),
        ({"rl_optimizer": {"ppo": {"max_kl": 0.01, "target_kl": 0.1}}}, "rl_optimizer.ppo.max_kl = 0.01: must not be"),
        ({"improve": []}, "improve = []: is a list, not an object; give an object"),
        ({"improve": {"samples": 1}}, "improve.samples = 1: must be at least 2; set it to 2 or more"),
        ({"improve": {"stage": "retired"}}, 'improve.stage = "retired": is not one of its values; use shadow, canary'),
        ({"improve": {"policy": " "}}, 'improve.policy = " ": is blank or has control characters; give its name, or'),
        ({"improve": {"iteration": 2}}, "improve.iteration = 2: unknown key; did you mean iterations? docs/config.md"),
        ({"improve": {"prove": {"seeds": 0}}}, "improve.prove.seeds = 0: must be at least 1; set it to 1 or more"),
        ({"improve": {"prove": {"alpha": 0.5}}}, "improve.prove.alpha = 0.5: must be below 0.5; set it to less than"),
        ({"improve": {"prove": {"alpha": 0}}}, "improve.prove.alpha = 0: must be above 0; set it to more than 0"),
        ({"improve": {"prove": {"primary": "safety"}}}, 'improve.prove.primary = "safety": is not one of its values;'),
        ({"improve": {"prove": {"sed": 2}}}, "improve.prove.sed = 2: unknown key; did you mean seeds? docs/config.md"),
        ({"improve": {"prove": {"reward_range": [0]}}}, "improve.prove.reward_range: is not a pair; give two"),
        ({"improve": {"prove": {"reward_range": [0, 1, 2]}}}, "improve.prove.reward_range: is not a pair; give two"),
        ({"improve": {"prove": {"reward_range": [0, "1"]}}}, 'improve.prove.reward_range[1] = "1": is text, not a'),
        ({"improve": {"prove": {"reward_range": [1, 1]}}}, "improve.prove.reward_range = [1, 1]: its ends are not in"),
        ({"improve": {"prove": {"max_safety_regression": 1}}}, "improve.prove.max_safety_regression = 1: must be"),
        ({"improve": {"prove": {"min_effect": 1}}}, "improve.prove.min_effect = 1: success cannot differ by more"),
        (
            {"improve": {"prove": {"min_effect": 0.5, "primary": "reward", "reward_range": [0, 0.5]}}},
            "improve.prove.min_effect = 0.5: reward cannot differ by more than 0.5; lower it",
        ),
        ({"safety_reward": {"hard_gate_reason_prefixes": ["secret_leak.", " "]}}, "safety_reward.hard_gate_reason_pre"),
        ({"constraint": {"proportional": 0, "integral": 0}}, "constraint: proportional, integral = 0: nothing would"),
        ({"tool_reward": {"choice": -1}}, "tool_reward.choice = -1: must be at least 0.0; set it to 0.0 or more"),
        ({"tool_reward": {"choice": 0.4, "utility": 0.2}}, "tool_reward: its weights add up to 0.64, and shaping may"),
        ({"safety_reward": {"blocked_penalty": -1}}, "safety_reward.blocked_penalty = -1: must be at least 0.0; set"),
        ({"safety_reward": {"hard_gate_reward_ceiling": 0.5}}, "safety_reward.hard_gate_reward_ceiling = 0.5: must"),
        ({"improve": {"constraint": {"smoothing": 1}}}, "improve.constraint.smoothing = 1: must be below 1; set it"),
    ],
)
def test_a_broken_rule_is_told_in_one_line(folder: Path, given: dict[str, Any], expected: str) -> None:
    assert refusal(json.dumps({"optimize": [TASK]} | given)).startswith(f"c.json: {expected}")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, NOTHING),
        ({"optimize": [], "validate": []}, NOTHING),
        ({"optimize": "hi"}, 'optimize = "hi": is text, not a list; give a list'),
        ({"train": {"prompt": "hi"}}, 'train = {"prompt": "hi"}: is an object, not a list; give a list'),
        ({"optimize": [TASK, 3]}, 'optimize[1] = 3: is a whole number, not an object; write {"prompt": "…"}'),
        ({"optimize": [{"prompt": " "}]}, 'optimize[0] = {"prompt": " "}: its prompt is blank or not text; write'),
        ({"optimize": [{"prompt": ["x"]}]}, 'optimize[0] = {"prompt": ["x"]}: its prompt is blank or not text; write'),
        ({"optimize": [""]}, 'optimize[0] = "": its prompt is blank or not text; write "prompt": "…" with some text'),
        # long values are shortened
        ({"optimize": "x" * 100}, f'optimize = "{"x" * 56}…: is text, not a list; give a list'),
    ],
)
def test_tasks_are_objects_with_a_prompt(folder: Path, given: dict[str, Any], expected: str) -> None:
    assert refusal(json.dumps(given)).startswith(f"c.json: {expected}")


FINITE = "is not a finite number; give a finite number, or leave it out"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("c.json", '{"optimize": [}', "c.json: line 1, column 15: is not JSON: Expecting value; correct it there"),
        ("c.json", '{\n  "a": 1,\n}', "c.json: line "),  # the wording is Python's own, and changed with 3.13
        ("c.json", "", "c.json: is an empty config; 'holdfast init NAME' writes one to begin with"),
        ("c.toml", " \n", "c.toml: is an empty config; 'holdfast init NAME' writes one to begin with"),
        ("c.json", "[]", "c.json: is a list, as files of tasks are, and no settings; settings name their tasks, by "),
        ("c.jsonl", "{}", "c.jsonl: is a file of tasks, not of settings; settings name their tasks, by [tasks] "),
        ("c.json", "null", "c.json: is null at the top, not an object; wrap it in { … }"),
        ("c.json", '{"val": ["a"], "val": ["b"]}', "c.json: val: is there twice; keep one of the two"),
        ("c.json", '{"val": [{"prompt": "a", "prompt": ""}]}', "c.json: prompt: is there twice; keep one of the two"),
        ("c.json", b"\xff{}", "c.json: is not UTF-8: byte 0xff at 0; save it as UTF-8"),
        ("c.json", '{"lease_secs": NaN}', f"c.json: lease_secs = NaN: {FINITE}"),
        ("c.json", '{"val": [{"prompt": "a", "x": [-1e999]}]}', f"c.json: val[0].x[0] = -Infinity: {FINITE}"),
        ("c.json", '{"resources": {"a": "\\ud800"}}', 'c.json: resources.a = "\\ud800": has half of a surrogate'),
        ("c.json", '{"resources": {"\\udfff": 1}}', 'c.json: resources key = "\\udfff": has half of a surrogate'),
        ("c.json", "[" * 100_000, "c.json: is nested too deeply; flatten it"),
        ("c.toml", "val = [", "c.toml: is not TOML: Invalid value (at end of document); correct it there"),
        ("c.toml", "lease_secs = inf", f"c.toml: lease_secs = Infinity: {FINITE}"),
        ("c.toml", "resources.day = 2026-01-02", "c.toml: resources.day = 2026-01-02: is a date or time, which JSON"),
    ],
)
def test_a_file_that_cannot_be_used_says_where(folder: Path, name: str, text: str | bytes, expected: str) -> None:
    assert refusal(text, name).startswith(expected)


def test_what_is_nested_too_deeply_or_has_no_end_is_refused(folder: Path) -> None:
    for depth in (300, 900):
        text = '{"optimize": [{"prompt": "hi"}], "resources": {"x": ' + "[" * depth + "]" * depth + "}}"
        assert "is nested more than 200 deep; flatten it" in refusal(text)
    expected = "c.json: has a number that cannot be read: Exceeds the limit (4300 digits)"
    assert refusal(f'{{"seed": {"9" * 5000}}}').startswith(expected)


def test_a_missing_file_a_folder_and_a_locked_file(folder: Path) -> None:
    (folder / "d.json").mkdir()
    (folder / "loop.json").symlink_to("loop.json")
    for name, says in (
        ("no/such.json", "there is no such file; check the path"),
        ("d.json", "is a folder; give the path of a JSON or TOML file"),
        ("loop.json", "cannot be read: Too many levels of symbolic links; check the path"),
    ):
        with pytest.raises(BadInput, match=f"^{name}: {says}"):
            load_settings(name)


def test_flags_go_over_the_file_and_errors_name_the_flag(folder: Path) -> None:
    settings = load(json.dumps({"optimize": [TASK], "model": "a/b"}))
    assert override(settings, model=None, base_url=None) == settings
    assert override(settings, model="c/d").model == "c/d"
    with pytest.raises(BadInput) as caught:
        override(settings, base_url="nowhere")
    expected = '--base-url "nowhere": is not an http or https address; write it as in http://127.0.0.1:8000/v1'
    assert str(caught.value) == expected


def test_settings_of_an_older_run_say_where_they_come_from() -> None:
    with pytest.raises(BadInput) as caught:
        settings_from({"optimize": [TASK], "seed": -1}, "settings of run-1-a")
    assert str(caught.value) == "settings of run-1-a: seed = -1: must be at least 0; set it to 0 or more"


def test_null_takes_a_limit_away_and_settings_cannot_be_changed(folder: Path) -> None:
    settings = load('{"val": ["hi"], "attempt_timeout_secs": null}')
    assert settings.attempt_timeout_secs is None
    with pytest.raises(ValueError, match="frozen"):
        settings.seed = 1  # type: ignore[misc]


def test_a_constraint_may_stand_for_the_whole_file_or_in_a_block(folder: Path) -> None:
    given = {"optimize": [TASK], "constraint": {"budget": 0.1}, "rl_optimizer": {"constraint": {"cost": "harm"}}}
    settings = settings_from(given, "c.json")
    assert settings.constraint is not None and settings.constraint.budget == 0.1
    assert settings.rl_optimizer is not None and settings.rl_optimizer.constraint is not None
    assert settings.rl_optimizer.constraint.cost == "harm"
    assert settings_from(settings.record(), "again") == settings


def test_files_that_a_config_names_are_looked_for_beside_it(folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine/agent.py").write_text("")
    given = {"agent": "agent.py:agent", "scorers": ["score.py:right", "exact"], "tasks": "t.jsonl"}
    settings = load(json.dumps(given), "mine/c.json")
    assert settings.agent == f"{folder}/mine/agent.py:agent"
    assert settings.tasks is not None
    assert (settings.tasks.file, settings.tasks.held_out) == (f"{folder}/mine/t.jsonl", None)
    assert settings.scorers is not None
    # What is not there may be in the current folder, as on the command line.
    assert [one["scorer"] for one in settings.scorers] == ["score.py:right", "exact"]
    assert settings_from(settings.record(), "again") == settings


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tasks": "t.jsonl", "optimize": [TASK]}, "tasks: is given beside tasks in this file; keep one of the two"),
        ({"tasks": {"file": "t.jsonl", "held_out": 1.0}}, "tasks.held_out = 1.0: must be below 1; set it to less than"),
        ({"tasks": {"file": "t.jsonl", "heldout": 0.5}}, "tasks.heldout = 0.5: unknown key; did you mean held_out?"),
        ({"tasks": {"file": ""}}, 'tasks.file = "": is blank or has control characters'),
        ({"tasks": 7}, "tasks = 7: is a whole number, not an object"),
    ],
)
def test_a_file_of_tasks_has_options_of_its_own(folder: Path, given: dict[str, Any], says: str) -> None:
    assert says in refusal(json.dumps({"model": "local/sprout", **given}))


def test_the_hash_of_settings_without_such_a_file_is_that_of_before(folder: Path) -> None:
    assert "tasks" not in load(json.dumps({"optimize": [TASK]})).record()


def test_what_scrubbing_leaves_as_it_is_stands_in_the_config_of_the_folder(folder: Path) -> None:
    path = folder / "holdfast.json"
    assert left_by(path) == ()
    path.write_text('{"leave": ["ip", "mac"]}')
    assert left_by(path) == ("ip", "mac")
    for wrong in ('"ip"', "[1]", "3"):
        path.write_text(f'{{"leave": {wrong}}}')
        with pytest.raises(BadInput, match=r'leave = .*: is no list of names; give one, as in \["ip", "mac"\]'):
            left_by(path)
