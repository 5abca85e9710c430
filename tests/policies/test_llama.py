"""Our own transformer for other programs: the same ids, the same log-probs, the same tokens."""

from __future__ import annotations

from pathlib import Path

import transformers

from holdfast.policies import tokens
from holdfast.policies.chat_template import ByteTemplate
from holdfast.policies.hub import Hub
from holdfast.policies.loading import export, load
from holdfast.policies.model import Model
from holdfast.policies.weights import Manifest, save_transformer
from tests.policies.exported import SHOWN, check_same
from tests.policies.small import small


def test_our_own_transformer_is_exported_in_the_layout_of_llama_with_its_bytes(tmp_path: Path) -> None:
    check_same(Model("sprout"), None, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for one in SHOWN:
        for place, message in enumerate(one.messages):
            if message["role"] == "assistant":
                before = [dict(some) for some in one.messages[:place]]
                ids = tokenizer.apply_chat_template(
                    before, tools=one.tools, add_generation_prompt=True, return_dict=False
                )
                assert ids == tokens.prompt(before, one.tools)
    again, _ = load(Model(str(tmp_path / "out")), None)
    assert isinstance(again, Hub) and isinstance(
        again.template, ByteTemplate
    )  # calls of tools are read as sprout writes them
    export(Model(str(tmp_path / "out")), None, tmp_path / "twice")
    twice = transformers.AutoTokenizer.from_pretrained(tmp_path / "twice")
    assert twice.encode("four <|end|>") == tokenizer.encode("four <|end|>") == [*b"four ", tokens.END]


def test_every_byte_is_a_token_of_the_exported_tokenizer(tmp_path: Path) -> None:
    save_transformer(tmp_path / "own", small(), Manifest(kind="transformer", shape={}, created_at=0.0))
    export(Model(str(tmp_path / "own")), None, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "".join(map(chr, range(256))) + "€ 𝄞\n  <|call|>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == [*text.removesuffix("<|call|>").encode(), tokens.CALL]
    assert tokenizer.decode(ids) == text
