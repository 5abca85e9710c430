// In a glance: what is live and why, whether it is well, and how to take it back.

import { get } from "./api.js";
import { spark, whiskers } from "./charts.js";
import { card, chip, empty, h, link, meter, stat, to } from "./dom.js";
import { ago, count, kind, num, pct } from "./format.js";
import { head } from "./head.js";
import { back } from "./releases.js";
import { states } from "./runs.js";
import { alertRow } from "./alerts.js";

const KINDS = { healthy: "good", degraded: "warn", failing: "bad", unknown: "" };
const SAYS = { healthy: "All is well", degraded: "Something is off", failing: "It is failing", unknown: "Nothing to go by yet" };

// A decision in one sentence: of many reasons the first, for the others have a page of their own.
function why({ sentence, reasons, outcome, needs }) {
  if (outcome === "promoted" || outcome === "accepted" || reasons.length < 2) return sentence;
  const more = needs ? `; about ${count(needs)} more episodes may open the gate`
    : `; and ${count(reasons.length - 1)} more reasons`;
  return `${sentence.split(": ")[0]}: ${reasons[0].text}${more}.`;
}

// What was decided since about another version: smaller, so that it is not taken for the reason why this one is live.
function next({ news, under_way: way }) {
  if (!news && !way) return null;
  const stands = way ? `Next: ${way.id} is ${way.stage}${way.share ? ` with ${way.share} %` : ""}. ` : "Since then: ";
  return h("p", { class: "next" }, stands, news && why(news));
}

// One sentence: which version answers, and the decision that put it there.
function policy(one, context, now) {
  const { live, under_way: way, way_back: target, decision } = one, canary = way?.stage === "canary" ? way : null;
  const title = live ? [link(["releases", one.policy], live.id), " is live"]
    : [link(["releases", one.policy], one.policy), " has no live version"];
  return h("div", { class: "live" },
    h("div", {}, h("h3", {}, title),
      h("p", { class: "why" }, decision ? decision.sentence : "Nothing has been decided about it yet."),
      next(one),
      h("p", { class: "since" },
        [live && `since ${ago(live.changed_at, now)}`, decision && `decided by ${decision.who}, ${ago(decision.at, now)}`,
        live && !one.is_asked && (one.is_served ? "a service is up, nothing was told of its answers lately"
          : "live, nobody asks it now")].filter(Boolean).join(" · "))),
    h("div", { class: "row" }, live && (canary || target)
      ? back(context, one.policy, { live, canary, target })
      : live && h("span", { class: "grey" }, "There is no earlier version to go back to.")));
}

const reach = (interval, form, range) => interval && Number.isFinite(interval.low)
  ? whiskers([{ name: "", value: interval.value, low: interval.low, high: interval.high }], { form, range }) : null;

function numbers({ pace, right, success, task_success: solved, reward, queue, run }) {
  const note = interval => !interval || interval.value === null ? "nothing measured yet" : Number.isFinite(interval.low)
    ? `${num(interval.low)} to ${num(interval.high)} (95 %), n = ${count(interval.n)}` : `n = ${count(interval.n)}`;
  const shares = (one, none) => one?.value === null || !one ? none
    : `${pct(one.low)} to ${pct(one.high)} (95 %), n = ${count(one.n)}`;
  return card(null, {}, h("div", { class: "stats" },
    h("div", { class: "with-reach" }, stat("Right", pct(right?.value), shares(right, "nothing was checked yet")),
      reach(right, pct, [0, 1])),
    h("div", {}, stat("Rollouts a second", num(pace.per_s),
        `last minute: ${count(pace.ended)} ended, ${count(pace.failed)} failed`),
      pace.ended > 0 && spark(pace.series.map(one => one.ended))),
    h("div", { class: "with-reach" }, stat("Ran to the end", pct(success?.value), shares(success, "nothing finished yet")),
      reach(success, pct, [0, 1])),
    !right?.n && solved?.n > 0 && h("div", { class: "with-reach" }, stat("Task success", pct(solved.value),
        `${pct(solved.low)} to ${pct(solved.high)} (95 %), the newest ${count(solved.n)}`), reach(solved, pct, [0, 1])),
    h("div", { class: "with-reach" }, stat("Reward", num(reward?.value), note(reward)),
      reach(reward, num, [Math.min(0, reward?.low ?? 0), Math.max(1, reward?.high ?? 1)])),
    h("div", {}, stat("Queue", count(queue.waiting + queue.requeuing),
        `${count(queue.running)} running${queue.requeuing ? `, ${count(queue.requeuing)} wait to be tried again` : ""}`),
      run && meter(run.total ? run.done / run.total : 0),
        run && h("p", { class: "grey small" }, `${count(run.done)} of ${count(run.total)} done in `,
        link(["run", run.id], run.id), run.is_whole ? null : ", still being counted"))));
}

// A service answers by itself: it has no workers, and still works.
function working(run, { working: n, slots, silent }) {
  if (n) return `${count(n)} ${n === 1 ? "worker" : "workers"} with ${count(slots)} ${slots === 1 ? "slot" : "slots"}${silent ? `, ${count(silent)} silent` : ""}`;
  if (run.kind === "serve" && run.state === "running") return run.is_silent ? "The service is silent." : "A service answers.";
  return "Nobody works at the moment.";
}

function draw(data, context) {
  const { health, run, alerts, workers, now } = data;
  const isEmpty = !run && !data.policies.length;
  return [
    head("Overview", { says: `Project ${data.project}${data.running ? `, ${count(data.running)} ${data.running === 1 ? "run" : "runs"} under way` : ""}.` }),
    isEmpty ? empty("Nothing has happened in this store yet.", "holdfast quickstart --quick") :
      h("div", { class: "cards" },
        h("section", { class: "card hero" },
          h("p", { class: `health ${KINDS[health.health_state]}`, id: "health" },
            h("span", {}, h("strong", {}, SAYS[health.health_state]), ` · ${health.health_reason}`,
              health.run && health.last_cycle_failed > 0 && [" ", h("a", { href: `${to("run", health.run)}?status=failed` }, "See them")])),
          data.policies.length ? data.policies.map(one => policy(one, context, now))
            : h("div", { class: "live" },
              h("div", {}, h("h3", {}, "Nothing is live yet"),
                h("p", { class: "why" }, "A version goes into service by ", h("code", {}, "holdfast release promote"),
                  "; the first of a policy needs no proof.")))),
        numbers(data),
        h("section", { class: "card half" }, h("h2", {}, "Alerts"),
          alerts.length ? h("div", { class: "rows" }, alerts.slice(0, 5).map(one => alertRow(one, context, now)))
          : h("p", { class: "grey" }, "None stands.")),
        h("section", { class: "card half" }, h("h2", {}, run?.state === "running" ? "What runs" : "The last run"),
          run ? h("div", { class: "rows" },
            h("div", {}, h("span", {}, link(["run", run.id], run.id), " ", chip(run.state, kind(run.state)),
                run.wanted !== "running" && run.state === "running" ? [" ", chip(run.wanted, "warn")] : null),
              h("span", { class: "grey" }, ago(run.created_at, now)),
            h("div", { class: "more" }, run.model_ref), h("div", { class: "more" }, states(run)),
            h("div", { class: "more" },
              working(run, workers)))) : h("p", { class: "grey" }, "No run yet."))),
  ];
}

export default { title: "Overview", key: "o", topics: ["queue", "room", "done", "orders", "releases", "alerts"],
  load: () => get("overview"), draw };
