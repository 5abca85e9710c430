"""The drill: real processes, real faults, and a table of what was lost. `make drill` runs all of it.

    .venv/bin/python tests/drills/run.py [--quick] [--json] [--seed N] [--only NAME] [--url postgresql://…]

What is killed, stopped or torn, and how often, follows from the seed; the instants depend on the machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # the root, and not this folder
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))

import psycopg  # noqa: E402

from tests.drills.faults import workers  # noqa: E402
from tests.drills.scene import Setting, Tally  # noqa: E402
from tests.postgres import postgres_server  # noqa: E402

Drill = Callable[[Setting], Tally]
ON_SQLITE: dict[str, Drill] = {"workers": workers.drill}
ON_POSTGRES: dict[str, Drill] = {"workers": workers.drill}
