// Sends a command: first a dry run, then the reason, then the command. A retry sends the same id, so it runs once.

import { order } from "./api.js";
import { isAway } from "./away.js";
import { h } from "./dom.js";
import { plain, words } from "./format.js";

const RANK = { viewer: 0, operator: 1, admin: 2 };
export const may = (me, role) => RANK[me.role] >= RANK[role];

let hide = null;
export function tell(text, isBad = false) {
  const said = document.getElementById("said");
  said.textContent = text;
  said.className = isBad ? "bad" : "";
  said.hidden = false;
  clearTimeout(hide);
  hide = setTimeout(() => { said.hidden = true; }, 6000);
}

// A button for a command; hidden from callers whose role is too low. `what`: {action, subject, args, title, says, danger}
export function button(context, text, what) {
  const action = context.me.actions.find(one => one.name === what.action);
  if (!action || !may(context.me, action.role)) return null;
  return h("button", { class: what.danger ? "danger" : "", "data-order": what.action, disabled: isAway(),
      onclick: () => ask(context, action, what) }, text);
}

function ask(context, action, what) {
  const id = crypto.randomUUID(), body = { id, action: what.action, subject: what.subject, args: what.args ?? {} };
  const why = h("textarea",
    { rows: 2, required: true, maxlength: 400, placeholder: "The ledger keeps this reason with your name.", id: "why" });
  const change = h("div", { class: "change", role: "status" }, "Checking what would change …");
  const send = h("button", { class: "main" + (what.danger ? " danger" : ""), disabled: true }, what.title);
  const form = h("form", {}, change, h("label", { for: "why" }, "Reason", why),
    h("div", { class: "row end" }, h("button", { type: "button", onclick: () => box.close() }, "Cancel"), send));
  const box = h("dialog", { "aria-label": what.title }, h("h2", {}, what.title),
    h("p", { class: "grey" }, what.says ?? action.help), form);
  form.onsubmit = async event => {
    event.preventDefault();
    if (isAway()) return change.replaceChildren(h("span", { class: "bad-text" }, "No connection: the command was not sent."));
    send.disabled = true;
    try {
      const answer = await order({ ...body, why: why.value.trim() });
      box.close();
      tell(answer.said ?? `${what.title}: done`);
      context.again();
    } catch (error) {
      change.replaceChildren(h("span", { class: "bad-text" }, error.message));
      send.disabled = false;
    }
  };
  box.onclose = () => box.remove();
  document.body.append(box);
  box.showModal();
  why.focus();
  order({ ...body, why: "looking", dry_run: true }).then(
    answer => { change.replaceChildren(...told(answer)); send.disabled = Boolean(answer.refused); },
    error => change.replaceChildren(h("span", { class: "bad-text" }, error.message)));
}

// The result of a dry run: state before and after, and what is affected.
function told(answer) {
  if (answer.refused) return [h("span", { class: "bad-text" },
      `It would be refused: ${[answer.refused.what, answer.refused.why, answer.refused.remedy].filter(Boolean).join("; ")}`)];
  const named = value => value === null || value === undefined ? "none" : plain(value);
  const row = (before, after) => h("span", {}, h("b", {}, named(before)), h("span", { class: "arrow" }, "→"),
    h("b", {}, named(after)));
  const pairs = answer.before && typeof answer.before === "object"
    ? Object.keys({ ...answer.before, ...answer.after }).filter(key => plain(answer.before[key]) !== plain(answer.after?.[key]))
      .map(key => h("span", {}, h("span", { class: "grey" }, `${words(key)} `), row(answer.before[key], answer.after?.[key])))
    : [row(answer.before, answer.after)];
  const touched = Object.entries(answer.affected ?? {}).filter(([, n]) => n !== null).map(([name, n]) => h("span",
      { class: "grey" }, `${words(name)}: ${plain(n)}`));
  const lines = [...pairs, ...touched];
  return lines.length ? lines : [h("span", { class: "grey" }, "Nothing would change.")];
}
