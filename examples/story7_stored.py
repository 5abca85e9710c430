"""What has been running already: rollouts as a table, and another scorer on them without running the agent again."""

from endpoint import QUESTIONS, serve

import holdfast as hf


async def agent(task, ctx):
    call = await ctx.ask(
        [{"role": "system", "content": ctx.prompt("system")}, {"role": "user", "content": task["question"]}]
    )
    return call.response["content"]


def contains(task, answer):
    return float(task.expected in answer)


run = hf.collect(
    agent,
    hf.tasks(QUESTIONS).take(100),
    scorers="exact",
    policy=hf.Prompt(system="You are helpful."),
    model="scripted",
    base_url=serve(),
)
wrong = run.rollouts(where="reward < 0.5")
print(len(wrong), "of", len(run.rollouts()), "are wrong, as in", repr(wrong[0]["answer"]))

second = hf.rescore(run, scorers=[hf.Scorer(contains, gate=True)])
print(second)
print("became right:", second.comparison.became_right, "of", second.comparison.rollouts)
print("kept as:", second.name)
