// Connection state. While the server does not answer, a bar says since when, and commands are disabled.

const LATE_MS = 3000; // the server ends each stream after a while; a reconnect within this time is no outage

let heard = Date.now(), since = null, late = null;

export const isAway = () => since !== null;

// The server answered, or the stream is open.
export function here() {
  heard = Date.now();
  clearTimeout(late);
  late = null;
  if (since === null) return;
  since = null;
  show();
}

// The stream broke and may reconnect at once.
export function broken() {
  const at = Date.now();
  if (since === null && late === null) late = setTimeout(() => gone(at), LATE_MS);
}

// The server did not answer: the page shows its last answer.
export function gone(at = heard) {
  clearTimeout(late);
  late = null;
  if (since !== null) return;
  since = at;
  show();
}

function show() {
  const bar = document.getElementById("away"), date = new Date(since ?? 0);
  const day = date.toDateString() === new Date().toDateString() ? "" : `${date.toLocaleDateString()} `;
  const time = `${day}${date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })}`;
  bar.textContent = isAway() ? `No connection since ${time}. This page shows the state at that time; commands are disabled.` : "";
  bar.hidden = !isAway();
  document.body.classList.toggle("away", isAway());
  for (const one of document.querySelectorAll("[data-order]")) one.disabled = isAway();
}
