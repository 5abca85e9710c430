"""Was that change better? Two prompts on the same tasks, two stored runs, two agents: nothing is trained."""

from endpoint import QUESTIONS, serve

import holdfast as hf


async def agent(task, ctx):
    call = await ctx.ask(
        [{"role": "system", "content": ctx.prompt("system")}, {"role": "user", "content": task["question"]}]
    )
    return call.response["content"]


async def cut_out(task, ctx):
    """The same, and what stands around the word is taken away."""
    return (await agent(task, ctx)).rstrip(".").split()[-1]


tasks, wordy, brief = hf.tasks(QUESTIONS), hf.Prompt(system="Be nice."), hf.Prompt(system="Give only the word.")
given = {"scorers": "exact", "model": "scripted", "base_url": serve()}

# Two prompts: measured side by side until the verdict is clear.
found = hf.compare(wordy, brief, tasks, agent=agent, **given)
print(found)
print("better:", found.is_better, f"{found.difference:+.2f}")

# Two runs that are stored already: nothing is run again.
before, after = (hf.collect(agent, tasks.take(100), policy=prompt, **given) for prompt in (wordy, brief))
print("stored:", hf.compare(before.id, after.id).is_better)

# Two agents with one prompt, and what no task can tell apart.
print("agents:", hf.compare(agent, cut_out, tasks, policy=wordy, **given).is_better)
print("alike:", hf.compare(agent, cut_out, tasks.take(40), policy=brief, **given).is_better)
