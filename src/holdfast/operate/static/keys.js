// Keyboard shortcuts: g and a letter opens a page, / focuses the filter, j and k move along rows, ? shows this list.

import { h } from "./dom.js";

const WAIT_MS = 1200; // for the letter after g
const isTyping = target => target.closest("input, textarea, select, [contenteditable]");

export function keyboard(pages, { go, colours }) {
  let since = 0;
  const help = h("dialog", { "aria-label": "Keyboard" }, h("h2", {}, "Keyboard"),
    h("dl", { class: "keyboard" },
      ...pages.flatMap(page => [h("dt", {}, h("kbd", {}, "g"), " ", h("kbd", {}, page.key)), h("dd", {}, page.title)]),
      ...[["j", "next row"], ["k", "previous row"], ["/", "filter"], ["t", "light or dark"], ["?", "this list"], ["Esc", "close"]]
        .flatMap(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
    h("form", { method: "dialog" }, h("div", { class: "row end" }, h("button", {}, "Close"))));
  document.body.append(help);

  function step(by) {
    const rows = [...document.querySelectorAll("#main tbody a, #main .rows a")], at = rows.indexOf(document.activeElement);
    if (!rows.length) return;
    const next = rows[Math.max(0, Math.min(rows.length - 1, at + by))];
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  }

  document.addEventListener("keydown", event => {
    if (event.metaKey || event.ctrlKey || event.altKey || isTyping(event.target)
      || document.querySelector("dialog[open]")) return;
    const letter = event.key, page = Date.now() - since < WAIT_MS ? pages.find(one => one.key === letter) : null;
    since = 0;
    if (page) go(page.name ? [page.name] : []);
    else if (letter === "g") since = Date.now();
    else if (letter === "j" || letter === "k") step(letter === "j" ? 1 : -1);
    else if (letter === "t") colours();
    else if (letter === "?") help.showModal();
    else if (letter === "/") document.querySelector("#main [data-filter]")?.focus();
    else return;
    event.preventDefault();
  });
  return () => help.showModal();
}
