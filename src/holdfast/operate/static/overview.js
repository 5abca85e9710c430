// The overview: which version is live and why, system health, and the rollback button.

import { get } from "./api.js";
import { spark, whiskers } from "./charts.js";
import { card, chip, empty, h, link, meter, stat, to } from "./dom.js";
import { ago, count, kind, num, pct } from "./format.js";
import { head } from "./head.js";
import { back } from "./releases.js";
import { states } from "./runs.js";
import { alertRow } from "./alerts.js";

const KINDS = { healthy: "good", degraded: "warn", failing: "bad", unknown: "" };
const SAYS = { healthy: "Healthy", degraded: "Degraded", failing: "Failing", unknown: "No data yet" };

// A decision in one sentence: the first reason only. The proof page lists all of them.
function why({ sentence, reasons, outcome, needs }) {
  if (outcome === "promoted" || outcome === "accepted" || reasons.length < 2) return sentence;
  const more = needs ? `; about ${count(needs)} more episodes may open the gate`
    : `; and ${count(reasons.length - 1)} more reasons`;
  return `${sentence.split(": ")[0]}: ${reasons[0].text}${more}.`;
}

// The newest decision about another version, in small print: it is not the reason why this one is live.
function next({ news, under_way: way }) {
  if (!news && !way) return null;
  const stands = way ? `Next: ${way.id} is ${way.stage}${way.share ? ` with ${way.share} %` : ""}. ` : "Since then: ";
  return h("p", { class: "next" }, stands, news && why(news));
}

// Which version answers, and the decision that made it live.
function policy(one, context, now) {
  const { live, under_way: way, way_back: target, decision } = one, canary = way?.stage === "canary" ? way : null;
  const title = live ? [link(["releases", one.policy], live.id), " is live"]
    : [link(["releases", one.policy], one.policy), " has no live version"];
  return h("div", { class: "live" },
    h("div", {}, h("h3", {}, title),
      h("p", { class: "why" }, decision ? decision.sentence : "No decision about it yet."),
      next(one),
      h("p", { class: "since" },
        [live && `since ${ago(live.changed_at, now)}`, decision && `decided by ${decision.who}, ${ago(decision.at, now)}`,
        live && !one.is_asked && (one.is_served ? "a service is up; no recent feedback"
          : "no requests now")].filter(Boolean).join(" · "))),
    h("div", { class: "row" }, live && (canary || target)
      ? back(context, one.policy, { live, canary, target })
      : live && h("span", { class: "grey" }, "There is no earlier version to roll back to.")));
}

const reach = (interval, form, range) => interval && Number.isFinite(interval.low)
  ? whiskers([{ name: "", value: interval.value, low: interval.low, high: interval.high }], { form, range }) : null;

function numbers({ pace, right, success, task_success: solved, reward, queue, run }) {
  const note = interval => !interval || interval.value === null ? "no measurements yet" : Number.isFinite(interval.low)
    ? `${num(interval.low)} to ${num(interval.high)} (95 %), n = ${count(interval.n)}` : `n = ${count(interval.n)}`;
  const shares = (one, none) => one?.value === null || !one ? none
    : `${pct(one.low)} to ${pct(one.high)} (95 %), n = ${count(one.n)}`;
  return card(null, {}, h("div", { class: "stats" },
    h("div", { class: "with-reach" }, stat("Right", pct(right?.value), shares(right, "nothing checked yet")),
      reach(right, pct, [0, 1])),
    h("div", {}, stat("Rollouts per second", num(pace.per_s),
        `last minute: ${count(pace.ended)} ended, ${count(pace.failed)} failed`),
      pace.ended > 0 && spark(pace.series.map(one => one.ended))),
    h("div", { class: "with-reach" }, stat("Finished", pct(success?.value), shares(success, "nothing finished yet")),
      reach(success, pct, [0, 1])),
    !right?.n && solved?.n > 0 && h("div", { class: "with-reach" }, stat("Task success", pct(solved.value),
        `${pct(solved.low)} to ${pct(solved.high)} (95 %), the newest ${count(solved.n)}`), reach(solved, pct, [0, 1])),
    h("div", { class: "with-reach" }, stat("Reward", num(reward?.value), note(reward)),
      reach(reward, num, [Math.min(0, reward?.low ?? 0), Math.max(1, reward?.high ?? 1)])),
    h("div", {}, stat("Queue", count(queue.waiting + queue.requeuing),
        `${count(queue.running)} running${queue.requeuing ? `, ${count(queue.requeuing)} waiting for a retry` : ""}`),
      run && meter(run.total ? run.done / run.total : 0),
        run && h("p", { class: "grey small" }, `${count(run.done)} of ${count(run.total)} done in `,
        link(["run", run.id], run.id), run.is_whole ? null : ", count in progress"))));
}

// A service has no workers: it answers in its own process.
function working(run, { working: n, slots, silent }) {
  if (n) return `${count(n)} ${n === 1 ? "worker" : "workers"} with ${count(slots)} ${slots === 1 ? "slot" : "slots"}${silent ? `, ${count(silent)} silent` : ""}`;
  if (run.kind === "serve" && run.state === "running") return run.is_silent ? "The service does not respond." : "A service is running.";
  return "No worker is active.";
}

function draw(data, context) {
  const { health, run, alerts, workers, now } = data;
  const isEmpty = !run && !data.policies.length;
  return [
    head("Overview", { says: `Project ${data.project}${data.running ? `, ${count(data.running)} ${data.running === 1 ? "run" : "runs"} running` : ""}.` }),
    isEmpty ? empty("This store is empty.", "holdfast quickstart --quick") :
      h("div", { class: "cards" },
        h("section", { class: "card hero" },
          h("p", { class: `health ${KINDS[health.health_state]}`, id: "health" },
            h("span", {}, h("strong", {}, SAYS[health.health_state]), ` · ${health.health_reason}`,
              health.run && health.last_cycle_failed > 0 && [" ", h("a", { href: `${to("run", health.run)}?status=failed` }, "Show them")])),
          data.policies.length ? data.policies.map(one => policy(one, context, now))
            : h("div", { class: "live" },
              h("div", {}, h("h3", {}, "No live version yet"),
                h("p", { class: "why" }, "Promote a version with ", h("code", {}, "holdfast release promote"),
                  "; the first version of a policy needs no proof.")))),
        numbers(data),
        h("section", { class: "card half" }, h("h2", {}, "Alerts"),
          alerts.length ? h("div", { class: "rows" }, alerts.slice(0, 5).map(one => alertRow(one, context, now)))
          : h("p", { class: "grey" }, "No alerts.")),
        h("section", { class: "card half" }, h("h2", {}, run?.state === "running" ? "Current run" : "Last run"),
          run ? h("div", { class: "rows" },
            h("div", {}, h("span", {}, link(["run", run.id], run.id), " ", chip(run.state, kind(run.state)),
                run.wanted !== "running" && run.state === "running" ? [" ", chip(run.wanted, "warn")] : null),
              h("span", { class: "grey" }, ago(run.created_at, now)),
            h("div", { class: "more" }, run.model_ref), h("div", { class: "more" }, states(run)),
            h("div", { class: "more" },
              working(run, workers)))) : h("p", { class: "grey" }, "No runs yet."))),
  ];
}

export default { title: "Overview", key: "o", topics: ["queue", "room", "done", "orders", "releases", "alerts"],
  load: () => get("overview"), draw };
