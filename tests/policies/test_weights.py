"""Weights come back as they were saved, or not at all; who is killed while saving leaves the old ones."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from holdfast.contracts.errors import BadInput
from holdfast.policies.weights import Manifest, fit, load, read, save, save_transformer, transformer
from tests.policies.small import SMALL, small

ABOUT = Manifest(
    kind="transformer", shape={}, parent="ab" * 32, step=7, code="c0de", data="da7a", seeds={"model": 3}, created_at=5.0
)


def test_a_model_comes_back_bit_by_bit_with_all_that_is_known_of_it(tmp_path: Path) -> None:
    model = small()
    saved = save_transformer(tmp_path / "w", model, ABOUT)
    again, manifest = transformer(tmp_path / "w")
    assert manifest == saved
    assert (manifest.parent, manifest.step, manifest.seeds) == ("ab" * 32, 7, {"model": 3})
    assert manifest.shape["context"] == SMALL.context
    assert all(torch.equal(weight, again.state_dict()[name]) for name, weight in model.state_dict().items())


def test_the_same_weights_have_the_same_hash(tmp_path: Path) -> None:
    hashes = [save_transformer(tmp_path / str(n), small(), replace(ABOUT, created_at=float(n))).sha256 for n in (1, 2)]
    assert hashes[0] == hashes[1] != save_transformer(tmp_path / "3", small(1), ABOUT).sha256


def test_half_precision_takes_half_the_space(tmp_path: Path) -> None:
    whole, half = (save_transformer(tmp_path / str(h), small(), ABOUT, half=h) for h in (False, True))
    sizes = [(tmp_path / str(h) / m.file).stat().st_size for h, m in ((False, whole), (True, half))]
    assert sizes[1] < 0.6 * sizes[0]
    again, _ = transformer(tmp_path / "True")
    assert again.embed.weight.dtype == torch.float32
    torch.testing.assert_close(again.embed.weight, small().embed.weight, rtol=1e-3, atol=1e-3)


def test_saving_again_replaces_and_leaves_nothing_behind(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.zeros(3)}, ABOUT)
    second = save(tmp_path, {"a": torch.ones(3)}, ABOUT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", second.file]
    assert load(tmp_path)[0]["a"].tolist() == [1, 1, 1]


def shaped(folder: Path, **fields: object) -> None:
    changed(folder, shape={**read(folder).shape, **fields})


def changed(folder: Path, **fields: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (
            lambda f: (f / "manifest.json").unlink(),
            "manifest.json: is missing; name a folder that was saved to the end",
        ),
        (lambda f: (f / "manifest.json").write_text("{"), "manifest.json: is not readable"),
        (lambda f: (f / "manifest.json").write_text("[]"), "manifest.json: is not readable: it is not an object"),
        (lambda f: (f / "manifest.json").write_text('{"schema_version": 1}'), "missing or unknown: code, created_at"),
        (lambda f: changed(f, schema_version=2), "weights of schema 2: this build reads 1; use the version that wrote"),
        (lambda f: changed(f, kind="poem"), "kind 'poem': is unknown"),
        (lambda f: changed(f, file="../w.safetensors"), "must name a file beside it"),
        (lambda f: changed(f, surprise=1), "missing or unknown: surprise"),
        (lambda f: changed(f, file=None), "file = None: must be text; restore it from a copy"),
        (lambda f: changed(f, file=5), "file = 5: must be text"),
        (lambda f: changed(f, file=".."), "file = '..': must name a file beside it"),
        (lambda f: changed(f, file="a\0b"), "must name a file beside it"),
        (lambda f: ((f / "d").mkdir(), changed(f, file="d")), "d: is not readable: Is a directory; restore it"),
        (lambda f: changed(f, sha256=None), "sha256 = None: must be text"),
        (lambda f: changed(f, sha256="ab"), "sha256 = 'ab': must be 64 hex digits"),
        (lambda f: changed(f, schema_version=True), "schema_version = True: must be a whole number"),
        (lambda f: changed(f, step=1.5), "step = 1.5: must be a whole number"),
        (lambda f: changed(f, created_at="now"), "created_at = 'now': must be a whole number or a number"),
        (lambda f: changed(f, parent=7), "parent = 7: must be text or null"),
        (lambda f: changed(f, notes=[]), r"notes = \[\]: must be an object"),
        (lambda f: changed(f, shape=None), "shape = None: must be an object"),
        (lambda f: (f / "manifest.json").write_text("[" * 100_000), "manifest.json: is nested too deeply; restore it"),
        (lambda f: (f / "manifest.json").write_bytes(b"\xff\xfe\xfa"), "manifest.json: is not readable"),
        (
            lambda f: ((f / "manifest.json").unlink(), (f / "manifest.json").mkdir()),
            "manifest.json: is not readable: Is a directory; restore it",
        ),
        (lambda f: shaped(f, width=24.0), "manifest.json: shape.width = 24.0: must be a whole number .*; restore it"),
        (lambda f: shaped(f, width=2**14), "the model has another shape for embed.weight"),
        (lambda f: shaped(f, layers=2**10), "the model needs, and they lack, blocks.2.norm1 and 6131 more"),
        (lambda f: shaped(f, context=True), "shape.context = True: must be a whole number"),
        (lambda f: changed(f, shape={"width": 24}), "shape: .* missing"),
        (lambda f: changed(f, kind="actor-critic"), "holds weights of kind actor-critic; name a transformer"),
        (lambda f: next(f.glob("*.safetensors")).unlink(), "safetensors: is missing; restore it"),
        (lambda f: os.truncate(next(f.glob("*.safetensors")), 1000), "is damaged: 1000 bytes hash to .*restore it"),
        (lambda f: next(f.glob("*.safetensors")).write_bytes(b"x"), "is damaged: 1 bytes"),
    ],
)
def test_what_cannot_be_trusted_is_refused_with_a_remedy(tmp_path: Path, harm: object, words: str) -> None:
    save_transformer(tmp_path, small(), ABOUT)
    harm(tmp_path)  # type: ignore[operator]
    with pytest.raises(BadInput, match=words):
        transformer(tmp_path)


def test_a_hash_that_is_right_of_a_file_that_is_not_tensors(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.zeros(3)}, ABOUT)
    (tmp_path / read(tmp_path).file).write_bytes(b"poem")
    changed(tmp_path, sha256=hashlib.sha256(b"poem").hexdigest())
    with pytest.raises(BadInput, match="is no safetensors file"):
        load(tmp_path)


def test_tensors_that_do_not_fit_leave_the_model_alone() -> None:
    model, good = small(), small(1).state_dict()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    for bad, words in (
        ({k: v for k, v in good.items() if k != "norm"}, "the model needs, and they lack, norm"),
        (good | {"extra": torch.zeros(1)}, "the model has no place for extra"),
        (good | {"norm": torch.zeros(7)}, "the model has another shape for norm"),
        (good | {"norm": good["norm"] * torch.nan}, "weights: numbers that are not finite in norm; restore them"),
        (good | {"norm": good["norm"].double() * 1e300}, "not finite in norm"),  # in 32 bits
    ):
        with pytest.raises(BadInput, match=words):
            fit(model, bad)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def killed_while_saving(folder: Path, step: int, moment: int) -> bool:
    """A child saves, and kills itself at the given one of the moments that touch the disk; False: it came through."""
    child = os.fork()
    if child == 0:
        moments = iter(range(100))

        def fatal(real: Callable[..., object]) -> Callable[..., object]:
            def call(*given: object) -> object:
                if next(moments) == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*given)

            return call

        os.fsync = fatal(os.fsync)  # type: ignore[assignment]
        os.replace = fatal(os.replace)  # type: ignore[assignment]
        os.unlink = fatal(os.unlink)  # type: ignore[assignment]
        Path.replace = fatal(Path.replace)  # type: ignore[assignment, method-assign]
        save(folder, {"a": torch.full((1000,), float(step))}, replace(ABOUT, step=step))
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_who_is_killed_while_saving_leaves_a_version_that_loads(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.full((1000,), 0.0)}, replace(ABOUT, step=0))
    before, steps, moment = 0, [], 0
    while killed_while_saving(tmp_path, step=moment + 1, moment=moment):
        tensors, manifest = load(tmp_path)
        assert manifest.step in (before, moment + 1)  # the old one, or the one being written
        assert tensors["a"].unique().tolist() == [manifest.step]
        before = manifest.step
        steps.append(before)
        moment += 1
    assert steps[0] == 0 and steps[-1] == moment >= 6  # killed at once and killed at the very end
    assert read(tmp_path).step == moment + 1
