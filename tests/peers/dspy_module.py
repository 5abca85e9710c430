"""A module of DSPy goes through collect, a race of instructions and their proof unchanged.

Run by an interpreter that has Holdfast and the package, from the repository's folder:
`PYTHONPATH=. python tests/peers/dspy_module.py`. The model is an endpoint that is right as often as its instructions
are good.
"""

from __future__ import annotations

import os
import re
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would ask the network for its price list

import dspy

import holdfast as hf
from tests.endpoint import completion, serving

GOOD, FAIR = "Answer with the number alone.", "Answer the question."


def reply(body: dict[str, Any]) -> dict[str, Any]:
    said = str(body["messages"])
    number = int(re.findall(r"what is twice (\d+)\?", said)[-1])
    right = number % 10 < (9 if GOOD in said else 4)
    text = str(2 * number) if right else "I do not know."
    return completion(f"[[ ## reasoning ## ]]\nTwice.\n\n[[ ## answer ## ]]\n{text}\n\n[[ ## completed ## ]]")


def exact(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> bool:
    return bool(example.answer == prediction.answer)


def main() -> None:
    print("dspy", version("dspy"))
    module = dspy.ChainOfThought(dspy.Signature("question -> answer", FAIR))
    examples = [
        dspy.Example(question=f"{chr(97 + n)}: what is twice {n}?", answer=str(2 * n)).with_inputs("question")
        for n in range(24)
    ]
    made = hf.adapters.dspy(module, metric=exact, examples=examples, held_out=0.5)
    with serving() as endpoint, tempfile.TemporaryDirectory() as folder:
        endpoint.reply = reply
        result = hf.improve(
            made.agent,
            made.tasks,
            scorers=made.scorers,
            policy=made.policy,
            name="program",
            algorithm=hf.Candidates([GOOD]),
            model="tiny",
            base_url=endpoint.url,
            seeds=1,
            store=Path(folder) / "store.sqlite",
        )
        assert result.candidate is not None and result.proof is not None, result
        print(result.candidate.manifest["texts"], result.proof.comparisons["success"].difference)
        print(result.run.rollouts()[-1]["answer"], result.decision)


if __name__ == "__main__":
    main()
