// What was promoted: the gate's record, the rendered files, and what changed.

import { copyBlock, copyButton, h, table } from "./dom.js";
import { gateRecord } from "./gate.js";
import { MISSING, flag, rate, seconds, when } from "./format.js";

export function files(list) {
  const holder = h("div", { style: { display: "grid", gap: ".7rem", "min-width": "0" } });
  const show = (place) => {
    const one = list[place];
    holder.replaceChildren(
      h("div.tabs", { role: "tablist", "aria-label": "Rendered files" }, list.map((file, at) => h("button", { type: "button", role: "tab", id: `file-${at}`, "aria-selected": String(at === place), tabindex: at === place ? "0" : "-1", onclick: () => { show(at); document.getElementById(`file-${at}`)?.focus(); },
        onkeydown: (event) => { const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key]; if (step) { const next = (at + step + list.length) % list.length; show(next); document.getElementById(`file-${next}`)?.focus(); } } }, file.path))),
      h("div", { role: "tabpanel", "aria-labelledby": `file-${place}` }, one.text === null ? h("p.soft", {}, "Only its checksum was kept.") : copyBlock(one.path, one.text)));
  };
  if (list.length) show(0);
  return holder;
}

// The flags and files that a promotion changes, as `autotune diff --json` has them; A is what runs.
export function difference(found) {
  if (!found) return h("p.soft", {}, "Nothing runs under this name yet: all of it is new.");
  const rows = [...found.flags.map((one) => ({ ...one, flag: true })), ...found.facts];
  return h("div.gate", {},
    rows.length ? table([{ head: "", cell: (one) => one.name }, { head: found.a, cell: (one) => (one.flag ? value(one.name, one.a) : one.a) }, { head: found.b, cell: (one) => (one.flag ? value(one.name, one.b) : one.b) }], rows, { caption: "What changes" }) : h("p.soft", {}, "No flag changes."),
    found.files.map((file) => h("div.copy", {}, h("div.row", {}, h("h3", {}, file.path), copyButton(file.diff, "Copy the diff")), h("pre.diff", { tabindex: "0", role: "region", "aria-label": `Changes of ${file.path}` }, file.diff.trimEnd().split("\n").map((line) => h("span", { class: line.startsWith("+") ? "plus" : line.startsWith("-") ? "minus" : line.startsWith("@@") ? "at" : null }, `${line}\n`))))));
}

function value(name, found) {
  return found === null || found === undefined ? h("span.faint", {}, "not set") : h("code", {}, flag(name, found));
}

export function promotionArticle(one, actions = []) {
  const figures = `${rate(one.output_tok_s_per_gpu?.value)} tokens/s per GPU, TTFT p95 ${seconds(one.ttft_p95_s?.value)}`;
  const facts = [["from", h("span", {}, h("a", { href: `/studies/${encodeURIComponent(one.study)}` }, one.study), `, trial ${one.trial}${one.restores === null ? "" : `, back to version ${one.restores}`}`)], ["when", when(one.created_at)], ["by", one.author || MISSING], ["why", one.reason || MISSING], ["figures", figures], ["for", one.targets.join(", ")], ["SLO", one.slo]];
  return h("article.promotion", { "aria-label": one.label },
    h("h2", {}, one.label, one.current ? [" ", h("span.tag.today", {}, "runs today")] : null, one.gate?.verdict === "pass" ? null : [" ", h("span.tag.bad", {}, one.gate ? "GATE SKIPPED" : "GATE NOT RUN")], one.simulated ? [" ", h("span.tag.sim", {}, "SIMULATED")] : null),
    h("dl.pairs", {}, facts.filter(([, text]) => text).map(([name, text]) => [h("dt", {}, name), h("dd", {}, text)])),
    gateRecord(one.gate), one.files.some((file) => file.text) ? files(one.files) : null, actions.length ? h("div.buttons", {}, actions) : null);
}

export function promotionRecords(promotions) {
  return h("section.part", { "aria-labelledby": "promoted" }, h("header", {}, h("h2", { id: "promoted" }, "Promoted"), h("p", {}, "What was rendered for production from this study, and what its gate said.")), promotions.map((one) => promotionArticle(one)));
}
