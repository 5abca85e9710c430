"""Agent Lightning's LLM proxy (over LiteLLM) with its in-memory store; run by the peers' interpreter.

`proxy_agent_lightning.py PORT UPSTREAM` serves with the key LITELLM_MASTER_KEY, and says `{"paths": […]}`, one of an
attempt for each caller. When stdin ends it says how many spans its store has. The one thing that is not its default is
the probe of its health, which is left out: it asks without the key that LiteLLM insists on, and so would never pass.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

answers, sys.stdout = sys.stdout, sys.stderr  # whatever the imports print is not an answer

from agentlightning.llm_proxy import LLMProxy  # noqa: E402
from agentlightning.store.memory import InMemoryLightningStore  # noqa: E402
from agentlightning.utils.server_launcher import PythonServerLauncherArgs  # noqa: E402

MODELS = ("instant", "paced")
CALLERS = 32


async def serve(port: int, upstream: str) -> None:
    store = InMemoryLightningStore()
    proxy = LLMProxy(
        store=store,
        model_list=[
            {
                "model_name": name,
                "litellm_params": {"model": f"openai/{name}", "api_base": f"{upstream}/v1", "api_key": "none"},
            }
            for name in MODELS
        ],
        litellm_config={"general_settings": {"master_key": os.environ["LITELLM_MASTER_KEY"]}},
        launcher_args=PythonServerLauncherArgs(
            port=port, host="127.0.0.1", launch_mode="asyncio", healthcheck_url=None, startup_timeout=60.0
        ),
    )
    await proxy.start()
    begun = [await store.start_rollout(input={"n": number}) for number in range(CALLERS)]
    say({"paths": [f"/rollout/{one.rollout_id}/attempt/{one.attempt.attempt_id}" for one in begun]})
    await asyncio.to_thread(sys.stdin.read)
    say({"spans": sum([len(await store.query_spans(one.rollout_id, limit=-1)) for one in begun])})
    os._exit(0)  # its threads would keep it


def say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), file=answers, flush=True)


asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))
