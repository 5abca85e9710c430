// Shows a conversation: messages, reasoning, tool calls and their results.

import { h } from "./dom.js";
import { count, dur, num, plain, signed, words } from "./format.js";

const NAMES = { system: "System", user: "User", assistant: "Agent", tool: "Tool", developer: "Developer" };

const said = (role, who, ...what) => h("div", { class: `said ${role}` }, h("div", { class: "who" }, who),
  h("div", { class: "what" }, ...what));
export const message = one => said(one.role,
  one.name ? `${NAMES[one.role] ?? one.role} (${one.name})` : NAMES[one.role] ?? one.role,
  h("div", { class: "text" }, one.text || "(empty)"), one.tool_calls.map(call => wanted(call)));

const given = args => {
  const pairs = args && typeof args === "object" && !Array.isArray(args) ? Object.entries(args) : null;
  return h("span", { class: "args" },
    pairs ? pairs.map(([name, value], k) => [k ? "  " : "", h("span", {}, `${name}=`), plain(value)]) : plain(args ?? ""));
};

// A call without a recorded result.
const wanted = call => h("div", { class: "call" },
  h("div", {}, h("span", { class: "label" }, "requests"),
    h("span", {}, h("span", { class: "name" }, call.name), " ", given(call.arguments))));

export const made = call => h("div", { class: `call ${call.error ? "bad" : ""}` },
  h("div", {}, h("span", { class: "label" }, "calls"),
    h("span", {}, h("span", { class: "name" }, call.tool), " ", given(call.arguments))),
  h("div", {}, h("span", { class: "label" }, call.error ? "error" : "result"),
    h("span", { class: "result" }, call.error ?? plain(call.result))));

// Sampled tokens, coloured by log-prob: 0 is certain, −5 and below is unlikely.
export function tokens(turn) {
  const doubt = logprob => Math.round(Math.min(1, -logprob / 5) * 85);
  const one = token => {
    const told = token.logprob === null ? "no log-prob"
      : `log-prob ${num(token.logprob)}, probability ${num(Math.exp(token.logprob))}`;
    const text = token.is_scrubbed ? "█" : token.text ?? `⟨${token.id}⟩`;
    return h("span", { class: token.is_forced ? "forced" : null, title: token.is_forced ? "forced, not sampled" : told,
        css: token.logprob === null || token.is_forced ? null : { "--doubt": doubt(token.logprob) } }, text);
  };
  return h("div", { class: "tokens" }, turn.tokens.map(one),
    turn.tokens_left_out > 0 && h("span", { class: "grey" }, ` … ${count(turn.tokens_left_out)} more`));
}

export const scale = () => h("span", { class: "scale" }, "certain", h("i", {}), "unlikely");

function foot(turn) {
  const length = turn.completion_tokens === null ? null
    : `${count(turn.completion_tokens)} tokens${turn.thinking_tokens ? `, ${count(turn.thinking_tokens)} of them thinking` : ""}`;
  const why = turn.is_partial ? "cut short" : turn.finish_reason && turn.finish_reason !== "stop"
    && turn.finish_reason !== "tool_calls" ? `ended by ${words(turn.finish_reason)}` : null;
  const paid = turn.signals.filter(one => one.weight !== 0).map(one => `${words(one.name)} ${signed(one.paid)}`);
  return h("div", { class: "turn-foot" },
    [turn.took_s === null ? null : dur(turn.took_s), length, why, ...paid].filter(Boolean).map(text => h("span", {}, text)));
}

// One turn, as text or as tokens.
export function turn(one, { asTokens }) {
  const asked = one.tool_calls.filter(call => !one.calls.some(done => (done.id !== null && done.id === call.id)
      || done.tool === call.name));
  const words_ = asTokens && one.tokens ? [tokens(one)]
    : [one.thinking && h("div", { class: "thinks" }, one.thinking), one.text && h("div", { class: "text" }, one.text)];
  const nothing = !one.thinking && !one.text && !one.tool_calls.length && !one.calls.length && !asTokens;
  return [one.heard.map(message),
    said("assistant", [`Agent`, h("br"), h("span", { class: "grey" }, `turn ${one.index + 1}`)], ...words_,
      nothing && h("p", { class: "grey" }, "(empty)"), asked.map(wanted), one.calls.map(made), foot(one))];
}

// All reward terms with their weights; weighted ones first.
export function sheet(found, id = "seen") {
  if (!found?.signals.length) return h("p", { class: "grey" }, "No reward recorded.");
  const counts = found.signals.filter(one => one.weight !== 0), seen = found.signals.filter(one => one.weight === 0),
    merged = new Map();
  for (const one of seen) merged.set(one.name, [...(merged.get(one.name) ?? []), one.value]);
  const row = one => h("div", {},
    h("span", {}, words(one.name), one.turn === null ? null : h("span", { class: "grey" }, ` turn ${one.turn + 1}`)),
    h("span", { class: "of" }, `${num(one.value)} × ${num(one.weight)}`), h("span", { class: "counts" }, signed(one.paid)),
    h("span", { class: "source" }, one.source), one.feedback && h("span", { class: "feedback" }, one.feedback));
  return h("div", { class: "sheet" }, counts.map(row),
    h("div", { class: "total" }, h("strong", {}, "Reward"), h("span", {}), h("strong", { class: "counts" }, num(found.total))),
    merged.size > 0 && h("details", { id }, h("summary", {}, `${merged.size} more measured with weight 0`),
      [...merged].map(([name, values]) => h("div", { class: "quiet" }, h("span", {}, words(name)), h("span", {}),
          h("span", { class: "counts" }, values.slice(0, 6).map(value => num(value)).join(", "),
            values.length > 6 ? " …" : "")))));
}
