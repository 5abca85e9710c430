// The head of a page: where one is, what it is about, and what may be done about it.

import { h } from "./dom.js";

export function head(title, { says = null, crumb = null, beside = [] } = {}) {
  return h("div", { class: "head" },
    h("div", {}, crumb && h("p", { class: "crumb" }, crumb), h("h1", {}, title), says && h("p", {}, says)),
    h("div", { class: "row" }, beside));
}

// Further pages of a list: back to the newest, and on to the older ones.
export function pager(context, next, path, key = "before") {
  const { query, go } = context;
  if (!query[key] && (next === null || next === undefined)) return null;
  return h("div", { class: "row pager" },
    query[key] && h("button", { onclick: () => go(path, { ...query, [key]: null }) }, "Newest"),
    next !== null && next !== undefined
      && h("button", { id: "older", onclick: () => go(path, { ...query, [key]: next }) }, "Older"));
}
