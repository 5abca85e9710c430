// Experiments: arms side by side, their units and outcomes.

import { get } from "./api.js";
import { whiskers } from "./charts.js";
import { card, chip, empty, h, link, table, to } from "./dom.js";
import { ago, capital, count, dur, kind, num, pct, words } from "./format.js";
import { head } from "./head.js";

const load = ([name]) => name ? get("experiment", { name }) : get("experiments");

function all({ experiments }) {
  return [head("Experiments", { says: "Arms side by side. Canaries and shadows are listed too." }),
    experiments.length ? h("section", { class: "card" }, table([
      { name: "Experiment", show: one => one.name },
        { name: "State", show: one => chip(one.state, kind(one.state)), kind: "fit" },
        { name: "Kind", show: one => words(one.kind), low: true },
      { name: "Arms", show: one => one.arms.map(arm => `${arm.arm}${arm.units === null ? "" : ` (${count(arm.units)})`}`).join(", ") }, { name: "Metric", show: one => one.metric, low: true }, { name: "Started", show: one => ago(one.created_at), low: true, kind: "fit" },
    ], experiments, { href: one => to("experiments", one.name) }))
      : empty("No experiments yet.", "holdfast release experiment create NAME")];
}

function one({ experiment, ruling, note }) {
  const told = experiment.arms.filter(arm => arm.success.n).map(arm => ({ name: arm.arm, ...arm.success,
        note: `${pct(arm.success.low)} to ${pct(arm.success.high)}, n = ${count(arm.success.n)}` }));
  return [head(experiment.name,
      { crumb: link(["experiments"], "Experiments"),
        says: h("span", {}, chip(experiment.state, kind(experiment.state)),
          ` ${words(experiment.kind)} · started ${ago(experiment.created_at)}${experiment.why ? ` · ${experiment.why}` : ""}`) }),
    h("div", { class: "cards" },
      card("Verdict", { class: "half" },
        ruling ? h("div", { class: "stack" },
          h("p", { class: "lead" }, capital(words(ruling.call)),
            ruling.arm && !words(ruling.call).includes(ruling.arm) ? `: ${ruling.arm}` : "", "."),
          ruling.needs ? h("p", {}, `About ${count(ruling.needs)} more units are needed.`) : null,
          h("ul", { class: "plain" }, ruling.reasons.map(each => h("li", {}, each.text))))
        : h("p", { class: "grey" }, capital(note ?? "No verdict yet."))),
      told.length > 0 && card("Succeeded", { class: "half" }, whiskers(told, { form: pct, range: [0, 1] })),
      card("Arms", {}, table([{ name: "Arm", show: arm => arm.arm },
            { name: "Weight", show: arm => num(arm.weight), kind: "num" },
            { name: "Units", show: arm => arm.units === null ? null : count(arm.units), kind: "num" },
            { name: "Requests", show: arm => count(arm.requests), kind: "num" },
            { name: "Errors", show: arm => count(arm.errors), kind: "num" },
            { name: "Reward", show: arm => arm.reward === null ? null : num(arm.reward), kind: "num" },
            { name: "Safety cost", show: arm => arm.safety_cost === null ? null : num(arm.safety_cost), kind: "num",
              low: true }, { name: "Latency", show: arm => arm.latency_s === null ? null : dur(arm.latency_s), kind: "num",
              low: true }], experiment.arms)))];
}

export default { title: "Experiments", key: "x", topics: ["trials"], load,
  draw: data => data.experiments ? all(data) : one(data) };
