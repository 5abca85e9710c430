// How a run learns: curves, rollouts without a gradient, and the lineage of checkpoints.

import { get } from "./api.js";
import { bars, line } from "./charts.js";
import { card, chip, choices, empty, h, link, table } from "./dom.js";
import { ago, capital, count, kind, num, pct, words } from "./format.js";
import { head } from "./head.js";
import { lineage } from "./lineage.js";

const CURVES = [["reward", "Reward", "mean over rollouts"], ["loss", "Loss", "of the objective"],
  ["kl", "KL", "distance from the behaviour policy"], ["entropy", "Entropy", "of the policy"],
  ["clip_fraction", "Clip fraction", "share of clipped tokens"], ["trainer_gap", "Trainer gap", "sampler and trainer, nats a token"],
  ["explained_variance", "Explained variance", "of the returns, by the critic"], ["length", "Length", "sampled tokens per sample"]];

async function load([id], query) {
  const { runs, learnt } = await get("runs", { most: 50 });
  const chosen = id ?? learnt ?? runs[0]?.id;
  const [data, search] = chosen ? await Promise.all([get("learning", { run: chosen }), get("search", { run: chosen })]) : [null, null];
  return { runs: runs.map(one => one.id), data, searches: search?.searches ?? [] };
}

function curve(points, [name, title, says]) {
  const x = points.map(one => one.step), y = points.map(one => one[name]);
  const drawn = line([{ name: title, x, y }],
    { says: `${title} by step`, across: "step", floor: ["kl", "entropy", "clip_fraction", "trainer_gap", "length"].includes(name) ? 0 : null });
  return drawn && card([title, h("span", { class: "light" }, ` ${says}`)], { class: "third" }, drawn);
}

function audit(data) {
  const { audit: last, silent } = data,
    items = Object.entries(silent).map(([name, value]) => ({ name: capital(words(name)), value, kind: "warn" }));
  if (!last && !items.length) return null;
  const shares = Object.entries(last?.shares ?? {}).filter(([, share]) => share >= 0.005).sort((a, b) => b[1] - a[1]);
  return [
    card("Learning signal", { class: "half" },
      last && h("div", { class: "stack" },
        last.rollouts ? h("p", { class: "lead" },
          `${count(last.taught)} of ${count(last.rollouts)} rollouts gave a gradient in step ${last.step}.`) : null,
      h("ul", { class: "plain" }, last.lines.slice(1).map(text => h("li", {}, capital(text), ".")))),
        items.length > 0 && h("div", { class: "gap" }, h("h2", {}, "Without a gradient, over all steps"),
        bars(items, { form: count }))),
    shares.length > 0 && card("Share of the reward variance", { class: "half" },
      bars(shares.map(([name, value]) => ({ name: words(name), value })), { form: pct, most: 1 })),
  ];
}

const columns = [
  { name: "#", show: one => one.number, kind: "num" },
  { name: "By", show: one => one.by, kind: "fit" },
  { name: "Rollouts", show: one => count(one.rollouts), kind: "num" },
  { name: "Score", show: one => one.score === null ? null : num(one.score), kind: "num" },
  { name: "Gain", show: one => one.gain === null ? null : num(one.gain), kind: "num" },
  { name: "Tokens", show: one => one.tokens === null ? null : num(one.tokens), kind: "num", low: true },
  { name: "Seconds", show: one => one.seconds === null ? null : num(one.seconds), kind: "num", low: true },
  { name: "", show: one => one.is_best ? chip("best", "good") : one.on_front ? chip("front") : null, kind: "fit" },
  { name: "Prompt", show: one => h("details", {}, h("summary", {}, capital(one.note || one.why)),
      Object.entries(one.texts).map(([name, text]) => h("p", {}, h("b", {}, `${name} `), typeof text === "string" ? text : JSON.stringify(text))),
      one.note && h("p", { class: "grey" }, capital(one.why))) },
];

function search(one) {
  const spent = Object.entries(one.budget).map(([name, limit]) => ({ name: capital(words(name)), value: one.spent[name] ?? 0, limit }));
  const tried = one.prompts.filter(prompt => prompt.rollouts), rounds = one.gains.map((_, k) => k + 1);
  const texts = Object.entries(one.optimized ?? {}).filter(([name, text]) => typeof text === "string" && text !== one.prompts[0].texts[name]);
  return [
    card(["Search for a prompt", h("span", { class: "light" }, ` iteration ${one.iteration + 1}, round ${one.round}`)], { class: "half" },
      h("p", { class: "lead" }, one.headline),
      h("div", { class: "gap" }, h("h2", {}, "Spent of the budget"),
        bars(spent.map(part => ({ name: `${part.name}: ${count(part.value)} of ${count(part.limit)}`, value: part.value / part.limit })), { form: pct, most: 1 })),
      texts.map(([name, text]) => h("p", { class: "gap" }, h("b", {}, `${name} `), text))),
    card(["Gain of the best so far", h("span", { class: "light" }, " expected over the prompt in force, by round")], { class: "half" },
      line([{ name: "Gain", x: rounds, y: one.gains }], { says: "Gain by round", across: "round", floor: 0 })),
    card([`Prompts: ${count(tried.length - 1)} tried`, h("span", { class: "light" },
        " score: mean reward; front: nobody beats it in reward, tokens and seconds together")], {},
      table(columns, tried, { mark: prompt => prompt.is_best ? "here" : null })),
    one.refused.length > 0 && card(`Refused proposals: ${count(one.refused.length)}`, {},
      h("ul", { class: "plain" }, one.refused.slice(-5).map(text => h("li", {}, text)))),
  ];
}

function draw({ runs, data, searches }, context) {
  if (!data) return [head("Learning"), empty("No runs yet.", "holdfast quickstart --quick")];
  const { points, checkpoints } = data,
    chosen = choices("Run", data.run, runs.map(one => [one, one]), value => context.go(["learning", value]));
  const curves = CURVES.map(one => curve(points, one)).filter(Boolean), told = audit(data);
  if (!curves.length && !checkpoints.length && !told && !searches.length) return [head("Learning", { beside: chosen }),
    empty(`No learning in ${data.run}: ${points.length ? `its ${count(points.length)} ${points.length === 1 ? "step has" : "steps have"} no learning metrics` : "it has no steps"}, and there are no checkpoints.`,
      "holdfast quickstart --quick")];
  const best = checkpoints.reduce((found, one) => (one.reward ?? -Infinity) > (found?.reward ?? -Infinity) ? one : found, null);
  const trouble = points.filter(one => one.restored || one.stopped_early || one.skipped && one.phase !== "search").slice(-6);
  return [
    head("Learning", { says: h("span", {}, link(["run", data.run], data.run),
          ` · ${count(data.steps)} ${data.steps === 1 ? "step" : "steps"}${data.is_whole ? "" : ", loading more"}`), beside: chosen }),
    h("div", { class: "cards" }, searches.map(search), curves, told,
      trouble.length > 0 && card("Restored, skipped and stopped steps", { class: "half" },
        h("div", { class: "rows" },
          trouble.map(one => h("div", {}, h("span", {}, `Step ${one.step}`), h("span", { class: "grey" }, ago(one.at)),
              h("span", { class: "more" },
                one.restored ? `restored: ${words(typeof one.restored === "string" ? one.restored : "it diverged")}`
                : one.skipped ? `skipped: ${words(one.skipped)}` : "stopped early"))))),
      data.findings.length > 0 && card("Data quality", { class: "half" },
        h("div", { class: "rows" },
          data.findings.map(one => h("div", {}, h("span", {}, words(one.name)),
              one.count ? chip(`${count(one.count)} of ${count(one.of)}`, kind(one.severity)) : chip("clean", "good"),
              one.detail && h("span", { class: "more" }, one.detail))))),
      checkpoints.length > 0 && card("Lineage of checkpoints", {},
        lineage([...checkpoints].reverse().slice(-60).map(one => ({ id: one.id, parent: one.parent, label: `step ${one.step}`,
                note: `${one.id}${one.reward === null ? "" : `, reward ${num(one.reward)}`}${one.release ? `, ${one.release} ${one.stage}` : ""}`, best: one === best || one.stage === "live" })), "Checkpoints from the first to the last")),
      checkpoints.length > 0 && card(null, {}, table([
        { name: "Checkpoint", show: one => one.id }, { name: "Step", show: one => count(one.step), kind: "num" },
          { name: "Reward", show: one => one.reward === null ? null : num(one.reward), kind: "num" },
          { name: "Algorithm", show: one => one.algorithm, low: true },
        { name: "In service", show: one => one.release
          && [link(["releases", one.release.split("@")[0]], one.release), " ", chip(words(one.stage), kind(one.stage))] },
          { name: "Created", show: one => ago(one.at), low: true, kind: "fit" },
          { name: "SHA-256", show: one => one.sha256 && h("code", {}, one.sha256.slice(0, 12)), low: true },
      ], checkpoints.slice(0, 30), { mark: one => one === best ? "here" : null }))),
  ];
}

export default { title: "Learning", key: "l", topics: ["queue", "done", "orders", "releases"], load, draw };
