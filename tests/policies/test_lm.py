"""The transformer: causal, the same token by token as at once, repeatable, and of the size it says."""

from __future__ import annotations

import pytest
import torch

from holdfast.contracts.errors import BadInput
from holdfast.policies.lm import SPROUT, ModelShape, Transformer, layout, rotate
from tests.policies.small import SMALL, small


def some_ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(0, 264, (rows, length), generator=torch.Generator().manual_seed(3))


def test_sprout_has_1_2_million_parameters() -> None:
    assert sum(weight.numel() for weight in Transformer(SPROUT, seed=0).parameters()) == 1_239_680


def test_a_place_sees_nothing_to_its_right() -> None:
    model, ids = small(), some_ids(2, 20)
    other = ids.clone()
    other[:, 12:] = 0
    assert torch.equal(model(ids)[:, :12], model(other)[:, :12])
    assert not torch.allclose(model(ids)[:, 12], model(other)[:, 12])


def test_padding_on_the_right_changes_nothing() -> None:
    model, ids = small(), some_ids(1, 20)
    torch.testing.assert_close(model(ids)[:, :9], model(ids[:, :9]))


@torch.no_grad()
def test_step_by_step_gives_what_reading_at_once_gives() -> None:
    model, ids = small(), some_ids(3, 24)
    cache = torch.zeros(SMALL.layers, 2, 4, SMALL.heads, SMALL.context, SMALL.head)
    starts = torch.tensor([5, 0, 9])  # rows of different length advance together
    whole = model.hidden(ids)
    for row, start in enumerate(starts.tolist()):
        for place in range(start):
            one = torch.zeros_like(cache[:, :, :1])
            one[:] = cache[:, :, row : row + 1]
            model.step(ids[row : row + 1, place], torch.tensor([place]), one, reach=32)
            cache[:, :, row : row + 1] = one
    for ahead in range(12):
        places = starts + ahead
        hidden = model.step(ids[torch.arange(3), places], places, cache, reach=32)
        torch.testing.assert_close(hidden, whole[torch.arange(3), places], atol=1e-4, rtol=1e-4)


def test_only_the_distance_between_places_matters() -> None:
    angle = torch.arange(50)[:, None] * torch.tensor([1.0, 0.1])
    q, k = torch.randn(2, 4, generator=torch.Generator().manual_seed(0)).expand(50, 2, 4).unbind(1)
    turned_q, turned_k = (rotate(x, angle.cos(), angle.sin()) for x in (q, k))
    products = turned_q @ turned_k.T
    torch.testing.assert_close(products[10, 3], products[47, 40])


def test_the_same_seed_gives_the_same_weights() -> None:
    one, two, other = small(1).state_dict(), small(1).state_dict(), small(2).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["embed.weight"], other["embed.weight"])


def test_it_learns_a_sentence_by_heart() -> None:
    model, ids = Transformer(SMALL, seed=0), some_ids(1, 16)
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(model(ids)[0, :-1], ids[0, 1:])
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert 4.5 < losses[0] < 6.5 and losses[-1] < 0.1  # the first is about log 264


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(BadInput, match="161 tokens: the context is 160"):
        small()(some_ids(1, 161))
    with pytest.raises(BadInput, match=r"shape.width = 30: .* even multiple of heads"):
        ModelShape(width=30, layers=1, heads=4, context=8)
    with pytest.raises(BadInput, match=r"shape.layers = 0"):
        ModelShape(width=32, layers=0, heads=4, context=8)


@pytest.mark.parametrize(
    "wrong",
    [{"width": 32.0}, {"width": 2**20}, {"width": 2 * 10**30}, {"layers": 10**7}, {"heads": None}, {"heads": "2"},
     {"context": 10**6}, {"context": True}, {"vocabulary": 10**9}],
)  # fmt: skip
def test_a_shape_is_of_whole_numbers_that_can_be_built(wrong: dict[str, int]) -> None:
    with pytest.raises(BadInput, match=rf"shape.{next(iter(wrong))} = .*: must be a whole number from 1 to \d+"):
        ModelShape(**{"width": 32, "layers": 1, "heads": 2, "context": 8} | wrong)


@pytest.mark.parametrize("shape", [SMALL, SPROUT])
def test_the_layout_is_known_before_the_model_is_built(shape: ModelShape) -> None:
    found = {name: tuple(weight.shape) for name, weight in Transformer(shape, seed=0).state_dict().items()}
    assert layout(shape) == found
