"""An agent's module that can be loaded in the main process and in no other."""

import multiprocessing

if multiprocessing.parent_process() is not None:
    raise ImportError("this library cannot be loaded twice")


def agent(task: object, context: object) -> str:
    return "at home"
