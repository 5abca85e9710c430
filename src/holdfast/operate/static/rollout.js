// One rollout: the conversation, its rewards, budget and attempts.

import { get } from "./api.js";
import { card, chip, empty, facts, h, link, meter, to } from "./dom.js";
import { count, dur, kind, moment, plain, words } from "./format.js";
import { head } from "./head.js";
import { button } from "./orders.js";
import { came } from "./runs.js";
import { made, message, scale, sheet, turn } from "./talk.js";

let asTokens = false; // shared by all rollout pages

const load = ([id], query) => get("rollout", { rollout: id, attempt: query.attempt });

function tries({ attempts, rollout }, query) {
  const first = Math.min(...attempts.map(one => one.started_at)),
    last = Math.max(...attempts.map(one => one.started_at + one.took_s)), all = last - first || 1;
  return h("div", { class: "tries" },
    attempts.map(one => h("a",
        { href: `${to("rollout", rollout.id)}?${new URLSearchParams({ ...query, attempt: one.number })}`,
          "aria-current": one.is_shown ? "true" : null, title: `${one.worker}, ${moment(one.started_at)}` },
    h("span", { class: "nowrap" }, `${one.number}. ${words(one.status)}`),
    h("span", { class: "way" },
      h("i", { class: kind(one.status),
          css: { left: `${(one.started_at - first) / all * 100}%`, width: `${one.took_s / all * 100}%` } })),
    h("span", { class: "grey nowrap" }, dur(one.took_s)),
      one.error && h("span", { class: "bad-text", css: { "grid-column": "1 / 4" } }, one.error))));
}

function budget(one) {
  return h("div", { class: "stack" },
    h("div", {}, h("div", { class: "row" }, h("strong", {}, `${count(one.spent)} of ${count(one.allowed)} tokens`),
        chip(one.tier), one.mode && chip(words(one.mode))),
      meter(one.allowed ? one.spent / one.allowed : 0, one.overspent ? "bad" : one.spent >= one.allowed ? "warn" : "")),
    facts({ Calls: count(one.calls), Escalated: one.escalations ? count(one.escalations) : null,
        Overspent: one.overspent ? count(one.overspent) : null, Wasted: one.waste ? count(one.waste) : null }),
    one.reasons.length > 0 && h("p", { class: "grey" }, one.reasons.map(words).join(", ")));
}

function timeline(found) {
  const first = Math.min(...found.map(one => one.started_at)),
    last = Math.max(...found.map(one => one.ended_at ?? one.started_at)), all = last - first || 1;
  return h("div", { class: "tries" },
    found.slice(0, 100).map(one => h("div", { class: "span", title: one.text },
        h("span", { css: { "padding-left": `${one.depth * 12}px` } }, one.name, h("span", { class: "grey" }, ` ${one.kind}`)),
    h("span", { class: "way" },
      h("i", { class: one.kind === "tool" ? "good" : "",
          css: { left: `${(one.started_at - first) / all * 100}%`,
            width: `${((one.ended_at ?? last) - one.started_at) / all * 100}%` } })),
    h("span", { class: "grey nowrap" }, one.ended_at === null ? "open" : dur(one.ended_at - one.started_at)))));
}

function draw(data, context) {
  const { rollout, turns } = data, hasTokens = turns.some(one => one.tokens?.some(token => token.logprob !== null));
  const talk = h("div", { class: "talk" });
  const fill = () => talk.replaceChildren(...[data.opening.map(message), data.loose.map(made),
      turns.map(one => turn(one, { asTokens }))].flat(4).filter(Boolean));
  fill();
  const toggle = h("button",
    { "aria-pressed": String(asTokens), id: "tokens",
      onclick: event => { asTokens = !asTokens; event.target.setAttribute("aria-pressed",
          String(asTokens)); key.hidden = !asTokens; fill(); } }, "Tokens by log-prob");
  const key = h("span", { hidden: !asTokens }, scale());
  const expected = rollout.input && typeof rollout.input === "object" ? rollout.input.expected ?? rollout.metadata?.expected
    : rollout.metadata?.expected;
  const near = rollout.key ?? context.query.key; // position of the group in a long run
  const isOpen = ["queuing", "requeuing", "running"].includes(rollout.status);
  const order = (text, action, more) => button(context, text,
    { action, subject: rollout.id, title: `${text.replace(" …", "")} ${rollout.name}`, ...more });
  return [
    head(rollout.name, { crumb: [link(["runs"], "Runs"), " / ", link(["run", rollout.run], rollout.run)],
      says: h("span", {}, came(rollout),
        ` ${[rollout.outcome && rollout.outcome !== rollout.status ? rollout.status : null, rollout.split, rollout.took_s === null ? null : dur(rollout.took_s), moment(rollout.enqueued_at)].filter(Boolean).join(" · ")}`),
      beside: [rollout.group !== rollout.name
        && h("a", { class: "chip", href: to("group", rollout.run, rollout.group, ...(near ? [String(near)] : [])) },
          "Compare its group"),
        isOpen ? order("Cancel …", "cancel_rollout", { danger: true }) : rollout.status !== "succeeded"
        && order("Requeue …", "requeue", {})] }),
    rollout.reason && h("div", { class: "failed gap" }, rollout.reason),
    h("div", { class: "reading" },
      h("div", { class: "stack" }, hasTokens && h("div", { class: "row" }, toggle, key),
        turns.length || data.opening.length ? talk
          : empty(data.attempts.length ? "This attempt called no model." : "No attempt yet."),
        !turns.length && card("Input", {}, h("pre", {}, plain(rollout.input))),
        data.output !== null && data.output !== turns.at(-1)?.text
          && card("Answer", {},
          h("pre", {}, typeof data.output === "string" ? data.output : JSON.stringify(data.output, null, 2))),
        data.failures.map(one => h("details", { class: "card", id: `failure-${one.seq}`, open: "" },
          h("summary", {}, `Traceback of ${one.name}`), h("pre", {}, one.traceback))),
        data.left_out > 0 && h("p", { class: "grey" },
          `${count(data.left_out)} turns and spans are not shown; 'holdfast run spans ${rollout.id}' prints them.`)),
      h("div", { class: "beside" },
        card("Reward terms", {}, sheet(data.sheet),
          expected !== undefined && h("p", { class: "grey gap" }, "Expected: ", h("b", {}, plain(expected)),
            " (hidden from the agent).")),
        Object.entries(data.scorings).map(([name, one]) => card(`Scored again: ${name}`, {}, sheet(one, `seen-${name}`))),
        data.budget && card("Thinking budget", {}, budget(data.budget)),
        data.attempts.length > 0 && card(`${data.attempts.length === 1 ? "1 attempt" : `${data.attempts.length} attempts`} of ${rollout.max_attempts}`, {}, tries(data, context.query)),
        data.timeline.length > 0 && h("details", { class: "card", id: "timeline" }, h("summary", {}, "Timeline"),
          timeline(data.timeline)),
        h("details", { class: "card", id: "input" }, h("summary", {}, "Task input"),
          h("pre", {}, JSON.stringify({ input: rollout.input, metadata: rollout.metadata }, null, 2))))),
  ];
}

export default { title: "Rollout", within: "runs", topics: ["done", "orders"], load, draw };
