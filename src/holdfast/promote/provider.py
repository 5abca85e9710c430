"""Flags for programs that ask by OpenFeature: a provider over a store, for the standard client.

Every evaluation looks at one snapshot of all flags and of the experiments about them; a key that gets an arm of one is
exposed to it. A snapshot is replaced when the store's topic "flags" or "trials" moves, whichever process moved it; when
the store cannot be read, the last one stays in force and the provider says it is stale. The store is opened and closed
by whoever gives it. What a flag's value is, is `flags`' business.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from openfeature.evaluation_context import EvaluationContext
from openfeature.event import ProviderEventDetails
from openfeature.exception import ErrorCode
from openfeature.flag_evaluation import FlagResolutionDetails as Details
from openfeature.flag_evaluation import Reason
from openfeature.provider import AbstractProvider
from openfeature.provider.metadata import Metadata

from holdfast.contracts.flag import Flag
from holdfast.contracts.release import Experiment
from holdfast.promote.experiment import is_running
from holdfast.promote.flags import KEY, evaluate, running
from holdfast.store.notifications import FLAGS, TRIALS
from holdfast.store.store import Store

V = TypeVar("V")
Context: TypeAlias = EvaluationContext | None

NUMBERS = (float, int)
TOPICS = (FLAGS, TRIALS)
MOST_KNOWN = 100_000  # units that are not exposed a second time
LOOK_S = 0.2  # at most so long until it notices that it was shut down
AGAIN_S = 0.5  # until a store that could not be read is tried again


def _resolver(types: tuple[type, ...]) -> Any:
    """OpenFeature's method for values of these types."""

    def resolve(self: Provider, flag_key: str, default_value: V, evaluation_context: Context = None) -> Details[V]:
        return self._resolve(flag_key, default_value, evaluation_context, types)

    return resolve


class Provider(AbstractProvider):
    """`openfeature.api.set_provider(Provider(store, clock=time.time, environment=os.environ))`."""

    def __init__(self, store: Store, *, clock: Callable[[], float], environment: Mapping[str, str]) -> None:
        super().__init__()
        self._store, self._clock, self._environment = store, clock, environment
        self._flags: Mapping[str, Flag] = {}
        self._trials: Mapping[str, Experiment] = {}  # by flag
        self._exposed: dict[tuple[str, str], None] = {}  # experiments and units, the newest last
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def get_metadata(self) -> Metadata:
        return Metadata(name="holdfast")

    def initialize(self, evaluation_context: EvaluationContext) -> None:
        self._stopped = threading.Event()
        seen = {topic: self._store.changes.seen(topic) for topic in TOPICS}
        self._flags, self._trials = self._read(), self._read_trials()
        follow = threading.Thread(target=self._follow, args=(seen, self._stopped), name="holdfast-flags", daemon=True)
        self._thread = follow
        follow.start()

    def shutdown(self) -> None:
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None

    def snapshot(self) -> Mapping[str, Flag]:
        """The flags in force, all of one moment: for a request that must see several of them as one."""
        return self._flags

    def _read(self) -> Mapping[str, Flag]:
        return MappingProxyType({flag.name: flag for flag in self._store.flags.all()})

    def _read_trials(self) -> Mapping[str, Experiment]:
        return MappingProxyType(running(self._store.trials.all(), self._clock()))

    def _follow(self, seen: dict[str, int], stopped: threading.Event) -> None:
        changes, is_stale = self._store.changes, False
        while not stopped.is_set():
            has_news = changes.wait(FLAGS, seen[FLAGS], LOOK_S) or changes.seen(TRIALS) != seen[TRIALS]
            if not is_stale and not has_news:
                continue
            seen = {topic: changes.seen(topic) for topic in TOPICS}  # before reading: what changes meanwhile is seen
            try:
                flags, self._trials = self._read(), self._read_trials()
            except Exception as error:  # whatever it is: a program must hear that its flags are no longer the newest
                if not is_stale:
                    self.emit_provider_stale(ProviderEventDetails(message=str(error)))
                is_stale = True
                stopped.wait(AGAIN_S)
                continue
            before, self._flags = self._flags, flags
            if is_stale:
                self.emit_provider_ready(ProviderEventDetails())
                is_stale = False
            changed = sorted(name for name in {*before, *flags} if before.get(name) != flags.get(name))
            if changed and not stopped.is_set():
                self.emit_provider_configuration_changed(ProviderEventDetails(flags_changed=changed))

    def _resolve(self, name: str, default: V, given: Context, types: tuple[type, ...]) -> Details[V]:
        flags = self._flags
        context, now = _context(given), self._clock()
        trials = {flag: trial for flag, trial in self._trials.items() if is_running(trial, now)}
        found = evaluate(name, flags, context, now=now, environment=self._environment, trials=trials)
        if found.experiment is not None:
            self._expose(found.experiment, str(context[KEY]), str(found.variant), now)
        if found.error is not None:
            return _failure(default, found.detail, ErrorCode(found.error))
        value = _fit(found.value, types)
        if value is None:
            why = f"flag {name} is not of that type: {type(found.value).__name__}"
            return _failure(default, why, ErrorCode.TYPE_MISMATCH)
        return Details(
            value=value,
            reason=Reason(found.reason.value),
            variant=found.variant,
            flag_metadata={"detail": found.detail, "owner": flags[name].owner, "changed_at": flags[name].changed_at},
        )

    def _expose(self, trial: str, unit: str, arm: str, now: float) -> None:
        """Kept once for each unit, without waiting for the disk."""
        if (trial, unit) not in self._exposed:
            self._exposed[trial, unit] = None
            if len(self._exposed) > MOST_KNOWN:
                del self._exposed[next(iter(self._exposed))]
            self._store.trials.expose(trial, unit, arm, now=now)

    resolve_boolean_details, resolve_string_details, resolve_integer_details = map(_resolver, ((bool,), (str,), (int,)))
    resolve_float_details, resolve_object_details = map(_resolver, (NUMBERS, (dict, list)))


def _context(given: Context) -> Mapping[str, Any]:
    if given is None:
        return {}
    return {**given.attributes, **({KEY: given.targeting_key} if given.targeting_key else {})}


def _fit(value: Any, types: tuple[type, ...]) -> Any:
    """The value where it is of one of the types, else None. A boolean is no number."""
    if isinstance(value, bool):
        return value if bool in types else None
    return float(value) if types == NUMBERS and isinstance(value, int) else value if isinstance(value, types) else None


def _failure(default: V, why: str, code: ErrorCode) -> Details[V]:
    return Details(value=default, reason=Reason.ERROR, error_code=code, error_message=why)
