// Charts as shapes in a frame that is stretched to its room; words stand beside them as text, so that they keep their size.

import { h, svg } from "./dom.js";
import { num } from "./format.js";

const SIDE = 1000;
const finite = values => values.filter(x => typeof x === "number" && Number.isFinite(x));

export function ticks(low, high, most = 5) {
  const size = 10 ** Math.floor(Math.log10((high - low) / most));
  for (const step of [1, 2, 5, 10, 20].map(k => k * size)) {
    const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
    if (last - first + 1 <= most) return Array.from({ length: last - first + 1 },
      (_, k) => +((first + k) * step).toPrecision(12));
  }
  return [];
}

function around(values, { floor = null, room = 0.08 } = {}) {
  const all = finite(values);
  if (!all.length) return [0, 1];
  let low = Math.min(...all), high = Math.max(...all);
  const spare = (high - low) * room || Math.max(Math.abs(high), 1) * room;
  low = floor !== null && low >= floor && low - spare < floor ? floor : low - spare;
  return [low, high + spare];
}

const place = (value, [low, high]) => Math.max(0, Math.min(1, (value - low) / (high - low || 1)));
const path = points => points.length ? "M" + points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L") : "";

// A line breaks where a value is missing.
function pieces(xs, ys, X, Y) {
  const found = [[]];
  xs.forEach((x, k) => {
    if (typeof ys[k] !== "number" || !Number.isFinite(ys[k])) found.push([]);
    else found.at(-1).push([place(x, X) * SIDE, (1 - place(ys[k], Y)) * SIDE]);
  });
  return found.filter(one => one.length);
}

function drawn(series, X, Y) {
  const marks = [];
  series.forEach((one, k) => {
    if (one.low && one.high) {
      const has = one.x.map((_, i) => i).filter(i => Number.isFinite(one.low[i]) && Number.isFinite(one.high[i]));
      const up = has.map(i => [place(one.x[i], X) * SIDE, (1 - place(one.high[i], Y)) * SIDE]);
      const down = has.map(i => [place(one.x[i], X) * SIDE, (1 - place(one.low[i], Y)) * SIDE]).reverse();
      if (has.length > 1) marks.push(svg("path", { class: `band s${k}`, d: path([...up, ...down]) + "Z" }));
    }
    for (const points of pieces(one.x, one.y, X, Y)) {
      marks.push(svg("path", { class: `line s${k} ${one.class ?? ""}`, d: path(points) }));
      if (points.length === 1 || one.x.length <= 40) for (const [x, y] of points) marks.push(svg("path",
          { class: `dot s${k}`, d: `M${x} ${y}h0` }));
    }
  });
  return marks;
}

// series: [{name, x, y, low?, high?}], all numbers; levels: [{value, name}] are lines right across.
export function line(series, { says, across = "", form = num, levels = [], floor = null, tall = false } = {}) {
  const shown = series.filter(one => finite(one.y).length);
  if (!shown.length) return null;
  const X = around(shown.flatMap(one => one.x.filter((_, k) => Number.isFinite(one.y[k]))), { room: 0.01 });
  const Y = around([...shown.flatMap(one => [...one.y, ...(one.low ?? []), ...(one.high ?? [])]),
      ...levels.map(one => one.value)], { floor });
  const isWhole = shown.every(one => one.x.every(Number.isInteger));
  const up = ticks(...Y), along = ticks(...X, 6).filter(x => !isWhole || Number.isInteger(x));
  const rule = svg("path", { class: "rule", d: "", visibility: "hidden" });
  const frame = svg("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, preserveAspectRatio: "none", role: "img", "aria-label": says },
    up.map(y => svg("path", { class: "grid", d: `M0 ${(1 - place(y, Y)) * SIDE}H${SIDE}` })),
    levels.map(one => svg("path", { class: "level", d: `M0 ${(1 - place(one.value, Y)) * SIDE}H${SIDE}` })),
    drawn(shown, X, Y), rule);
  const readout = h("figcaption", {}, legend(shown, form),
    levels.map(one => h("span", { class: "of-level" }, h("i", { class: "level" }), `${one.name} ${form(one.value)}`)));
  const still = [...readout.childNodes];
  const plot = h("div", { class: "plot" + (tall ? " tall" : "") }, frame,
    up.map(y => h("span", { class: "beside", css: { top: `${(1 - place(y, Y)) * 100}%` } }, form(y))),
    along.map(x => h("span", { class: `below${place(x, X) > 0.95 ? " last" : ""}`, css: { left: `${place(x, X) * 100}%` } }, num(x))),
    across && h("span", { class: "across" }, across));
  const longest = shown.reduce((a, b) => b.x.length > a.x.length ? b : a);
  plot.onpointermove = event => {
    const box = frame.getBoundingClientRect(), at = X[0] + (event.clientX - box.left) / box.width * (X[1] - X[0]);
    const near = longest.x.reduce((best, x, k) => Math.abs(x - at) < Math.abs(longest.x[best] - at) ? k : best, 0),
      x = longest.x[near];
    rule.setAttribute("d", `M${place(x, X) * SIDE} 0V${SIDE}`);
    rule.setAttribute("visibility", "visible");
    readout.replaceChildren(h("span", {}, `${across || "at"} ${num(x)}`), ...legend(shown, form, x));
  };
  plot.onpointerleave = () => { rule.setAttribute("visibility", "hidden"); readout.replaceChildren(...still); };
  return h("figure", { class: "chart" }, plot, readout);
}

function legend(series, form, x = null) {
  return series.map((one, k) => {
    const at = x === null ? one.y.findLastIndex(Number.isFinite) : one.x.indexOf(x);
    const low = one.low?.[at], high = one.high?.[at];
    const range = Number.isFinite(low) && Number.isFinite(high) ? ` (${form(low)} to ${form(high)})` : "";
    return h("span", {}, h("i", { class: `s${k}` }), `${one.name} `, h("b", {}, at < 0 ? "–" : form(one.y[at])), range);
  });
}

// A small line without words, for beside a number.
export function spark(values) {
  if (finite(values).length < 2) return null;
  const xs = values.map((_, k) => k), Y = around(values), X = [0, values.length - 1];
  return svg("svg", { class: "spark", viewBox: `0 0 ${SIDE} ${SIDE}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    pieces(xs, values, X, Y).map(points => svg("path", { class: "line s0", d: path(points) })));
}

// A value with its interval on a scale: [{name, value, low, high, note?, kind?}]; `zero` is where nothing differs.
export function whiskers(items, { form = num, range = null, zero = null } = {}) {
  const X = range ?? around([...items.flatMap(one => [one.value, one.low, one.high]), zero]);
  const at = x => `${place(x, X) * 100}%`;
  return h("div", { class: "whiskers" }, items.map(one => h("div", { class: `whisker ${one.kind ?? ""}` },
    h("span", { class: "name" }, one.name),
    h("span", { class: "track", role: "img", "aria-label": `${form(one.value)}, ${form(one.low)} to ${form(one.high)}` },
      zero === null ? null : h("i", { class: "zero", css: { left: at(zero) } }),
      Number.isFinite(one.low) && h("i",
        { class: "reach", css: { left: at(one.low), width: `${(place(one.high, X) - place(one.low, X)) * 100}%` } }),
      Number.isFinite(one.value) && h("i", { class: "point", css: { left: at(one.value) } })),
    h("span", { class: "told" }, h("b", {}, form(one.value)),
      h("span", { class: "note" }, one.note ?? (Number.isFinite(one.low) ? `${form(one.low)} to ${form(one.high)}` : ""))))));
}

// Bars from zero, one below another: [{name, value, kind?, note?}]
export function bars(items, { form = num, most = null } = {}) {
  const high = most ?? Math.max(...finite(items.map(one => Math.abs(one.value))), 1e-9);
  return h("div", { class: "bars" }, items.map(one => h("div", { class: one.kind ?? "" },
    h("span", { class: "name" }, one.name),
      h("span", { class: "track" }, h("i", { css: { width: `${Math.min(1, Math.abs(one.value ?? 0) / high) * 100}%` } })),
    h("b", {}, form(one.value)), one.note && h("span", { class: "note" }, one.note))));
}
