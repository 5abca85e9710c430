// One run: progress, rewards, failures, and its rollouts with filters.

import { get } from "./api.js";
import { whiskers } from "./charts.js";
import { card, choices, facts, h, link, table, to } from "./dom.js";
import { ago, count, dur, moment, num, pct, plain, words } from "./format.js";
import { head, pager } from "./head.js";
import { button } from "./orders.js";
import { ended, OUTCOMES, reach, state, states } from "./runs.js";

const STATUSES = ["succeeded", "failed", "dead", "cancelled", "running", "queuing", "requeuing"],
  SPLITS = ["train", "val", "test"];

async function load([id], query) {
  const filters = { outcome: query.outcome, status: query.status, split: query.split, text: query.text, before: query.before };
  const [run, page] = await Promise.all([get("run", { run: id }), get("rollouts", { run: id, ...filters })]);
  return { ...run, page };
}

function orders(run, context) {
  const give = (text, action, more) => button(context, text,
    { action, subject: run.id, title: `${text.replace(" …", "")} ${run.id}`, ...more });
  if (run.state !== "running") return [run.state === "failed" && give("Recover …", "recover", {})];
  return [
    ["paused", "frozen"].includes(run.wanted) ? give("Resume …", "resume", {})
      : [give("Pause …", "pause", { args: { mode: "drain" }, says: "No new rollouts start; running ones finish." }),
      give("Freeze …", "pause",
        { args: { mode: "freeze" }, says: "No new rollouts start; running ones go back to the queue and run again later." })],
    run.is_silent && give("Recover …", "recover", {}),
    give("Drain …", "drain", {}), give("Cancel …", "cancel", { danger: true })];
}

export const rolloutColumns = [
  { name: "Rollout", show: one => one.name, kind: "fit" },
    { name: "Outcome", show: ended, kind: "fit" },
  { name: "Reward", show: one => one.reward === null ? null : num(one.reward), kind: "num" },
    { name: "Split", show: one => one.split, low: true },
  { name: "Attempts", show: one => `${one.attempts}/${one.max_attempts}`, kind: "num", low: true },
    { name: "Duration", show: one => one.took_s === null ? null : dur(one.took_s), kind: "num", low: true },
  { name: "Group", show: one => one.group === one.name ? null : link(["group", one.run, one.group, String(one.key)], one.group),
    low: true },
  { name: "Input", show: one => one.reason || one.asked, kind: "cut" },
];

function filters(data, context) {
  const { query, go } = context, id = data.run.id, set = change => go(["run", id], { ...query, before: null, ...change });
  let wait = null;
  const typed = event => { clearTimeout(wait); wait = setTimeout(() => set({ text: event.target.value.trim() }), 350); };
  return h("div", { class: "row filters" },
    choices("Outcome", query.outcome ?? "",
      [["", "any"], ...OUTCOMES.filter(one => one !== "no_answer").map(one => [one,
            `${words(one)} ${data.page.outcomes[one] ? `(${count(data.page.outcomes[one])})` : ""}`])],
      value => set({ outcome: value })),
    choices("Status", query.status ?? "",
      [["", "any"], ...STATUSES.map(one => [one,
            `${one} ${data.page.counts[one] ? `(${count(data.page.counts[one])})` : ""}`])], value => set({ status: value })),
    choices("Split", query.split ?? "", [["", "any"], ...SPLITS.map(one => [one, one])], value => set({ split: value })),
    h("input", { type: "search", id: "text", "data-filter": true, placeholder: "Part of the name", "aria-label": "Part of the name",
        value: query.text ?? "", oninput: typed }));
}

function draw(data, context) {
  const { run, page, splits, held, failures, ledger } = data,
    rewards = Object.entries(splits).filter(([, one]) => one.reward.value !== null);
  const low = Math.min(0, ...rewards.map(([, one]) => one.reward.low ?? one.reward.value)),
    high = Math.max(1, ...rewards.map(([, one]) => one.reward.high ?? one.reward.value));
  return [
    head(run.id, { crumb: link(["runs"], "Runs"), says: h("span", {}, state(run), ` ${run.kind} · ${run.model_ref}`),
        beside: [data.updates > 0 && h("a", { class: "chip", href: to("learning", run.id) }, "Learning"),
          h("a", { class: "chip", href: to("tools", run.id) }, "Tools and budgets"), orders(run, context)] }),
    h("div", { class: "cards" },
      run.error && h("div", { class: "failed" }, run.error),
      card(null, {}, h("div", { class: "stack" }, states(run) ?? h("p", { class: "grey" }, "No rollouts yet."),
        facts({ Done: `${count(run.done)} of ${count(run.total)}`, Right: reach(run.right, pct),
            Finished: reach(run.success, pct),
            Reward: reach(run.reward, num), Took: dur(run.took_s), Started: moment(run.created_at),
            "Last sign of life": run.state === "running" ? ago(run.beat_at) : null, "Last checkpoint": data.checkpoint }))),
      rewards.length > 0 && card("Reward by split", { class: failures.length ? "half" : "" },
        whiskers(rewards.map(([name, one]) => ({ name, ...one.reward, note: `n = ${count(one.reward.n)}` })),
          { range: [low, high] })),
      failures.length > 0 && card("Failure reasons", { class: rewards.length ? "half" : "" },
        h("div", { class: "rows" }, failures.map(one => h("div", {}, h("span", {}, one.reason), h("b", {}, count(one.n)))))),
      held.length > 0 && card(run.counts.running > 10 ? `Running now: 10 of ${count(run.counts.running)}` : "Running now", {},
        table([{ name: "Attempt", show: one => link(["rollout", one.rollout], one.rollout.split("/").slice(1).join("/")),
              kind: "fit" }, { name: "Attempt no.", show: one => one.number, kind: "num" },
            { name: "Worker", show: one => one.worker, kind: "cut" },
            { name: "Running for", show: one => dur(one.took_s), kind: "num" }], held.slice(0, 10))),
      h("section", { class: "card" }, h("h2", {}, `Rollouts, newest first${page.is_whole ? "" : " (count in progress)"}`),
        filters(data, context),
        page.rollouts.length ? table(rolloutColumns, page.rollouts, { href: one => `${to("rollout", one.id)}?key=${one.key}` })
          : h("p", { class: "grey pad" }, page.next ? "No match among these; older ones may match." : "No match.")),
      pager(context, page.next, ["run", run.id]),
      h("details", { class: "card", id: "settings" }, h("summary", {}, "Settings"),
        h("pre", {}, JSON.stringify(data.settings, null, 2))),
      ledger.length > 0 && h("details", { class: "card", id: "ledger" }, h("summary", {}, "Ledger entries"),
        h("div", { class: "rows" },
          ledger.map(one => h("div", {}, h("span", {}, one.what), h("span", { class: "grey" }, ago(one.at)),
              one.why && h("span", { class: "more" }, plain(one.why))))))),
  ];
}

export default { title: "Run", within: "runs", topics: ["queue", "room", "done", "orders", "alerts"], load, draw };
