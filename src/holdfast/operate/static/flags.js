// Feature flags, their rules, and the kill switch.

import { get } from "./api.js";
import { chip, empty, h } from "./dom.js";
import { ago, kind, plain } from "./format.js";
import { head } from "./head.js";
import { button } from "./orders.js";

const rule = one => `${one.variant}${one.percent < 100 ? ` for ${one.percent} %` : ""}${one.conditions.length ? ` where ${one.conditions.map(each => `${each.attribute} ${each.operator} ${plain(each.value)}`).join(" and ")}` : ""}`;

function draw({ flags }, context) {
  return [head("Flags", { says: "Which features are on, and for whom. A killed flag stays off for everybody until it is revived." }),
    flags.length ? h("section", { class: "card" }, h("div", { class: "rows" }, flags.map(one => h("div", {},
      h("span", {}, h("strong", { class: "mono" }, one.name), " ", chip(one.state, kind(one.state))),
      h("span", { class: "row" }, h("span", { class: "grey" }, ago(one.changed_at)),
        one.state !== "killed" && button(context, "Kill …",
          { action: "kill", subject: one.name, title: `Kill ${one.name}`, danger: true })),
      h("span", { class: "more" }, one.description || "No description.", one.owner ? ` · ${one.owner}` : ""),
      h("span", { class: "more" },
        one.rules.length ? `Rules: ${one.rules.map(rule).join("; ")}`
        : `Variants: ${Object.keys(one.variants).join(", ") || "none"}`)))))
        : empty("No flags are set in this store: every feature has its default.", "holdfast release flags init")];
}

export default { title: "Flags", key: "f", topics: ["flags"], load: () => get("flags"), draw };
