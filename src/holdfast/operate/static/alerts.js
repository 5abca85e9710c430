// Active alerts, who acknowledged them, and cleared ones.

import { get } from "./api.js";
import { chip, empty, h, link, table } from "./dom.js";
import { ago, capital, dur, kind, moment, words } from "./format.js";
import { head, pager } from "./head.js";
import { button } from "./orders.js";

export const alertRow = (one, context, now) => h("div", { "data-alert": one.code },
  h("span", {}, chip(one.severity, kind(one.severity)), " ", h("strong", {}, capital(words(one.code))),
    one.run ? [" · ", link(["run", one.run], one.run)] : null),
  h("span", { class: "row" }, h("span", { class: "grey" }, ago(one.at, now)),
    one.acknowledged_by ? h("span", { class: "grey" }, `acknowledged by ${one.acknowledged_by}`)
    : button(context, "Acknowledge …",
      { action: "acknowledge", subject: one.run ? `${one.code}@${one.run}` : one.code,
        title: `Acknowledge ${words(one.code)}` })),
  h("span", { class: "more" }, one.message));

function draw(data, context) {
  const past = data.history.filter(one => one.cleared_at !== null);
  return [head("Alerts", { says: "An alert stays active until its cause is gone. Acknowledging it records who knows about it." }),
    data.standing.length ? h("section", { class: "card" }, h("h2", {}, "Active"),
      h("div", { class: "rows" }, data.standing.map(one => alertRow(one, context))))
      : h("div", { class: "empty" }, h("p", {}, "No alerts.")),
    past.length > 0 && h("section", { class: "card gap" }, h("h2", {}, "Cleared"),
      table([{ name: "Alert", show: one => capital(words(one.code)), kind: "fit" },
          { name: "Severity", show: one => chip(one.severity, kind(one.severity)), kind: "fit" },
          { name: "Raised", show: one => moment(one.at), kind: "fit", low: true },
          { name: "Duration", show: one => dur(one.cleared_at - one.at), kind: "num" },
          { name: "Run", show: one => one.run && link(["run", one.run], one.run), low: true },
          { name: "Message", show: one => one.message, kind: "cut" }], past)),
    pager(context, data.next, ["alerts"])];
}

export default { title: "Alerts", key: "a", topics: ["alerts"], load: (args, query) => get("alerts", { before: query.before }),
  draw };
