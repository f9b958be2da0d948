// What runs today and what ran before, with the way back.

import { h, replace } from "./dom.js";
import { openDialog, problemBox } from "./dialog.js";
import { difference, promotionArticle } from "./promotions.js";
import { request } from "./source.js";

export async function promotionsPage(main, name, live) {
  document.title = `${name ?? "Promotions"} – autotune`;
  const draw = async () => {
    const { promotions } = await request(name === null ? "/promotions" : `/promotions/${encodeURIComponent(name)}`);
    const newest = [...promotions].reverse();
    replace(main, h("div.head", {}, name === null ? null : h("p.crumb", {}, h("a", { href: "/promotions" }, "Promotions")), h("h1", {}, name ?? "Promotions"), h("p.soft", {}, "What was rendered for production, what its gate said, and the way back.")),
      newest.length ? newest.map((one) => promotionArticle(one, actions(one, promotions))) : h("div.empty", {}, h("b", {}, "Nothing was promoted yet"), h("p", {}, "Open a study and promote its pick.")));
    main.removeAttribute("aria-busy");
  };
  const actions = (one, all) => {
    const earlier = all.filter((other) => other.name === one.name && other.version < one.version).at(-1);
    return [
      h("button", { type: "button", "aria-label": `Files of ${one.label}`, onclick: () => openFiles(one) }, "Files"),
      earlier ? h("button", { type: "button", "aria-label": `Against version ${earlier.version}: what ${one.label} changed`, onclick: () => openDiff(one, earlier) }, `Against version ${earlier.version}`) : null,
      one.current && earlier ? h("button", { type: "button", class: "danger changing", onclick: () => rollback(one, draw) }, "Roll back …") : null,
    ];
  };
  await draw();
  return live.listen((kind) => { if (kind === "promotion" || kind === "reset") draw().catch(() => {}); });
}

async function openFiles(one) {
  const opened = openDialog(`Files of ${one.label}`, h("p.loading", {}, "Loading …"));
  try {
    const told = await request(`/promotions/${encodeURIComponent(one.name)}/${one.version}`);
    opened.fill(promotionArticle(told, []));
  } catch (problem) { opened.fill(problemBox(problem)); }
}

async function openDiff(one, earlier) {
  const opened = openDialog(`${earlier.label} to ${one.label}`, h("p.loading", {}, "Loading …"));
  try { opened.fill(difference(await request(`/promotions/${encodeURIComponent(one.name)}/diff?a=${earlier.version}&b=${one.version}`))); } catch (problem) { opened.fill(problemBox(problem)); }
}

function rollback(one, done) {
  const reason = h("input", { type: "text", id: "rollback-reason", autocomplete: "off" });
  const said = h("div");
  const opened = openDialog(`Roll ${one.name} back`, [
    h("p", {}, "The files of the version before are written again, byte for byte, as a new version."),
    h("div.field", {}, h("label", { for: "rollback-reason" }, "Why"), reason), said,
    h("div.buttons", {}, h("button", { type: "button", class: "primary", onclick: async () => {
      try { await request(`/promotions/${encodeURIComponent(one.name)}/rollback`, { method: "POST", body: reason.value.trim() ? { reason: reason.value.trim() } : {} }); opened.dialog.close(); await done(); } catch (problem) { replace(said, problemBox(problem)); }
    } }, "Roll back"))]);
}
