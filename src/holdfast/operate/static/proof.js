// The evidence of a decision: paired differences, the confidence sequence, and the gate's reasons.

import { get } from "./api.js";
import { line, whiskers } from "./charts.js";
import { card, chip, empty, facts, h, link, parts, table, to } from "./dom.js";
import { ago, capital, count, kind, num, plain, signed, words } from "./format.js";
import { head } from "./head.js";

const load = ([id]) => id ? get("proof", { release: id }) : get("proofs");

function all({ proofs }) {
  return [head("Proof", { says: "Versions with evidence: measured on the same tasks, with a test that stays valid at every interim look." }),
    proofs.length ? h("section", { class: "card" }, table([
      { name: "Version", show: one => one.release, kind: "fit" },
        { name: "Stage", show: one => chip(words(one.stage), kind(one.stage)), kind: "fit" },
      { name: "Decided", show: one => one.decision && chip(one.decision.outcome, kind(one.decision.outcome)), kind: "fit" },
        { name: "When", show: one => ago(one.decision?.at ?? one.changed_at), low: true, kind: "fit" },
        { name: "Why", show: one => one.decision?.sentence, kind: "cut" },
    ], proofs, { href: one => to("proof", one.release) }))
      : empty("No proofs yet.", "holdfast prove run SUITE --baseline A --candidate B")];
}

// The confidence sequence over tasks: it covers the true value at every look with probability 1 − α.
function course(one) {
  const levels = [{ value: 0, name: "no difference" }];
  if (one.bar !== null && one.bar !== 0) levels.push({ value: one.bar,
      name: one.bar < 0 ? "allowed loss" : "required gain" });
  return card(`${one.title}: confidence sequence by task`, { class: "half" }, h("p", { class: "lead" }, one.told, "."),
    line([{ name: "mean difference", x: one.n, y: one.mean, low: one.low, high: one.high }],
      { says: one.told, across: "tasks", form: signed, levels, tall: true }));
}

function tasks(data) {
  const { better, worse, same } = data.split, shown = data.tasks;
  if (!shown.length) return null;
  const most = Math.max(...shown.map(one => Math.abs(one.difference)), 1e-9);
  const strip = h("div", { class: "strip", role: "img", "aria-label": `${better} better, ${same} the same, ${worse} worse` },
    shown.map(one => h("i", { class: one.difference > 0 ? "good" : one.difference < 0 ? "bad" : "",
          title: `${one.task}: ${signed(one.difference)}`, css: { "--size": `${Math.abs(one.difference) / most * 50}%` } })));
  return card("Task by task, paired", {},
    h("div", { class: "stack" },
      parts([{ name: "better", value: better, kind: "good" }, { name: "the same", value: same, kind: "" },
          { name: "worse", value: worse, kind: "bad" }]), strip),
    h("details", { id: "tasks" },
      h("summary", {}, `All ${count(shown.length)}${data.tasks_left_out ? ` of ${count(shown.length + data.tasks_left_out)}` : ""}`), table([{ name: "Task", show: one => one.task }, { name: data.baseline, show: one => num(one.baseline), kind: "num" }, { name: data.candidate, show: one => num(one.candidate), kind: "num" }, { name: "Difference", show: one => h("span", { class: one.difference > 0 ? "good-text" : one.difference < 0 ? "bad-text" : "" }, signed(one.difference)), kind: "num" }], shown)));
}

function why(data) {
  const { decision, verdict } = data, found = decision?.reasons ?? [], isOpen = ["promoted", "accepted"].includes(decision?.outcome);
  return card("Gate decision", { class: "half" }, h("div", { class: "stack" },
    decision ? h("div", { class: "row" }, chip(decision.outcome, `large ${kind(decision.outcome)}`),
      decision.needs ? h("span", {}, `About ${count(decision.needs)} more episodes may open the gate.`) : null,
      h("span", { class: "grey" }, `${decision.who}, ${ago(decision.at)}`)) : h("p", { class: "grey" }, "No gate decision yet."),
    isOpen ? [found[0] && h("p", { class: "lead" }, found[0].text),
      h("details", { id: "checks" }, h("summary", {}, `All ${count(found.length - 1)} checks`),
        h("ul", { class: "plain checks" }, found.slice(1).map(one => h("li", {}, one.text))))]
      : found.length > 0 && h("div", { class: "rows" },
        found.map(one => h("div", {}, h("span", {}, one.text), h("span", {}),
            h("span", { class: "more" }, h("code", {}, one.code))))),
    !found.length && verdict?.reasons.length > 0
      && h("ul", { class: "plain" }, verdict.reasons.map(text => h("li", {}, plain(text))))));
}

// Events after the gate decision are not part of it.
function moves({ moves: found }) {
  return found.length > 0 && card("Later events", {}, h("div", { class: "rows" },
    found.map(each => h("div", {}, h("span", {}, each.sentence), chip(each.outcome, kind(each.outcome)),
        h("span", { class: "more" }, `${each.who}, ${ago(each.at)}`)))));
}

function findings({ findings: found, checked }) {
  if (!checked) return null;
  return card("Data quality", { class: "half" }, found.length
    ? h("div", { class: "rows" }, found.map(each => h("div", {},
        h("span", {}, `${capital(words(each.name))}: ${count(each.count)} of ${count(each.of)}`),
        chip(each.blocks ? "blocks" : each.severity, each.blocks ? "bad" : kind(each.severity)),
        each.detail && h("span", { class: "more" }, each.detail))))
    : h("p", { class: "grey" }, `No problems found by ${count(checked)} ${checked === 1 ? "check" : "checks"}.`));
}

function one(data) {
  const compared = data.comparisons.map(each => ({ name: each.title, value: each.difference, low: each.low, high: each.high,
        note: each.told.interval + (each.told.corrected ? ` · ${each.told.corrected} corrected for the stop` : "")
          + (each.told.note ? ` · ${each.told.note}` : ""),
        kind: each.high < 0 ? "bad" : each.low > 0 ? "" : "warn", told: each.told.difference }));
  return [head([data.candidate, h("span", { class: "grey" }, " against "), data.baseline],
      { crumb: link(["proof"], "Proof"), says: data.headline,
        beside: [h("a", { class: "chip", href: to("releases", data.release.policy) }, "Its releases")] }),
    data.problem && h("div", { class: "failed gap" }, data.problem),
    h("div", { class: "cards" }, why(data),
      card("Differences, candidate minus baseline", { class: "half" },
        h("div", { class: "stack" }, compared.map(each => whiskers([each], { zero: 0, form: () => each.told })),
          h("p", { class: "grey" }, "On this page a positive difference is always better; the bar is the interval."))),
      data.courses.map(course), tasks(data),
      findings(data),
      data.bands.length > 0 && card("Stability", { class: "half" },
        h("div", { class: "rows" },
          data.bands.map(each => h("div", {}, h("span", {}, `Over ${words(each.kind)}s, ${count(each.of)} of them`),
              chip(each.within ? "within" : "beyond", each.within ? "good" : "warn"),
              h("span", { class: "more" },
                `differences ${num(each.delta_spread)} apart, p-values ${num(each.p_value_spread)}`))))),
      moves(data), card("Measurement", {},
        facts({ Suite: data.suite, Metric: data.primary, Tasks: count(data.episodes),
            ...Object.fromEntries(Object.entries(data.manifest).filter(([, value]) => typeof value !== "object").slice(0,
                8).map(([name, value]) => [capital(words(name)), plain(value)])) })))];
}

export default { title: "Proof", key: "p", topics: ["releases"], load, draw: data => data.proofs ? all(data) : one(data) };
