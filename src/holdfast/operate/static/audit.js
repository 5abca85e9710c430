// The ledger, newest first: who did what, when and why. Each entry contains the hash of the previous one.

import { get } from "./api.js";
import { chip, choices, empty, h, link } from "./dom.js";
import { moment, words } from "./format.js";
import { head, pager } from "./head.js";

const COLOURS = { refusal: "bad", command: "busy", release: "good", alert: "warn", token: "warn" };

function draw({ entries, next, kinds }, context) {
  const { query, go } = context;
  return [head("Audit", { says: h("span", {}, "Append-only and hash-chained; ", h("code", {}, "holdfast store check"),
          " recomputes the chain."),
        beside: choices("Kind", query.kind ?? "", [["", "all"], ...kinds.map(one => [one, one])],
          value => go(["audit"], { kind: value })) }),
    entries.length ? h("section", { class: "card" },
      h("div", { class: "rows ledger" }, entries.map(one => h("details", { id: `entry-${one.seq}` },
      h("summary", {}, h("span", { class: "grey seq" }, one.seq), chip(one.kind, COLOURS[one.kind] ?? ""),
        h("span", { class: "what" }, one.what, one.why && h("span", { class: "grey" }, `: ${one.why}`)), h("span", { class: "grey nowrap" }, `${one.who} · ${moment(one.at)}`)),
      one.run && h("p", {}, "Run ", link(["run", one.run], one.run)),
        h("pre", {}, JSON.stringify(one.body, null, 2)), h("p", { class: "grey" }, h("code", {}, one.sha256))))))
        : empty(query.kind ? `No ${words(query.kind)} among the newest entries.` : "No entries yet.",
        query.kind ? null : "holdfast quickstart --quick"),
    pager(context, next, ["audit"])];
}

export default { title: "Audit", key: "u", topics: ["orders", "releases", "flags", "alerts", "trials"],
  load: (args, query) => get("audit", { kind: query.kind, before: query.before }), draw };
