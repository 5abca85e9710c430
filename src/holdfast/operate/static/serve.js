// The shell: routing between pages, reloading when the store changes, and keyboard shortcuts.

import { get, leave, listen } from "./api.js";
import { isAway } from "./away.js";
import { h, to } from "./dom.js";
import { keyboard } from "./keys.js";
import { tell } from "./orders.js";
import overview from "./overview.js";
import runs from "./runs.js";
import run from "./run.js";
import rollout from "./rollout.js";
import group from "./group.js";
import learning from "./learning.js";
import proof from "./proof.js";
import experiments from "./experiments.js";
import releases from "./releases.js";
import tools from "./tools.js";
import alerts from "./alerts.js";
import audit from "./audit.js";
import flags from "./flags.js";

// name in the address → page
const PAGES = { "": overview, runs, run, rollout, group, learning, proof, experiments, releases, tools, alerts, audit, flags };
const GROUPS = [["", [""]], ["Work", ["runs", "learning", "tools"]], ["Evidence", ["proof", "experiments", "releases"]],
  ["Watch", ["alerts", "audit", "flags"]]];
const AGAIN_MS = 1000; // between two loads while the store changes
const AGE_MS = 15_000; // between two loads while it does not: figures of the last minute age

const $ = id => document.getElementById(id);
let me = null, here = null, shown = "", due = new Set(), timer = null, asked = 0, last = 0;

// Routing --------------------------------------------------------------------------------------------------------------

function read() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...args] = path.split("/").map(one => { try { return decodeURIComponent(one); } catch { return one; } });
  return { name, args, query: Object.fromEntries(new URLSearchParams(query ?? "")),
    page: Object.hasOwn(PAGES, name) ? PAGES[name] : null };
}

export function go(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  location.hash = to(...path) + (given.length ? `?${new URLSearchParams(given)}` : "");
}

async function arrive() {
  const before = here;
  here = read();
  shown = "";
  $("side").classList.remove("open");
  $("menu").setAttribute("aria-expanded", "false");
  nav();
  if (here.page) $("main").setAttribute("aria-busy", "true");
  await look();
  if (before?.name === here.name && before.args.join() === here.args.join()) return; // the same page with another filter
  window.scrollTo(0, 0);
  const main = $("main");
  if (!main.contains(document.activeElement)) main.focus({ preventScroll: true }); // no focus yet
}

// Loads the page data and redraws it where it changed.
async function look() {
  const place = here, mine = ++asked;
  last = Date.now();
  let data, nodes;
  try {
    if (!place.page) throw new Error("Page not found.");
    data = await place.page.load(place.args, place.query);
    if (mine !== asked) return;
    const text = JSON.stringify(data, (key, value) => key === "now" ? undefined : value);
    if (text === shown) return;
    shown = text;
    nodes = place.page.draw(data, { args: place.args, query: place.query, me, go, again: look });
  } catch (error) {
    if (mine !== asked) return;
    if (shown) return isAway() || tell(error.message, true); // the previous state is better than none
    nodes = [h("div", { class: "failed", role: "alert" }, h("strong", {}, "This page cannot be loaded. "), error.message)];
    if (!error.code) console.error(error);
  }
  draw(nodes);
  const name = place.page?.title ?? "Not found";
  document.title = `${place.args[0] ?? name} · Holdfast`;
  $("main").setAttribute("aria-busy", "false");
  const standing = place.page === overview ? data?.alerts : place.page === alerts ? data?.standing : null;
  if (standing) badge(standing.length);
  if (shown.includes('"is_whole":false')) setTimeout(() => changed(place.page.topics), AGAIN_MS);
}

// Replaces the page. Open sections stay open, and the focused field keeps its text.
function draw(nodes) {
  const main = $("main"), focus = document.activeElement, isHeld = focus?.id && main.contains(focus);
  const open = new Map([...main.querySelectorAll("details[id]")].map(one => [one.id, one.open]));
  main.replaceChildren(...nodes.flat(3).filter(Boolean));
  for (const one of main.querySelectorAll("details[id]")) if (open.has(one.id)) one.open = open.get(one.id);
  const again = isHeld && $(focus.id);
  if (!again) return;
  again.focus({ preventScroll: true });
  if (again.tagName !== "INPUT") return;
  again.value = focus.value; // typed text may not be applied yet
  again.setSelectionRange(focus.selectionStart, focus.selectionEnd);
}

function badge(standing) {
  const link = $("nav").querySelector("[data-page=alerts]");
  link.querySelector(".badge")?.remove();
  if (standing > 0) link.append(h("span", { class: "badge", "aria-label": `${standing} active` }, String(standing)));
}

function nav() {
  const at = here?.page?.within ?? here?.name;
  const item = name => h("a",
    { href: to(...(name ? [name] : [])), "data-page": name, "aria-current": at === name ? "page" : null }, PAGES[name].title);
  const kept = $("nav").querySelector(".badge")?.textContent;
  $("nav").replaceChildren(...GROUPS.flatMap(([title, names]) => [title && h("h2", {}, title),
        ...names.map(item)]).filter(Boolean));
  if (me?.has_town) $("nav").append(h("h2", {}, "World"), h("a", { href: "/town/" }, "Town"));
  if (kept) badge(Number(kept));
}

// Updates --------------------------------------------------------------------------------------------------------------

// Groups many changes into one load; a hidden page loads when it becomes visible.
function changed(topics) {
  for (const one of topics) due.add(one);
  if (timer !== null || document.hidden) return;
  timer = setTimeout(settle, Math.max(0, last + AGAIN_MS - Date.now()));
}

function settle() {
  timer = null;
  const wanted = here?.page?.topics ?? [], mine = [...due].some(one => wanted.includes(one));
  if (due.has("alerts") && here?.page !== overview
    && here?.page !== alerts) get("alerts").then(data => badge(data.standing.length), () => {});
  due.clear();
  if (mine && !isBusy()) look();
}

// True while a redraw would disturb a dialog, a selection or an open list.
function isBusy() {
  const choosing = CSS.supports("selector(select:open)") && document.querySelector("#main select:open");
  return Boolean(document.querySelector("dialog[open]") || getSelection()?.toString() || choosing);
}

// Start ----------------------------------------------------------------------------------------------------------------

function colours() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", document.documentElement.dataset.theme); } catch { /* storage is disabled */ }
}

async function begin() {
  me = await get("me");
  $("me").textContent = `${me.label} · ${me.role}`;
  $("theme").onclick = colours;
  $("leave").onclick = () => leave().finally(() => location.reload());
  $("menu").onclick = () => $("menu").setAttribute("aria-expanded", String($("side").classList.toggle("open")));
  $("keys").onclick = keyboard(Object.entries(PAGES).filter(([, page]) => page.key).map(([name, page]) => ({ name, ...page })),
    { go, colours });
  addEventListener("hashchange", arrive);
  setInterval(() => changed(here?.page?.topics ?? []), AGE_MS);
  document.addEventListener("visibilitychange", () => { if (!document.hidden && due.size) changed([]); });
  listen(changed, is => {
    $("line").textContent = is ? "Live" : "Not connected";
    $("line").classList.toggle("off", !is);
    if (is && here) changed(here.page?.topics ?? []); // load what failed before
  });
  await arrive();
  if (here.page !== overview && here.page !== alerts) get("alerts").then(data => badge(data.standing.length), () => {});
}

begin().catch(error => draw([h("div", { class: "failed", role: "alert" }, error.message)]));
