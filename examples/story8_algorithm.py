"""An algorithm of your own: a class that says what each of several attempts at a task teaches, and no more."""

import sys

from endpoint import WORDS

import holdfast as hf

QUICK = "--quick" in sys.argv  # shows that it runs; too short to learn much


class BestAndWorst:
    """The best attempts at a task become likelier, the worst less likely; those between teach nothing."""

    lr, steps, tasks, samples = 3e-4, (2 if QUICK else 6), 8, 8

    def advantages(self, group):
        rewards = [attempt.reward or 0.0 for attempt in group]
        best, worst = max(rewards), min(rewards)
        return [float(reward == best) - float(reward == worst) for reward in rewards]


async def agent(task, ctx):
    call = await ctx.ask([{"role": "user", "content": task["question"]}], max_tokens=24)
    return call.response.get("content") or ""


rows = [{"question": f"Please write {word}.", "expected": word} for word in WORDS]
result = hf.improve(
    agent,
    hf.tasks(rows[:40] if QUICK else rows, held_out=0.5),
    name="own",
    scorers="exact",
    policy=hf.Model("tiny-tools"),
    algorithm=BestAndWorst(),
)
print(result)
print("parameters moved:", result.candidate is not None and result.candidate.checkpoint is not None)
print("success:", f"{result.proof.comparisons['success'].difference:+.2f}")
