"""What attempts did, read for those who learn from it or judge it: spans, rewards, and the version that acted."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.contracts.experience import Experience
from holdfast.contracts.reward import CHECKED, Sheet, Signal
from holdfast.contracts.rollout import Rollout, RolloutState
from holdfast.store.traces import Traces
from holdfast.store.views import Views


class Experiences:
    def __init__(self, views: Views, traces: Traces) -> None:
        self._views, self._traces = views, traces

    def of(self, rollout_ids: Iterable[str]) -> list[Experience]:
        """From the attempts that decided them, in the given order; those that none decided are left out."""
        found = (self.one(rollout_id) for rollout_id in rollout_ids)
        return [experience for experience in found if experience is not None]

    def one(self, rollout_id: str) -> Experience | None:
        """None when no attempt decided it: it is open, was cancelled, or given up."""
        rollout = self._views.rollout(rollout_id)
        for attempt in self._views.attempts(rollout.id):
            if attempt.id == rollout.final_attempt:
                spans = tuple(self._traces.spans(attempt.token))
                models = {span.model.model for span in spans if span.model is not None}
                return Experience(
                    rollout=rollout.id,
                    run=rollout.run,
                    task=str(rollout.metadata.get("group", rollout.name)),
                    split=rollout.split,
                    state=rollout.status,
                    is_final=True,
                    spans=spans,
                    sheet=_sheet(self._traces.sheet(attempt.token), rollout),
                    input=rollout.input,
                    version=models.pop() if len(models) == 1 else None,
                )
        return None


def _sheet(sheet: Sheet, rollout: Rollout) -> Sheet:
    """An agent that failed has an outcome: it was not right. Nobody had to score it for that."""
    if rollout.status is not RolloutState.FAILED or any(one.name in CHECKED for one in sheet.signals):
        return sheet
    return Sheet(signals=(*sheet.signals, Signal(name=CHECKED[0], value=0.0, source="rule:failed")))
