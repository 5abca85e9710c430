"""The head learns from hidden states what tells right answers from wrong ones, and sits only on its own model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.contracts.errors import BadInput
from holdfast.policies import verifier, weights
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.model import folder_of
from holdfast.policies.verifier import PACKAGED_HEAD, Verifier, balanced, features, fit, load, save, width
from holdfast.policies.weights import Manifest, save_transformer

MOST = 200_000  # bytes that ship


def talk(question: str, answer: str, **fields: Any) -> Any:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer, **fields}], ()


@pytest.fixture(scope="module")
def net() -> Transformer:
    return Transformer(ModelShape(width=16, layers=1, heads=2, context=64), seed=1)


def test_each_conversation_is_read_alone_whatever_stands_beside_it(net: Transformer) -> None:
    some = [talk("a", "4"), talk("longer question", "a longer answer than that"), talk("b", "")]
    together, kept = features(net, some)
    assert kept == [0, 1, 2] and together.shape == (3, width(net))
    for place, one in enumerate(some):
        alone, _ = features(net, [one])
        assert torch.allclose(together[place], alone[0], atol=1e-5)


def test_what_was_said_before_the_answer_is_read_apart(net: Transformer) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "calc", "arguments": "{}"}}
    asked = {"role": "assistant", "content": "", "tool_calls": [call]}
    long = [
        {"role": "user", "content": "a"},
        asked,
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "4"},
    ]
    found, _ = features(net, [(long, ()), talk("a", "4")])
    third = slice(2 * net.shape.width, 3 * net.shape.width)
    assert found[0, third].abs().sum() > 0 and found[1, third].abs().sum() == 0


def test_what_is_too_long_to_read_has_no_probability(net: Transformer) -> None:
    head = verifier.VerifierHead(width(net), 4, seed=0)
    found = Verifier(net, head, version="1")([talk("a", "b"), talk("a", "b" * 100), talk("a", "c")])
    assert found[1] is None
    assert all(p is not None and 0 < p < 1 for p in (found[0], found[2]))


def test_a_conversation_must_end_with_an_answer(net: Transformer) -> None:
    with pytest.raises(BadInput, match="does not end with an answer"):
        features(net, [([{"role": "user", "content": "a"}], ())])


def test_it_learns_what_tells_them_apart() -> None:
    rng = torch.Generator().manual_seed(1)
    read = torch.randn(400, 12, generator=rng) * 5 + 3
    outcomes = [bool(one) for one in read[:, 4] > 3]
    head = fit(read[:300], outcomes[:300], groups=["a"] * 300, seed=0, rate=2e-2)
    with torch.inference_mode():
        said = head(read[300:]) > 0
    assert (said == torch.tensor(outcomes[300:])).float().mean() > 0.9
    again = fit(read[:300], outcomes[:300], groups=["a"] * 300, seed=0, rate=2e-2)
    assert all(torch.equal(a, b) for a, b in zip(head.parameters(), again.parameters(), strict=True))


def test_within_an_author_right_and_wrong_weigh_alike() -> None:
    """Three right and one wrong of a, one of each of b: each of the four pairs weighs 6 / 4."""
    found = balanced([True, True, True, False, True, False], ["a", "a", "a", "a", "b", "b"])
    assert found.tolist() == pytest.approx([0.5, 0.5, 0.5, 1.5, 1.5, 1.5])
    assert found.mean() == pytest.approx(1.0)


def test_nothing_can_be_learnt_from_one_kind_of_answer() -> None:
    with pytest.raises(BadInput, match="some must be right and some wrong"):
        fit(torch.zeros(3, 4), [True] * 3, groups=["a"] * 3, seed=0)


def test_a_head_is_only_put_on_the_model_it_was_made_for(tmp_path: Path) -> None:
    tiny = Transformer(ModelShape(width=8, layers=1, heads=2, context=32), seed=4)
    made = save_transformer(tmp_path / "net", tiny, Manifest(kind="transformer", shape={}, created_at=0.0))
    head, about = verifier.VerifierHead(width(tiny), 4, seed=0), Manifest(kind="verifier", shape={}, created_at=0.0)
    save(tmp_path / "head", head, replace(about, parent=made.sha256))
    found = load(tmp_path / "head", model=str(tmp_path / "net"))
    (p,) = found([talk("a", "b")])
    read, _ = features(tiny, [talk("a", "b")])
    assert p == pytest.approx(float(torch.sigmoid(head(read))[0].detach()), abs=1e-3)  # saved in half precision
    with pytest.raises(BadInput, match="was made for a model"):
        load(tmp_path / "head")
    with pytest.raises(BadInput, match="holds weights of kind transformer"):
        load(tmp_path / "net")
    save(tmp_path / "head", verifier.VerifierHead(5, 4, seed=0), replace(about, parent=made.sha256))
    with pytest.raises(BadInput, match="5 features"):
        load(tmp_path / "head", model=str(tmp_path / "net"))


def test_the_one_that_ships_is_small_and_says_what_it_was_made_from() -> None:
    manifest = weights.read(PACKAGED_HEAD)
    assert sum(path.stat().st_size for path in PACKAGED_HEAD.iterdir()) <= MOST
    assert manifest.parent == weights.read(folder_of("sprout")).sha256
    assert manifest.notes["labels"] == "program"
    assert "test" not in manifest.notes["recipe"]["splits"]
    assert load().version == manifest.sha256[:12]
