"""Drills of a town, on a scratch store: an anneal that hurts, and real weights that change while the town runs.

Each check compares what happened with what has to happen: a town whose weights were swapped goes on bit by bit as one
that these weights drive from that tick on. Who drives the runs, and where the store lies, is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from holdfast.contracts.errors import HoldfastError
from holdfast.contracts.evidence import Reason
from holdfast.contracts.policy import files_of, policy_record
from holdfast.contracts.release import PolicyKind, Release, Stage
from holdfast.learn.anneal import AnnealPlan
from holdfast.learn.school import PRACTISED, School
from holdfast.operate.playbook import DrillCheck
from holdfast.pipeline.control import EnvProof
from holdfast.pipeline.run import RunSpec
from holdfast.policies.network import Network
from holdfast.store.store import Store
from holdfast.workloads.townlife import OBSERVED, Life
from holdfast.workloads.townschool import (
    LINE,
    TownMaker,
    mind_of,
    policy_in,
    school_report,
    school_spec,
)
from holdfast.workloads.townservice import FOLLOWED, LiveMind

WHO = "drill"
TICKS = 120  # lived by each version
SEED = 5 * 2**29 + 2**22
LENIENT = AnnealPlan(shares=(1.0,), better=1e9, worse=1e9)  # what is swapped has to be real, not good
SHORT = School(
    rounds=0, epochs=2, label_rate=0.5, anneal_envs=1, anneal=LENIENT,
    practice=replace(PRACTISED, updates=1, step_updates=1, warmup=0, envs=1),
)  # fmt: skip
UNTAUGHT = replace(SHORT, epochs=1, lr=0.0, lr_end=0.0, anneal=AnnealPlan())
PROOF = EnvProof(episodes=2, batch=2)
Drive = Callable[[RunSpec], str]  # runs it to its end: the id of the run


def drill(store: Store, maker: TownMaker, drive: Drive, *, now: Callable[[], float]) -> Iterator[DrillCheck]:
    """Both drills. The store is a scratch one: its line of versions is promoted and taken back."""
    yield from anneal_drill(store, maker, drive)
    yield from swap_drill(store, maker, drive, now=now)


def anneal_drill(store: Store, maker: TownMaker, drive: Drive) -> Iterator[DrillCheck]:
    """Control passes to a network that was taught nothing: it has to go back to the script by itself."""
    report = school_report(store, drive(school_spec(maker, seed=1, school=UNTAUGHT, proof=PROOF)))
    anneal = report.anneal or {"share": 1.0, "windows": []}
    message = ", ".join(f"{one['share']:.0%} lost {one['loss']:.0%}: {one['action']}" for one in anneal["windows"])
    yield _check("an anneal that hurts goes back by itself", anneal["share"] == 0.0, message or "there was no anneal")
    live = store.releases.live(LINE)
    is_left = report.decision is None and report.release is None and live is None
    yield _check("and proposes no version", is_left, report.why or f"{report.release} was proposed")


def swap_drill(
    store: Store, maker: TownMaker, drive: Drive, *, now: Callable[[], float], every: int = FOLLOWED
) -> Iterator[DrillCheck]:
    """A version is promoted, another is damaged, and both are taken back, while the residents live on."""
    run = drive(school_spec(maker, seed=2, school=SHORT, proof=PROOF))
    taught = _taught(store, run)
    clone = next(str(step.body["checkpoint"]) for step in store.steps.of_run(run) if "checkpoint" in step.body)
    first = store.releases.live(LINE)
    if first is None:
        raise HoldfastError("the drill", why="its first version is not live", remedy="give it a fresh store")
    mind = LiveMind(store, maker.rules, clock=now, every=every)
    life, states = Life(maker.rules, seed=SEED, mind=mind, variant=OBSERVED), list[str]()

    def lived(name: str, wanted: str) -> DrillCheck:
        began = life.tick
        for _ in range(TICKS):
            life.step()
        states.append(life.env.state.sha256())
        took = [tick - began for tick, version in mind.swaps if tick >= began and version == wanted]
        message = f"{mind.version} drives it" + (f" from tick {took[0]} on" if took else "")
        return _check(name, mind.version == wanted and all(tick < FOLLOWED for tick in took), message)

    yield lived("a town runs by scripts", first.id)
    _promote(store, taught, now())
    yield lived("promoted weights drive it", taught.id)
    broken = _damaged(store, taught, clone, now())
    _promote(store, broken, now())
    yield lived("damaged weights do not", taught.id)
    yield _check("and are told", broken.id in mind.refused, mind.refused.get(broken.id, "nothing was refused"))
    _take_back(store, broken.id, taught.id, now())
    _take_back(store, taught.id, first.id, now())
    yield lived("a rollback reaches it", first.id)
    again = _again(store, life, mind.swaps, first.id)
    yield _check("the swaps changed nothing else", again == states, f"{len(states)} states compared, bit by bit")


def _again(store: Store, life: Life, swaps: Sequence[tuple[int, str]], first: str) -> list[str]:
    """The same town, each version set by hand at the tick at which it took over."""
    swapped, states = dict(swaps), []
    twin = Life(life.rules, seed=SEED, mind=mind_of(store, first, life.rules), variant=OBSERVED)
    while twin.tick < life.tick:
        if twin.tick in swapped:
            twin.mind = mind_of(store, swapped[twin.tick], life.rules)
        twin.step()
        if twin.tick % TICKS == 0:
            states.append(twin.env.state.sha256())
    return states


def _taught(store: Store, run: str) -> Release:
    """The candidate of a run."""
    report = school_report(store, run)
    if report.release is None:
        raise HoldfastError("the drill", why=f"its run left no version: {report.why}", remedy=f"look at {run}")
    return store.releases.get(report.release)


def _promote(store: Store, release: Release, now: float) -> None:
    how: dict[str, Any] = {"expect": release.stage, "who": WHO, "why": "a drill", "now": now}
    store.releases.move(release.id, Stage.LIVE, known_good=True, **how).result()


def _take_back(store: Store, failing: str, to: str, now: float) -> None:
    why = (Reason(code=WHO, text="a drill"),)
    store.releases.roll_back(LINE, failing=failing, to=to, who=WHO, why="a drill", now=now, reasons=why).result()


def _damaged(store: Store, release: Release, clone: str, now: float) -> Release:
    """Another version, of the clone that the first one began with: one bit of its weights is turned."""
    policy = policy_in(store, release.id)[1]
    assert isinstance(policy, Network)
    folder = files_of(clone, store.files)
    file = next(path for path in sorted(folder.iterdir()) if path.suffix == ".safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    broken = policy.at(clone)
    options: dict[str, Any] = {"kind": PolicyKind.NETWORK, "manifest": {"policy": policy_record(broken)}}
    return store.releases.add(policy=LINE, source=broken.source, who=WHO, now=now, **options).result()


def _check(name: str, holds: bool, found: str) -> DrillCheck:
    return DrillCheck(name=name, holds=holds, found=found)
