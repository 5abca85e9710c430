// Formats numbers, times and names.

const THIN = " ";
const none = "–";
const is = x => typeof x === "number" && Number.isFinite(x);

export const count = n => is(n) ? n.toLocaleString("en").replaceAll(",", THIN) : none;

export function num(x, digits = 3) {
  if (!is(x)) return none;
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (Number.isInteger(x) && size < 1e6) return count(x).replace("-", "−");
  if (size >= 1e6 || size < 1e-4) return x.toExponential(2).replace("-", "−").replace("e+", "e").replace("e−", "e-");
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  const told = x.toFixed(Math.min(places, 6));
  return (told.includes(".") ? told.replace(/\.?0+$/, "") : told).replace("-", "−");
}
export const pct = (x, digits = 1) => is(x) ? `${(x * 100).toFixed(digits)} %` : none;
export const signed = (x, digits = 3) => is(x) ? (x > 0 ? "+" : "") + num(x, digits) : none;
export const between = (low, high, form = num) => is(low) && is(high) ? `${form(low)} to ${form(high)}` : null;

export function dur(s) {
  if (!is(s)) return none;
  if (s < 0) s = 0;
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 60) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.round((s % 86400) / 3600)} h`;
}

const two = n => String(n).padStart(2, "0");
export function moment(at) {
  if (!is(at)) return none;
  const d = new Date(at * 1000);
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
}
export function ago(at, now = Date.now() / 1000) {
  if (!is(at)) return none;
  const s = now - at;
  if (s < 5) return "just now";
  if (s < 90) return `${Math.round(s)} s ago`;
  if (s < 5400) return `${Math.round(s / 60)} min ago`;
  if (s < 129600) return `${Math.round(s / 3600)} h ago`;
  return `${Math.round(s / 86400)} d ago`;
}

export const words = code => String(code ?? "").replaceAll("_", " ").replaceAll("-", " ");
export const capital = text => text ? text[0].toUpperCase() + text.slice(1) : "";
export const plain = value => typeof value === "string" ? value : value === null || value === undefined ? none
  : JSON.stringify(value);

// Maps a state to its colour class.
const KINDS = {
  good: ["right", "healthy", "live", "promote", "promoted", "accepted", "completed", "pass", "on", "met"],
  bad: ["failed", "no_answer", "failing", "dead", "critical", "reject", "rejected", "rolled_back", "refused", "killed", "fault",
    "unresponsive", "timed_out"],
  warn: ["wrong", "degraded", "warning", "hold", "held", "paused", "frozen", "draining", "requeuing", "timeout", "cancelled", "blocked",
    "silent"],
  busy: ["running", "canary", "shadow", "info"],
};
export const kind = word => Object.keys(KINDS).find(one => KINDS[one].includes(String(word).toLowerCase())) ?? "";
