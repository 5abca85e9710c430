"""A real vLLM on the CPU: its answers to what the stand-in of the tests is asked, and its log-probs against ours.

    python tests/peers/vllm_real.py http://127.0.0.1:8000/v1                 compare
    python tests/peers/vllm_real.py http://127.0.0.1:8000/v1 --record FILE   and keep its answers for the tests

`make vllm` starts one with the packaged model and runs this.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from holdfast.collect.vllm import VllmEngine
from holdfast.contracts.engine import check_engine
from holdfast.learn.train import recompute_logprobs
from holdfast.policies.model import load
from holdfast.store.artifacts import FolderArtifacts
from tests.vllm_server import EXCHANGE, RANK, filled, folders, versions

CLOSE = 1e-3  # nats


def ask(url: str, method: str, body: Any) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            status, text = response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text


def wait(url: str, seconds: float = 600.0) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if ask(f"{url}/models", "GET", None)[0] == 200:
                return
        except OSError:
            time.sleep(2.0)
    raise SystemExit(f"{url} does not answer")


def record(url: str, file: Path, folder: Path) -> None:
    names = {"BASE": ask(f"{url}/models", "GET", None)[1]["data"][0]["id"], **folders(folder)}
    kept = []
    for method, path, body in EXCHANGE:
        status, answer = ask(url.removesuffix("/v1") + path, method, filled(body, names))
        text = json.dumps(answer)
        for name, value in names.items():
            text = text.replace(json.dumps(value)[1:-1], name)
        kept.append({"status": status, "answer": json.loads(text)})
    file.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"recorded {len(kept)} answers in {file}")


def compare(url: str, folder: Path, prompts: int, rank: int) -> float:
    """The largest distance between vLLM's log-probs and the trainer's, over answers of two versions."""
    files = FolderArtifacts(folder)
    engine, worst = VllmEngine([url], files=files), 0.0
    try:
        for policy in versions(folder, 2, rank=rank):
            complete = engine.open_model(policy)

            async def asked(complete: Any = complete) -> list[Any]:
                texts = [f"What is {3 * n + 1} + {n * n % 17}?" for n in range(prompts)]
                messages = [[{"role": "user", "content": text}] for text in texts]
                return await asyncio.gather(*(complete(m, max_tokens=24, seed=n) for n, m in enumerate(messages)))

            calls = asyncio.run(asked())
            own = recompute_logprobs(load(policy, files)[0], calls)
            gaps = [
                abs(a - b) for c, mine in zip(calls, own, strict=True) for a, b in zip(c.logprobs, mine, strict=True)
            ]
            worst = max(worst, *gaps)
            mean = sum(gaps) / len(gaps)
            print(
                f"{policy.version}: {len(gaps)} tokens of {prompts} prompts, mean {mean:.1e}, most {max(gaps):.1e} nats"
            )
    finally:
        engine.close()
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--prompts", type=int, default=100)
    given = parser.parse_args()
    wait(given.url)
    for rank, what in ((RANK, "adapters"), (0, "weights")):  # adapters first: they are for weights that rest
        with TemporaryDirectory() as kept:
            folder = Path(kept)
            if given.record is not None and not rank:
                record(given.url, given.record, folder)
            made = partial(VllmEngine, [given.url], files=FolderArtifacts(folder))
            check_engine(made, versions(folder, 3, rank=rank), max_tokens=12, temperature=0.0)
            print(f"three versions at once: each is answered by its own {what}")
            worst = compare(given.url, folder, given.prompts, rank)
        if not worst < CLOSE:
            raise SystemExit(f"log-probs differ by {worst:.2g} nats, {CLOSE:g} are allowed")


if __name__ == "__main__":
    main()
