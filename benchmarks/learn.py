"""How fast learning is, beside its peers: advantages, PPO, GRPO, sampling, and the same on a GPU where there is one.

Each part is a file in `parts/` with `measure` and `MEANINGS`, imported only when it is asked for, so that one part runs
where the libraries of another are absent. A figure that could not be had is null, and `reason` says why.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from parts.report import Figures, machine, progress, table

# What each part promises: there even when the part cannot be run. `trl` is the other half of `grpo`.
PARTS: Mapping[str, tuple[str, ...]] = {
    "gae": ("gae_ns_per_element", "gae_vs_numpy"),
    "ppo": ("ppo_cartpole_sps", "ppo_cartpole_return", "ppo_sps_vs_sb3", "ppo_time_vs_sb3"),
    "grpo": ("grpo_tokens_per_s", "grpo_step_s", "grpo_ceiling_share"),
    "trl": ("grpo_vs_trl",),
    "generate": ("generate_tokens_per_s", "generate_vs_transformers", "generate_share_of_ceiling"),
    "cuda": ("cuda_generate_vs_transformers", "cuda_train_vs_transformers"),
    "models": ("models_sampling_vs_static", "models_training", "models_update_gap"),
}
PEERS = {"ppo": "sb3", "trl": "trl"}  # a part, and the figure in which it says why its peer was not there
LIBRARIES = ("torch", "numpy", "numba", "transformers")
MEANINGS = {
    "generate_tokens_per_s": "sampling on one core, tokens per CPU-second by batch: ours, transformers, ceiling",
    "generate_vs_transformers": "ours over theirs, by batch",
    "generate_share_of_ceiling": "ours over what matrix rate and memory bandwidth allow, by batch",
    "load_1m_before": "load of the machine before, and after as load_1m",
    "reason": "why a figure is none",
}


def main() -> None:
    asked = arguments()
    started = time.monotonic()
    before = machine()["load_1m"]
    meanings = dict(MEANINGS)
    figures: Figures = {}
    reasons: dict[str, str] = {}
    for part in asked.only:
        figures |= run(part, asked.quick, reasons, meanings)
    figures |= {"reason": reasons, "load_1m_before": before} | machine() | {name: found(name) for name in LIBRARIES}
    figures |= {"quick": asked.quick, "took_s": round(time.monotonic() - started, 1)}
    print(json.dumps(figures, ensure_ascii=False, allow_nan=False) if asked.json else table(figures, meanings))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Speed of learning, against its peers.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--quick", action="store_true", help="same keys, rougher figures; about two minutes")
    parser.add_argument("--only", type=parts, default=[*PARTS], help=f"some of {','.join(PARTS)}")
    return parser.parse_args()


def parts(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{','.join(unknown)}: there are {', '.join(PARTS)}")
    return names


def run(part: str, quick: bool, reasons: dict[str, str], meanings: dict[str, str]) -> Figures:
    """The part's figures, and null for what it promises and cannot give."""
    progress(f"{part} …")
    figures: Figures = dict.fromkeys(PARTS[part])
    try:
        module = import_module(f"parts.{part}")
        meanings |= getattr(module, "MEANINGS", {})
        figures |= module.measure(quick)
        if part in PEERS and any(figures[name] is None for name in PARTS[part]):
            reasons[part] = figures[PEERS[part]]
    except (ImportError, OSError, RuntimeError) as error:  # a library or a device is not there, or too small
        reasons[part] = f"{type(error).__name__}: {error}"
        progress(f"without {part}: {reasons[part]}")
    reasons |= figures.pop("reason", {})
    return figures


def found(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
