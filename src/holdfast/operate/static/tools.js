// Tool adoption and thinking budgets of a run.

import { get } from "./api.js";
import { whiskers } from "./charts.js";
import { card, chip, choices, empty, h, link, meter, table } from "./dom.js";
import { count, kind, pct, words } from "./format.js";
import { head, pager } from "./head.js";

async function load([id], query) {
  const { runs } = await get("runs", { most: 50 });
  const run = id ?? runs[0]?.id;
  const [tools, budgets] = run
    ? await Promise.all([get("tools", { run }), get("budgets", { run, before: query.before, most: 20 })]) : [null, null];
  return { runs: runs.map(one => one.id), run, tools, budgets };
}

const RATES = [["adoption", "Adopted", "used in tasks that need it"], ["used", "Used", "called in tasks that offer it"],
  ["overuse", "Overused", "used in tasks that need none"], ["formed", "Well formed", "calls with valid arguments"], ["worked", "Worked", "calls without an error"],
  ["mended", "Recovered", "errors followed by a correct call"]];
const cell = one => one?.n ? h("span", { title: `${pct(one.low)} to ${pct(one.high)}, n = ${count(one.n)}` }, pct(one.value, 0))
  : null;

function adoption(tools) {
  if (!tools.rows.length) return empty("The newest rollouts of this run neither used nor needed tools.",
    "holdfast quickstart --quick");
  const many = new Set(tools.rows.map(one => one.version));
  const rate = one => one.adoption.n ? one.adoption : one.used;  // served conversations do not say what they need
  const named = tools.rows.filter(one => rate(one).n).map(one => ({ name: [one.tool || "all tools",
          many.size > 1 && h("span", { class: "grey small-text" }, ` ${one.version ?? ""}`)], ...rate(one),
        note: `${pct(rate(one).low, 0)} to ${pct(rate(one).high, 0)}, n = ${count(rate(one).n)}` }));
  return h("div", { class: "cards" },
    named.length > 0 && card("Used in tasks that need it", {}, whiskers(named, { form: one => pct(one, 0), range: [0, 1] })),
    card(`By tool, from ${count(tools.attempts)} newest rollouts`, {},
      table([{ name: "Tool", show: one => one.tool || "all" },
          ...RATES.map(([name, title]) => ({ name: title, show: one => cell(one[name]), kind: "num" })),
          { name: "Model", show: one => [one.model, one.version].filter(Boolean).join(" "), low: true, kind: "cut" }],
        tools.rows)));
}

function thinking(budgets, context) {
  if (!budgets.tiers.length) return empty("No thinking budgets in this run.",
    "holdfast run start --config FILE, with \"thinking_budgets\": true");
  return h("div", { class: "cards" },
    card("By difficulty", {}, table([
      { name: "Tier", show: one => one.name }, { name: "Budgets", show: one => count(one.budgets), kind: "num" },
      { name: "Used", show: one => h("span", { class: "beside-meter" }, meter(one.allowed ? one.spent / one.allowed : 0),
          pct(one.allowed ? one.spent / one.allowed : null, 0)), kind: "num" },
      { name: "Allowed", show: one => count(one.allowed), kind: "num", low: true },
        { name: "Wasted", show: one => one.spent ? pct(one.waste / one.spent, 0) : null, kind: "num" },
      { name: "Exhausted", show: one => count(one.exhausted), kind: "num", low: true },
        { name: "Escalated", show: one => count(one.escalations), kind: "num", low: true }], budgets.tiers)),
    card("Newest budgets", {}, table([
      { name: "Attempt", show: one => link(["rollout", one.attempt.replace(/:attempt-\d+$/, "")],
          one.attempt.split("/").slice(1).join("/")) }, { name: "Tier", show: one => one.tier },
        { name: "Used", show: one => `${count(one.spent)} / ${count(one.allowed)}`, kind: "num" },
      { name: "Wasted", show: one => one.waste ? count(one.waste) : null, kind: "num", low: true },
        { name: "Status", show: one => chip(one.status, kind(one.status)) },
        { name: "Mode", show: one => one.mode && words(one.mode), low: true }], budgets.budgets)),
    pager(context, budgets.next, ["tools", budgets.run]));
}

function draw(data, context) {
  if (!data.run) return [head("Tools and budgets"), empty("No runs yet.", "holdfast quickstart --quick")];
  return [head("Tools and budgets",
      { says: h("span", {}, link(["run", data.run], data.run)),
        beside: choices("Run", data.run, data.runs.map(one => [one, one]), value => context.go(["tools", value])) }),
    adoption(data.tools), h("h2", { class: "section" }, "Thinking budgets"), thinking(data.budgets, context)];
}

export default { title: "Tools and budgets", key: "b", topics: ["done"], load, draw };
