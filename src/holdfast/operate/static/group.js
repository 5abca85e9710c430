// The rollouts of one group (the same task) side by side, best first.

import { get } from "./api.js";
import { chip, facts, h, link } from "./dom.js";
import { count, num, signed, words } from "./format.js";
import { head } from "./head.js";
import { came } from "./runs.js";

const load = ([run, group, near]) => get("group", { run, group, near });

function one(rollout) {
  const paid = rollout.signals.filter(signal => signal.weight !== 0);
  return h("section", { class: "card stack" },
    h("div", { class: "row" }, h("strong", { class: "large" }, rollout.reward === null ? "no reward" : num(rollout.reward)),
      rollout.advantage !== null
      && chip(`advantage ${signed(rollout.advantage, 2)}`, rollout.advantage > 0 ? "good" : rollout.advantage < 0 ? "bad" : ""),
      came(rollout)),
    rollout.thinking && h("div", { class: "thinks" }, rollout.thinking),
    h("div", { class: "text answer" }, rollout.answer || h("span", { class: "grey" }, "(no answer)")),
    rollout.calls.length > 0 && h("div", { class: "row" }, rollout.calls.slice(0, 12).map(name => h("code", {}, name))),
    paid.length > 0 && h("div", { class: "sheet" },
      paid.map(signal => h("div", {},
          h("span", {}, words(signal.name),
            signal.turn === null ? null : h("span", { class: "grey" }, ` turn ${signal.turn + 1}`)), h("span", { class: "of" }),
          h("span", { class: "counts" }, signed(signal.paid))))),
    facts({ Turns: count(rollout.turns), Tokens: count(rollout.completion_tokens) }),
    link(["rollout", rollout.id], rollout.name));
}

function draw(data) {
  return [head(data.group, { crumb: [link(["runs"], "Runs"), " / ", link(["run", data.run], data.run), " / group"],
        says: data.asked,
    beside: data.mean === null ? []
      : [chip(`mean ${num(data.mean)}`),
      chip(`spread ${num(data.spread)}`, data.spread ? "" : "warn",
        data.spread ? null : "All rewards are equal: this group gives no gradient.")] }),
    h("div", { class: "abreast", tabindex: 0 }, data.rollouts.map(one))];
}

export default { title: "Group", within: "runs", topics: ["done"], load, draw };
