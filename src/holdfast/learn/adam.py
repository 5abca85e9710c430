"""AdamW over named parameters: one fused pass for each kind of them, on the CPU and on CUDA.

`torch.optim` calls the same kernel, but imports a compiler on its way, which takes seconds before anything has begun.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from holdfast.contracts.errors import BadInput

PARTS = ("mean", "square")


class AdamW:
    """m ← β₁m + (1 − β₁)g,  v ← β₂v + (1 − β₂)g²,  θ ← (1 − lr·decay)·θ − lr·m̂ / (√v̂ + ε);  Loshchilov & Hutter 2019,
    arXiv:1711.05101. Only matrices decay."""

    EPS = 1e-8

    def __init__(self, parameters: Mapping[str, nn.Parameter], *, betas: tuple[float, float], decay: float) -> None:
        if not parameters:
            raise BadInput("the model", why="has no parameter that can be trained")
        self.parameters, self._betas, self._decay = dict(parameters), betas, decay
        self.mean = {name: torch.zeros_like(p) for name, p in parameters.items()}
        self.square = {name: torch.zeros_like(p) for name, p in parameters.items()}
        self.steps = 0

    def clear(self) -> None:
        for p in self.parameters.values():
            p.grad = None

    @torch.no_grad()
    def clip(self, longest: float) -> Tensor:
        """The length of all gradients as one vector; what is longer than allowed is scaled down. Waits for nothing."""
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        if not gradients:
            return torch.zeros(())
        length: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, (longest / (length + 1e-6)).clamp(max=1.0))
        return length

    @torch.no_grad()
    def descend(self, lr: float) -> None:
        self.steps += 1
        for is_matrix in (True, False):
            names = [n for n, p in self.parameters.items() if p.grad is not None and (p.ndim >= 2) == is_matrix]
            if names:
                self._pass(names, lr, self._decay if is_matrix else 0.0)

    def _pass(self, names: list[str], lr: float, decay: float) -> None:
        of = self.parameters
        steps = torch.full((), float(self.steps), device=of[names[0]].device)
        torch._fused_adamw_(
            [of[name] for name in names],
            [gradient for name in names if (gradient := of[name].grad) is not None],
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
    def moved(self, before: Mapping[str, Tensor]) -> float:
        """How far the parameters are from where they were."""
        parts = [(p - before[name]).double().square().sum() for name, p in self.parameters.items()]
        return math.sqrt(float(torch.stack(parts).sum()))

    def tensors(self) -> dict[str, Tensor]:
        """Copies of parameters and moments, by name."""
        kept = {name: p.detach().clone() for name, p in self.parameters.items()}
        for part in PARTS:
            kept |= {f"{part}.{name}": tensor.clone() for name, tensor in getattr(self, part).items()}
        return kept

    @torch.no_grad()
    def put(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Be as it was when `tensors` was called after so many steps."""
        targets: dict[str, Tensor] = dict(self.parameters)
        for part in PARTS:
            targets |= {f"{part}.{name}": tensor for name, tensor in getattr(self, part).items()}
        for name, target in targets.items():
            if name not in tensors:
                raise BadInput(f"state: {name}", why="is missing", remedy="it is the state of another model")
            if tensors[name].shape != target.shape:
                why = f"has shape {tuple(tensors[name].shape)}, not {tuple(target.shape)}"
                raise BadInput(f"state: {name}", why=why, remedy="it is the state of another model")
        for name, target in targets.items():
            target.copy_(tensors[name])
        self.steps = steps
