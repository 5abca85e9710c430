"""Our decoder against transformers, with random weights of every family that it stands for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from holdfast.contracts.errors import BadInput
from holdfast.policies import causal_lm, hub, lora, tokens
from holdfast.policies.causal_lm import CausalLM
from holdfast.policies.decoder import DecodeRequest
from holdfast.policies.kv_cache import BLOCK
from holdfast.policies.paged import PagedGenerator
from holdfast.policies.sampling import Sampling

SHAPE: dict[str, Any] = {
    "vocab_size": tokens.VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": tokens.END,
}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 32}
SLIDING = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}
FAMILIES = {
    "llama": ("Llama", {}),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama 3.1": ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama, linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "llama, dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
    "mistral, window": ("Mistral", {"sliding_window": 24}),
    "mistral, no window": ("Mistral", {"sliding_window": None, "head_dim": 16}),
    "qwen2, tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2, sliding": ("Qwen2", SLIDING),
    "qwen2.5, yarn": ("Qwen2", {"rope_parameters": YARN}),
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3, sliding": ("Qwen3", {"head_dim": 8, "attention_bias": True, **SLIDING}),
}


def write(folder: Path, family: str, shape: dict[str, Any], **saving: Any) -> Any:
    """A model of transformers with random weights, none of them at its beginning; biases and norms, too, are drawn."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SHAPE, **shape})
    net = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, one in net.named_parameters():
            one.normal_(1.0 if "norm" in name else 0.0, 0.3 if one.dim() == 1 else 1.5 * one.shape[1] ** -0.5)
    net.save_pretrained(folder, **saving)
    return net


@pytest.mark.parametrize("which", list(FAMILIES))
@torch.no_grad()
def test_each_family_gives_the_scores_and_the_greedy_tokens_of_transformers(tmp_path: Path, which: str) -> None:
    theirs = write(tmp_path / "m", *FAMILIES[which])
    ours = hub.load(tmp_path / "m")
    assert isinstance(ours.net, CausalLM)
    assert {n: p.shape for n, p in ours.net.named_parameters()} == {n: p.shape for n, p in theirs.named_parameters()}
    ids = torch.randint(tokens.VOCABULARY, (2, 100), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ours(ids), theirs(input_ids=ids).logits, rtol=0, atol=1e-4)
    theirs.generation_config.eos_token_id = None
    asked = {"attention_mask": torch.ones(2, 40), "do_sample": False, "max_new_tokens": 60, "pad_token_id": 0}
    chosen = theirs.generate(ids[:, :40], **asked)[:, 40:]
    object.__setattr__(ours.template, "ends", frozenset[int]())
    writer = PagedGenerator(ours, slots=2)
    how = Sampling(max_tokens=60, temperature=0)
    writer.admit([DecodeRequest(row, ids[row, :40].tolist(), how, row) for row in range(2)])
    done = dict(answer for _ in range(60) for answer in writer.step())
    assert [list(done[row].ids) for row in range(2)] == chosen.tolist()
    again = ours(torch.cat((ids[:, :40], chosen), 1)).log_softmax(-1)[:, 39:-1].gather(-1, chosen[..., None])[..., 0]
    torch.testing.assert_close(torch.tensor([done[row].logprobs for row in range(2)]), again, rtol=0, atol=1e-4)


def test_a_model_in_several_files_is_read_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = write(tmp_path / "m", "Qwen3", {"head_dim": 8}, max_shard_size="20KB")
    assert len(list((tmp_path / "m").glob("*.safetensors"))) > 2
    ours = hub.load(tmp_path / "m")
    monkeypatch.setattr(causal_lm, "SHARD", 20_000)
    hub.save(ours, tmp_path / "out")
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 2
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(again[name], one) for name, one in theirs.state_dict().items())


def test_a_folder_whose_tensors_do_not_fit_its_config_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "m", "Qwen2", {})
    config = tmp_path / "m" / "config.json"
    raw = json.loads(config.read_text())
    for change, says in (
        ({"intermediate_size": 40}, r"mlp.*has shape \(.*48.*\), where its config makes it \(.*40.*\)"),
        ({"num_hidden_layers": 2, "layer_types": None}, "has a tensor model.layers.2.* that its family has not"),
        ({"num_hidden_layers": 4, "layer_types": None}, "lacks the tensor model.layers.3.* and 11 more"),
    ):
        config.write_text(json.dumps(raw | change))
        with pytest.raises(BadInput, match=says):
            hub.load(tmp_path / "m")


def test_other_families_and_forms_are_left_to_transformers(tmp_path: Path) -> None:
    write(tmp_path / "m", "Llama", {"hidden_act": "gelu"})
    assert not isinstance(hub.load(tmp_path / "m").net, CausalLM)
    for raw in ({"model_type": "gpt2"}, {**SHAPE, "model_type": "qwen2", "quantization_config": {}}):
        assert causal_lm.CausalConfig.of(raw) is None


def test_recomputing_layers_in_the_backward_pass_gives_the_same_gradients(tmp_path: Path) -> None:
    write(tmp_path / "m", "Qwen3", {"head_dim": 8})
    ids = torch.arange(40)[None]
    found = []
    for is_checkpointed in (False, True):
        net = hub.load(tmp_path / "m").net
        net.is_checkpointed = is_checkpointed
        net(ids).log_softmax(-1)[0, :-1].gather(-1, ids[0, 1:, None]).sum().backward()
        found.append([one.grad for one in net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_rows_come_and_go_and_share_what_begins_alike(tmp_path: Path) -> None:
    """Answers are those of each request alone, though they begin at different times and lean on others' blocks."""
    write(tmp_path / "m", "Qwen2", {})
    model = hub.load(tmp_path / "m")
    begin = list(range(3 * BLOCK + 5))
    prompts = [begin, begin, [*begin[: 2 * BLOCK], 7, 8], [9] * 20, [*begin, 1, 2, 3]]
    hows = [Sampling(max_tokens=n) for n in (5, 9, 3, 12, 6)]
    requests = [DecodeRequest(n, p, how, n) for n, (p, how) in enumerate(zip(prompts, hows, strict=True))]
    alone = {}
    for request in requests:
        writer = PagedGenerator(model, slots=1)
        writer.admit([request])
        while not (done := writer.step()):
            pass
        alone[request.ticket] = done[0][1].ids
    writer, found, waiting = PagedGenerator(model, slots=3), {}, requests
    seen = []
    while len(found) < len(requests):
        waiting = writer.admit(waiting)
        seen.append(3 - writer.room)
        found |= {ticket: made.ids for ticket, made in writer.step()}
    assert found == alone
    assert max(seen) == 3 and writer.blocks.room == writer.blocks.capacity
    writer.admit([DecodeRequest(9, begin, Sampling(max_tokens=5), 0)])
    begun = next(row for row in writer._rows if row is not None)
    assert begun.known == 3 * BLOCK  # all full blocks but what holds the last token
    writer.drop([9])
    assert writer.step() == [] and writer.room == 3


def test_adapters_are_written_as_peft_reads_them(tmp_path: Path) -> None:
    from peft import PeftModel

    theirs = write(tmp_path / "m", "Qwen2", {})
    ours = hub.adapt(hub.load(tmp_path / "m"), 4, seed=0)
    with torch.no_grad():
        for layer in lora.layers_of(ours.net).values():
            layer.lora_B.normal_(0, 0.1, generator=torch.Generator().manual_seed(2))
    (tmp_path / "a").mkdir()
    lora.save(lora.tensors_of(ours.net), tmp_path / "a", base=str(tmp_path / "m"))
    ids = torch.arange(30)[None]
    with torch.no_grad():
        adapted = PeftModel.from_pretrained(theirs, tmp_path / "a")(input_ids=ids).logits
        torch.testing.assert_close(ours(ids), adapted, rtol=0, atol=1e-4)
        assert float((hub.load(tmp_path / "m")(ids) - adapted).abs().max()) > 0.1
