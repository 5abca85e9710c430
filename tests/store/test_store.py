"""The front door: everything behind it belongs to one project and is closed with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.contracts.errors import BadInput, NotFound, StoreError
from holdfast.contracts.release import PolicyKind
from holdfast.contracts.run import DesiredState, RunState
from holdfast.store.store import find_policy, find_rollout, full_name, open_store
from tests.conftest import Clock, Databases, Files
from tests.store.scene import Scene, begin, judged, ordered, problems, serving
from tests.store.test_budgets import used


@pytest.mark.parametrize("project", ["", "  ", "x" * 101])
def test_a_project_needs_a_name(tmp_path: Path, project: str) -> None:
    with pytest.raises(BadInput) as refused:
        open_store(tmp_path / "store.db", project=project)
    assert str(refused.value) == f"project {project!r}: must be 1 to 100 characters, not blank"
    assert not (tmp_path / "store.db").exists()


def test_leaving_the_block_closes_it(url: str, clock: Clock) -> None:
    with open_store(url) as store:
        run = begin(store, clock)
    with pytest.raises(StoreError, match="the store is closed"):
        store.runs.get(run)
    with pytest.raises(NotFound), open_store(url) as store:
        store.runs.get(f"{run}-not")
    with pytest.raises(StoreError, match="the store is closed"):
        store.runs.get(run)


def test_files_lie_beside_the_store_or_in_the_state_folder(files: Files, databases: Databases, tmp_path: Path) -> None:
    with open_store(files.fresh(), state_folder=tmp_path / "elsewhere") as store:
        assert store.folder == tmp_path
        assert store.blobs.folder == tmp_path / "blobs"
    with open_store(databases.fresh(), state_folder=tmp_path / "elsewhere") as store:
        assert store.folder == tmp_path / "elsewhere"


def test_reports_lie_beside_a_folder_of_training_and_else_beside_the_store(
    places: Files | Databases, tmp_path: Path
) -> None:
    for folder, reports in (("state/training", "state/reports"), ("state/trained", "state/trained/reports")):
        (tmp_path / folder).mkdir(parents=True)
        at = places.fresh()
        if places.engine == "sqlite":
            at = str(Path(at).rename(tmp_path / folder / "store.db"))
        with open_store(at, state_folder=tmp_path / folder) as store:
            assert store.reports == tmp_path / reports
            assert not store.reports.exists()  # made by whoever writes there


def test_the_address_is_shown_without_its_password(databases: Databases) -> None:
    url = databases.fresh()
    with open_store(url.replace("//holdfast@", "//holdfast:secret@")) as store:
        assert store.url == url.replace("//holdfast@", "//holdfast:***@")


def test_a_path_may_be_a_path_or_text(files: Files) -> None:
    path = files.fresh()
    with open_store(Path(path)) as one, open_store(path) as other:
        assert one.url == other.url == path


def test_a_second_run_on_the_same_store_keeps_the_first(url: str, clock: Clock) -> None:
    runs = []
    for _ in range(2):
        with open_store(url) as store:
            runs.append(begin(store, clock))
    with open_store(url) as store:
        assert [run.id for run in store.runs.newest()] == runs[::-1]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("run-1-a/train-10", "train-10"),
        ("run-1-a/train-1", "train-1"),  # whole names win over longer ones
        ("run-1/val", "val-1"),
        ("r/v", "val-1"),
        ("run-1-a/50%_a", "50%_about"),  # no wildcards
        ("run-1-a/Val", "Val"),  # capitals count
    ],
)
def test_both_parts_may_be_cut_short(scene: Scene, text: str, name: str) -> None:
    scene.enqueue("train-1", "train-10", "val-1", "Val", "50%_about", "50xxabout")
    assert find_rollout(scene.store, text).id == f"{scene.run}/{name}"


HELP = "write RUN/NAME: 'holdfast run list' has the one, 'holdfast run rollouts RUN' the other"
NO_ID = f"is not the id of a rollout; {HELP}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run-1-a/t", "rollout run-1-a/t: several start so: t1, t2, t3, …; 'holdfast run rollouts run-1-a' lists them"),
        ("run-1-a/u", "rollout run-1-a/u: several start so: u1, u2; 'holdfast run rollouts run-1-a' lists them"),
        ("run-1-a/x", "rollout run-1-a/x: there is none; 'holdfast run rollouts run-1-a' lists them"),
        ("no/x", "run 'no': there is none in project 'default'; 'holdfast run list' lists them"),
        ("run-1-a", f"rollout 'run-1-a': {NO_ID}"),
        ("run-1-a/", f"rollout 'run-1-a/': {NO_ID}"),
    ],
)
def test_what_fits_none_or_several_is_refused(scene: Scene, text: str, expected: str) -> None:
    scene.enqueue("t1", "t2", "t3", "t4", "u1", "u2")
    with pytest.raises(NotFound) as caught:
        find_rollout(scene.store, text)
    assert str(caught.value) == expected


def test_names_of_other_runs_are_not_looked_at(scene: Scene) -> None:
    other = begin(scene.store, scene.clock, salt="b")
    scene.enqueue("only-here")
    with pytest.raises(NotFound, match="there is none"):
        full_name(scene.store, other, "only")


def test_a_policy_may_be_cut_short_while_only_one_fits(scene: Scene) -> None:
    for policy in ("tools", "tools-2", "writer"):
        scene.store.releases.add(policy=policy, kind=PolicyKind.PROMPT, source="s:1", who="t", now=1.0).result()
    assert [find_policy(scene.store, text) for text in ("w", "tools", "tools-")] == ["writer", "tools", "tools-2"]
    for text, why in (("to", "several start so: tools, tools-2"), ("x", "has no versions"), ("", "several start so")):
        with pytest.raises(BadInput, match=f"policy '{text}': {why}.*; there is tools, tools-2, writer"):
            find_policy(scene.store, text)


def test_a_project_sees_nothing_of_another_and_has_its_own(scene: Scene, url: str) -> None:
    store, clock, run, rollout = scene.store, scene.clock, scene.run, f"{scene.run}/t"
    scene.enqueue("t", "u")
    used(scene, "budgeted", 10)
    for fill in (serving, judged, ordered):
        fill(store)
    store.workers.register("w", host="h", pid=1, slots=1, now=1.0).result()
    with open_store(url, project="other") as elsewhere:
        stranger, queue, views, runs = Scene(elsewhere, clock, run), elsewhere.queue, elsewhere.views, elsewhere.runs
        for call in (
            lambda: stranger.enqueue("x"),
            lambda: stranger.claims(),
            lambda: stranger.beat(),
            lambda: stranger.cancel("t"),
            lambda: stranger.requeue("t"),
            lambda: stranger.want(DesiredState.PAUSED),
            lambda: queue.cancel_open(run, now=1.0, why="x"),
            lambda: queue.next_ripe(run),
            lambda: views.rollout(rollout),
            lambda: views.attempts(rollout),
            *(lambda look=look: look(run) for look in (views.rollouts, views.counts, views.rewards, views.is_done)),
            *(lambda look=look: look(run) for look in (runs.get, runs.key, lambda name: runs.newest(before=name))),
            lambda: runs.end(run, RunState.FAILED, who="x", now=1.0),
            lambda: runs.resume(run, who="x", now=1.0, silent_s=0.0),
            lambda: runs.beat(run, driver=1, now=1.0),
            lambda: elsewhere.steps.add(run, "learn", {}, function="f", now=1.0),
            lambda: elsewhere.steps.get(run, "learn"),
            *(lambda look=look: look(run) for look in (elsewhere.steps.of_run, elsewhere.steps.verify)),
            lambda: elsewhere.scorings.of_run(run),
            lambda: elsewhere.scorings.get(run, "exact-2"),
        ):
            with pytest.raises(NotFound, match=rf"^run '{run}': there is none in project 'other'"):
                call()
        with pytest.raises(NotFound):
            elsewhere.releases.get("sprout@1")
        judges, on = elsewhere.judgements, "correctness@1"
        for found in (
            *(runs.newest(), elsewhere.workers.newest(), elsewhere.budgets.by_run(), list(elsewhere.ledger.entries())),
            *(elsewhere.releases.policies(), elsewhere.releases.history("sprout"), elsewhere.trials.all()),
            *(elsewhere.flags.all(), elsewhere.tokens.all(), elsewhere.alerts.standing(), elsewhere.alerts.history()),
            *(judges.of(on), judges.labels(on), judges.calibrations(), judges.appointments(), judges.doubts()),
        ):
            assert found == []
        assert elsewhere.tokens.find("5e" * 32) is None and not elsewhere.trials.feedback("r1", success=1.0).result()
        serving(elsewhere)
        judged(elsewhere)
        elsewhere.flags.drop("beta", who="ann", why="x", now=2.0).result()
        assert elsewhere.releases.get("sprout@1").project == "other" and elsewhere.judgements.waiting() == 0
        begun = begin(elsewhere, clock)
        assert [one.id for one in runs.newest()] == [begun]
        assert [one.arm for one in elsewhere.trials.served("t")] == ["control", "control"]
    assert (store.flags.get("beta").name, len(store.runs.newest()), store.runs.get(run).state) == ("beta", 1, "running")
    assert store.trials.served("t")[0].success is None
    assert problems(store) == []
