"""One trainer over several processes (`torchrun`): weights, masters, moments and gradients are sharded among them.

Rank 0 is the program: it collects, keeps and decides. The others only train: they wait for rank 0's calls of its
trainer and make the same calls (`join`). Each reads some pieces of a batch, FSDP2 adds up the gradients, and every
number that decides anything is a sum over all processes, so all of them decide alike. Rank 0 keeps the whole model
besides, and all others see only that one: its files are those of a single process, and one may go on with the other's.
"""

from __future__ import annotations

import atexit
import io
import os
import pickle
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from holdfast.contracts.errors import BadInput, Fault, HoldfastError
from holdfast.learn.batch import Padded, Sample, Samples, SamplingRule, pack
from holdfast.learn.objective import Piece, logprobs_at
from holdfast.learn.train import MODEL, PARTS, Settings, Trainer, TrainerState, Update, saved_state
from holdfast.policies.chat_template import ByteTemplate
from holdfast.policies.hub import Hub
from holdfast.policies.lora import current_name
from holdfast.policies.weights import Manifest

BY_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
PATIENCE = timedelta(days=30)  # that others wait for the next call: rank 0 may collect, or be paused, for long
BLANK = np.zeros(0, dtype=np.int64)
END = "end"


def join() -> None:
    """Where torchrun started this process, meets the others. Rank 0 goes on; the others train with it, then exit."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or int(os.environ["WORLD_SIZE"]) < 2 or dist.is_initialized():
        return
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if has_gpu else "gloo", timeout=PATIENCE)
    for name in BY_TORCHRUN:  # what rank 0 starts is none of the ranks
        os.environ.pop(name, None)
    if dist.get_rank():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 hears it too, and ends in order
        serve()
        dist.destroy_process_group()
        sys.exit(0)
    atexit.register(leave)


def leave() -> None:
    """Ends the others, and the meeting."""
    if dist.is_initialized():
        if not ShardedTrainer.is_broken:
            _broadcast((END, 0, (), ()))
        dist.destroy_process_group()


def serve() -> None:
    """Makes the calls that rank 0 makes, until it ends."""
    trainers: dict[int, ShardedTrainer] = {}
    while True:
        try:
            name, number, living, given = _broadcast(None)
        except RuntimeError:  # rank 0 is gone, and has said why
            return
        if name == END:
            return
        trainers = {one: trainers[one] for one in living if one in trainers}
        try:
            if name == "make":
                trainers[number] = ShardedTrainer(None, *given)
            else:
                getattr(trainers[number], name)(*given)
        except (HoldfastError, _Stopped):  # as on rank 0, who says what it means
            continue


def trainer_of(model: nn.Module, settings: Settings, *, seed: int, reference: nn.Module | None = None) -> Trainer:
    """A trainer over all processes that met, or over this one alone."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return ShardedTrainer(model, settings, seed, reference)
    return Trainer(model, settings, seed=seed, reference=reference)


def refuse(what: str) -> None:
    """BadInput for what one process has to learn by itself."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise BadInput(what, why="learns in one process only", remedy="start it without torchrun")


class _Stopped(Exception):
    """Rank 0 was stopped or cancelled in the middle of a call."""


class _Root(nn.Module):
    """What is sharded as a whole: all that one piece asks of the model happens in its forward pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, part: Piece, rules: Sequence[SamplingRule], is_spread: bool) -> tuple[Tensor, Tensor, Tensor]:
        whole: Any = self.model
        logp, entropy, states = logprobs_at(whole, part, rules, is_spread=is_spread)
        return logp.clone(), entropy.clone(), states.detach()  # no critic reads them, and views lose FSDP's hooks


class ShardedTrainer(Trainer):
    """A trainer that is the same in every process, each with its shard. What rank 0 calls, the others call too."""

    living: ClassVar[WeakValueDictionary[int, ShardedTrainer]] = WeakValueDictionary()  # on rank 0
    made: ClassVar[int] = 0
    is_broken: ClassVar[bool] = False  # rank 0 left a call while others were in it

    def __init__(
        self, model: nn.Module | None, settings: Settings, seed: int, reference: nn.Module | bool | None = None
    ) -> None:
        """On rank 0 with its models; elsewhere there is none, and `reference` says whether one will come."""
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._is_inside = False
        if model is not None:
            ShardedTrainer.made += 1
            self._number = ShardedTrainer.made
            _broadcast(("make", self._number, tuple(self.living), (settings, seed, reference is not None)))
            self.living[self._number] = self
        self._whole = model
        kind = _broadcast(None if model is None else next(model.parameters()).device.type)
        device = torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
        own, self._root = _sharded(model, device)
        self._second: _Root | None = None
        beside: nn.Module | None = None
        if reference:
            beside, self._second = _sharded(reference if isinstance(reference, nn.Module) else None, device)
        if isinstance(model, Hub) and not model.is_adapted:
            model.to("cpu")  # resting weights of adapters are the sampler's, too, and stay where they are
        super().__init__(own, settings, seed=seed, reference=beside, device=device)
        self._adam.joined = self._joined
        self._limit = int(self._reduced(torch.tensor([self._limit]), dist.ReduceOp.MIN))

    # The same call everywhere ----------------------------------------------------------------------------------------

    @contextmanager
    def _everywhere(self, name: str, *given: Any) -> Iterator[None]:
        if self._is_inside or self.rank:
            yield
            return
        if ShardedTrainer.is_broken:
            why = "the processes are out of step after an error"
            raise Fault("training", why=why, remedy="start the command again: it goes on from the last step")
        _broadcast((name, self._number, tuple(self.living), given))
        self._is_inside = True
        try:
            yield
        except HoldfastError:
            raise
        except BaseException as error:
            ShardedTrainer.is_broken = error is not self._stopped
            raise
        finally:
            self._is_inside = False

    _stopped: BaseException | None = None

    def _pause(self) -> None:
        """Waits where rank 0 waits, stops where it is stopped."""
        self._stopped = None
        if not self.rank:
            try:
                self.pause_point()
            except BaseException as error:
                self._stopped = error
        is_stopped = torch.tensor([int(self._stopped is not None)])
        dist.broadcast(is_stopped, 0)
        if self._stopped is not None:
            raise self._stopped
        if is_stopped:
            raise _Stopped

    def step(self, samples: Samples | Sequence[Sample]) -> Update:
        batch = samples if isinstance(samples, Samples) else pack(samples)
        with self._everywhere("step", batch):
            update = super().step(batch)
            self._copy_out()
        return update

    def logprobs(self, batch: Samples, model: nn.Module | None = None) -> NDArray[np.float32]:
        with self._everywhere("logprobs", batch):
            return super().logprobs(batch, model)

    def save(self, folder: Path, *, created_at: float) -> Manifest:
        with self._everywhere("gathered"):
            state = self.gathered()
        return self._save(folder, state, created_at)

    def load(self, folder: Path) -> None:
        state = saved_state(folder)
        state = replace(state, tensors={current_name(name): tensor for name, tensor in state.tensors.items()})
        with self._everywhere("spread", state.notes):
            self.spread(state.notes, state.tensors)

    # Pieces ----------------------------------------------------------------------------------------------------------

    def _padded(self, batch: Samples, model: nn.Module) -> Iterator[Padded]:
        """Every size-th piece. All have as many, one token that nobody learns from at the end: they gather weights
        together, and who has nothing to read must be there too."""
        every = list(super()._padded(batch, model))
        for start in range(0, len(every), self.size):
            place = start + self.rank
            yield every[place] if place < len(every) else _blank()

    def _forward(
        self, model: nn.Module, part: Piece, rules: Sequence[SamplingRule], is_spread: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        root = self._root if model is self.model else self._second
        assert root is not None
        found: tuple[Tensor, Tensor, Tensor] = root(part, rules, is_spread)
        return found

    def _tried(self, batch: Samples, marks: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
        """Out of memory in one process leaves the others where they cannot be called back: the program ends."""
        loss, sums = self._gradients(batch, marks)
        total = self._reduced(torch.cat((loss[None], sums)))
        return total[0], total[1:]

    def _read(
        self, batch: Samples, model: nn.Module, states_at: list[tuple[NDArray[np.int64], Tensor]] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        found, said = super()._read(batch, model)
        (self._root if model is self.model else self._second).reshard()  # type: ignore[union-attr, operator]
        is_read = ~np.isnan(found)
        both = self._reduced(torch.from_numpy(np.stack((np.where(is_read, found, 0.0), is_read)).astype(np.float32)))
        return np.where(both[1].numpy() > 0, both[0].numpy(), np.nan).astype(np.float32), said

    def _joined(self, length: Tensor) -> Tensor:
        return self._reduced(length.double().square()).sqrt().to(length.dtype)

    def _reduced(self, tensor: Tensor, how: Any = dist.ReduceOp.SUM) -> Tensor:
        total = tensor.clone()
        dist.all_reduce(total, how)
        return total

    # Whole tensors ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def gathered(self) -> TrainerState:
        """The state with whole tensors; on other ranks than 0 without any."""
        mine, whole = self._adam.all(), dict[str, Tensor]()
        for name, tensor in mine.items():
            full = self._full(name, tensor).cpu()
            if not self.rank:
                whole[name] = full
        return self._state(whole)

    @torch.no_grad()
    def spread(self, notes: Any, tensors: Any = None) -> None:
        """Goes on from whole tensors that rank 0 has."""
        mine = self._adam.all()
        absent = None if tensors is None else next((name for name in mine if name not in tensors), None)
        if _broadcast(absent) is not None:
            raise BadInput(f"state: {absent}", why="is missing", remedy="it is the state of another model")
        found: dict[str, Tensor] = {}
        for name in mine:
            full = torch.empty(self._parameter(name).shape) if tensors is None else tensors[name].contiguous()
            dist.broadcast(full, 0)
            start = self._start(name)
            found[name] = full[start : start + len(mine[name])].clone()
        self.restore(TrainerState(tensors=found, notes=notes))
        self._copy_out()

    @torch.no_grad()
    def _copy_out(self) -> None:
        """The trained weights, whole, into rank 0's own model."""
        plain = {} if self._whole is None else {f"{MODEL}{n}": p for n, p in self._whole.named_parameters()}
        for name, p in self._adam.parameters.items():
            whole: Tensor = p.full_tensor()  # type: ignore[attr-defined]
            if name in plain:
                plain[name].copy_(whole)

    def _parameter(self, name: str) -> Any:
        for part in PARTS:
            name = name.removeprefix(f"{part}.")
        return self._adam.parameters[name]

    def _start(self, name: str) -> int:
        """The first row of this process: rows are shared out in even parts, the last ones shorter or empty."""
        rows = len(self._parameter(name))
        return min(self.rank * -(-rows // self.size), rows)

    def _full(self, name: str, mine: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        like = self._parameter(name)
        made = DTensor.from_local(
            mine, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )
        return made.full_tensor()


def _blank() -> Padded:
    return Padded(
        ids=np.zeros((1, 1), dtype=np.int64), places=BLANK, targets=BLANK, flat=BLANK, value_places=BLANK,
        value_flat=BLANK,
    )  # fmt: skip


def _broadcast(message: Any) -> Any:
    """What rank 0 gives."""
    box = [message]
    dist.broadcast_object_list(box, 0, device=torch.device("cpu"))
    return box[0]


def _sharded(model: nn.Module | None, device: torch.device) -> tuple[nn.Module, _Root]:
    """A copy of rank 0's model in every process, then cut: each layer by itself, and what is left at the root."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    own = _replica(model)
    root = _Root(own)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    stacks = [module for module in own.modules() if isinstance(module, nn.ModuleList)]
    for layer in max(stacks, key=len, default=()) if isinstance(own, Hub) else ():
        _summed(fully_shard(layer, mesh=mesh))
    _summed(fully_shard(root, mesh=mesh))
    return own, root


def _summed(sharded: Any) -> None:
    """Gradients are added: the shares of tokens are those of the whole batch already."""
    sharded.set_gradient_divide_factor(1.0)
    sharded.set_force_sum_reduction_for_comms(True)


def _replica(model: nn.Module | None) -> nn.Module:
    """Rank 0's model, on the host. Its form is sent first, then one tensor after the other."""
    net = model.net if isinstance(model, Hub) else model
    form, tensors = (None, []) if net is None else _form(net)
    is_hub, form = _broadcast((isinstance(model, Hub), form))
    made = _Unpickler(io.BytesIO(form))
    own: nn.Module = made.load()
    for number, tensor in sorted(made.tensors.items()):
        if tensors:
            tensor.data.copy_(tensors[number].detach())
        dist.broadcast(tensor.detach().reshape(-1).view(torch.uint8), 0)
    return Hub(own, ByteTemplate()) if is_hub else own


def _form(net: nn.Module) -> tuple[bytes, list[Tensor]]:
    into = io.BytesIO()
    pickler = _Pickler(into)
    pickler.dump(net)
    return into.getvalue(), list(pickler.tensors.values())


class _Pickler(pickle.Pickler):
    """Writes an object without the numbers of its tensors; what is one tensor in two places stays one."""

    def __init__(self, into: io.BytesIO) -> None:
        super().__init__(into)
        self.tensors: dict[int, Tensor] = {}

    def persistent_id(self, one: Any) -> Any:
        if not isinstance(one, Tensor):
            return None
        known = self.tensors.setdefault(id(one), one)
        number = list(self.tensors).index(id(known))
        return number, tuple(one.shape), one.dtype, isinstance(one, nn.Parameter), one.requires_grad


class _Unpickler(pickle.Unpickler):
    def __init__(self, source: io.BytesIO) -> None:
        super().__init__(source)
        self.tensors: dict[int, Tensor] = {}

    def persistent_load(self, told: Any) -> Tensor:
        number, shape, dtype, is_parameter, is_trained = told
        if number not in self.tensors:
            made = torch.empty(shape, dtype=dtype)
            self.tensors[number] = nn.Parameter(made, requires_grad=is_trained) if is_parameter else made
        return self.tensors[number]
