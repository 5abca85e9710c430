"""Where a model's numbers lie and in which precision they are kept, from the names that a user gives."""

from __future__ import annotations

import torch

from holdfast.contracts.errors import BadInput

AUTO = "auto"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def placed(device: str = AUTO, dtype: str = AUTO) -> tuple[torch.device, torch.dtype]:
    """`auto` is the first GPU where there is one, else the CPU; bfloat16 there, float32 here.

    A trainer of bfloat16 weights keeps them in 32 bits besides, so that small updates are not rounded away."""
    check(device, dtype)
    if device == AUTO:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    found = torch.device(device)
    if found.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (found.index or 0) >= count:
            why = f"torch finds {count or 'no'} CUDA device{'s' if count > 1 else ''} here"
            raise BadInput(f"device {device}", why=why, remedy="use --device auto or cpu")
    elif dtype == "bfloat16":
        raise BadInput("dtype bfloat16", why="is for GPUs: many CPUs have no such products", remedy="use float32")
    kept = DTYPES[dtype] if dtype != AUTO else torch.bfloat16 if found.type == "cuda" else torch.float32
    return found, kept


def check(device: str, dtype: str) -> None:
    """BadInput for a name that can be right nowhere; whether the device is here is found out when it is needed."""
    kind, _, number = device.partition(":")
    if device not in (AUTO, "cpu", "cuda") and not (kind == "cuda" and number.isdecimal()):
        raise BadInput(f"device {device!r:.40}", why="is unknown", remedy="use auto, cpu, cuda or cuda:N")
    if dtype not in (AUTO, *DTYPES):
        raise BadInput(f"dtype {dtype!r:.40}", why="is unknown", remedy=f"use auto, {' or '.join(DTYPES)}")
