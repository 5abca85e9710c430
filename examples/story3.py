"""My own examples first, then practice, then out: a small tool-use model learns to answer a shop's questions."""

import re
import sys
from pathlib import Path

import holdfast as hf

DATA, OUT = Path(__file__).parent / "data", Path(sys.argv[1] if len(sys.argv) > 1 else "story3")
CALC = {"name": "calc", "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}}}


def calc(arguments):
    found = re.search(r'"(\d+)([+*-])(\d+)(?:\+(\d+))?"', arguments)
    if found is None:
        return "error"
    a, b = int(found[1]), int(found[3])
    return str({"+": a + b, "-": a - b, "*": a * b}[found[2]] + int(found[4] or 0))


async def agent(task, ctx):
    messages = [{"role": "system", "content": "Use tools. If unsure: unknown. Reply: X"}]
    messages.append({"role": "user", "content": task.input["question"]})
    for _ in range(3):
        reply = (await ctx.ask(messages, tools=[{"type": "function", "function": CALC}], max_tokens=64)).response
        if not reply.get("tool_calls"):
            return reply["content"]
        results = [(call["id"], calc(call["function"]["arguments"])) for call in reply["tool_calls"]]
        messages += [reply, *({"role": "tool", "tool_call_id": name, "content": text} for name, text in results)]


here = {"store": OUT / "store.sqlite", "workers": 64}
tasks = hf.tasks(DATA / "shop_tasks.jsonl", held_out=0.5, seed=0)
base = hf.Model("tiny-tools")
taught = hf.sft(base, DATA / "shop_chats.jsonl", lr=float(sys.argv[2]), epochs=int(sys.argv[3]), store=here["store"])
how = hf.GRPO(lr=float(sys.argv[4]), steps=int(sys.argv[5]), tasks=16, samples=6)
result = hf.improve(agent, tasks, name="shop", scorers="exact", policy=taught, algorithm=how, **here)
for name, policy in (("before", base), ("taught", taught), ("practised", result.candidate)):
    rows = hf.collect(agent, tasks.held_out, scorers="exact", policy=policy, **here).rollouts()
    print(f"{name}: {sum(row['reward'] for row in rows) / len(rows):.2f} of the held-out questions are answered")
print(result, "\nwritten to", result.candidate.export(OUT / "model"))
