// Asking the server. The session is a cookie that no script can read; orders carry a header that no other site can send.

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
    throw new Refusal(0, { error: { message: "the server does not answer; is 'holdfast serve' still running?" } });
  }
  if (answer.status === 401) { location.reload(); await new Promise(() => {}); } // the login is what answers there
  const said = answer.headers.get("content-type")?.startsWith("application/json") ? await answer.json() : null;
  if (!answer.ok) throw new Refusal(answer.status, said);
  return said;
}

export function get(name, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return ask(`/api/${name}?${new URLSearchParams(given)}`);
}

const post = (path, body) =>
  ask(path, { method: "POST", headers: { "Content-Type": "application/json", "X-Holdfast": "1" }, body: JSON.stringify(body) });

export const order = body => post("/api/orders", body);
export const leave = () => post("/logout", {});

// Which topics have changed, as they do; `is` is told whether the line stands.
export function listen(changed, is) {
  const source = new EventSource("/api/stream");
  source.addEventListener("change", event => changed(JSON.parse(event.data)));
  source.onopen = () => is(true);
  source.onerror = () => is(false);
  return source;
}
