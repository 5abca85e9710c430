// Builds elements. Text is inserted as text only, so stored content can never run.

import { count } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "css") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(9).filter(one => one !== null && one !== undefined && one !== false));
  return node;
}

export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const svg = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

// A link within the page; path parts are stored names, so each is encoded.
export const to = (...path) => "#/" + path.map(encodeURIComponent).join("/");
export const link = (path, ...children) => h("a", { href: to(...path) }, ...children);

export const card = (title, props, ...children) =>
  h("section", { ...props, class: "card " + (props?.class ?? "") }, title && h("h2", {}, title), ...children);

export const chip = (text, kind = "", title = null) => h("span", { class: `chip ${kind}`, title }, text);

export const empty = (says, command) =>
  h("div", { class: "empty" }, h("p", {}, says), command && h("p", {}, "To get started: ", h("code", {}, command)));

export const stat = (name, value, note, ...more) =>
  h("div", { class: "stat" }, h("span", { class: "name" }, name), h("strong", {}, value),
    note && h("span", { class: "note" }, note), ...more);

// Names with values; missing values are left out.
export const facts = pairs =>
  h("dl", { class: "facts" }, Object.entries(pairs).filter(([, one]) => one !== null && one !== undefined && one !== "")
    .map(([name, one]) => h("div", {}, h("dt", {}, name), h("dd", {}, one))));

// Columns: {name, show(row), kind: "num" | "wide" | "mono", low: true to leave it out on a phone}
export function table(columns, rows, { href = null, mark = null } = {}) {
  const of = one => [one.kind, one.low && "low"].filter(Boolean).join(" ") || null;
  const cell = (row, one, k) => {
    const shown = one.show(row);
    const content = k === 0 && href?.(row) ? h("a", { href: href(row) }, shown) : shown;
    return h("td", { class: of(one) }, content ?? h("span", { class: "none" }, "–"));
  };
  return h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, columns.map(one => h("th", { class: of(one), scope: "col" }, one.name)))),
    h("tbody", {}, rows.map(row => h("tr", { class: mark?.(row) }, columns.map((one, k) => cell(row, one, k)))))));
}

export const meter = (share, kind = "") => {
  const part = Math.max(0, Math.min(1, share || 0));
  return h("span", { class: `meter ${kind}`, role: "img", "aria-label": `${Math.round(part * 100)} %` },
    h("i", { css: { width: `${part * 100}%` } }));
};

// Parts of a whole as one bar with a legend: [{name, value, kind}]
export function parts(items) {
  const all = items.reduce((sum, one) => sum + one.value, 0), some = items.filter(one => one.value > 0);
  if (!all) return null;
  return h("div", { class: "parts" },
    h("div", { class: "bar", "aria-hidden": "true" },
      some.map(one => h("i", { class: one.kind, css: { "flex-grow": one.value } }))),
    h("div", { class: "keys" },
      some.map(one => h("span", {}, h("i", { class: one.kind }), h("b", {}, count(one.value)), " ", one.name))));
}

export function choices(name, now, options, chosen) {
  const list = h("select", { "aria-label": name, id: `choose-${name.replaceAll(" ", "-")}`,
      onchange: event => chosen(event.target.value) },
    options.map(([value, text]) => h("option", { value, selected: value === now }, text)));
  return h("label", { class: "choice" }, h("span", {}, name), list);
}
