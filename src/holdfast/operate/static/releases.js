// Versions and their stages, the guard of a canary, and the rollback button.

import { get } from "./api.js";
import { card, chip, empty, h, link, table, to } from "./dom.js";
import { ago, between, capital, count, dur, kind, num, pct, plain, words } from "./format.js";
import { head } from "./head.js";
import { button } from "./orders.js";
import { reach } from "./runs.js";

const STAGES = ["candidate", "shadow", "canary", "live"];
const load = ([policy]) => get("releases", { policy });

// The stages in order, with the current one marked.
function way(release) {
  const at = STAGES.indexOf(release.stage);
  if (at < 0) return chip(words(release.stage), kind(release.stage));
  return h("div", { class: "way-in" },
    STAGES.map((name, k) => [k ? h("span", { class: "arrow", "aria-hidden": "true" }, "→") : null,
        h("span", { class: `stage ${k === at ? "here" : ""}` },
          name + (name === "canary" && k === at && release.share ? ` ${release.share} %` : ""))]));
}

// A rollback takes the canary back, or the live version where there is no canary.
export function back(context, policy, { live, canary, target }) {
  const what = canary ? `the canary ${canary.id}` : live.id;
  return button(context, canary ? "Roll back the canary …" : "Roll back …",
    { action: "rollback", subject: policy, title: `Roll back ${what}`, danger: true,
      says: `${canary ? live.id : target} answers in its place within a second.` });
}

function guard(found, context, data) {
  const READ = { breach: "bad", clear: "good", open: "" };
  const quantiles = (found.readings ?? []).flatMap(one => one.quantiles);
  return card(`Guard of ${found.release}`, {}, h("div", { class: "stack wide" },
    h("p", { class: "grey" }, `Compared with ${found.beside}, on callers of the same time that could have met either.`),
    found.breaches.map(one => h("div", { class: "failed" }, one.text)), found.note && h("p", { class: "grey" }, found.note),
    found.arms.length > 0 && table([{ name: "Answered by", show: one => one.arm },
        { name: "Requests", show: one => count(one.requests), kind: "num" },
        { name: "Errors", show: one => count(one.errors), kind: "num" },
        { name: "Succeeded", show: one => reach(one.success, pct), kind: "num" },
        { name: "95 %", show: one => one.success.n ? between(one.success.low, one.success.high, pct) : null, kind: "num", low: true },
        { name: "Reward", show: one => one.reward === null ? null : num(one.reward), kind: "num", low: true },
        { name: "Latency", show: one => one.latency_s === null ? null : dur(one.latency_s), kind: "num", low: true }],
      found.arms),
    found.readings && table([
      { name: "Metric", show: one => capital(one.title) },
        { name: found.beside, show: one => one.n ? num(one.live) : null, kind: "num" },
        { name: found.release, show: one => one.n ? num(one.canary) : null, kind: "num" },
      { name: "n", show: one => plain(one.n), kind: "num" },
        { name: "Told of each", kind: "num", low: true,
          show: one => one.canary_told === null ? null : `${pct(one.live_told ?? 0)}, ${pct(one.canary_told)}` },
        { name: "", show: one => one.needs ? h("span", { class: "grey" }, `about ${count(one.needs)} more needed`) : "",
        low: true },
      { name: "State", show: one => chip(words(one.state), READ[one.state] ?? ""), kind: "num" }], found.readings),
    quantiles.length > 0 && table([{ name: "Latency", show: one => `p${+(100 * one.quantile).toFixed(1)}` },
        { name: found.beside, show: one => dur(one.live), kind: "num" },
        { name: found.release, show: one => dur(one.canary), kind: "num" },
        { name: `${found.beside} beyond it`, show: one => pct(one.live_beyond), kind: "num", low: true },
        { name: `${found.release} beyond its limit`, show: one => pct(one.canary_beyond), kind: "num", low: true }], quantiles),
    found.is_clear ? h("p", { class: "good-text" }, "Within all limits: the next step is allowed.") : found.lacks.length > 0
      && h("p", { class: "grey" }, `Not yet: ${found.lacks.join("; ")}.`)));
}

function account(found) {
  const last = found.sets[found.sets.length - 1];
  const anchor = found.anchor && { reject: "proved worse", promote: "proved better" }[found.anchor.outcome];
  return [`${plain(found.tests)} candidate${found.tests === 1 ? '' : 's'} tested, ${plain(found.promoted)} accepted by the gate`,
    last && `${pct(last.spent)} of α spent on the last ${plain(last.tasks)} held-out tasks, the next test has α ${num(last.next_alpha)}`,
    found.anchor && `against ${found.anchor.against}: ${anchor ?? "undecided"}`,
    found.anchor_due && `${plain(found.anchor_due)} promotions since the last test against an anchor`].filter(Boolean).join(" · ");
}

function draw(data, context) {
  if (!data.policy) return [head("Releases"), empty("No versions yet.", "holdfast release add sprout --policy tools")];
  const canary = data.releases.find(one => one.stage === "canary");
  return [
    head("Releases", { says: "Candidate, shadow, canary, live: each step forward needs evidence; a rollback takes effect at once.",
        beside: data.policies.length > 1
        ? data.policies.map(name => h("a", { class: `chip ${name === data.policy ? "good" : ""}`, href: to("releases", name) },
            name)) : [] }),
    h("div", { class: "cards" },
      h("section", { class: "card hero" }, h("div", { class: "live" },
        h("div", {}, h("h3", {}, data.live ? `${data.live.id} is live` : `${data.policy} has no live version`),
          data.decision && h("p", { class: "why" }, data.decision.sentence),
          data.live && h("p", { class: "since" }, `since ${ago(data.live.changed_at)} · ${data.live.source}`),
          data.account && data.account.tests > 0 && h("p", { class: "since" }, account(data.account))),
        h("div", { class: "row" },
          data.live && (canary || data.way_back)
          ? back(context, data.policy, { live: data.live, canary, target: data.way_back }) : data.live
          && h("span", { class: "grey" }, "There is no earlier version to roll back to.")))),
      data.guard && guard(data.guard, context, data),
      h("section", { class: "card" }, h("h2", {}, "Versions"),
        h("div", { class: "rows" }, data.releases.map(one => h("div", { id: one.id },
        h("span", {}, h("strong", {}, one.id), " ", h("span", { class: "grey" }, one.source),
          one.is_known_good ? [" ", chip("known good", "good")] : null),
          h("span", { class: "row" }, one.evidence && link(["proof", one.id], "Proof"),
          h("span", { class: "grey" }, ago(one.changed_at))),
        h("div", { class: "more" }, way(one)), one.decision && h("p", { class: "more" }, one.decision.sentence))))),
      data.history.length > 0 && h("section", { class: "card" }, h("h2", {}, "History"),
        h("div", { class: "rows" },
          data.history.map(one => h("div", {}, h("span", {}, one.sentence), chip(one.outcome, kind(one.outcome)),
              h("span", { class: "more" }, `${one.who}, ${ago(one.at)}, ledger entry ${one.seq}`)))))),
  ];
}

export default { title: "Releases", key: "e", topics: ["releases", "trials"], load, draw };
