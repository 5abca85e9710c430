// Whether the server is there. While it is not, what is seen is old: a bar says since when, and no order can be given.

const LATE_MS = 3000; // a line that is made anew within that was never gone: the server ends each after a while

let heard = Date.now(), since = null, late = null;

export const isAway = () => since !== null;

// The server has answered, or its line stands.
export function here() {
  heard = Date.now();
  clearTimeout(late);
  late = null;
  if (since === null) return;
  since = null;
  show();
}

// The line broke, and may be made anew at once.
export function broken() {
  const at = Date.now();
  if (since === null && late === null) late = setTimeout(() => gone(at), LATE_MS);
}

// It did not answer: what is seen is from when it last did.
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
  bar.textContent = isAway() ? `No connection since ${time}: what you see is from then. No orders can be given.` : "";
  bar.hidden = !isAway();
  document.body.classList.toggle("away", isAway());
  for (const one of document.querySelectorAll("[data-order]")) one.disabled = isAway();
}
