from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.contracts.errors import BadInput
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.trace import ModelCall
from holdfast.learn.sft import (
    SFT,
    Dataset,
    Example,
    SkippedRows,
    divide,
    portions,
    read_examples,
    recorded,
    sequences,
    tokenise,
    tokens_of,
)
from holdfast.learn.train import OptimizerConfig, Settings, Trainer
from holdfast.policies import hub, tokens
from holdfast.policies.chat_template import ByteTemplate, ChatTemplate, JinjaTemplate
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.model import folder_of
from holdfast.policies.tokens import END, prompt, render
from tests.learn.attempts import attempt, signal

torch.set_num_threads(1)
PAIRS = (("one", "eins"), ("two", "zwei"), ("three", "drei"))


def dialogue(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def test_a_small_model_learns_a_few_dialogues_by_heart() -> None:
    model = Transformer(ModelShape(width=32, layers=2, heads=2, context=64), seed=0)
    samples = sequences(render(dialogue(question, answer)) for question, answer in PAIRS)
    trainer = Trainer(model, Settings(optimizer=OptimizerConfig(learning_rate=1e-2)), seed=0)
    for _ in range(50):
        update = trainer.step(samples)
    assert update.terms["clone"] < 0.02
    for question, answer in PAIRS:
        ids = prompt([{"role": "user", "content": question}])
        while ids[-1] != END and len(ids) < 40:
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
        assert bytes(ids[len(prompt([{"role": "user", "content": question}])) : -1]).decode() == answer


def test_only_what_the_assistant_says_weighs_anything() -> None:
    samples = sequences([render(dialogue("q", "a"))])
    assert samples.weights is not None
    assert samples.action_mask.tolist() == [
        False,
        False,
        False,
        False,
        True,
        True,
    ]  # <user> q <end> <assistant> a <end>
    assert samples.weights.tolist() == [0.0, 0.0, 0.0, 0.0, 1.0, 1.0]


def test_portions_pass_over_everything_and_can_be_taken_up_again() -> None:
    samples = sequences([([i, i], [False, True]) for i in range(6)])
    stream = portions(samples, 2, seed=1)
    first = [next(stream).ids[::2].tolist() for _ in range(6)]
    for a_pass in (first[:3], first[3:]):
        assert sorted(number for portion in a_pass for number in portion) == list(range(6))
    assert first[:3] != first[3:]
    later = portions(samples, 2, seed=1, start=4)
    assert [next(later).ids[::2].tolist() for _ in range(2)] == first[4:]


def test_each_pass_has_all_sequences_once_in_an_order_of_its_own() -> None:
    how = SFT(batch=4, epochs=3, seed=5)
    assert how.updates(10) == 9
    passes = [np.concatenate([how._batch(number, 10) for number in range(3 * n, 3 * n + 3)]).tolist() for n in range(3)]
    assert [sorted(one) for one in passes] == [list(range(10))] * 3
    assert passes[0] != passes[1] != passes[2]
    assert passes[0] == np.concatenate([SFT(batch=4, epochs=9, seed=5)._batch(n, 10) for n in range(3)]).tolist()
    assert passes[0] != np.concatenate([SFT(batch=4, seed=6)._batch(n, 10) for n in range(3)]).tolist()


@pytest.mark.parametrize(
    ("sequences", "how", "pieces"),
    [
        (16, {"epochs": 1, "batch": 16}, 1),  # one update
        (160, {"epochs": 3, "batch": 16}, 3),  # thirty updates, ten at a time at least
        (16_000, {"epochs": 3, "batch": 16}, 10),
        (100, {"epochs": 1, "batch": 1, "save_every": 30}, 4),
    ],
)
def test_a_long_run_leaves_ten_checkpoints_and_a_short_one_fewer(
    sequences: int, how: dict[str, Any], pieces: int
) -> None:
    made = SFT(**how, lr=3e-4, max_tokens=100)
    assert made.pieces(sequences) == pieces
    assert SFT(**made.record()) == made and SFT(**made.record()).learner is not made.learner


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"lr": 0.0}, "sft.lr = 0.0: must be finite and above 0"),
        ({"lr": float("nan")}, "sft.lr = nan"),
        ({"epochs": 0}, "sft.epochs = 0: must be at least 1"),
        ({"batch": 0}, "sft.batch = 0"),
        ({"max_tokens": 0}, "sft.max_tokens = 0"),
        ({"save_every": 0}, "sft.save_every = 0"),
        ({"held_out": 1.0}, "sft.held_out = 1.0: is a share"),
        ({"skip": -0.1}, "sft.skip = -0.1"),
    ],
)
def test_what_cannot_be_learnt_by_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        SFT(**given)


def test_a_loss_far_above_the_first_one_is_a_divergence() -> None:
    how = SFT(lr=0.5)
    assert how._check_loss(None, [2.0, 9.0, 1.0, 1.0, 1.0, 1.0, 1.0]) == 2.0  # one bad batch is none
    assert how._check_loss(0.5, []) == 0.5
    with pytest.raises(BadInput, match=r"sft.lr = 0.5: it diverges: the loss went from 0.5 to 6 nats a token"):
        how._check_loss(0.5, [0.5, 6.0, 6.0, 6.0, 6.0, 6.0])


CALC = {"type": "function", "function": {"name": "calc", "parameters": {"properties": {"expression": {}}}}}
CALL = {"id": "call_0", "type": "function", "function": {"name": "calc", "arguments": '{"expression":"2+2"}'}}
ASKED = [
    {"role": "system", "content": "You answer briefly."},
    {"role": "user", "content": "What is 2+2?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_0", "content": "4"},
    {"role": "assistant", "content": "It is 4."},
]


@pytest.fixture(scope="module")
def template() -> JinjaTemplate:
    voice = hub.load(folder_of("tiny-tools")).template
    assert isinstance(voice, JinjaTemplate)
    return voice


def shown(voice: ChatTemplate, ids: list[int]) -> str:
    return b"".join(voice.token_bytes(token) for token in ids).decode()


def taught(voice: ChatTemplate, messages: list[Any], tools: list[Any] | None = None) -> list[str]:
    """The pieces of text that are learnt, in order."""
    pieces: list[list[int]] = []
    was = False
    for ids, decided in tokens_of(voice, Example(place="here", messages=messages, tools=tools or ())):
        for token, is_decided in zip(ids, decided, strict=True):
            if is_decided and not was:
                pieces.append([])
            if is_decided:
                pieces[-1].append(token)
            was = is_decided
    return [shown(voice, one) for one in pieces]


def test_an_answer_of_weight_zero_is_only_context(template: JinjaTemplate) -> None:
    first = {**ASKED[2], "weight": 0}
    assert taught(template, [*ASKED[:2], first, *ASKED[3:]], [CALC]) == ["It is 4.<|im_end|>"]
    assert taught(template, [*ASKED[:4], {**ASKED[4], "weight": 0}], [CALC])[0].startswith("<tool_call>")


class Joining:
    """A tokenizer that makes one token of the end of a prompt and an `x`: 99. All else is bytes, and 0 the end."""

    unk_token_id, eos_token_id = None, 0

    def convert_tokens_to_ids(self, token: str) -> None:
        return None

    def apply_chat_template(self, messages: Any, *, tokenize: bool, add_generation_prompt: bool, **how: Any) -> Any:
        text = "".join(f"{one['role'][0]}{one['content']}\0" for one in messages) + "a" * add_generation_prompt
        return self.encode(text) if tokenize else text

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(text.replace("ax", "\x63").encode())

    def decode(self, ids: Any, **how: Any) -> str:
        return bytes(ids).decode().replace("\x63", "ax")


def test_an_answer_never_begins_inside_the_last_token_of_its_prompt() -> None:
    """Sampling begins after the prompt's last token: a token that spans both could never be sampled."""
    voice = JinjaTemplate(Joining(), frozenset({0}))
    assert voice.prompt([{"role": "user", "content": "q"}]) == list(b"uq\0a")
    said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "xy"}]
    assert voice.answer(said) == list(b"xy\0")
    with pytest.raises(BadInput, match="spells the mark that ends one"):
        voice.answer([said[0], {"role": "assistant", "content": "x\0y"}])


def rows(*some: dict[str, Any]) -> list[tuple[str, str | None, dict[str, Any]]]:
    return [(f"file line {number}", None, row) for number, row in enumerate(some, 1)]


Q, A = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("row", "how", "wanted"),
    [
        ({"messages": [Q, A]}, {}, [Q, A]),
        ({"messages": json.dumps([Q, A])}, {}, [Q, A]),  # a table of texts
        ({"prompt": "q", "completion": "a"}, {}, [Q, A]),
        ({"prompt": [Q], "completion": [A]}, {}, [Q, A]),
        ({"question": "q", "answer": "a"}, {}, [Q, A]),
        ({"ask": "q", "reply": "a"}, {"columns": {"prompt": "ask", "completion": "reply"}}, [Q, A]),
        ({"chat": [Q, A]}, {"columns": {"messages": "chat"}}, [Q, A]),
        ({"prompt": "q", "completion": "a"}, {"system": "s"}, [{"role": "system", "content": "s"}, Q, A]),
        (
            {"prompt": "q", "completion": "a", "system": "t"},
            {"system": "s"},
            [{"role": "system", "content": "t"}, Q, A],
        ),
    ],
)
def test_rows_of_every_form_become_conversations(row: dict[str, Any], how: dict[str, Any], wanted: list[Any]) -> None:
    [found], skipped = read_examples(rows(row), **how)
    assert (list(found.messages), skipped.total) == (wanted, 0)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"messages": [Q]}, "nothing of the assistant's to learn"),
        ({"messages": []}, "nothing of the assistant's to learn"),
        ({"messages": [A]}, "nothing of the assistant's to learn"),  # after nothing
        ({"messages": [Q, {"role": "assistant", "content": ""}]}, "nothing of the assistant's to learn"),
        ({"messages": [Q, {"role": "robot", "content": "a"}]}, r"messages\[1\] has the role 'robot'"),
        ({"messages": [Q, "a"]}, r"messages\[1\] has the role none"),
        ({"messages": [Q, {"role": "assistant", "content": 3}]}, r"messages\[1\].content is not text"),
        ({"messages": "not json"}, "messages is text that is not JSON"),
        ({"messages": {"role": "user"}}, "messages is not a list"),
        ({"messages": [Q, {"role": "assistant", "tool_calls": [{"name": "calc"}]}]}, "tool_calls has no function"),
        ({"messages": [Q, A], "tools": [{"name": "calc"}]}, "tools are not of the form"),
        ({"text": "q a"}, "it is none of"),
        ({"prompt": "q", "completion": 7}, "completion is neither text nor"),
        ({"prompt": "q"}, "it is none of"),
    ],
)
def test_a_row_that_is_no_example_is_named_with_its_line(row: dict[str, Any], why: str) -> None:
    found, skipped = read_examples(rows({"messages": [Q, A]}, row))
    assert len(found) == skipped.total == 1
    with pytest.raises(BadInput, match=f"file line 2: .*{why}.*1 of 2 examples"):
        skipped.check(2, 0.1, what="examples")


def test_a_few_rows_may_be_left_out_and_are_counted() -> None:
    found, skipped = read_examples(rows(*[{"messages": [Q, A]}] * 18, {"messages": [Q]}, {"messages": [Q]}))
    skipped.check(20, 0.1, what="examples")
    assert (len(found), skipped.total, skipped.summary.partition(":")[0]) == (18, 2, "2")
    with pytest.raises(BadInput, match="file line 19"):
        skipped.check(20, 0.05, what="examples")


def test_a_conversation_that_does_not_fit_is_left_out_whole() -> None:
    examples = [Example(place=f"line {n}", messages=[Q, {**A, "content": "a" * n}]) for n in (5, 50)]
    made, skipped = tokenise(ByteTemplate(), examples, longest=20)
    assert [len(one.sequences) for one in made] == [1]
    assert skipped == SkippedRows(
        counts={"it is longer than 20 tokens": 1}, first={"it is longer than 20 tokens": "line 50"}
    )


def test_copies_of_an_example_are_never_on_both_sides_of_the_split() -> None:
    examples = [Example(place="", messages=[Q, {**A, "content": str(n % 20)}]) for n in range(200)]
    made, _ = tokenise(ByteTemplate(), examples, longest=99)
    data = divide(made, 0.25, seed=3)
    assert data.held_out is not None
    sides = [
        {tuple(some.ids[start:end].tolist()) for start, end in zip(some.bounds, some.bounds[1:], strict=False)}
        for some in (data.train, data.held_out)
    ]
    assert [len(side) for side in sides] == [15, 5] and not sides[0] & sides[1]
    again = divide(made, 0.25, seed=3)
    assert again.to_bytes() == data.to_bytes() != divide(made, 0.25, seed=4).to_bytes()
    kept = Dataset.from_bytes(data.to_bytes())
    assert kept.to_bytes() == data.to_bytes() and kept.train.tokens == data.train.tokens


def sampled(said: list[int], *, model: str = "m", ids: bool = True, **how: Any) -> ModelCall:
    return ModelCall(
        model=model,
        messages=(Q,),
        response={"role": "assistant", "content": bytes(said).decode()},
        prompt_ids=tuple(tokens.prompt([Q])) if ids else None,
        completion_ids=(*said, tokens.END) if ids else None,
        **how,
    )


def test_only_good_train_attempts_are_learnt_from_and_the_others_are_counted() -> None:
    call = sampled([*b"a"])
    some = [
        attempt("good", call, signals=(signal(1.0),)),
        attempt("poor", call, signals=(signal(0.5),)),
        attempt("unscored", call, signals=None),
        attempt("failed", call, signals=(signal(1.0),), state=RolloutState.FAILED),
        attempt("measured", call, signals=(signal(1.0),), split=Split.VAL),
        attempt("silent", signals=(signal(1.0),)),
        attempt("long", sampled([*b"a" * 99]), signals=(signal(1.0),)),
    ]
    found, skipped = recorded(ByteTemplate(), some, least=1.0, longest=50, vocabulary=264)
    assert len(found) == 1 and sorted(skipped.counts.values()) == [1] * 6
    assert set(skipped.first.values()) == {"poor", "unscored", "failed", "measured", "silent", "long"}


def test_sequences_weigh_where_they_are_marked() -> None:
    pairs = [([1, 2], [False, True]), ([3, 4, 5], [False, True, True])]
    samples = sequences(pairs)
    assert samples.weights is not None and samples.weights.tolist() == [0.0, 1.0, 0.0, 1.0, 1.0]
    assert samples.bounds.tolist() == [0, 2, 5] and samples.ids.tolist() == [1, 2, 3, 4, 5]
    for why, wrong in (
        ("no sequence", lambda: sequences([])),
        ("2 ids, 1 marks", lambda: sequences([([1, 2], [True])])),
        ("portions", lambda: next(portions(sequences(pairs), 0, seed=0))),
    ):
        with pytest.raises(BadInput, match=why):
            wrong()


def test_what_the_assistant_says_is_learnt_after_the_very_prompt_that_the_model_is_asked_with(
    template: JinjaTemplate,
) -> None:
    called = '<tool_call>{"name": "calc", "arguments": {"expression": "2+2"}}</tool_call><|im_end|>'
    assert taught(template, ASKED, [CALC]) == [called, "It is 4.<|im_end|>"]
    assert taught(ByteTemplate(), ASKED, [CALC]) == ['<|call|>calc {"expression":"2+2"}<|end|>', "It is 4.<|end|>"]
    for voice in (template, ByteTemplate()):
        [(ids, decided)] = tokens_of(voice, Example(place="here", messages=ASKED, tools=[CALC]))
        for place in (2, 4):
            prompt = voice.prompt(ASKED[:place], [CALC])
            assert ids[: len(prompt)] == prompt and decided[len(prompt)] and not decided[len(prompt) - 1]
        assert ids[-1] in voice.ends
    read = template.read(template.answer(ASKED[:3], [CALC]))  # and it reads as the message it was made of
    function = {"name": "calc", "arguments": '{"expression": "2+2"}'}
    assert (read["content"], read["tool_calls"][0]["function"]) == ("", function)


def test_splits_that_the_rows_have_are_kept_and_unknown_columns_cannot_be_mapped() -> None:
    named = [("a", "train", {"messages": [Q, A]}), ("b", "test", {"messages": [Q, {**A, "content": "b"}]})]
    found, _ = read_examples(named)
    data = divide(tokenise(ByteTemplate(), found, longest=99)[0], 0.0, seed=0)
    assert len(data.train) == 1 and data.held_out is not None and len(data.held_out) == 1
    with pytest.raises(BadInput, match="columns: 'reply'"):
        read_examples([], columns={"reply": "a"})


FOREIGN = ModelCall(
    model="other", messages=(Q,), response=A, prompt_ids=(1, 2, 3), completion_ids=(9,), logprobs=(-1.0,)
)


@pytest.mark.parametrize(
    ("made", "said", "learnt"),
    [
        (sampled([*b"4"], forced=(0,)), b"4", 1),  # put there, not sampled: text alone would not tell
        (FOREIGN, b"a", 2),  # from the text, since the ids are another model's
        (sampled([*b"a"], ids=False), b"a", 2),
    ],
)
def test_recorded_attempts_are_learnt_in_the_ids_that_were_sampled_or_else_from_their_text(
    made: ModelCall, said: bytes, learnt: int
) -> None:
    [one], skipped = recorded(ByteTemplate(), [attempt("a", made)], least=None, longest=99, vocabulary=264)
    [(ids, decided)] = one.sequences
    assert ids == [*tokens.prompt([Q]), *said, tokens.END] and not skipped.total
    assert decided == [False] * (len(ids) - learnt) + [True] * learnt
