// All runs, newest first.

import { get } from "./api.js";
import { chip, empty, h, parts, table, to } from "./dom.js";
import { ago, count, dur, kind, num, pct, words } from "./format.js";
import { head, pager } from "./head.js";

export const OUTCOMES = ["right", "wrong", "not_checked", "failed", "no_answer"];
const OPEN = ["running", "requeuing", "queuing"];
const COLOURS = { right: "good", wrong: "warn", not_checked: "plain", failed: "bad", no_answer: "lost", running: "busy",
  requeuing: "wait", queuing: "" };

// Rollouts as one bar: finished ones by outcome, open ones by status. A finished answer is not always correct.
export const states = ({ outcomes, counts }) => parts([...OUTCOMES.map(name => [name, outcomes[name]]),
  ...OPEN.map(name => [name, counts[name]])]
  .map(([name, value]) => ({ name: words(name), value: value ?? 0, kind: COLOURS[name] })));

// The outcome of a rollout; the status of an open one.
export const came = ({ outcome, status }) => chip(words(outcome ?? status), kind(outcome ?? status));
// The outcome, with the status where it differs.
export const ended = one => [came(one), one.outcome && one.outcome !== one.status
  ? h("span", { class: "grey" }, ` ${one.status}`) : null];

export const state = run => [chip(run.is_silent ? "silent" : run.state, kind(run.is_silent ? "silent" : run.state)),
  run.state === "running" && run.wanted !== "running" ? [" ", chip(run.wanted, "warn")] : null];

export const reach = (interval, form) => interval?.value === null || !interval ? null
  : h("span", { title: Number.isFinite(interval.low)
      ? `${form(interval.low)} to ${form(interval.high)}, n = ${count(interval.n)}` : null }, form(interval.value));

function draw({ runs, next }, context) {
  const columns = [
    { name: "Run", show: one => one.id, kind: "fit" }, { name: "State", show: state, kind: "fit" },
    { name: "Done", show: one => `${count(one.done)} / ${count(one.total)}`, kind: "num" },
    { name: "Right", show: one => reach(one.right, pct), kind: "num" },
    { name: "Finished", show: one => reach(one.success, pct), kind: "num", low: true },
      { name: "Reward", show: one => reach(one.reward, num), kind: "num" },
    { name: "Duration", show: one => dur(one.took_s), kind: "num", low: true },
      { name: "Started", show: one => ago(one.created_at), kind: "fit", low: true },
    { name: "Kind", show: one => one.kind, kind: "fit", low: true }, { name: "Model", show: one => one.model_ref, kind: "cut", low: true },
  ];
  return [head("Runs", { says: "A run is one job with its own rollouts." }),
    runs.length ? h("section", { class: "card" }, table(columns, runs, { href: one => to("run", one.id) }))
      : empty("No runs yet.", "holdfast run start --config FILE"),
    pager(context, next, ["runs"])];
}

export default { title: "Runs", key: "r", topics: ["queue", "room", "done", "orders"],
  load: (args, query) => get("runs", { before: query.before }), draw };
