// The page header: breadcrumb, title, description and actions.

import { h } from "./dom.js";

export function head(title, { says = null, crumb = null, beside = [] } = {}) {
  return h("div", { class: "head" },
    h("div", {}, crumb && h("p", { class: "crumb" }, crumb), h("h1", {}, title), says && h("p", {}, says)),
    h("div", { class: "row" }, beside));
}

// Paging buttons of a list: newest and older.
export function pager(context, next, path, key = "before") {
  const { query, go } = context;
  if (!query[key] && (next === null || next === undefined)) return null;
  return h("div", { class: "row pager" },
    query[key] && h("button", { onclick: () => go(path, { ...query, [key]: null }) }, "Newest"),
    next !== null && next !== undefined
      && h("button", { id: "older", onclick: () => go(path, { ...query, [key]: next }) }, "Older"));
}
