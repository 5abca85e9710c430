"""Releases: numbered by policy, moved one step at a time, one of them live, and every step in the ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Barrier
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput, Conflict, IllegalMove, NotFound, StaleLease
from holdfast.contracts.evidence import Decision, Reason
from holdfast.contracts.records import encode
from holdfast.contracts.release import PolicyKind, Release, Stage
from holdfast.store.releases import BY_HAND
from holdfast.store.sql import Transaction
from holdfast.store.store import Store, open_store
from tests.store.scene import at_once, checkpoint, once, problems, says
from tests.store.tamper import damaged, rewrite

S = Stage
AGAIN = "another was faster: look again"
WORSE = Reason(code="canary_breach_success", text="success 0.71 against 0.90")
CLOSED = Decision(open=False, reasons=(Reason(code="p_value_above_threshold", text="p 0.2 > 0.05"),), needs=40)
OPEN = Decision(open=True, reasons=(Reason(code="promotion_allowed", text="p 0.01"),))


def add(store: Store, source: str = "shelf:a", policy: str = "sprout", **fields: Any) -> Release:
    given = {"policy": policy, "kind": PolicyKind.WEIGHTS, "source": source, "who": "ann", "now": 1.0}
    return store.releases.add(**{**given, **fields}).result()


def go(store: Store, name: str, to: Stage, expect: Stage | None = None, **how: Any) -> Release:
    expected = store.releases.get(name).stage if expect is None else expect
    given = {"share": 5 if to is S.CANARY else None, "who": "ann", "why": "because", "now": 2.0}
    return store.releases.move(name, to, expect=expected, **{**given, **how}).result()


def back(store: Store, failing: str, to: str, **how: Any) -> Release:
    given = {"who": "guard", "why": "worse", "now": 3.0, "reasons": (WORSE,)}
    return store.releases.roll_back("sprout", failing=failing, to=to, **{**given, **how}).result()


def stages(store: Store, policy: str = "sprout") -> dict[str, str]:
    return {one.id: f"{one.stage} {one.share}" for one in store.releases.of_policy(policy)}


def bodies(store: Store, policy: str = "sprout") -> list[dict[str, Any]]:
    return [dict(entry.body) for entry in store.releases.history(policy)]


def live_and_next(store: Store, stage: Stage = S.CANARY) -> None:
    """sprout@1 is live, sprout@2 on its way."""
    for source in ("shelf:a", "shelf:b"):
        add(store, source)
    go(store, "sprout@1", S.LIVE)
    if stage is not S.CANDIDATE:
        go(store, "sprout@2", stage)


def test_a_release_begins_as_a_candidate_with_the_next_number_of_its_policy(store: Store) -> None:
    first = add(store, manifest={"run": "run-1-a", "sha256": "ab"})
    second = add(store, "shelf:b", parent="sprout@1", now=2.0)
    other = add(store, policy="oak", kind=PolicyKind.PROMPT)
    assert [one.id for one in (first, second, other)] == ["sprout@1", "sprout@2", "oak@1"]
    assert first == Release(
        id="sprout@1",
        project="default",
        policy="sprout",
        number=1,
        kind=PolicyKind.WEIGHTS,
        source="shelf:a",
        stage=S.CANDIDATE,
        manifest={"run": "run-1-a", "sha256": "ab"},
        created_at=1.0,
        changed_at=1.0,
    )
    assert (second.parent, second.created_at, other.kind) == ("sprout@1", 2.0, PolicyKind.PROMPT)
    assert store.releases.get("sprout@2") == second
    assert store.releases.of_policy("sprout") == [second, first]
    assert store.releases.policies() == ["oak", "sprout"]


def test_the_same_source_again_is_the_release_that_is_there(store: Store) -> None:
    first = add(store)
    go(store, "sprout@1", S.SHADOW)
    again = add(store, manifest={"other": 1}, now=9.0)
    assert again == store.releases.get("sprout@1")
    assert (again.stage, again.manifest, again.created_at) == (S.SHADOW, {}, first.created_at)
    assert len(bodies(store)) == 2  # nothing was added, so nothing is noted


def test_a_source_and_a_parent_must_be_there(store: Store) -> None:
    for source in ("checkpoint:c", "resources:1", "resources:first", "resources:²", "resources:" + "9" * 20):
        with pytest.raises(NotFound, match=f"^source {source}: there is none in project 'default'$"):
            add(store, source)
    with pytest.raises(NotFound, match="^release 'sprout@1': there is none in project 'default'; "):
        add(store, parent="sprout@1")
    assert store.releases.policies() == []
    store.checkpoints.add(checkpoint("c"), now=1.0).result()
    store.versions.publish({"prompt": "be brief"}, now=1.0).result()
    assert add(store, "checkpoint:c").id == "sprout@1"
    assert add(store, "resources:1").id == "sprout@2"
    with pytest.raises(NotFound, match="^source resources:01: there is none"):  # another way to write one there is
        add(store, "resources:01")
    with pytest.raises(NotFound, match="^release 'sprout@9': there is none"):  # also of a source that is known
        add(store, "resources:1", parent="sprout@9")
    with pytest.raises(BadInput, match="^release of sprout: source ' ': must not be blank"):
        add(store, " ")


@once
def test_a_policy_has_a_name_that_can_be_read_and_what_is_not_there_is_not_found(store: Store) -> None:
    for policy in ("", " sprout", "a@b", "a\u202eb", "a\nb", "x" * 101):
        with pytest.raises(BadInput, match="^policy "):
            add(store, policy=policy)
    assert store.releases.policies() == []
    add(store)
    for name in ("sprout@2", "sprout", "@1", "oak@1", "sprout@x", "sprout@²", "sprout@" + "9" * 40, "sprout@01", ""):
        with says(
            NotFound, f"release {name!r}: there is none in project 'default'; 'holdfast release list' shows them"
        ):
            store.releases.get(name)


def test_a_release_goes_from_candidate_to_live_and_the_old_one_retires(store: Store) -> None:
    live_and_next(store, S.CANDIDATE)
    steps = [(S.SHADOW, None), (S.CANARY, 5), (S.CANARY, 25), (S.CANARY, 50), (S.CANARY, 100)]
    for stage, share in steps:
        moved = go(store, "sprout@2", stage, share=share)
        assert (moved.stage, moved.share) == (stage, share or 0)
        live = store.releases.live("sprout")
        assert live is not None and live.id == "sprout@1"
    assert go(store, "sprout@2", S.LIVE, known_good=True, now=7.0).is_known_good
    assert stages(store) == {"sprout@2": "live 100", "sprout@1": "retired 0"}
    retired = store.releases.get("sprout@1")
    assert (retired.is_known_good, retired.changed_at) == (True, 7.0)  # it was live without a breach
    assert [one.id for one in store.releases.at("sprout", S.RETIRED)] == ["sprout@1"]
    assert (store.releases.at("sprout", S.CANARY), store.releases.live("oak")) == ([], None)
    assert problems(store) == []


@once
def test_a_move_is_noted_whole(store: Store) -> None:
    live_and_next(store, S.CANDIDATE)
    sha256 = store.blobs.put(b"evidence", now=1.0)
    rests = {"evidence": sha256, "decision": OPEN, "proof": "ab" * 32}
    go(store, "sprout@2", S.LIVE, who="bob", why="proved", now=7.5, known_good=True, **rests)
    entry = store.releases.history("sprout")[-1]
    assert (entry.kind, entry.who, entry.at, entry.run, entry.project) == ("release", "bob", 7.5, None, "default")
    moved = {"move": "sprout@2", "policy": "sprout", "from": "candidate", "to": "live", "share_before": 0, "share": 100}
    rests = {"evidence": sha256, "proof": "ab" * 32, "decision": encode(OPEN)}
    assert entry.body == {**moved, "known_good": True, "retired": "sprout@1", "why": "proved", **rests}
    added = {"policy": "sprout", "kind": "weights", "parent": None, "manifest": {}}
    assert bodies(store)[:2] == [
        {"add": "sprout@1", "source": "shelf:a", **added},
        {"add": "sprout@2", "source": "shelf:b", **added},
    ]
    assert store.ledger.verify() == 4


def test_a_move_that_expects_another_stage_is_a_conflict(store: Store) -> None:
    live_and_next(store)
    with says(Conflict, f"release sprout@2: is canary by now, not shadow; {AGAIN}"):
        go(store, "sprout@2", S.LIVE, S.SHADOW)
    assert stages(store) == {"sprout@2": "canary 5", "sprout@1": "live 100"}
    assert len(bodies(store)) == 4


def test_a_move_that_expects_another_live_one_is_a_conflict(store: Store) -> None:
    live_and_next(store, S.CANDIDATE)
    with says(Conflict, f"release sprout@2: sprout@1 is live by now, not nothing; {AGAIN}"):
        go(store, "sprout@2", S.LIVE, expect_live="")
    assert go(store, "sprout@2", S.LIVE, expect_live="sprout@1").stage is S.LIVE
    add(store, "shelf:c")
    with says(Conflict, f"release sprout@3: sprout@2 is live by now, not sprout@1; {AGAIN}"):
        go(store, "sprout@3", S.SHADOW, expect_live="sprout@1")
    add(store, policy="oak")
    with pytest.raises(Conflict, match="nothing is live by now, not oak@9"):
        go(store, "oak@1", S.LIVE, expect_live="oak@9")
    assert go(store, "oak@1", S.LIVE, expect_live="").stage is S.LIVE
    assert stages(store) == {"sprout@3": "candidate 0", "sprout@2": "live 100", "sprout@1": "retired 0"}


@once
def test_a_move_that_the_table_does_not_have_is_refused(store: Store) -> None:
    live_and_next(store)
    with pytest.raises(IllegalMove, match="^release sprout@2: cannot go from canary to retired; from canary it may go"):
        go(store, "sprout@2", S.RETIRED)
    with pytest.raises(IllegalMove, match="^release sprout@1: cannot go from live to live"):
        go(store, "sprout@1", S.LIVE)
    assert stages(store) == {"sprout@2": "canary 5", "sprout@1": "live 100"}


@once
def test_a_share_fits_the_stage(store: Store) -> None:
    add(store)
    unfit = "a canary answers from 1 to 100 percent of the requests; begin with 5"
    for to, share, why in (
        (S.CANARY, None, unfit),
        (S.CANARY, 0, unfit),
        (S.CANARY, 101, unfit),
        (S.LIVE, 50, "live goes with 100 percent; leave the share out"),
        (S.SHADOW, 5, "shadow goes with 0 percent; leave the share out"),
    ):
        with says(BadInput, f"release sprout@1: share = {share}: {why}"):
            go(store, "sprout@1", to, share=share)
    assert go(store, "sprout@1", S.SHADOW, share=0).share == 0
    assert go(store, "sprout@1", S.LIVE, share=100).share == 100


@once
def test_a_canary_that_has_its_share_already_was_moved_by_another(store: Store) -> None:
    live_and_next(store)
    go(store, "sprout@2", S.CANARY, share=25)
    with pytest.raises(Conflict, match=f"^release sprout@2: has 25 % of the requests already; {AGAIN}$"):
        go(store, "sprout@2", S.CANARY, share=25)
    assert go(store, "sprout@2", S.CANARY, share=5).share == 5  # less is a step, too


def test_there_is_one_canary_at_a_time(store: Store) -> None:
    live_and_next(store)
    add(store, "shelf:c")
    add(store, policy="oak")
    said = "release sprout@3: sprout@2 is the canary of sprout already; take that one live, or back, before"
    with says(Conflict, said):
        go(store, "sprout@3", S.CANARY)
    assert go(store, "oak@1", S.CANARY).share == 5  # each policy has its own


def test_evidence_must_be_there_and_stays_until_there_is_newer(store: Store) -> None:
    add(store)
    with pytest.raises(NotFound, match="^evidence abababababab: there is no such blob; put it into the store first$"):
        go(store, "sprout@1", S.SHADOW, evidence="ab" * 32)
    old, new = (store.blobs.put(data, now=1.0) for data in (b"old", b"new"))
    assert go(store, "sprout@1", S.SHADOW, evidence=old).evidence == old
    assert go(store, "sprout@1", S.CANARY).evidence == old
    assert go(store, "sprout@1", S.LIVE, evidence=new, known_good=True).evidence == new
    assert go(store, "sprout@1", S.ROLLED_BACK).is_known_good is False
    assert go(store, "sprout@1", S.CANDIDATE).evidence is None  # a second try begins with none


def test_a_live_release_is_rolled_back_to_the_one_before(store: Store) -> None:
    live_and_next(store)
    go(store, "sprout@2", S.LIVE)
    served = back(store, "sprout@2", "sprout@1", now=9.0)
    assert (served.id, served.stage, served.share, served.is_known_good) == ("sprout@1", S.LIVE, 100, True)
    assert stages(store) == {"sprout@2": "rolled_back 0", "sprout@1": "live 100"}
    assert not store.releases.get("sprout@2").is_known_good
    body = {"roll_back": "sprout@2", "policy": "sprout", "from": "live", "share_before": 100, "to": "sprout@1"}
    why = {"why": "worse", "reasons": [{"code": WORSE.code, "text": WORSE.text}]}
    assert bodies(store)[-1] == {**body, "known_good": False, **why}
    assert problems(store) == []


def test_a_canary_that_is_rolled_back_leaves_the_live_one_alone(store: Store) -> None:
    live_and_next(store)
    live = store.releases.live("sprout")
    assert back(store, "sprout@2", "sprout@1") == live
    assert stages(store) == {"sprout@2": "rolled_back 0", "sprout@1": "live 100"}


def test_a_rollback_that_was_done_already_is_a_conflict(store: Store) -> None:
    live_and_next(store)
    back(store, "sprout@2", "sprout@1")
    with pytest.raises(Conflict, match=f"^release sprout@2: is rolled back by now; {AGAIN}$"):
        back(store, "sprout@2", "sprout@1")
    assert [body for body in bodies(store) if "roll_back" in body] == bodies(store)[-1:]


@once
def test_nothing_is_rolled_back_to_itself_or_to_what_was_never_live(store: Store) -> None:
    live_and_next(store)
    add(store, "shelf:c")
    add(store, policy="oak")
    go(store, "oak@1", S.LIVE)
    for failing, to, kind, why in (
        ("sprout@1", "sprout@1", BadInput, "cannot be rolled back to itself"),
        ("sprout@1", "sprout@2", IllegalMove, "release sprout@2: is canary, and not one that was live"),
        ("sprout@1", "sprout@3", IllegalMove, "release sprout@3: is candidate, and not one that was live"),
        ("sprout@3", "sprout@1", IllegalMove, "release sprout@3: cannot go from candidate to rolled_back"),
        ("sprout@2", "oak@1", BadInput, "release oak@1: is not one of sprout"),
        ("sprout@1", "sprout@9", NotFound, "release 'sprout@9': there is none"),
    ):
        with pytest.raises(kind, match=why):
            back(store, failing, to)
    go(store, "sprout@2", S.LIVE)
    go(store, "sprout@3", S.CANARY)
    with pytest.raises(IllegalMove, match="sprout@2 is live, and is not what fails; roll back to sprout@2"):
        back(store, "sprout@3", "sprout@1")
    assert stages(store) == {"sprout@3": "canary 5", "sprout@2": "live 100", "sprout@1": "retired 0"}


def by_hand(store: Store, failing: str, to: str, now: float = 9.0) -> Release:
    reason = Reason(code=BY_HAND, text="a slip")
    how: Any = {"failing": failing, "to": to, "who": "ann", "why": "a slip", "now": now, "reasons": (reason,)}
    return store.releases.roll_back("sprout", **how).result()


@once
def test_what_a_guard_took_back_is_not_rolled_back_to(store: Store) -> None:
    live_and_next(store)
    go(store, "sprout@2", S.LIVE)
    back(store, "sprout@2", "sprout@1")
    says = f"sprout@2: was taken back \\({WORSE.code}\\) while it was live; 'holdfast release retry sprout@2' makes it"
    with pytest.raises(IllegalMove, match=says):
        by_hand(store, "sprout@1", "sprout@2")


def test_a_rollback_by_hand_can_be_undone_and_nothing_is_lost(store: Store) -> None:
    live_and_next(store)
    sha256 = store.blobs.put(b"evidence", now=1.0)
    before = go(store, "sprout@2", S.LIVE, known_good=True, evidence=sha256)
    by_hand(store, "sprout@2", "sprout@1")
    again = by_hand(store, "sprout@1", "sprout@2", now=10.0)
    assert again == replace(before, changed_at=10.0)
    assert stages(store) == {"sprout@2": "live 100", "sprout@1": "retired 0"}
    assert store.releases.get("sprout@1").is_known_good  # and so it can be gone back to once more
    body = {"restore": "sprout@2", "policy": "sprout", "from": "rolled_back", "retired": "sprout@1"}
    why = {"why": "a slip", "reasons": [{"code": BY_HAND, "text": "a slip"}]}
    assert bodies(store)[-1] == {**body, "known_good": True, **why}
    assert by_hand(store, "sprout@2", "sprout@1").id == "sprout@1"
    assert problems(store) == []


@once
def test_a_canary_that_a_person_took_back_was_not_live_and_is_not_made_so(store: Store) -> None:
    live_and_next(store)
    by_hand(store, "sprout@2", "sprout@1")
    with pytest.raises(IllegalMove, match="sprout@2: was taken back .* while it was a canary; 'holdfast release retry"):
        by_hand(store, "sprout@1", "sprout@2")
    go(store, "sprout@2", S.CANDIDATE)
    go(store, "sprout@2", S.REJECTED)
    with pytest.raises(IllegalMove, match="sprout@2: was rejected, and not live; 'holdfast release retry"):
        by_hand(store, "sprout@1", "sprout@2")


@once
def test_only_the_last_rollback_of_a_version_counts(store: Store) -> None:
    live_and_next(store)
    go(store, "sprout@2", S.LIVE)
    by_hand(store, "sprout@2", "sprout@1")
    by_hand(store, "sprout@1", "sprout@2")
    back(store, "sprout@2", "sprout@1")
    with pytest.raises(IllegalMove, match="was taken back"):
        by_hand(store, "sprout@1", "sprout@2")


def test_a_driver_that_was_replaced_moves_and_notes_nothing(store: Store) -> None:
    add(store)
    before = bodies(store)

    def fence(tx: Transaction) -> None:
        raise StaleLease("run run-1-a", why="another process has taken it up")

    with pytest.raises(StaleLease):
        store.releases.note("sprout@1", OPEN, evidence=None, who="gate", now=4.0, fence=fence).result()
    with pytest.raises(StaleLease):
        store.releases.move("sprout@1", S.LIVE, expect=S.CANDIDATE, who="gate", why="w", now=4.0, fence=fence).result()
    assert bodies(store) == before and store.releases.get("sprout@1").stage is S.CANDIDATE


@pytest.mark.parametrize(("decision", "word"), [(OPEN, "accept"), (CLOSED, "refuse")])
def test_a_gates_decision_that_is_only_noted_moves_nothing(store: Store, decision: Decision, word: str) -> None:
    add(store)
    sha256 = store.blobs.put(b"evidence", now=1.0)
    rested = store.releases.note("sprout@1", decision, evidence=sha256, who="gate", now=4.0).result()
    assert (rested.stage, rested.evidence, rested.changed_at) == (S.CANDIDATE, sha256, 4.0)
    body = {word: "sprout@1", "policy": "sprout", "stage": "candidate", "evidence": sha256}
    assert bodies(store)[-1] == {**body, "proof": None, "decision": encode(decision)}
    missing = store.releases.note("sprout@1", decision, evidence=None, who="gate", now=5.0, proof="cd" * 32).result()
    assert missing == rested  # there was none to rest on, and what there was stays
    assert (bodies(store)[-1]["evidence"], bodies(store)[-1]["proof"]) == (None, "cd" * 32)
    with pytest.raises(NotFound, match="there is no such blob"):
        store.releases.note("sprout@1", decision, evidence="cd" * 32, who="gate", now=4.0).result()
    assert problems(store) == []


@once
def test_the_history_of_a_policy_is_its_own(store: Store) -> None:
    add(store)
    add(store, policy="oak")
    store.ledger.append("note", {"policy": "sprout"}, who="ann", now=1.0).result()
    go(store, "sprout@1", S.SHADOW)
    assert [next(iter(body)) for body in bodies(store)] == ["add", "move"]
    assert [next(iter(body)) for body in bodies(store, "oak")] == ["add"]


def together(url: str, act: Callable[[Store, str, int], None]) -> dict[str, list[bool]]:
    """For each of twenty policies, whether ann and bob won, who act at the same time through stores of their own."""
    begin = Barrier(2)

    def compete(who: str) -> list[bool]:
        with open_store(url) as mine:
            begin.wait(60)
            return [_has_won(lambda n=n: act(mine, who, n)) for n in range(20)]

    return dict(zip(("ann", "bob"), at_once(compete, "ann", "bob"), strict=True))


def _has_won(act: Callable[[], None]) -> bool:
    try:
        act()
    except Conflict as refused:
        assert refused.remedy == AGAIN
        return False
    return True


def test_of_two_who_move_the_same_release_one_wins_and_the_other_is_told(store: Store, url: str) -> None:
    for n in range(20):
        add(store, policy=f"p{n}")
    won = together(url, lambda mine, who, n: go(mine, f"p{n}@1", S.LIVE, S.CANDIDATE, who=who) and None)
    assert [ann + bob for ann, bob in zip(*won.values(), strict=True)] == [1] * 20
    for n in range(20):
        winner = "ann" if won["ann"][n] else "bob"
        assert [entry.who for entry in store.releases.history(f"p{n}")] == ["ann", winner]
    assert problems(store) == []


def test_of_two_that_were_measured_against_the_live_one_one_takes_its_place(store: Store, url: str) -> None:
    for n in range(20):
        for source in ("shelf:a", "shelf:b", "shelf:c"):
            add(store, source, policy=f"p{n}")
        go(store, f"p{n}@1", S.LIVE)
    number = {"ann": 2, "bob": 3}
    won = together(
        url, lambda mine, who, n: go(mine, f"p{n}@{number[who]}", S.LIVE, S.CANDIDATE, expect_live=f"p{n}@1") and None
    )
    assert [ann + bob for ann, bob in zip(*won.values(), strict=True)] == [1] * 20
    for n in range(20):
        taken, left = ("live 100", "candidate 0") if won["ann"][n] else ("candidate 0", "live 100")
        assert stages(store, f"p{n}") == {f"p{n}@3": left, f"p{n}@2": taken, f"p{n}@1": "retired 0"}
    assert problems(store) == []


def test_two_who_go_live_together_leave_one_live_and_no_number_twice(store: Store, url: str) -> None:
    def act(mine: Store, who: str, n: int) -> None:
        go(mine, add(mine, f"shelf:{who}-{n}").id, S.LIVE, S.CANDIDATE)

    together(url, act)
    assert [one.number for one in store.releases.of_policy("sprout")] == list(range(40, 0, -1))
    assert len(store.releases.at("sprout", S.LIVE)) == 1
    assert len(store.releases.at("sprout", S.RETIRED)) == 39
    assert store.ledger.verify() == 80
    assert problems(store) == []


def served(store: Store) -> None:
    """sprout@1 was live, sprout@2 took its place by a proof, sprout@3 was refused."""
    for source in ("shelf:a", "shelf:b", "shelf:c"):
        add(store, source, manifest={"sha256": "ab"})
    go(store, "sprout@1", S.LIVE, known_good=True)
    proved, other = (store.blobs.put(data, now=1.0) for data in (b"evidence", b"another"))
    go(store, "sprout@2", S.LIVE, evidence=proved, known_good=True, expect_live="sprout@1")
    store.releases.note("sprout@3", CLOSED, evidence=other, who="gate", now=3.0).result()


def test_every_way_that_a_release_goes_adds_up_to_its_row(store: Store) -> None:
    served(store)
    assert store.releases.recompute() == []
    for step in (
        lambda: go(store, "sprout@3", S.SHADOW),
        lambda: go(store, "sprout@3", S.CANARY, share=5),
        lambda: go(store, "sprout@3", S.CANARY, share=25),
        lambda: back(store, "sprout@3", "sprout@2"),
        lambda: go(store, "sprout@3", S.CANDIDATE),  # a second try, which begins without evidence
        lambda: go(store, "sprout@3", S.REJECTED),
        lambda: by_hand(store, "sprout@2", "sprout@1"),
        lambda: by_hand(store, "sprout@1", "sprout@2"),  # undoes the one before
        lambda: back(store, "sprout@2", "sprout@1"),
        lambda: store.releases.note("sprout@2", CLOSED, evidence=None, who="gate", now=6.0).result(),
    ):
        step()
        assert store.releases.recompute() == []
    assert store.releases.get("sprout@3").evidence is None


SWAP = (
    "UPDATE releases SET stage = 'candidate', share = 0 WHERE number = 2",
    "UPDATE releases SET stage = 'live', share = 100 WHERE number = 1",
)


@once
def test_a_row_that_was_changed_is_named(store: Store) -> None:
    served(store)
    proved, other = (store.releases.get(f"sprout@{n}").evidence or "" for n in (2, 3))
    only = "UPDATE releases SET"
    for statements, expected in (
        (
            SWAP,
            [
                "sprout@1: stage live by its row, stage retired by the ledger",
                "sprout@1: share 100 by its row, share 0 by the ledger",
                "sprout@2: stage candidate by its row, stage live by the ledger",
                "sprout@2: share 0 by its row, share 100 by the ledger",
            ],
        ),
        (
            [f"{only} manifest = '{{}}', source = 'shelf:weak' WHERE number = 2"],
            [
                "sprout@2: source shelf:weak by its row, source shelf:b by the ledger",
                "sprout@2: its manifest is not the one in the ledger",
            ],
        ),
        ([f"{only} manifest = '{{' WHERE number = 2"], ["sprout@2: its manifest cannot be read"]),
        (
            [f"{only} kind = 'prompt', parent = 'sprout@1' WHERE number = 3"],
            [
                "sprout@3: kind prompt by its row, kind weights by the ledger",
                "sprout@3: parent sprout@1 by its row, no parent by the ledger",
            ],
        ),
        (
            [f"{only} is_known_good = 1 WHERE number = 3"],
            ["sprout@3: known to be good by its row, not known to be good by the ledger"],
        ),
        (
            [f"{only} number = 9 WHERE number = 3"],
            ["sprout@9: is not in the ledger", "sprout@3: is in the ledger, and not in the store"],
        ),
        (["DELETE FROM releases WHERE number = 3"], ["sprout@3: is in the ledger, and not in the store"]),
        (
            [f"{only} evidence = '{other}' WHERE number = 2"],
            [f"sprout@2: evidence {other[:12]} by its row, evidence {proved[:12]} by the ledger"],
        ),
    ):
        with damaged(store, *statements):
            assert store.releases.recompute() == problems(store, "recount") == [f"release {one}" for one in expected]


@once
def test_an_entry_that_makes_no_sense_is_named_and_a_project_counts_its_own(store: Store, url: str) -> None:
    served(store)
    with open_store(url, project="other") as elsewhere, damaged(store, "UPDATE releases SET kind = 'prompt'"):
        assert (len(store.releases.recompute()), elsewhere.releases.recompute()) == (3, [])
    rewrite(store, 4, 'UPDATE ledger SET body = \'{"move":"sprout@1"}\' WHERE seq = 4')
    assert store.releases.recompute()[0] == "ledger: entry 4 says nothing about a release that makes sense"
