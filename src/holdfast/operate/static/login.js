// Exchanges a token for a session. The token is sent once, in a request body, and never stored here.

const form = document.getElementById("login"), field = document.getElementById("token"), said = document.getElementById("said");

try {
  if (sessionStorage.getItem("ended")) said.textContent = "Your session ended, or its token was revoked. Sign in again.";
  sessionStorage.removeItem("ended");
} catch { /* storage is disabled */ }

form.onsubmit = async event => {
  event.preventDefault();
  const button = form.querySelector("button");
  button.disabled = true;
  said.textContent = "";
  try {
    const answer = await fetch("/login",
      { method: "POST", headers: { "Content-Type": "application/json", "X-Holdfast": "1" },
        body: JSON.stringify({ token: field.value.trim() }) });
    if (answer.ok) {
      if (location.pathname === "/login") location.replace("/" + location.hash);
      else location.reload();
      return;
    }
    const why = (await answer.json()).error?.message;
    said.textContent = why ?? `The server answered ${answer.status}.`;
  } catch {
    said.textContent = "The server does not answer.";
  }
  button.disabled = false;
  field.select();
};
