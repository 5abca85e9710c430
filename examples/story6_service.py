"""Into service and back: a version is promoted, production reads what is in force, a bad one is taken back."""

import time

from endpoint import QUESTIONS, serve

import holdfast as hf


async def agent(task, ctx):
    messages = [{"role": "system", "content": ctx.prompt("system")}, {"role": "user", "content": task["question"]}]
    call = await ctx.ask(messages)
    return call.response["content"]


result = hf.improve(
    agent,
    hf.tasks(QUESTIONS, held_out=0.5),
    name="capitals",
    scorers="exact",
    policy=hf.Prompt(system="You are helpful."),
    algorithm=hf.Candidates(["Give only the word."]),
    model="scripted",
    base_url=serve(),
)
release = result.promote(canary=0.25)  # to a quarter of the callers
print(release.id, "is", release.stage)

live = hf.live("capitals")  # in production: follows releases, canaries and rollbacks within a second
callers = [live.version(key=f"user-{n}") for n in range(1000)]
print(f"callers of the canary: {callers.count(release.id) / 1000:.2f}")

result.promote()  # to all of them
time.sleep(1.0)
print("live:", live.version(), "says", repr(live.prompt("system")))

hf.rollback("capitals", why="an example")
time.sleep(1.0)
print("live:", live.version(), "says", repr(live.prompt("system")))
