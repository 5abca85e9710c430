// Requests to the server. The session is an HttpOnly cookie; commands carry a header that other sites cannot send.

import { broken, gone, here } from "./away.js";

const AGAIN_MS = 2000; // before a refused stream is opened again
let isLeaving = false;

export class Refusal extends Error {
  constructor(status, said) {
    super(said?.error?.message ?? `the server answered ${status}`);
    this.status = status;
    this.code = said?.error?.code ?? "";
  }
}

async function ask(path, how = {}) {
  let answer;
  try {
    answer = await fetch(path, { cache: "no-store", ...how });
  } catch {
    gone();
    throw new Refusal(0, { error: { message: "the server does not answer; is 'holdfast serve' still running?" } });
  }
  if (answer.status > 501 && answer.status < 505) gone(); // the proxy or the store does not answer
  else here();
  if (answer.status === 401) await ended();
  const said = answer.headers.get("content-type")?.startsWith("application/json") ? await answer.json() : null;
  if (!answer.ok) throw new Refusal(answer.status, said);
  return said;
}

// Reloads into the login page, which says why.
async function ended() {
  try { if (!isLeaving) sessionStorage.setItem("ended", "1"); } catch { /* storage is disabled */ }
  location.reload();
  await new Promise(() => {});
}

export function get(name, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return ask(`/api/${name}?${new URLSearchParams(given)}`);
}

const post = (path, body) =>
  ask(path, { method: "POST", headers: { "Content-Type": "application/json", "X-Holdfast": "1" }, body: JSON.stringify(body) });

export const order = body => post("/api/orders", body);
export function leave() {
  isLeaving = true;
  return post("/logout", {});
}

// Calls `changed` with the changed topics, and `is` with the connection state.
export function listen(changed, is) {
  const source = new EventSource("/api/stream");
  source.addEventListener("change", event => { here(); changed(JSON.parse(event.data)); });
  source.onopen = () => { here(); is(true); };
  source.onerror = () => {
    broken();
    is(false);
    if (source.readyState !== EventSource.CLOSED) return; // it reconnects by itself
    get("me").catch(() => {}); // an ended session leads to the login page
    setTimeout(() => listen(changed, is), AGAIN_MS);
  };
}
