// The town on a canvas. Frames come from /live, moments of the recording from /frames; orders go to /order.
// A delta is only used upon the frame before it: whoever has missed one begins again at a key frame.

const $ = id => document.getElementById(id);
const COLUMNS = ["at", "doing", "shift", "job", "purse", "name", "nature"];
const NATURES = ["#3f7fc1", "#d0628f", "#c9822f", "#4e9a63", "#8b6fc0", "#7c8a93"];
const NEEDS = ["hunger", "hygiene", "energy", "social"];
const SHOWN = [
  ["alive", "Residents here", v => `${Math.round(v * 100)} %`], ["needs_met", "Needs met", v => `${Math.round(v * 100)} %`],
  ["attendance", "At work when due", v => `${Math.round(v * 100)} %`], ["chats", "Talks a day", v => v.toFixed(1)],
  ["queue_wait", "In line a day", v => `${Math.round(v)} min`], ["queue_fairness", "Fairness of lines", v => v.toFixed(2)],
  ["lateness", "Late a day", v => v.toFixed(2)], ["rivalry", "Rivals each", v => v.toFixed(2)],
  ["exits", "Left a day", v => v.toFixed(3)], ["failures", "Failed tries", v => `${Math.round(v * 100)} %`],
];
const TROUBLES = { price_spike: "Prices up", blackout: "Blackout", outage: "No water", meeting: "Meeting", rain: "Rain", festival: "Festival" };
const WORDS = { "-1": "about", "-2": "at work", "-3": "in line", "-4": "walking" };

let legend, picture = null, mode = "live", paused = false, stopped = false,  // stopped: only the picture, not the town
   role = "viewer", speed = 8, stream = null;
let token = new URLSearchParams(location.hash.slice(1)).get("token") || sessionStorage.getItem("town-token") || "";
let streamer = location.hash.includes("streamer") || sessionStorage.getItem("town-streamer") === "on";
let commands = [], limits = [], history = [], selected = -1, replay = [], replayAt = 0, lost = 0, newest = 0;
const overlays = { needs: true, speech: true, names: false, ties: false, heat: false };
const bodies = [];  // where each resident is drawn: eased towards where they are
const bubbles = [];
let heat = null, glow = 0;
const view = { scale: 1, x: 0, y: 0 };
if (location.hash.includes("token=")) {
  sessionStorage.setItem("town-token", token);
  window.history.replaceState(null, "", location.pathname);
}

// Streamer mode: no name on this screen, whatever comes over the wire; --privacy hides names before they are sent.
// Each name has a pseudonym for as long as the page is open. #streamer in the address begins with it.
const hidden = new Map();
let names = null;  // all that anybody here can be called; the longest first
function pseudonym(name) {
  if (!hidden.has(name)) hidden.set(name, `R-${crypto.getRandomValues(new Uint32Array(1))[0].toString(16).padStart(8, "0").slice(0, 6)}`);
  return hidden.get(name);
}
function hide(text) { return streamer && names && text ? text.replace(names, pseudonym) : text; }

// Asking -------------------------------------------------------------------------------------------------------------

const headers = () => token ? { Authorization: `Bearer ${token}` } : {};
async function ask(path, body) {
  const how = body === undefined ? { headers: headers() }
    : { method: "POST", headers: { ...headers(), "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(path, how);
  const said = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(said.error), { status: answer.status });
  return said;
}

async function order(name, args = {}, dry = false) {
  try {
    const id = `${Date.now()}-${Math.random().toString(36).slice(2)}`;
    const said = await ask("order", { id, name, args, dry_run: dry });
    const told = said.told ? JSON.stringify(said.told) : said.said;
    tell(dry ? `Would be: ${told}` : told);
    return said;
  } catch (error) { tell(error.message, true); }
}
function tell(text, bad = false) { $("said").textContent = hide(text) || ""; $("said").className = bad ? "bad" : ""; }

async function follow() {
  stream?.abort();
  const mine = stream = new AbortController();
  try {
    const answer = await fetch("live", { headers: headers(), signal: mine.signal });
    if (!answer.ok) throw new Error((await answer.json()).error);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = "";;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) if (part.startsWith("data: ")) take(JSON.parse(part.slice(6)));
    }
  } catch (error) {
    if (mine.signal.aborted) return;
    chip("offline", "Not connected", "bad");
  }
  if (!mine.signal.aborted) setTimeout(follow, 1000);
}

function take(frame) {
  newest = frame.tick;
  if (mode !== "live") { range(); return; }
  if (frozen()) return;
  if (!show(frame)) { lost += 1; follow(); }
}
const frozen = () => stopped && picture !== null;

// Folding ------------------------------------------------------------------------------------------------------------

function fold(before, frame) {
  if (frame.schema > legend.schema) throw new Error("the town speaks a newer schema; load the page again");
  if (frame.key) return { ...frame };
  if (!before || frame.seq !== before.seq + 1) return null;
  const now = { ...before, seq: frame.seq, tick: frame.tick, key: false };
  for (const name of [...COLUMNS, "needs"]) {
    const changed = frame[name];
    if (!changed) continue;
    const values = now[name].slice();
    for (let k = 0; k < changed.length; k += 2) values[changed[k]] = changed[k + 1];
    now[name] = values;
  }
  for (const name of ["until", "ties", "kpis"]) if (frame[name]) now[name] = frame[name];
  return now;
}

function show(frame) {
  const now = fold(picture, frame);
  if (!now) return false;
  picture = now;
  for (const at of picture.at) if (at >= 0) heat[at] += 1;
  if (frame.tick % 5 === 0) for (let k = 0; k < heat.length; k++) heat[k] *= .985;
  for (const line of frame.lines ?? []) tick(line);
  const spoken = performance.now();
  for (const [who, text] of frame.says ?? []) {
    if (bubbles.length < 7 && !bubbles.some(b => b.who === who)) bubbles.push({ who, text, until: spoken + 2600 });
  }
  if (frame.kpis && mode === "live") { history.push({ tick: frame.tick, ...frame.kpis }); history.splice(0, history.length - 240); }
  if (frame.kpis) sparks();
  state();
  return true;
}

// Words around the map -----------------------------------------------------------------------------------------------

function time(tick) {
  const of = tick % legend.day, hour = Math.floor(of * 24 / legend.day), minute = Math.floor(of * 1440 / legend.day % 60);
  return `${String(hour).padStart(2, "0")}:${String(minute).padStart(2, "0")}`;
}
function chip(id, text, kind = "") {
  let one = $(`chip-${id}`);
  if (!text) return one?.remove();
  if (!one) { one = document.createElement("span"); one.id = `chip-${id}`; $("chips").append(one); }
  one.className = `chip ${kind}`;
  if (one.textContent !== text) one.textContent = text;
}
function state() {
  $("clock").textContent = `Day ${Math.floor(picture.tick / legend.day) + 1}, ${time(picture.tick)}`;
  chip("offline");
  legend.troubles.forEach((name, k) => chip(name, picture.until[k] > picture.tick ? TROUBLES[name] ?? name : "",
    ["rain", "festival", "meeting"].includes(name) ? "" : "warn"));
  chip("private", legend.private ? "Pseudonyms" : streamer ? "Streamer" : "");
  chip("paused", paused ? "Paused" : "", "warn");
  chip("replay", mode === "replay" ? "Recording" : "", "warn");
  range();
  if (selected >= 0) card();
}
function range() {
  const bar = $("scrub");
  bar.max = Math.max(newest, picture?.tick ?? 0);
  if (mode === "live" || document.activeElement !== bar) bar.value = picture?.tick ?? 0;
  bar.setAttribute("aria-valuetext", `Day ${Math.floor(bar.value / legend.day) + 1}, ${time(Number(bar.value))}`);
}
const lines = new WeakMap();  // the text of each line as it was told
const told = new Set();  // who joins late is told some things twice
function tick(line) {
  const known = `${line.tick} ${line.text}`;
  if (told.has(known)) return;
  if (told.size > 500) told.clear();
  told.add(known);
  const one = document.createElement("li"), at = document.createElement("time"), text = document.createElement("button");
  at.textContent = time(line.tick);
  text.textContent = hide(line.text);
  lines.set(text, line.text);
  text.className = line.priority ? "high" : "";
  text.onclick = () => { if (line.a >= 0) select(line.a, true); };
  one.append(at, text);
  $("ticker").prepend(one);
  note(line);
  while ($("ticker").children.length > 60) $("ticker").lastChild.remove();
}
function sparks() {
  const place = $("kpis");
  for (const [name, title, word] of SHOWN) {
    let one = place.querySelector(`[data-kpi=${name}]`);
    if (!one) {
      one = document.createElement("div");
      one.dataset.kpi = name;
      one.innerHTML = `<span></span><b></b><svg viewBox="0 0 100 26" preserveAspectRatio="none" role="img"><path></path></svg>`;
      one.firstChild.textContent = title;
      place.append(one);
    }
    const value = picture?.kpis?.[name] ?? null, values = history.map(h => h[name]).filter(v => v !== null && v !== undefined);
    one.querySelector("b").textContent = value === null ? "–" : word(value);
    const bad = limits.some(l => l.kpi === name && value !== null && (l.above !== null ? value > l.above : value < l.below));
    one.className = `kpi ${bad ? "bad" : ""}`;
    const low = Math.min(...values), high = Math.max(...values), span = high - low || 1;
    one.querySelector("path").setAttribute("d", values.length < 2 ? "M0 13H100" : "M" + values.map((v, k) =>
      `${(100 * k / (values.length - 1)).toFixed(1)} ${(high === low ? 13 : 24 - 22 * (v - low) / span).toFixed(1)}`).join("L"));
    one.querySelector("svg").setAttribute("aria-label", values.length ? `from ${word(low)} to ${word(high)}` : "nothing yet");
  }
}
// How the version that drives the residents came to it: its anneal, its proof, what the gate said.
const signed = value => `${value > 0 ? "+" : ""}${value.toFixed(2)}`;
function learning(found) {
  $("learning").hidden = !found;
  if (!found) return;
  $("version").textContent = `${found.version} (${found.stage.replaceAll("_", " ")})`;
  const windows = found.anneal?.windows ?? [];
  $("anneal").hidden = !windows.length;
  $("anneal").replaceChildren(...windows.map(one => {
    const bar = document.createElement("i");
    bar.className = one.action;
    bar.style.cssText = `--h: ${Math.round(100 * one.share)}%`;
    bar.title = `${Math.round(100 * one.share)} % of the residents: lost ${Math.round(100 * one.loss)} %, ${one.action}`;
    return bar;
  }));
  const told = windows.map(one => `${Math.round(100 * one.share)} % ${one.action}`).join(", ");
  $("anneal").setAttribute("aria-label", told);
  $("annealed").textContent = windows.length ? `Share of the residents, window by window: ${told}.` : "This version was put in place without an anneal.";
  const proved = found.gain !== null && found.gain !== undefined;
  $("gain").textContent = proved ? `${signed(found.return_before)} → ${signed(found.return_learnt)} a day in ${found.towns} unseen towns: ${signed(found.gain)} (${signed(found.gain_low)} to ${signed(found.gain_high)}).`
    : "Nothing is proved of it: it is what others have to beat.";
  $("reasons").className = found.gate?.open ? "" : "closed";
  $("reasons").replaceChildren(...(found.gate?.reasons ?? []).slice(0, 6).map(text => item(text)));
  $("moves").replaceChildren(...found.history.map(one => item(`${new Date(1000 * one.at).toLocaleString()}: ${one.what}`)).reverse());
}
// A version beside the live one: whom it drives, or the copy of the town that it lives in, and how the two compare.
const shown = value => value === null || value === undefined ? "–" : +value.toFixed(3);
function rollout(found) {
  $("rollout").hidden = !found?.canary && !found?.shadow;
  if ($("rollout").hidden) return;
  const drives = Object.entries(found.residents).map(([version, count]) => `${version} ${count}`).join(", ");
  $("beside").textContent = found.canary ? `Canary ${found.canary}, ${found.share} %. Residents: ${drives}.`
    : `Shadow ${found.shadow} lives in a copy of this town, which nobody sees.`;
  const titles = { reward: "Return a day", success: "Needs met" }, states = { open: "undecided" };
  $("compared").replaceChildren(
    ...Object.entries(found.refused).map(([version, why]) => item(`${version} could not be loaded: ${why}`)),
    ...(found.guard?.readings ?? []).map(one => item(`${titles[one.metric] ?? one.metric}: live ${shown(one.live)}, this ${shown(one.canary)} (${states[one.state] ?? one.state}, ${one.n} days of residents)`)),
    ...Object.entries(found.kpis ?? {}).map(([name, one]) => item(`${name.replaceAll("_", " ")}: live ${shown(one.live)}, shadow ${shown(one.shadow)}`)),
    ...found.moves.map(one => item(`Tick ${one.tick}: ${one.version} ${one.action} (${one.why})`)));
}
function item(text) { const one = document.createElement("li"); one.textContent = text; return one; }

// Sound: off until somebody asks for it. A line of the ticker is a note: what matters is lower and longer.
let audio = null, notes = 0;
function note(line) {
  if (audio?.state !== "running" || mode !== "live") return;
  notes += 1;
  const now = audio.currentTime, voice = audio.createOscillator(), loud = audio.createGain(), long = line.priority ? .5 : .18;
  voice.type = "sine";
  voice.frequency.value = line.priority ? 220 : 440 * 2 ** ((Math.max(0, line.a) * 7 % 12) / 12);
  loud.gain.setValueAtTime(0, now);
  loud.gain.linearRampToValueAtTime(.06, now + .02);
  loud.gain.exponentialRampToValueAtTime(.0001, now + long);
  voice.connect(loud).connect(audio.destination);
  voice.start(now); voice.stop(now + long);
}
$("sound").onclick = async () => {
  const on = $("sound").getAttribute("aria-pressed") !== "true";
  if (on) { audio ??= new AudioContext(); await audio.resume(); } else await audio?.suspend();
  $("sound").setAttribute("aria-pressed", on);
};

function word(code) { return WORDS[code] ?? legend.doing[code].replaceAll("_", " "); }

function select(who, centre = false) {
  selected = who;
  $("who").hidden = who < 0;
  if (who >= 0 && picture) {
    card();
    if (centre && view.scale > 1 && bodies[who]) { const [x, y] = [bodies[who].x, bodies[who].y]; aim(x, y); }
  }
  quick();
}
function card() {
  const k = selected, [title, about] = [$("who").querySelector("h3"), $("who").querySelector("p")];
  title.textContent = hide(picture.name[k]);
  const job = picture.job[k] < 0 ? "no work" : legend.jobs[picture.job[k]].replaceAll("_", " ");
  about.textContent = picture.at[k] < 0 ? "has left town" :
    `${legend.natures[picture.nature[k]]} · ${word(picture.doing[k])} · ${job} · ${(picture.purse[k] / 10).toFixed(1)} meals' worth`;
  const bars = $("bars");
  if (!bars.children.length) bars.innerHTML = NEEDS.map(n => `<div class="need"><span>${n}</span><i></i><b></b></div>`).join("");
  NEEDS.forEach((name, n) => {
    const share = Math.round(picture.needs[4 * k + n] / 2.55), row = bars.children[n];
    row.querySelector("i").style.cssText = `--w: ${share}%; --c: var(--${name})`;
    row.querySelector("b").textContent = share;
  });
  const own = picture.ties.filter(t => t[0] === k || t[1] === k)
    .sort((a, b) => Math.abs(b[2] + b[3] - b[4]) - Math.abs(a[2] + a[3] - a[4])).slice(0, 6);
  $("bonds").replaceChildren(...own.map(([a, b, trust, known, rivalry]) => {
    const one = document.createElement("li"), kind = rivalry > trust + known ? "rival" : "friend";
    const [name, how] = [document.createElement("span"), document.createElement("span")];
    name.textContent = hide(picture.name[a === k ? b : a]);
    how.textContent = `trust ${trust} · known ${known} · rivalry ${rivalry}`;
    how.className = kind;
    one.append(name, how);
    return one;
  }));
  mind();
}

// What the network of the selected resident makes of it: asked for once a second, and only while somebody looks.
let policy = null, minded = 0;
async function mind() {
  if (policy === null || policy === "scripts" || selected < 0 || mode !== "live" || picture.at[selected] < 0) { $("mind").hidden = true; return; }
  if (Date.now() - minded < 1000) return;
  minded = Date.now();
  const who = selected;
  try {
    const found = (await ask("order", { id: `mind-${minded}`, name: "mind", args: { resident: who } })).mind;
    if (who !== selected) return;
    $("mind").hidden = false;
    const worth = found.expected === undefined ? found.value.toFixed(2) : `${signed(found.expected)} to come`;
    const better = found.advantage === undefined ? "" : ` · the last tick: ${found.advantage > 0 ? "+" : ""}${found.advantage.toFixed(3)}`;
    $("mind").querySelector("p").textContent = `${found.version} · expects ${worth}${better} · the script would: ${found.scripted}`;
    $("choices").replaceChildren(...found.actions.slice(0, 6).map(one => {
      const row = document.createElement("li"), [name, bar, share] = ["span", "i", "b"].map(kind => document.createElement(kind));
      name.textContent = one.name;
      bar.style.cssText = `--w: ${(100 * one.p).toFixed(1)}%`;
      share.textContent = `${(100 * one.p).toFixed(0)} %`;
      row.append(name, bar, share);
      return row;
    }));
    const most = Math.max(...Object.values(found.why).map(Math.abs), 1e-6);
    $("groups").replaceChildren(...Object.entries(found.why).map(([group, share]) => {
      const row = document.createElement("li"), [name, bar, sum] = ["span", "i", "b"].map(kind => document.createElement(kind));
      const seen = Object.entries(found.seen[group] ?? {}).map(([what, value]) => `${what.replaceAll("_", " ")} ${value}`).join(", ");
      name.textContent = group;
      row.title = seen;
      bar.style.cssText = `--w: ${(100 * Math.abs(share) / most).toFixed(0)}%; --c: var(--${share < 0 ? "stop" : "accent"})`;
      sum.textContent = signed(share);
      row.append(name, bar, sum);
      if (seen) { const small = document.createElement("small"); small.textContent = seen; row.append(small); }
      return row;
    }));
    $("because").textContent = "because of " + found.strongest.slice(0, 4).map(one => `${one.name} ${one.share > 0 ? "+" : ""}${one.share.toFixed(2)}`).join(", ");
  } catch { $("mind").hidden = true; }
}

// Drawing ------------------------------------------------------------------------------------------------------------

const canvas = $("canvas"), pen = canvas.getContext("2d"), ground = document.createElement("canvas");
let unit = 10, dark = matchMedia("(prefers-color-scheme: dark)");
const shades = () => dark.matches
  ? { wall: "#3a4a54", edge: "#4a5d68", ground: "#1d2b31", road: "#2a373d", floor: "#27343b", grass: "#1e3a2c", door: "#7b6a4d", thing: "#8499a5", bed: "#6e86b5", ink: "#e6ecee", paper: "#24323a", night: [4, 8, 24, .5] }
  : { wall: "#77858d", edge: "#65737b", ground: "#e9e7df", road: "#d6d5cf", floor: "#f7f4ec", grass: "#cfe3c4", door: "#c2a676", thing: "#93866f", bed: "#8ea3c9", ink: "#1b2a33", paper: "#ffffff", night: [22, 30, 70, .42] };
const TINT = { home: "#7f9cc9", shop: "#d8a24a", cafe: "#cf7f5b", work: "#7fa79c", park: "#6fae6b" };

function fit() {
  const side = canvas.clientWidth, ratio = Math.min(devicePixelRatio || 1, 2);
  canvas.width = canvas.height = Math.max(1, Math.round(side * ratio));
  unit = canvas.width / Math.max(legend.width, legend.height);
  const big = Math.max(unit, 16);
  ground.width = legend.width * big; ground.height = legend.height * big;
  const g = ground.getContext("2d"), c = shades(), { walls, doors, entry, objects } = legend.legend;
  g.fillStyle = c.ground; g.fillRect(0, 0, ground.width, ground.height);
  for (let t = 0; t < legend.glyphs.length; t++) {
    const glyph = legend.glyphs[t], x = t % legend.width * big, y = Math.floor(t / legend.width) * big;
    const inside = glyph === "_" || doors.includes(glyph) || (glyph in objects && !around(t).includes('"'));
    g.fillStyle = walls.includes(glyph) ? c.wall : glyph === entry ? c.road : glyph === '"' || (glyph in objects && !inside) ? c.grass : inside ? c.floor : c.ground;
    g.fillRect(x, y, big + .5, big + .5);
    if (doors.includes(glyph)) { g.fillStyle = c.door; g.fillRect(x, y, big + .5, big + .5); }
  }
  for (const { kind, area: [l, t, r, b] } of legend.venues) {
    g.globalAlpha = .13; g.fillStyle = TINT[kind] ?? "#888";
    g.fillRect(l * big, t * big, (r - l + 1) * big, (b - t + 1) * big);
    g.globalAlpha = 1;
  }
  for (let t = 0; t < legend.glyphs.length; t++) if (legend.glyphs[t] in objects) {
    thing(g, objects[legend.glyphs[t]], t % legend.width * big, Math.floor(t / legend.width) * big, big, c);
  }
  g.font = `600 ${big * .8}px system-ui, sans-serif`; g.textAlign = "center"; g.textBaseline = "middle";
  for (const { id, kind, area: [l, t, r, b] } of legend.venues) {
    if (kind === "home") continue;
    g.fillStyle = c.ink; g.globalAlpha = .55;
    g.fillText(id, (l + r + 1) / 2 * big, (kind === "park" ? b + .5 : b - .45) * big);
    g.globalAlpha = 1;
  }
}
const around = t => [t - 1, t + 1, t - legend.width, t + legend.width].map(k => legend.glyphs[k] ?? "");
function thing(g, kind, x, y, s, c) {
  g.fillStyle = kind === "bed" ? c.bed : c.thing;
  const round = (a, b, w, h, r) => { g.beginPath(); g.roundRect(x + a * s, y + b * s, w * s, h * s, r * s); g.fill(); };
  if (kind === "bed") { round(.12, .08, .76, .84, .14); g.fillStyle = c.paper; round(.22, .14, .56, .24, .08); }
  else if (kind === "stove") { round(.1, .1, .8, .8, .1); g.fillStyle = c.paper; for (const [a, b] of [[.32, .32], [.68, .32], [.32, .68], [.68, .68]]) { g.beginPath(); g.arc(x + a * s, y + b * s, .11 * s, 0, 7); g.fill(); } }
  else if (kind === "shower") { g.fillStyle = "#5fa8d3"; round(.14, .14, .72, .72, .36); g.fillStyle = c.paper; round(.4, .4, .2, .2, .1); }
  else if (kind === "seat") { round(.22, .22, .56, .56, .28); }
  else if (kind === "bench") { round(.08, .3, .84, .18, .06); round(.08, .55, .84, .18, .06); }
  else if (kind === "desk") { round(.08, .25, .84, .5, .06); g.fillStyle = c.paper; round(.36, .34, .28, .24, .04); }
  else { round(.1, .18, .8, .64, .12); g.fillStyle = c.paper; round(.3, .36, .4, .12, .04); }
}

function aim(x, y) {
  view.x = x - legend.width / 2 / view.scale; view.y = y - legend.height / 2 / view.scale; keepIn();
}
function keepIn() {
  view.scale = Math.min(8, Math.max(1, view.scale));
  view.x = Math.min(Math.max(0, view.x), legend.width * (1 - 1 / view.scale));
  view.y = Math.min(Math.max(0, view.y), legend.height * (1 - 1 / view.scale));
}
function zoom(by, x = view.x + legend.width / 2 / view.scale, y = view.y + legend.height / 2 / view.scale) {
  const before = view.scale;
  view.scale = Math.min(8, Math.max(1, view.scale * by));
  const kept = before / view.scale;
  view.x = x - (x - view.x) * kept; view.y = y - (y - view.y) * kept;
  keepIn();
}

let last = performance.now();
function draw(now) {
  requestAnimationFrame(draw);
  const dt = Math.min(.2, (now - last) / 1000);
  last = now;
  if (!picture || document.hidden) return;
  if (Math.abs(canvas.clientWidth * Math.min(devicePixelRatio || 1, 2) - canvas.width) > 1.5) fit();
  const c = shades(), s = unit * view.scale, px = x => (x - view.x) * s, py = y => (y - view.y) * s;
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.imageSmoothingQuality = "high";
  pen.drawImage(ground, px(0), py(0), legend.width * s, legend.height * s);
  if (overlays.heat) warm(px, py, s);
  sky(px, py, s, c, now);
  move(dt);
  if (overlays.ties) bonds(px, py, s);
  bodies.forEach((body, k) => { if (body.seen > .02) resident(body, k, px, py, s, c); });
  if (overlays.speech) speech(px, py, s, c, now);
}
const warmth = document.createElement("canvas");
function warm(px, py, s) {
  let most = 1;
  for (const v of heat) if (v > most) most = v;
  warmth.width = legend.width; warmth.height = legend.height;
  const g = warmth.getContext("2d"), image = g.createImageData(legend.width, legend.height);
  for (let t = 0; t < heat.length; t++) {
    const v = Math.sqrt(heat[t] / most);
    image.data.set([255, 210 - 190 * v, 60 - 40 * v, v < .03 ? 0 : 50 + 180 * v], 4 * t);
  }
  g.putImageData(image, 0, 0);
  pen.drawImage(warmth, px(0), py(0), legend.width * s, legend.height * s);
}
function sky(px, py, s, c, now) {
  const on = name => picture.until[legend.troubles.indexOf(name)] > picture.tick;
  const hour = picture.tick % legend.day / legend.day * 24;
  const night = Math.max(0, Math.min(1, Math.max((6.5 - hour) / 1.5, (hour - 19.5) / 1.5)));
  if (night > 0) {
    const [r, g, b, a] = c.night;
    pen.fillStyle = `rgba(${r}, ${g}, ${b}, ${a * night})`;
    pen.fillRect(0, 0, canvas.width, canvas.height);
    if (!on("blackout")) for (const { kind, area: [l, t, right, b2] } of legend.venues) {
      if (kind === "park") continue;
      pen.fillStyle = `rgba(255, 205, 120, ${.13 * night})`;
      pen.fillRect(px(l), py(t), (right - l + 1) * s, (b2 - t + 1) * s);
    }
  }
  if (on("blackout")) { pen.fillStyle = "rgba(0, 0, 0, .38)"; pen.fillRect(0, 0, canvas.width, canvas.height); }
  if (on("rain")) {
    pen.strokeStyle = dark.matches ? "rgba(150, 190, 230, .4)" : "rgba(60, 100, 150, .38)";
    pen.lineWidth = Math.max(1, unit * .08);
    pen.beginPath();
    for (let k = 0; k < 160; k++) {
      const x = (k * 131.7 % 997) / 997 * canvas.width, y = ((k * 71.3 % 991) / 991 + now / 900) % 1 * canvas.height;
      pen.moveTo(x, y); pen.lineTo(x - unit * .2, y + unit * .9);
    }
    pen.stroke();
  }
  if (on("festival")) for (const { kind, area: [l, t, r, b] } of legend.venues) if (kind === "park") {
    for (let k = 0; k < 26; k++) {
      pen.fillStyle = `hsla(${(k * 47 + now / 20) % 360}, 85%, 60%, .85)`;
      pen.beginPath();
      pen.arc(px(l + (k * 37 % 97) / 97 * (r - l + 1)), py(t + (k * 61 % 89) / 89 * (b - t + 1) + Math.sin(now / 300 + k) * .2), s * .14, 0, 7);
      pen.fill();
    }
  }
}
function move(dt) {
  const quick = 1 - Math.exp(-dt * Math.max(7, Math.min(30, speed)));
  picture.at.forEach((at, k) => {
    const body = bodies[k] ??= { x: 0, y: 0, seen: 0, at: -1 };
    if (at >= 0) {
      const x = at % legend.width + .5, y = Math.floor(at / legend.width) + .5;
      if (body.at < 0 || Math.hypot(x - body.x, y - body.y) > 12) { body.x = x; body.y = y; }
      body.x += (x - body.x) * quick; body.y += (y - body.y) * quick;
    }
    body.at = at;
    body.seen += ((at >= 0 ? 1 : 0) - body.seen) * (1 - Math.exp(-dt * 4));
  });
}
function bonds(px, py, s) {
  for (const [a, b, trust, known, rivalry] of picture.ties) {
    if (picture.at[a] < 0 || picture.at[b] < 0 || (selected >= 0 && a !== selected && b !== selected)) continue;
    const worth = trust + known - rivalry, strong = Math.min(1, Math.abs(worth) / 70);
    if (strong < .12) continue;
    pen.strokeStyle = worth < 0 ? `rgba(207, 63, 72, ${.2 + .7 * strong})` : `rgba(32, 150, 122, ${.12 + .65 * strong})`;
    pen.lineWidth = Math.max(.8, unit * (.06 + .2 * strong));
    pen.beginPath(); pen.moveTo(px(bodies[a].x), py(bodies[a].y)); pen.lineTo(px(bodies[b].x), py(bodies[b].y)); pen.stroke();
  }
}
const COLOURS = () => NEEDS.map(name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
let rings = COLOURS();
function resident(body, k, px, py, s, c) {
  const x = px(body.x), y = py(body.y), r = s * (overlays.needs ? .33 : .42), tau = Math.PI * 2;
  pen.globalAlpha = body.seen;
  if (k === selected) { pen.fillStyle = "rgba(255, 214, 64, .55)"; pen.beginPath(); pen.arc(x, y, s * .85, 0, tau); pen.fill(); }
  pen.fillStyle = c.paper; pen.beginPath(); pen.arc(x, y, overlays.needs ? s * .56 : s * .48, 0, tau); pen.fill();
  pen.fillStyle = NATURES[picture.nature[k] % NATURES.length]; pen.beginPath(); pen.arc(x, y, r, 0, tau); pen.fill();
  if (overlays.needs) {
    pen.lineWidth = s * .13;
    for (let n = 0; n < 4; n++) {
      const from = -Math.PI / 2 + n * tau / 4 + .08, share = picture.needs[4 * k + n] / 255;
      pen.strokeStyle = rings[n];
      pen.beginPath(); pen.arc(x, y, s * .47, from, from + (tau / 4 - .16) * Math.max(.04, share)); pen.stroke();
      if (share < .15) { pen.strokeStyle = "#e0323c"; pen.lineWidth = s * .08; pen.beginPath(); pen.arc(x, y, s * .62, from, from + tau / 4 - .16); pen.stroke(); pen.lineWidth = s * .13; }
    }
  }
  if (picture.doing[k] >= 0 && legend.doing[picture.doing[k]] === "sleep" && s > 11) label("z", x + s * .5, y - s * .5, s * .6, c.ink);
  if (overlays.names || k === selected || k === hover) named(hide(picture.name[k]), x, y, s, c);
  pen.globalAlpha = 1;
}
function named(text, x, y, s, c) {
  const dot = canvas.width / canvas.clientWidth, size = Math.min(Math.max(s * .6, 10.5 * dot), 14 * dot);
  label(text, x, y - s * .6 - size * .6, size, c.ink, c.paper);
}
function label(text, x, y, size, ink, paper) {
  pen.font = `600 ${size}px system-ui, sans-serif`; pen.textAlign = "center"; pen.textBaseline = "middle";
  if (paper) { pen.lineWidth = size * .28; pen.lineJoin = "round"; pen.strokeStyle = paper; pen.strokeText(text, x, y); }
  pen.fillStyle = ink; pen.fillText(text, x, y);
}
function speech(px, py, s, c, now) {
  for (let k = bubbles.length - 1; k >= 0; k--) if (bubbles[k].until < now) bubbles.splice(k, 1);
  const dot = canvas.width / canvas.clientWidth, size = Math.min(Math.max(s * .6, 11 * dot), 14 * dot), drawn = [];
  for (const bubble of bubbles) {
    const { who, until } = bubble, text = hide(bubble.text);
    if (picture.at[who] < 0 || !bodies[who]) continue;
    pen.font = `500 ${size}px system-ui, sans-serif`;
    const wide = pen.measureText(text).width + size, high = size * 1.7, at = px(bodies[who].x);
    const x = Math.min(Math.max(at, wide / 2 + 4), canvas.width - wide / 2 - 4), y = py(bodies[who].y) - s * .75 - high;
    if (y < 2 || at < 0 || at > canvas.width || y > canvas.height) continue;
    if (drawn.some(o => Math.abs(o.x - x) < (o.wide + wide) / 2 + 2 && Math.abs(o.y - y) < high + 4)) continue;
    drawn.push({ x, y, wide });
    pen.globalAlpha = Math.min(1, (until - now) / 400);
    pen.fillStyle = c.paper; pen.strokeStyle = c.edge; pen.lineWidth = 1;
    pen.beginPath(); pen.roundRect(x - wide / 2, y, wide, high, size * .5); pen.fill(); pen.stroke();
    pen.beginPath(); pen.moveTo(at - size * .3, y + high - .5); pen.lineTo(at, y + high + size * .35); pen.lineTo(at + size * .3, y + high - .5); pen.fill();
    pen.fillStyle = c.ink; pen.textAlign = "center"; pen.textBaseline = "middle"; pen.fillText(text, x, y + high / 2);
    pen.globalAlpha = 1;
  }
}

// Hands --------------------------------------------------------------------------------------------------------------

let hover = -1, held = null;
function tileAt(event) {
  const box = canvas.getBoundingClientRect();
  return [view.x + (event.clientX - box.left) / box.width * legend.width / view.scale, view.y + (event.clientY - box.top) / box.height * legend.height / view.scale];
}
function nearest([x, y], reach = 1.2) {
  let best = -1, least = reach;
  bodies.forEach((body, k) => {
    const far = Math.hypot(body.x - x, body.y - y);
    if (picture.at[k] >= 0 && far < least) { best = k; least = far; }
  });
  return best;
}
canvas.addEventListener("pointerdown", e => { held = { x: e.clientX, y: e.clientY, vx: view.x, vy: view.y, moved: false }; });
addEventListener("pointerup", e => {
  if (held && !held.moved && e.target === canvas && picture) select(nearest(tileAt(e), e.pointerType === "touch" ? 2.2 : 1.2));
  held = null;
});
canvas.addEventListener("pointermove", e => {
  if (!picture) return;
  if (held && view.scale > 1) {
    const per = legend.width / view.scale / canvas.clientWidth;
    held.moved ||= Math.hypot(e.clientX - held.x, e.clientY - held.y) > 4;
    view.x = held.vx - (e.clientX - held.x) * per; view.y = held.vy - (e.clientY - held.y) * per;
    keepIn();
  } else { hover = nearest(tileAt(e)); canvas.classList.toggle("near", hover >= 0); }
});
canvas.addEventListener("pointerleave", () => { hover = -1; });
canvas.addEventListener("wheel", e => { if (!e.ctrlKey && view.scale === 1 && e.deltaY > 0) return; e.preventDefault(); zoom(e.deltaY < 0 ? 1.2 : 1 / 1.2, ...tileAt(e)); }, { passive: false });
$("in").onclick = () => zoom(1.6, ...(selected >= 0 && bodies[selected] ? [bodies[selected].x, bodies[selected].y] : []));
$("out").onclick = () => zoom(1 / 1.6);
$("whole").onclick = () => { view.scale = 1; keepIn(); };
$("leave").onclick = () => select(-1);

for (const button of document.querySelectorAll("[data-overlay]")) button.onclick = () => {
  const on = overlays[button.dataset.overlay] = !overlays[button.dataset.overlay];
  button.setAttribute("aria-pressed", on);
  map();
};
$("streamer").onclick = () => {
  streamer = !streamer;
  sessionStorage.setItem("town-streamer", streamer ? "on" : "off");
  hiding();
};
function hiding() {
  $("streamer").hidden = Boolean(legend.private);  // there are no names to hide
  $("streamer").setAttribute("aria-pressed", streamer);
  for (const button of $("ticker").querySelectorAll("button")) button.textContent = hide(lines.get(button));
  tell("");
  if (picture) state();
  map();
}
function map() { canvas.touched = performance.now(); canvas.style.touchAction = view.scale > 1 ? "none" : ""; }
for (const button of document.querySelectorAll("[data-speed]")) button.onclick = async () => {
  const wanted = Number(button.dataset.speed);
  if (mode === "live" && role !== "viewer" && !await order("speed", { ticks_per_s: wanted })) return;
  if (mode === "live" && role === "viewer") return tell("Only an operator changes the speed of the town.", true);
  speed = wanted; speeds();
};
function speeds() { for (const b of document.querySelectorAll("[data-speed]")) b.setAttribute("aria-pressed", Number(b.dataset.speed) === speed); }
async function pause() {
  if (mode === "live" && role !== "viewer" && !await order(paused ? "resume" : "pause")) return;
  paused = !paused;
  stopped = paused && mode === "live" && role === "viewer";  // who gives no orders stops only their own picture
  if (!paused && mode === "live" && role === "viewer") { await status(); follow(); }
  buttons();
}
function buttons() { $("play").textContent = paused ? "Play" : "Pause"; $("live").setAttribute("aria-pressed", mode === "live"); if (picture) state(); speeds(); }
$("play").onclick = pause;
addEventListener("keydown", e => { if (e.key === " " && (e.target === document.body || e.target === canvas)) { e.preventDefault(); pause(); } });

// The recording ------------------------------------------------------------------------------------------------------

let wanted = null, asking = false;
$("scrub").addEventListener("input", () => { wanted = Number($("scrub").value); seek(); });
async function seek() {
  if (asking) return;
  asking = true;
  try {
    while (wanted !== null) {
      const at = wanted;
      wanted = null;
      const found = await ask(`frames?tick=${at}&most=300`);
      if (!found.frames.length) break;
      mode = "replay"; picture = null; bubbles.length = 0;
      replay = found.frames; replayAt = 1;
      show({ ...replay[0], lines: [], says: [] });
      buttons();
    }
  } catch (error) { tell(error.message, true); } finally { asking = false; }
}
let owed = 0, played = performance.now();
setInterval(async () => {
  const now = performance.now(), dt = (now - played) / 1000;
  played = now;
  if (mode !== "replay" || paused || asking || !picture) { owed = 0; return; }
  owed = Math.min(owed + dt * speed, 400);
  while (owed >= 1 && replayAt < replay.length && replay[replayAt].tick <= picture.tick + owed) {
    owed -= replay[replayAt].tick - picture.tick;
    if (!show(replay[replayAt++])) { wanted = picture.tick; return seek(); }
  }
  if (replayAt >= replay.length) { if (picture.tick < newest - 1) { wanted = picture.tick; await seek(); if (replay.length < 2) live(); } else live(); }
}, 50);
async function live() {
  if (mode === "live") return;
  mode = "live"; picture = null; stopped = false;
  await status();
  follow(); buttons();
}
$("live").onclick = live;

// Orders -------------------------------------------------------------------------------------------------------------

async function status() {
  const said = await ask("status");
  ({ role, commands, limits, policy } = said);
  $("scrub").min = said.ticks[0];
  if (mode === "live") { paused = said.paused || stopped; speed = said.speed; }
  newest = said.ticks[1];
  history = said.history;
  learning(said.learning);
  rollout(said.rollout);
  $("locked").hidden = role !== "viewer"; $("desk").hidden = role === "viewer";
  for (const one of said.alerts) chip(`alert-${one.code}`, one.code.replaceAll("-", " "), one.severity === "critical" ? "bad" : "warn");
  for (const one of document.querySelectorAll("[id^=chip-alert-]")) if (!said.alerts.some(a => `chip-alert-${a.code}` === one.id)) one.remove();
  const worst = said.faults.map(f => f.split(":")[0]).find(code => !said.alerts.some(a => a.code === code));
  chip("health", said.faults.length ? (worst ?? "").replaceAll("-", " ") : "Healthy", said.faults.length ? "warn" : "good");
  return said;
}
function quick() {
  const named = Object.keys(TROUBLES).filter(name => commands.some(c => c.name === name));
  const made = named.map(name => {
    const one = document.createElement("button"), k = legend.troubles.indexOf(name);
    one.textContent = TROUBLES[name]; one.dataset.order = name; one.title = commands.find(c => c.name === name).what;
    one.onclick = () => order(name, picture.until[k] > picture.tick ? { ticks: 0 } : {});
    return one;
  });
  $("quick").replaceChildren(...made);
}
function form() {
  $("which").replaceChildren(...commands.map(c => new Option(`${c.name} (${c.role})`, c.name)));
  fields();
}
function fields() {
  const command = commands.find(c => c.name === $("which").value);
  $("args").replaceChildren(...(command?.args ?? []).map(arg => {
    const row = document.createElement("label"), input = document.createElement(arg.choices.length ? "select" : "input");
    row.append(arg.name, input);
    if (arg.choices.length) input.append(...arg.choices.map(c => new Option(c)));
    else input.type = arg.kind === "flag" ? "text" : "number";
    if (input.type === "number") input.step = "any";
    input.name = arg.name;
    input.placeholder = arg.kind === "flag" ? "on or off" : arg.what;
    if (arg.default !== null) input.value = arg.default;
    if (arg.kind === "resident" && selected >= 0) input.value = selected;
    return row;
  }));
}
$("which").onchange = fields;
const filled = () => Object.fromEntries([...$("form").elements].filter(e => e.name && e.value !== "").map(e => [e.name, e.type === "number" ? Number(e.value) : e.value]));
$("form").onsubmit = e => { e.preventDefault(); order($("which").value, filled()); };
$("dry").onclick = () => order($("which").value, filled(), true);
$("enter").onsubmit = async e => {
  e.preventDefault();
  token = $("token").value.trim();
  try { await status(); sessionStorage.setItem("town-token", token); quick(); form(); buttons(); tell(role === "viewer" ? "" : `You are ${role}.`); if (!picture) start(); }
  catch (error) { token = ""; tell(error.message, true); }
};

// Beginning ----------------------------------------------------------------------------------------------------------

dark.addEventListener("change", () => { rings = COLOURS(); if (legend) fit(); });
async function start() {
  try {
    legend = await ask("legend");
    $("town").textContent = legend.town; document.title = `${legend.town} · town`;
    heat = new Float32Array(legend.width * legend.height);
    names = legend.names ? new RegExp(`\\b(${[...legend.names].sort((a, b) => b.length - a.length).join("|")})\\b`, "g") : null;
    const said = await status();
    $("ticker").replaceChildren(); told.clear();
    for (const line of said.lines) tick(line);
    $("keys").replaceChildren(...legend.natures.map((name, k) => key(NATURES[k % NATURES.length], name)), "Rings:", ...NEEDS.map((name, k) => key(rings[k], name)));
    quick(); form(); fit(); hiding(); buttons(); follow();
    requestAnimationFrame(draw);
    setInterval(() => status().then(() => mode === "live" && buttons()).catch(() => chip("offline", "Not connected", "bad")), 5000);
  } catch (error) {
    if (error.status === 401 && token) { token = ""; sessionStorage.removeItem("town-token"); return start(); }
    tell(error.message, true);
  }
}
function key(colour, name) {
  const one = document.createElement("span"), dot = document.createElement("i");
  dot.style.background = colour;
  one.append(dot, name);
  return one;
}
// For tests: what is seen, in numbers.
window.town = { get picture() { return picture; }, get mode() { return mode; }, get paused() { return paused; }, get overlays() { return overlays; }, get view() { return view; }, get bodies() { return bodies; }, get selected() { return selected; }, get sound() { return { state: audio?.state ?? "none", notes }; } };
start();
