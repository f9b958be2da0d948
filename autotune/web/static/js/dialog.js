// A dialog with a bar: the browser's own, which traps the focus and closes on Escape.

import { h } from "./dom.js";

export function openDialog(title, body, { actions = [], onclose } = {}) {
  const heading = h("h2", {}, title);
  const dialog = h("dialog", { "aria-label": heading.textContent },
    h("div.bar-top", {}, heading, h("div.buttons", {}, actions, h("button", { type: "button", class: "quiet", "aria-label": "Close", onclick: () => dialog.close() }, "Close"))),
    h("div.body", {}, body));
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => { dialog.remove(); onclose?.(); });
  document.body.append(dialog);
  dialog.showModal();
  dialog.scrollTop = 0;
  return { dialog, fill: (...content) => { dialog.querySelector(".body").replaceChildren(); dialog.querySelector(".body").append(...content.flat().filter(Boolean)); } };
}

export function problemBox(problem) {
  return h("div.problem", { role: "alert" }, h("p", {}, problem.message), problem.hint ? h("p", {}, problem.hint) : null,
    problem.errors?.length ? h("ul", {}, problem.errors.map((one) => h("li", {}, `${one.key}: ${one.value} (allowed: ${one.allowed})`))) : null);
}
