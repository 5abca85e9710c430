"""My own examples first, then practice, then out: a small tool-use model learns to answer a shop's questions."""

import re
import sys
from pathlib import Path

import holdfast as hf

QUICK = "--quick" in sys.argv  # shows that it runs; too short to learn much
DATA, OUT = Path(__file__).parent / "data", Path("story3")
CALC = {"name": "calc", "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}}}


def calc(arguments):
    found = re.search(r'"(\d+)([+*-])(\d+)(?:\+(\d+))?"', arguments)
    a, sign, b, c = found.groups("0") if found else "0+00"
    return str({"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[sign](int(a), int(b)) + int(c))


async def agent(task, ctx):
    asked = {"role": "user", "content": task.input["question"]}
    messages = [{"role": "system", "content": "Use tools. If unsure: unknown. Reply: X"}, asked]
    while messages[-1]["role"] != "assistant" and len(messages) < 9:
        reply = (await ctx.ask(messages, tools=[{"type": "function", "function": CALC}], max_tokens=64)).response
        results = [(call["id"], calc(call["function"]["arguments"])) for call in reply.get("tool_calls", ())]
        messages += [reply, *({"role": "tool", "tool_call_id": name, "content": text} for name, text in results)]
    return messages[-1]["content"]


here = {"store": OUT / "store.sqlite", "workers": 64}
tasks = hf.tasks(DATA / "shop_tasks.jsonl", held_out=0.5, seed=0).take(20 if QUICK else 500)
base = hf.Model("tiny-tools")
taught = hf.sft(base, DATA / "shop_chats.jsonl", lr=6e-4, epochs=1, store=here["store"])
how = hf.GRPO(lr=1e-3, steps=1 if QUICK else 4, tasks=16, samples=6)
result = hf.improve(agent, tasks, name="shop", scorers="exact", policy=taught, algorithm=how, seeds=1, **here)
for name, policy in (("before", base), ("taught", taught), ("practised", result.candidate)):
    rows = hf.collect(agent, tasks.held_out, scorers="exact", policy=policy, **here).rollouts()
    print(f"{name}: {sum(row['reward'] for row in rows) / len(rows):.2f} of the held-out questions are answered")
print(result, "\nwritten to", result.candidate.export(OUT / "model"))
