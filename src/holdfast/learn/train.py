"""The one trainer: samples in, moved parameters and an account of the step out.

It knows tokens and their streams, not where they come from: `examples`, `grpo` and `turns` fill the streams. A batch is
shuffled into minibatches, each cut into pieces of like length under a limit of tokens whose gradients add up to that of
the whole. Updates that are not finite, or far beyond the usual, are taken back. Everything that decides the next update
is in `state`, so a resumed run is the same run, bit for bit.
"""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from math import isfinite, isinf
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from holdfast.contracts.errors import BadInput, Fault
from holdfast.contracts.experience import Experience
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.trace import ModelCall, Span, SpanKind
from holdfast.learn.batch import (
    Padded,
    Sample,
    SampleFilter,
    Samples,
    SamplingRule,
    cut,
    fill,
    pack,
    pad,
    reach,
    read,
    trained_mask,
)
from holdfast.learn.critic import Critic, cross_fitted
from holdfast.learn.objective import (
    FAR,
    TERMS,
    Objective,
    Piece,
    TokenSums,
    TrainableModel,
    logprobs_at,
    loss_of,
    piece,
    shares,
    values_at,
)
from holdfast.learn.shared import WORTH_IT, PrefixGroups, cut_families, is_readable, pad_families
from holdfast.policies.causal_lm import CausalLM
from holdfast.policies.hub import Hub
from holdfast.policies.lora import current_name
from holdfast.policies.memory import plan_training
from holdfast.policies.weights import Manifest, load, save

PARTS = ("mean", "square")
MODEL, CRITIC = "model.", "critic."  # how the names of their parameters begin


def own(tensor: Tensor) -> Tensor:
    """The part of a tensor that lies in this process: all of it, where nothing is sharded."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


class AdamW:
    """m ← β₁m + (1 − β₁)g,  v ← β₂v + (1 − β₂)g²,  θ ← (1 − lr·decay)·θ − lr·m̂ / (√v̂ + ε);  Loshchilov & Hutter 2019,
    arXiv:1711.05101. Only matrices decay.

    Parameters of 16 bits have a master of 32 bits that moves in their place, and are its rounding: at a learning rate
    of 1e-6 nearly every update is smaller than the last of their 8 bits. Moments have 32 bits."""

    EPS = 1e-8
    AT_ONCE = 1 << 26  # numbers whose gradients are 32 bits wide at a time

    def __init__(self, parameters: Mapping[str, nn.Parameter], *, betas: tuple[float, float], decay: float) -> None:
        if not parameters:
            raise BadInput("the model", why="has no parameter that can be trained")
        self.parameters, self._betas, self._decay = dict(parameters), betas, decay
        self.master = {n: p if p.dtype == torch.float32 else own(p.detach()).float() for n, p in parameters.items()}
        self.mean = {name: torch.zeros_like(own(p.detach())) for name, p in self.master.items()}
        self.square = {name: torch.zeros_like(own(p.detach())) for name, p in self.master.items()}
        self.steps = 0
        self.joined: Callable[[Tensor], Tensor] = lambda length: length  # of a vector with parts in other processes
        self.before_move: Callable[[], None] = lambda: None

    def clear(self) -> None:
        for p in self.parameters.values():
            p.grad = None

    @torch.no_grad()
    def clip(self, longest: float) -> Tensor:
        """The length of all gradients as one vector; what is longer than allowed is scaled down. Waits for nothing."""
        gradients = [own(p.grad) for p in self.parameters.values() if p.grad is not None]
        if not gradients:
            return torch.zeros(())
        is_narrow = any(gradient.dtype != torch.float32 for gradient in gradients)
        norms = torch._foreach_norm(gradients, 2, torch.float32) if is_narrow else torch._foreach_norm(gradients)
        length = self.joined(torch.linalg.vector_norm(torch.stack(norms)))
        torch._foreach_mul_(gradients, (longest / (length + 1e-6)).clamp(max=1.0))
        return length

    @torch.no_grad()
    def descend(self, lr: float) -> None:
        self.before_move()
        self.steps += 1
        for is_matrix in (True, False):
            moving = [n for n, p in self.parameters.items() if p.grad is not None and (p.ndim >= 2) == is_matrix]
            names = [n for n in moving if self.mean[n].numel()]
            decay = self._decay if is_matrix else 0.0
            wide = [name for name in names if self.master[name] is self.parameters[name]]
            if wide:
                self._pass(wide, lr, decay)
            for some in self._narrow([name for name in names if self.master[name] is not self.parameters[name]]):
                self._pass(some, lr, decay)
                torch._foreach_copy_([own(self.parameters[n]) for n in some], [self.master[n] for n in some])

    def _narrow(self, names: list[str]) -> Iterator[list[str]]:
        """A few at a time: what is computed in 32 bits takes memory of its own."""
        some: list[str] = []
        count = 0
        for name in names:
            if some and count + self.parameters[name].numel() > self.AT_ONCE:
                yield some
                some, count = [], 0
            some.append(name)
            count += self.parameters[name].numel()
        if some:
            yield some

    def _pass(self, names: list[str], lr: float, decay: float) -> None:
        steps = torch.full((), float(self.steps), device=self.master[names[0]].device)
        torch._fused_adamw_(
            [own(self.master[name]) for name in names],
            [own(gradient).float() for name in names if (gradient := self.parameters[name].grad) is not None],
            [self.mean[name] for name in names],
            [self.square[name] for name in names],
            [],
            [steps] * len(names),
            lr=lr,
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=decay,
            eps=self.EPS,
            amsgrad=False,
            maximize=False,
        )

    @torch.no_grad()
    def length(self) -> Tensor:
        """Of all parameters as one vector."""
        norms = torch._foreach_norm([own(p) for p in self.master.values()])
        return self.joined(torch.linalg.vector_norm(torch.stack(norms)))

    @torch.no_grad()
    def moved(self, before: Mapping[str, Tensor]) -> float:
        """How far those parameters that are in `before` are from where they were."""
        parts = [
            (own(p) - before[name].to(p.device)).double().square().sum()
            for name, p in self.master.items()
            if name in before
        ]
        return float(self.joined(torch.stack(parts).sum().sqrt()))

    @torch.no_grad()
    def last_move(self, lr: float, names: Iterable[str]) -> float:
        """The same after one update without decay, lr · |m̂ / (√v̂ + ε)|: what a GPU finds without the copy."""
        first, second = (1.0 - beta**self.steps for beta in self._betas)
        parts = [
            (self.mean[name] / first / ((self.square[name] / second).sqrt_() + self.EPS)).square_().sum()
            for name in names
            if self.parameters[name].grad is not None
        ]
        return lr * float(self.joined(torch.stack(parts).double().sum().sqrt()))

    def all(self) -> dict[str, Tensor]:
        """Parameters, of which masters stand for those of 16 bits, and moments, by name."""
        found: dict[str, Tensor] = {name: own(p.detach()) for name, p in self.master.items()}
        for part in PARTS:
            found |= {f"{part}.{name}": tensor for name, tensor in getattr(self, part).items()}
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Copies of parameters and moments, by name; on the host, where they take nothing from the GPU."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.all().items()}

    @torch.no_grad()
    def put(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Be as it was when `tensors` was called after so many steps."""
        targets, tensors = self.all(), {current_name(name): tensor for name, tensor in tensors.items()}
        for name, target in targets.items():
            if name not in tensors:
                raise BadInput(f"state: {name}", why="is missing", remedy="it is the state of another model")
            if tensors[name].shape != target.shape:
                why = f"has shape {tuple(tensors[name].shape)}, not {tuple(target.shape)}"
                raise BadInput(f"state: {name}", why=why, remedy="it is the state of another model")
        for name, target in targets.items():
            target.copy_(tensors[name])
        for name, p in self.parameters.items():
            if self.master[name] is not p:
                own(p).copy_(self.master[name])
        self.steps = steps


class HostCopy:
    """A copy of a GPU's parameters and moments in the host's memory, made while the step is being computed.

    The memory is kept from step to step, and pinned: the GPU writes into it on its own. It is registered, because
    torch's own pinned memory comes in powers of two."""

    def __init__(self, adam: AdamW, device: torch.device) -> None:
        self._adam, self._stream = adam, torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        size = sum(tensor.nbytes for tensor in adam.all().values())
        if size > (free := _free_host_bytes()):
            what, why = "training", f"{size / 1e9:.0f} GB of the host's memory hold what a step may be taken back to"
            raise BadInput(what, why=f"{why}, and {free / 1e9:.0f} GB are free", remedy="train adapters (lora=16)")
        self._kept = {name: torch.empty_like(tensor, device="cpu") for name, tensor in adam.all().items()}
        self._cuda = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        for tensor in self._kept.values():
            torch.cuda.check_error(self._cuda.cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))
        adam.before_move = lambda: torch.cuda.current_stream(device).wait_stream(self._stream)

    def __del__(self) -> None:
        for one in getattr(self, "_kept", {}).values():
            self._cuda.cudaHostUnregister(one.data_ptr())

    def take(self) -> dict[str, Tensor]:
        """Begins the copy; parameters do not move before it is complete."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for name, tensor in self._adam.all().items():
                self._kept[name].copy_(tensor, non_blocking=True)
        return self._kept

    def wait(self) -> None:
        self._stream.synchronize()


def _free_host_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return 1 << 62  # another system: it is tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one step did. Loss terms are means over the minibatches that were looked at; None: not finite."""

    step: int  # 1, 2, …
    loss: float | None
    terms: Mapping[str, float | None]
    samples: int
    tokens: int  # decided ones
    updates: int  # of the parameters
    epochs: int  # begun
    approx_kl: float | None  # mean ½(new − old)² over tokens with known log-probs: the largest that was measured
    entropy: float | None  # nats a token
    clip_fraction: float
    trainer_gap: float | None = None  # nats: mean |log p of trainer − of sampler| before the first update
    outside: float  # share of tokens that the model would no longer sample under the sampling in force
    grad_norm: float | None  # before clipping, mean over updates
    delta_norm: float  # of the change of the parameters
    lr: float
    stopped_early: str | None  # "target_kl" or "max_kl"
    restored: str | None  # why everything was taken back
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class StepMetrics:
    """Numbers of one step, as they come in."""

    def __init__(self) -> None:
        self.stopped: str | None = None
        self.restored: str | None = None
        self.trainer_gap: float | None = None
        self.updates = self.epochs = self._seen = self._tokens = self._told = 0
        self._loss = self._norm = self._clipped = self._entropy = self._outside = 0.0
        self._terms = np.zeros(len(TERMS))
        self.last_kl = self._worst = 0.0
        self._epoch = (0.0, 0)

    def open_epoch(self) -> None:
        self.epochs += 1
        self._epoch = (0.0, 0)

    @property
    def epoch_kl(self) -> float:
        total, tokens = self._epoch
        return total / max(tokens, 1)

    def add(self, numbers: Sequence[float], tokens: int, told: int) -> None:
        loss, norm, *rest = numbers
        self._terms += rest[: len(self._terms)]
        moved, clipped, entropy, outside, gap = rest[len(self._terms) :]
        if not self._seen and told:  # nothing has moved yet
            self.trainer_gap = gap / told
        self._seen += 1
        self._tokens += tokens
        self._told += told
        self._loss += loss
        self._norm += norm
        self._clipped += clipped
        self._entropy += entropy
        self._outside += outside
        self.last_kl = moved / max(told, 1)
        self._epoch = (self._epoch[0] + moved, self._epoch[1] + told)
        self.measured(self.epoch_kl)

    def measured(self, kl: float) -> None:
        """The policy was found so far away; one that is nowhere at all (nan) is the farthest."""
        if not kl <= self._worst:
            self._worst = kl

    def close(self, *, step: int, samples: int, tokens: int, delta_norm: float, lr: float, seconds: float) -> Update:
        seen, read = max(self._seen, 1), max(self._tokens, 1)
        return Update(
            step=step,
            loss=_finite(self._loss / seen),
            terms=dict(zip(TERMS, map(_finite, (self._terms / seen).tolist()), strict=True)),
            samples=samples,
            tokens=tokens,
            updates=self.updates if self.restored is None else 0,
            epochs=self.epochs,
            approx_kl=_finite(self._worst),
            entropy=_finite(self._entropy / read),
            clip_fraction=self._clipped / max(self._told, 1),
            trainer_gap=None if self.trainer_gap is None else _finite(self.trainer_gap),
            outside=self._outside / read,
            grad_norm=_finite(self._norm / seen),
            delta_norm=delta_norm,
            lr=lr,
            stopped_early=self.stopped,
            restored=self.restored,
            seconds=seconds,
        )


def _finite(number: float) -> float | None:
    """JSON has no word for what is not finite; what happened is then in `restored`."""
    return number if isfinite(number) else None


RECENT = 32  # gradient norms that say what is usual
ENOUGH = 8  # of them, before anything can be unusual
APART = 0.5  # nats a token on average: rounding makes a hundredth of it
FARTHEST = 10.0  # lengths of all parameters as one vector that a step may move them by
READ = {"cpu": 2048, "cuda": 65536}  # tokens at once: on a CPU as many as its caches like

Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """How fast: AdamW, its learning rate over the updates, and the longest gradient."""

    learning_rate: float = 3e-4
    schedule: Schedule = "constant"
    warm_up: int = 0  # updates
    total: int = 0  # updates until the floor is reached; for linear and cosine
    floor: float = 0.1  # share of the learning rate that is left at the end
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0  # of matrices
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0.0):
            raise BadInput(f"optimizer.learning_rate = {self.learning_rate}", why="must be finite and above 0")
        if not self.max_grad_norm > 0.0:
            raise BadInput(f"optimizer.max_grad_norm = {self.max_grad_norm}", why="must be above 0")
        if self.schedule != "constant" and self.total <= self.warm_up:
            raise BadInput(
                f"optimizer.total = {self.total}",
                why=f"a {self.schedule} schedule must end after its warm-up of {self.warm_up}",
                remedy="give the number of updates, or take constant",
            )

    def at(self, update: int) -> float:
        """The learning rate of update 0, 1, …"""
        if update < self.warm_up:
            return self.learning_rate * (update + 1) / self.warm_up
        if self.schedule == "constant":
            return self.learning_rate
        done = min(1.0, (update - self.warm_up) / (self.total - self.warm_up))
        left = 1.0 - done if self.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.learning_rate * (self.floor + (1.0 - self.floor) * left)


SMALL, LARGE = (1e6, 3e-4), (7e9, 1e-6)  # parameters, and the learning rate that suits so many
ADAPTERS = 10.0  # times that of all weights: Schulman et al. 2025, "LoRA without regret"


def default_learning_rate(model: nn.Module) -> float:
    """3e-4 up to a million parameters, falling as a power of their number to 1e-6 from seven billion on.

    The ends are what was measured on the embedded model and what is usual for policies of 7 B. Where only adapters are
    trained it is ten times as much."""
    counts = [(p.numel(), p.requires_grad) for p in model.parameters()]
    whole, trained = sum(n for n, _ in counts), sum(n for n, is_trained in counts if is_trained)
    (few, fast), (many, slow) = SMALL, LARGE
    done = math.log(min(max(whole, few), many) / few) / math.log(many / few)
    return fast * math.pow(slow / fast, done) * (ADAPTERS if trained < whole / 2 else 1.0)


def check_dials(
    block: str,
    dials: Any,
    *,
    above: Sequence[str] = (),
    least: Mapping[str, float] | None = None,
    most: float = math.inf,
) -> None:
    """BadInput for the first number that is not finite or out of its range; None stands for no number."""
    for name, low in (*dict.fromkeys(above).items(), *(least or {}).items()):
        number = getattr(dials, name)
        is_number = isinstance(number, int | float) and not isinstance(number, bool) and isfinite(number)
        if number is None or (is_number and (number > 0 if low is None else number >= low) and number <= most):
            continue
        span = "above 0" if low is None else f"of at least {low:g}" if isinf(most) else f"from {low:g} to {most:g}"
        raise BadInput(f"{block}.{name} = {number!r}", why=f"must be a number {span}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How samples become updates."""

    objective: Objective = field(default_factory=Objective)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    epochs: int = 1
    minibatch: int = 0  # samples for one update; 0: all
    max_tokens_per_batch: int = 0  # rows × width that are read at once; 0: what suits the device
    target_kl: float | None = None  # passed at the end of an epoch: no further epoch
    max_kl: float | None = None  # passed by a minibatch: it is not applied, and nothing after it
    is_measured: bool = False  # the batch is read once more at the end; a step that ends beyond max_kl is taken back
    explosion: float = 100.0  # a gradient so many times the usual is taken back; 0: never

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("minibatch", 0), ("max_tokens_per_batch", 0)):
            if getattr(self, name) < least:
                raise BadInput(f"train.{name} = {getattr(self, name)}", why=f"must be at least {least}")
        if self.target_kl is not None and self.max_kl is not None and self.max_kl < self.target_kl:
            raise BadInput(f"train.max_kl = {self.max_kl}", why=f"must be at least target_kl = {self.target_kl}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """All that decides the next update: tensors, and numbers that JSON can hold."""

    tensors: Mapping[str, Tensor]
    notes: Mapping[str, Any]


class Trainer:
    """Moves a model's parameters. The model stays the caller's: it is changed in place."""

    size: int = 1  # processes that share the work

    def __init__(
        self,
        model: nn.Module,
        settings: Settings,
        *,
        seed: int,
        reference: nn.Module | None = None,
        critic: nn.Module | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        """`device`: None is where the model is."""
        if settings.objective.reference_kl and reference is None:
            raise BadInput("objective.reference_kl", why="there is no reference", remedy="give one, or set it to 0")
        self.device = next(model.parameters()).device if device is None else torch.device(device)
        self.settings, self.model, self.critic = settings, model.to(self.device), critic
        self._apart = critic if isinstance(critic, Critic) else None  # one that is fitted by itself
        self.reference = None if reference is None else reference.to(self.device).eval().requires_grad_(False)
        parts = [(MODEL, self.model)]
        if critic is not None and self._apart is None:
            parts.append((CRITIC, critic.to(self.device)))
        parameters = {
            f"{part}{name}": p for part, module in parts for name, p in module.named_parameters() if p.requires_grad
        }
        self._limit = settings.max_tokens_per_batch or READ.get(self.device.type, READ["cuda"])
        if isinstance(model, Hub) and isinstance(model.net, CausalLM) and self.device.type == "cuda":
            trained = sum(p.numel() for p in parameters.values())
            most = settings.max_tokens_per_batch
            plan = plan_training(model.net, trained, self.device, most=most, shards=self.size)
            model.net.is_checkpointed, self._limit = plan.is_checkpointed, plan.tokens
        self._adam = AdamW(parameters, betas=settings.optimizer.betas, decay=settings.optimizer.weight_decay)
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._norms: deque[float] = deque(maxlen=RECENT)
        self.steps = 0
        self.beside: dict[str, Any] = {}  # what decides the next batch, of those who fill its streams; JSON can hold it
        self.pause_point: Callable[[], None] = lambda: None  # called before each piece is read; may wait or stop
        self._host: HostCopy | None = None  # of what a step began with
        is_wide = next(self.model.parameters()).dtype == torch.float32
        self._is_cast = self.device.type == "cuda" and is_wide and not isinstance(model, Hub)

    @property
    def updates(self) -> int:
        """How often the parameters moved."""
        return self._adam.steps

    # One step ----------------------------------------------------------------------------------------------------

    def step(self, samples: Samples | Sequence[Sample]) -> Update:
        """Learn from these samples, once or for several epochs."""
        began = time.perf_counter()
        batch = samples if isinstance(samples, Samples) else pack(samples)
        good, length = self._before()
        try:
            with self._seeded(), self._in_order():
                batch = self._prepared(batch)
                account = self._epochs(batch)
                if account.restored is None:
                    account.restored = self._look_back(batch, account)
        except BaseException:  # stopped on the way: all of a step, or nothing
            self.restore(good)
            raise
        if self._host is not None:
            self._host.wait()
        own = {name: tensor for name, tensor in good.tensors.items() if name.startswith(MODEL)}  # not the critic's
        delta = self._moved(own, account) if account.restored is None else 0.0
        account.restored = account.restored or self._strayed(delta, length)
        if account.restored is not None:
            self.restore(good, with_rng=False)
            delta = 0.0
        self.steps += 1
        lr = self.settings.optimizer.at(max(self.updates - 1, 0))
        return account.close(
            step=self.steps,
            samples=len(batch),
            tokens=batch.tokens,
            delta_norm=delta,
            lr=lr,
            seconds=time.perf_counter() - began,
        )

    def _moved(self, before: Mapping[str, Tensor], account: StepMetrics) -> float:
        """How far the model's parameters moved in this step."""
        names = [name for name in self._adam.parameters if name.startswith(MODEL)]
        if self.device.type == "cuda" and account.updates == 1 and not self.settings.optimizer.weight_decay:
            return self._adam.last_move(self.settings.optimizer.at(self.updates - 1), names)
        return self._adam.moved(before)

    def _before(self) -> tuple[TrainerState, Tensor]:
        """What the step begins with, to go back to, and the length of all parameters as one vector."""
        if self.device.type != "cuda":
            good = self.state()
            lengths = [good.tensors[name].double().norm() for name in self._adam.parameters]
            return good, self._adam.joined(torch.stack(lengths).norm())
        self._host = self._host or HostCopy(self._adam, self.device)
        return self._state(self._host.take()), self._adam.length()

    def _epochs(self, batch: Samples) -> StepMetrics:
        account = StepMetrics()
        usable = np.flatnonzero(reach(batch) > 0)
        size = self.settings.minibatch or len(usable)
        for _ in range(self.settings.epochs):
            account.open_epoch()
            order = self._rng.permutation(usable) if size < len(usable) else usable
            for start in range(0, len(order), size):
                self._update(batch.pick(order[start : start + size]) if size < len(batch) else batch, account)
                if account.stopped or account.restored:
                    return account
            if self.settings.target_kl is not None and account.epoch_kl > self.settings.target_kl:
                account.stopped = "target_kl"
                return account
        return account

    def _prepared(self, batch: Samples) -> Samples:
        """With what must be read before the first update: the model's own log-probs, and the reference's.

        Its own stand in for those that the sampler did not tell: what is measured from there is how far it moved."""
        if not (reach(batch) > 0).any():
            raise BadInput(f"{len(batch)} samples", why="none has a decided token", remedy="see learn.grpo.audit")
        objective, settings = self.settings.objective, self.settings
        is_moving = settings.epochs > 1 or 0 < settings.minibatch < len(batch) or settings.is_measured
        told = np.full(len(batch.ids), np.nan, np.float32) if batch.logprobs is None else batch.logprobs
        is_untold = bool(np.isnan(told[trained_mask(batch)]).any())
        if batch.advantages is not None and is_moving and (objective.importance_cap is not None or is_untold):
            mine = self.logprobs(batch)
            own = np.where(np.isfinite(mine), mine, np.nan)
            batch = replace(batch, logprobs=np.where(np.isnan(told), own, told))
            if objective.importance_cap is not None:
                batch = replace(batch, trainer=mine)
        if objective.reference_kl and self.reference is not None:
            batch = replace(batch, reference=self.logprobs(batch, self.reference))
        return batch

    def _gradients(self, batch: Samples, marks: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
        """Loss and sums of a minibatch, its gradients left in the parameters."""
        self._adam.clear()
        # The sampler had no dropout: with it, a policy that has not moved would differ from itself.
        self.model.train(batch.advantages is None)
        sums, loss = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        for tally in self._pieces(batch, shares(batch, marks, self.settings.objective)):
            if tally.loss.requires_grad:  # not where every weight is off
                tally.loss.backward()  # type: ignore[no-untyped-call]
            sums, loss = sums + tally.sums, loss + tally.loss.detach()
        return loss, sums

    def _tried(self, batch: Samples, marks: NDArray[np.bool_]) -> tuple[Tensor, Tensor] | None:
        """The same; None where memory ran out, when nothing holds on to the pieces any more."""
        try:
            return self._gradients(batch, marks)
        except torch.OutOfMemoryError:
            return None

    def _halved(self, batch: Samples) -> None:
        """Reads half as much at once from now on; Fault where a piece cannot be smaller."""
        self._adam.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if self._limit <= int(reach(batch).max()):
            why = f"one sequence of {int(reach(batch).max())} tokens does not fit into the memory of {self.device}"
            raise Fault("training", why=why, remedy="train adapters (lora=16), use shorter answers or a smaller model")
        self._limit //= 2
        warnings.warn(f"out of memory: from now on {self._limit} tokens are read at once", stacklevel=2)

    def _update(self, batch: Samples, account: StepMetrics) -> None:
        """One minibatch: gradients of its pieces, then, unless something forbids it, one move of the parameters."""
        marks = trained_mask(batch)
        while (found := self._tried(batch, marks)) is None:
            self._halved(batch)
        loss, sums = found
        told = 0 if batch.logprobs is None else int((marks & ~np.isnan(batch.logprobs)).sum())
        norm = self._adam.clip(self.settings.optimizer.max_grad_norm).to(loss)
        numbers = torch.cat((torch.stack((loss, norm)), sums)).tolist()  # the one wait for the device
        account.add(numbers, int(marks.sum()), told)
        self._check_gap(account)
        account.restored = self._alarm(numbers[0], numbers[1])
        if account.restored:
            return
        if self.settings.max_kl is not None and account.last_kl > self.settings.max_kl:
            account.stopped = "max_kl"
            return
        self._adam.descend(self.settings.optimizer.at(self.updates))
        account.updates += 1

    def _pieces(self, batch: Samples, share: NDArray[np.float32]) -> Iterator[TokenSums]:
        objective = self.settings.objective
        targets = 0 if batch.returns is None else int((~np.isnan(batch.returns)).sum())
        for padded in self._padded(batch, self.model):
            self._pause()
            part = piece(batch, padded, share, self.device)
            with self._cast():
                logp, entropy, states = self._forward(self.model, part, batch.rules, objective.entropy > 0.0)
                critic = self.critic if self._apart is None else None
                predicted = None if critic is None else values_at(critic, states, part.value_places)
            yield loss_of(part, logp, entropy, predicted, objective, targets)

    def _pause(self) -> None:
        self.pause_point()

    def _forward(
        self, model: nn.Module, part: Piece, rules: Sequence[SamplingRule], is_spread: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        return logprobs_at(_model(model), part, rules, is_spread=is_spread)

    def _padded(self, batch: Samples, model: nn.Module) -> Iterator[Padded]:
        """What is read at once, one after the other."""
        lengths = reach(batch)
        # On CUDA the sums over a family would come in any order, and a resumed run would not be the same.
        if is_readable(model, self.device):
            family = PrefixGroups(batch, lengths)
            if family.left < WORTH_IT:
                for rows in cut_families(family, self._limit):
                    yield pad_families(batch, family, rows)
                return
        is_packed = isinstance(model, Hub) and model.can_pack
        for rows in (fill if is_packed else cut)(lengths, self._limit):
            yield pad(batch, rows, lengths, is_packed=is_packed)

    def _check_gap(self, account: StepMetrics) -> None:
        """A Fault where what another program sampled cannot be from these weights."""
        gap = account.trainer_gap
        if self.settings.objective.importance_cap is not None and gap is not None and gap > APART:
            why = f"sampler and trainer differ by {gap:.2g} nats a token: they are not the same weights"
            raise Fault(
                "training", why=why, remedy="have the server serve the folder that learns, in the same precision"
            )

    def _alarm(self, loss: float, norm: float) -> str | None:
        """Why this gradient must not be applied."""
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return f"loss {loss} or gradient norm {norm} is not finite"
        usual = median(self._norms) if len(self._norms) >= ENOUGH else 0.0
        self._norms.append(norm)
        most = max(self.settings.explosion * usual, self.settings.optimizer.max_grad_norm)  # what is not even clipped
        if self.settings.explosion and usual and norm > most:
            return f"gradient norm {norm:.3g} is over {self.settings.explosion:g} times the usual {usual:.3g}"
        return None

    def _look_back(self, batch: Samples, account: StepMetrics) -> str | None:
        """Reads the batch once more: how far did the policy move, and what were its states worth? Gives the reason why
        the policy must not stay where the updates left it.

        The critic learns from the states as the model has them now: the next batch will be judged by such ones."""
        is_measured = self.settings.is_measured and account.updates > 0
        critic = self._apart if batch.returns is not None and self.settings.objective.value else None
        if not is_measured and critic is None:
            return None
        states: list[tuple[NDArray[np.int64], Tensor]] = []
        now, _ = self._read(batch, self.model, states)
        why = self._measure(batch, now, account) if is_measured else None
        if critic is not None and batch.returns is not None and states and why is None:
            critic.fit(
                torch.cat([tensor for _, tensor in states]), batch.returns[np.concatenate([at for at, _ in states])]
            )
        return why

    def _measure(self, batch: Samples, now: NDArray[np.float32], account: StepMetrics) -> str | None:
        """Why the policy is too far from where it was; inside the epochs only the update before was seen."""
        old = batch.logprobs if batch.trainer is None else batch.trainer
        known = trained_mask(batch) & ~np.isneginf(now) & (False if old is None else ~np.isnan(old))
        if old is None or not known.any():
            return None
        kl = float(np.square(np.clip(now[known] - old[known], -FAR, FAR)).mean(dtype=np.float64)) / 2.0
        account.measured(kl)
        if not math.isfinite(kl):
            return "the log-probs after the update were not finite"
        if self.settings.max_kl is not None and kl > self.settings.max_kl:
            return f"the policy moved to a KL of {kl:.3g}, beyond max_kl = {self.settings.max_kl:g}"
        return None

    def _strayed(self, delta: float, before: Tensor) -> str | None:
        """Why the parameters must not stay where they are; `before` is how long they were as one vector."""
        if not math.isfinite(delta):
            return "the parameters were not finite"
        length = float(before)
        if length and delta > FARTHEST * length:
            return f"the parameters moved by {delta:.3g}, over {FARTHEST:g} times their length of {length:.3g}"
        return None

    # Reading without learning ------------------------------------------------------------------------------------

    def logprobs(self, batch: Samples, model: nn.Module | None = None) -> NDArray[np.float32]:
        """Log-probs of the decided tokens under the sampling in force, nan elsewhere."""
        return self._read(batch, model or self.model)[0]

    def values(self, batch: Samples) -> NDArray[np.float32]:
        """What the critic says wherever `returns` is not nan, nan elsewhere."""
        return self._read(batch, self.model)[1]

    @property
    def is_first(self) -> bool:
        """Whether its critic has learnt nothing yet, and is to learn."""
        return self._apart is not None and not self._apart.scale.seen and self.settings.objective.value > 0.0

    def first_values(
        self, batch: Samples, returns: NDArray[np.float32] | None, attempts: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """What critics that saw only the other attempts say wherever `batch.returns` is not nan: a first batch is then
        judged by more than 0, and none by a critic that has seen how it ended. `attempts` has a number for each sample.
        """
        assert self._apart is not None and returns is not None
        states: list[tuple[NDArray[np.int64], Tensor]] = []
        self._read(batch, self.model, states)
        places = np.concatenate([at for at, _ in states])
        owner = attempts[np.searchsorted(batch.bounds, places, side="right") - 1]
        said = np.full(len(batch.ids), np.nan, dtype=np.float32)
        said[places] = cross_fitted(self._apart, torch.cat([tensor for _, tensor in states]), returns[places], owner)
        return said

    @torch.no_grad()
    def _read(
        self, batch: Samples, model: nn.Module, states_at: list[tuple[NDArray[np.int64], Tensor]] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Log-probs and values; the states that the critic reads are added to the list, after their places."""
        model.eval()
        found, said = (np.full(len(batch.ids), np.nan, dtype=np.float32) for _ in range(2))
        blank = np.zeros(len(batch.ids), dtype=np.float32)
        for padded in self._padded(batch, model):
            self._pause()
            part = piece(batch, padded, blank, self.device)
            with self._cast():
                logp, _, states = self._forward(model, part, batch.rules, False)
                if self.critic is not None and len(padded.value_flat):
                    said[padded.value_flat] = values_at(self.critic, states, part.value_places).cpu().numpy()
                    if states_at is not None:
                        states_at.append((padded.value_flat, states.index_select(0, part.value_places).float()))
            found[padded.flat] = logp.cpu().numpy()
        return found, said

    # What decides the next update --------------------------------------------------------------------------------

    def state(self) -> TrainerState:
        """A copy: what happens afterwards does not change it."""
        return self._state(self._adam.tensors())

    def _state(self, tensors: dict[str, Tensor]) -> TrainerState:
        notes = {
            "steps": self.steps,
            "updates": self.updates,
            "norms": list(self._norms),
            "chance": self._rng.bit_generator.state,
            "beside": dict(self.beside),
        }
        if self._apart is not None:
            kept, notes["critic"] = self._apart.state()
            tensors = tensors | {f"{CRITIC}{name}": tensor for name, tensor in kept.items()}
        return TrainerState(tensors=tensors, notes=notes)

    def restore(self, state: TrainerState, *, with_rng: bool = True) -> None:
        """Be as it was. Without its chance, the next shuffle is another one, and so is what is usual."""
        self._adam.put(state.tensors, int(state.notes["updates"]))
        if self._apart is not None:
            kept = {name.removeprefix(CRITIC): x for name, x in state.tensors.items() if name.startswith(CRITIC)}
            self._apart.restore(kept, state.notes["critic"])
        if with_rng:
            self.steps = int(state.notes["steps"])
            self._norms = deque(state.notes["norms"], maxlen=RECENT)
            self._rng.bit_generator.state = state.notes["chance"]
            self.beside = dict(state.notes.get("beside", {}))

    def save(self, folder: Path, *, created_at: float) -> Manifest:
        """Puts the state on disk, all of it or none."""
        return self._save(folder, self.state(), created_at)

    def _save(self, folder: Path, state: TrainerState, created_at: float) -> Manifest:
        manifest = Manifest(
            kind="trainer",
            shape={name: list(tensor.shape) for name, tensor in state.tensors.items()},
            step=self.steps,
            created_at=created_at,
            notes={"trainer": dict(state.notes), "caller": {}},
        )
        return save(folder, state.tensors, manifest)

    def load(self, folder: Path) -> None:
        """Goes on where the saved one was, bit for bit."""
        self.restore(saved_state(folder))

    def digest(self) -> str:
        """sha256 over the names and bytes of all parameters that are trained."""
        found = hashlib.sha256()
        for name, p in sorted(self._adam.parameters.items()):
            found.update(name.encode() + p.detach().float().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()

    @contextmanager
    def _seeded(self) -> Iterator[None]:
        """Torch's own chance (dropout) comes from ours, step by step: one stream to save, and none disturbed."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(int(self._rng.integers(2**63)))
            yield

    @contextmanager
    def _in_order(self) -> Iterator[None]:
        """On CUDA, sums in the same order every time, or a resumed run would drift away from the other. The gradients
        of flash attention, in 16 bits, have no order of their own: there it drifts by their rounding."""
        if self.device.type != "cuda":
            yield
            return
        before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        memory: Any = torch.utils.deterministic
        filled = memory.fill_uninitialized_memory
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*[dD]eterministic.*")  # cuBLAS: one stream has one order
                torch.use_deterministic_algorithms(True, warn_only=True)
                memory.fill_uninitialized_memory = False
                yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            memory.fill_uninitialized_memory = filled

    def _cast(self) -> AbstractContextManager[Any]:
        """On a GPU our own transformer is multiplied in 16 bits, as its sampler does; others as their weights are."""
        return torch.autocast("cuda", dtype=torch.bfloat16) if self._is_cast else nullcontext()


def saved_state(folder: Path) -> TrainerState:
    """What a trainer saved to a folder."""
    tensors, manifest = load(folder)
    if "trainer" not in manifest.notes:
        raise BadInput(str(folder), why="holds no trainer's state", remedy="name a folder that a trainer saved to")
    return TrainerState(tensors=tensors, notes=manifest.notes["trainer"])


def _model(module: nn.Module) -> TrainableModel:
    """A module behind the two doors of a language model."""
    return module  # type: ignore[return-value]


def recompute_logprobs(
    model: nn.Module, calls: Sequence[ModelCall], *, device: str | None = None
) -> list[tuple[float, ...]]:
    """One log-prob for each id of each completion, by the same path as in training; nan where nothing is learnt."""
    trainer = Trainer(model, Settings(), seed=0, device=device)
    intake = SampleFilter(is_scored=False, is_exact=False)  # whether they are those of the sampling is what is asked
    samples = [sample for call in calls for sample in read(_alone(call), intake).samples]
    if len(samples) != len(calls):  # a call without ids, or one that decided nothing
        return [(float("nan"),) * len(call.completion_ids or ()) for call in calls]
    batch = pack(samples)
    parts = np.split(trainer.logprobs(batch), batch.bounds[1:-1])
    return [tuple(part[len(call.prompt_ids or ()) :].tolist()) for part, call in zip(parts, calls, strict=True)]


def _alone(call: ModelCall) -> Experience:
    span = Span(seq=1, kind=SpanKind.MODEL, name="llm", started_at=0.0, model=call)
    return Experience(
        rollout="alone",
        run="alone",
        task="alone",
        split=Split.TRAIN,
        is_final=True,
        state=RolloutState.SUCCEEDED,
        spans=(span,),
        breakdown=None,
    )
