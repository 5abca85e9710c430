"""A tiny Llama-type model with random weights, saved to disk: loaded, adapted, trained, merged, saved, sampled."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional as F

from holdfast.contracts.errors import BadInput
from holdfast.policies import tokens
from holdfast.policies.decoder import DecodeRequest
from holdfast.policies.hub import Hub, adapt, load, merge, save
from holdfast.policies.sampling import Completion, Sampling, log_probs

IDS = torch.tensor([tokens.prompt([{"role": "user", "content": "What is 2+2?"}])])
SHAPE = {
    "vocab_size": tokens.VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": tokens.END,
}
TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }} {{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<s>{% endif %}"
)


def write(folder: Path, seed: int = 0, **shape: Any) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    LlamaForCausalLM(LlamaConfig(**{**SHAPE, **shape})).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("hub") / "tiny")


@pytest.fixture
def hub(folder: Path) -> Hub:
    return load(folder)


def generate(
    hub: Hub, prompts: Sequence[Sequence[int]], samplings: Sequence[Sampling] | Sampling, keys: Sequence[int]
) -> list[Completion]:
    """An answer to each prompt, all of them at the same time."""
    if isinstance(samplings, Sampling):
        samplings = [samplings] * len(prompts)
    waves, done = hub.writing(max(len(prompts), 1)), dict[Any, Completion]()
    waves.admit([DecodeRequest(n, *each) for n, each in enumerate(zip(prompts, samplings, keys, strict=True))])
    while len(done) < len(prompts):
        done.update(waves.step())
    return [done[n] for n in range(len(prompts))]


def steps(hub: Hub, count: int = 3) -> float:
    """Learn the one text by heart, a little; the loss before the last step."""
    trained = [parameter for parameter in hub.parameters() if parameter.requires_grad]
    optimizer, loss = torch.optim.AdamW(trained, lr=1e-2), torch.tensor(0.0)
    for _ in range(count):
        loss = F.cross_entropy(hub(IDS)[0, :-1], IDS[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def test_a_loaded_model_gives_the_scores_of_its_library(hub: Hub, folder: Path) -> None:
    assert (hub.context, hub.vocabulary) == (64, tokens.VOCABULARY)
    net = transformers.AutoModelForCausalLM.from_pretrained(folder)
    torch.testing.assert_close(hub(IDS), net(input_ids=IDS).logits, rtol=0, atol=1e-5)
    assert hub.hidden(IDS).shape == (1, IDS.shape[1], 32)


def test_it_says_how_servers_sample_it_that_are_not_asked_otherwise(hub: Hub) -> None:
    hub.net.generation.update(temperature=0.7, top_k=20, repetition_penalty=1.05)
    assert hub.sampling_defaults == {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.05}
    hub.net.generation.clear()
    assert hub.sampling_defaults == {}


def test_padding_on_the_right_is_harmless(hub: Hub) -> None:
    padded = F.pad(IDS, (0, 7), value=5)
    torch.testing.assert_close(hub.hidden(padded)[:, : IDS.shape[1]], hub.hidden(IDS))


def test_an_adapter_begins_as_no_change_and_only_it_learns(hub: Hub) -> None:
    before = hub(IDS)
    weights = {name: p.detach().clone() for name, p in hub.net.named_parameters()}
    adapt(hub, 4, seed=1)
    assert torch.equal(hub(IDS), before)
    first, last = steps(hub, 1), steps(hub)
    assert last < first
    trained = {name for name, p in hub.named_parameters() if p.requires_grad}
    assert trained and all("lora_" in name for name in trained)
    kept = dict(hub.net.named_parameters())
    assert all(torch.equal(kept[name], weight) for name, weight in weights.items())
    assert not torch.equal(hub(IDS), before)


def test_the_same_seed_gives_the_same_adapter_and_disturbs_no_other_chance(folder: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, other = (adapt(load(folder), 8, seed=9) for _ in range(2))
    assert torch.equal(torch.rand(3), expected)
    names = [name for name, p in one.named_parameters() if p.requires_grad]
    assert names and all("lora_" in name for name in names)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def test_a_merged_model_gives_the_same_scores_and_is_a_plain_model(hub: Hub, tmp_path: Path) -> None:
    adapt(hub, 4, seed=1)
    steps(hub)
    adapted = hub(IDS)
    merge(hub)
    torch.testing.assert_close(hub(IDS), adapted, rtol=0, atol=1e-5)
    assert not hub.is_adapted and all(parameter.requires_grad for parameter in hub.parameters())
    again = load(save(hub, tmp_path / "merged"))
    assert torch.equal(again(IDS), hub(IDS))
    with pytest.raises(BadInput, match="has no adapter to merge"):
        merge(again)
    adapt(again, 8, seed=1)
    with pytest.raises(BadInput, match="has an adapter already; merge it first"):
        adapt(again, 8, seed=1)


def test_nothing_is_written_over_and_nothing_is_left_half_written(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(BadInput, match="taken: is there already; choose another name"):
        save(hub, tmp_path / "taken")
    hub.template.save = _broken  # type: ignore[method-assign]
    with pytest.raises(BadInput, match="OSError: no room"):
        save(hub, tmp_path / "full")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def _broken(folder: Path) -> None:
    raise OSError("no room")


PROMPTS = [tokens.prompt([{"role": "user", "content": text}]) for text in ("2+2?", "Hello, who are you?", "a")]


def test_what_was_sampled_has_the_log_probs_that_a_trainer_recomputes(hub: Hub) -> None:
    hows = [
        Sampling(max_tokens=12),
        Sampling(max_tokens=20, temperature=0.7, top_k=20, top_p=0.9),
        Sampling(max_tokens=9, temperature=0),
    ]
    done = generate(hub, PROMPTS, hows, [1, 2, 3])
    assert [len(each.ids) for each in done[:2]] == [12, 20]
    for prompt, how, made in zip(PROMPTS, hows, done, strict=True):
        logits = hub(torch.tensor([[*prompt, *made.ids]]))[0, len(prompt) - 1 : -1]
        chosen = torch.tensor(made.ids)
        again = log_probs(logits, how.temperature, how.top_k, how.top_p, chosen=chosen).gather(-1, chosen[:, None])[
            :, 0
        ]
        torch.testing.assert_close(again, torch.tensor(made.logprobs), rtol=0, atol=1e-5)


def test_an_answer_nobody_waits_for_leaves_the_others_alone(hub: Hub) -> None:
    waves = hub.writing(3)
    requests = [DecodeRequest(n, prompt, Sampling(max_tokens=6), n) for n, prompt in enumerate([*PROMPTS, PROMPTS[0]])]
    assert waves.admit(requests) == requests[3:]  # there is no room for the last
    assert (waves.room, waves.step()) == (0, [])
    assert [len(part) for part in waves.so_far(2)] == [1, 1] and waves.so_far(2, start=1) == ([], [])
    waves.drop([1])
    done = dict(made for _ in range(5) for made in waves.step())
    alone = {n: generate(hub, [PROMPTS[n]], Sampling(max_tokens=6), [n])[0].ids for n in (0, 2)}
    assert {n: made.ids for n, made in done.items()} == alone
    assert waves.room == 3


def test_an_answer_does_not_depend_on_those_beside_it(hub: Hub) -> None:
    together = generate(hub, PROMPTS, Sampling(max_tokens=10), [1, 2, 3])
    alone = [generate(hub, [prompt], Sampling(max_tokens=10), [key])[0] for key, prompt in enumerate(PROMPTS, 1)]
    assert [each.ids for each in together] == [each.ids for each in alone]
    assert generate(hub, [], Sampling(), []) == []


def test_answers_end_at_their_end_at_a_stop_string_and_at_the_context(hub: Hub) -> None:
    (free,) = generate(hub, [PROMPTS[0]], Sampling(max_tokens=64), [3])
    assert len(PROMPTS[0]) + len(free.ids) <= hub.context
    stop = next(chr(token) for token in free.ids if 32 < token < 127)
    (stopped,) = generate(hub, [PROMPTS[0]], Sampling(max_tokens=64, stop=(stop,)), [3])
    assert stopped.finish == "stop"
    assert stopped.ids == free.ids[: free.ids.index(ord(stop)) + 1]
    with torch.no_grad():
        hub.net.lm_head.weight[tokens.END] = 1e3 * hub.hidden(torch.tensor([PROMPTS[0]]))[0, -1]
    assert generate(hub, [PROMPTS[0]], Sampling(), [3])[0].ids == (tokens.END,)


def test_a_thought_ends_when_its_budget_is_used_up(hub: Hub) -> None:
    thinking = [*PROMPTS[0], tokens.THINK]
    (made,) = generate(hub, [thinking], Sampling(max_tokens=8, thinking=3), [1])
    assert (made.ids[3], made.forced, made.logprobs[3]) == (tokens.UNTHINK, (3,), 0.0)
    (none,) = generate(hub, [PROMPTS[0]], Sampling(max_tokens=30, thinking=0), [1])
    assert tokens.THINK not in none.ids and none.forced == ()


async def test_it_answers_messages_as_our_own_model_does(hub: Hub) -> None:
    from holdfast.policies.engine import Local

    with Local(hub, name="tiny", version="1", slots=2) as local:
        how = {"max_tokens": 6, "temperature": 0.5, "stop": ["\n\n"]}
        hello = [[{"role": "user", "content": text}] for text in ("2+2?", "Hello, who are you?", "a")]
        calls = await asyncio.gather(*(local(messages, seed=n, **how) for n, messages in enumerate(hello)))
        *pieces, last = [piece async for piece in local.stream(hello[0], seed=0, **how)]
    assert [call.prompt_ids for call in calls] == [tuple(prompt) for prompt in PROMPTS]
    made = generate(hub, PROMPTS, Sampling(max_tokens=6, temperature=0.5), [0, 1, 2])
    assert [call.completion_ids for call in calls] == [each.ids for each in made]
    assert (calls[0].model, calls[0].response) == ("tiny@1", hub.template.read(made[0].ids))
    assert pieces and last.completion_ids == made[0].ids


async def test_no_thinking_bans_the_models_own_mark_and_says_so(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.policies.chat_template import ByteTemplate
    from holdfast.policies.engine import Local

    class Other(ByteTemplate):
        think: tuple[int, int] | None = (65, 66)

    monkeypatch.setattr(hub, "template", Other())
    with Local(hub, slots=1) as local:
        call = await local([{"role": "user", "content": "2+2?"}], seed=1, max_tokens=30, thinking=0)
        assert local.limits_thinking
    assert call.sampling["banned"] == [65] and 65 not in (call.completion_ids or ())
    assert (call.sampling["thinking_mode"], call.thinking_tokens) == ("hard", 0)
    monkeypatch.setattr(Other, "think", None)
    with Local(hub, slots=1) as local:
        assert not local.limits_thinking  # whoever wants it limited can only ask
        call = await local([{"role": "user", "content": "2+2?"}], seed=1, max_tokens=3)
    assert call.thinking_tokens is None


def test_a_tokenizer_brings_its_own_template(folder: Path, tmp_path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in ("<s>", "</s>", "<think>", "</think>")])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", clean_up_tokenization_spaces=False)
    fast.chat_template = TEMPLATE
    own = Path(shutil.copytree(folder, tmp_path / "own"))
    fast.save_pretrained(own)
    hub = load(own)
    ids = hub.template.prompt([{"role": "user", "content": "hé"}])
    assert fast.decode(ids) == "<s>user hé</s><s>"
    assert (hub.template.think, hub.template.ends) == ((258, 259), frozenset({257, tokens.END}))
    assert hub.template.read(fast.encode("<think>x</think>hé</s>")) == {
        "role": "assistant",
        "content": "hé",
        "reasoning_content": "x",
    }
    (made,) = generate(hub, [ids], Sampling(max_tokens=3), [1])
    assert hub.template.read(made.ids)["role"] == "assistant"
    assert load(save(hub, tmp_path / "copy")).template.prompt([{"role": "user", "content": "hé"}]) == ids


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda at: at / "nowhere",
            "is not a folder on this disk; give the folder of a downloaded model; none is fetched",
        ),
        (lambda at: at, "has no config.json"),
        (
            lambda at: write(at / "other", vocab_size=300),
            "has no tokenizer, and 300 tokens where bytes and marks are 264",
        ),
        (lambda at: cut(write(at / "cut") / "model.safetensors"), "model .*cut: .*Error"),
    ],
    ids=["missing", "empty", "tokens", "torn"],
)
def test_what_cannot_be_loaded_is_said_in_one_line(tmp_path: Path, make: Callable[[Path], Path], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        load(make(tmp_path))


def cut(file: Path) -> Path:
    file.write_bytes(file.read_bytes()[:1000])
    return file.parent


def test_a_head_that_is_not_the_last_step_is_refused(tmp_path: Path) -> None:
    from transformers import GraniteConfig, GraniteForCausalLM

    torch.manual_seed(0)
    GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=8.0)).save_pretrained(tmp_path / "granite")
    with pytest.raises(BadInput, match="GraniteForCausalLM changes its scores after the head"):
        load(tmp_path / "granite")


def test_what_is_not_installed_is_named_with_its_remedy(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write(tmp_path / "other", hidden_act="gelu")  # a form that only transformers knows
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BadInput, match=r"transformers: cannot be imported \(.*\); pip install 'holdfast\[hub\]'"):
        load(other)
    assert load(folder).context == 64


def test_a_model_that_runs_in_transformers_is_adapted_trained_merged_and_saved(tmp_path: Path) -> None:
    hub = load(write(tmp_path / "other", hidden_act="gelu"))
    before = hub(IDS)
    adapt(hub, 4, seed=1)
    assert torch.equal(hub(IDS), before) and steps(hub, 1) > steps(hub)
    trained = hub(IDS)
    again = load(save(merge(hub), tmp_path / "merged"))
    torch.testing.assert_close(again(IDS), trained, rtol=0, atol=1e-5)
    (made,) = generate(again, [PROMPTS[0]], Sampling(max_tokens=6, temperature=0), [1])
    assert len(made.ids) == 6 and made.ids[0] == int(again(torch.tensor([PROMPTS[0]]))[0, -1].argmax())


def test_too_long_a_text_is_refused(hub: Hub) -> None:
    for ask in (
        lambda: hub.hidden(torch.zeros(1, 65, dtype=torch.long)),
        lambda: generate(hub, [[1] * 64], Sampling(), [1]),
    ):
        with pytest.raises(BadInput, match="6[45] tokens: the context is 64; shorten the text"):
            ask()
