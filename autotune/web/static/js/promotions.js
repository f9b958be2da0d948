// What was promoted: the gate's record, the rendered files, and what changed.

import { copyBlock, copyButton, h, table } from "./dom.js";
import { MISSING, flag, rate, seconds, when } from "./format.js";

export function gateRecord(gate) {
  if (!gate) return h("p.soft", {}, "Nobody verified this config against what ran before.");
  const state = { pass: "pick", fail: "bad", skipped: "bad" }[gate.verdict];
  return h("div", { style: { display: "grid", gap: ".6rem" } },
    h("p", {}, h("span.tag", { class: state }, `gate: ${gate.verdict}`), gate.simulated ? h("span.tag.sim", {}, "SIMULATED") : null, ` ${gate.reason ?? ""}`),
    gate.criteria?.length ? table([
      { head: "criterion", cell: (one) => one.name }, { head: "", cell: (one) => h("span", { class: one.state === "met" || one.state === "pass" ? "tag pick" : "tag bad" }, one.state) }, { head: "what was seen", cell: (one) => one.text ?? one.seen ?? "" },
    ], gate.criteria, { caption: "Criteria of the gate" }) : null);
}

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

// The flags and files that a promotion changes, from `autotune diff --json`.
export function difference(found) {
  if (!found) return h("p.soft", {}, "Nothing runs under this name yet: all of it is new.");
  const flags = found.flags ?? [];
  return h("div", { style: { display: "grid", gap: ".8rem", "min-width": "0" } },
    flags.length ? table([{ head: "flag", cell: (one) => one.name }, { head: found.before ?? "before", cell: (one) => value(one.name, one.before ?? one.a) }, { head: found.after ?? "after", cell: (one) => value(one.name, one.after ?? one.b) }], flags, { caption: "Flags that change" }) : h("p.soft", {}, "No flag changes."),
    (found.files ?? []).map((file) => h("div", {}, h("div.row", {}, h("h3", {}, file.path), file.diff ? copyButton(file.diff, "Copy the diff") : null), file.diff ? h("pre.diff", { tabindex: "0", role: "region", "aria-label": `Changes of ${file.path}` }, file.diff.split("\n").map((line) => h("span", { class: line.startsWith("+") ? "plus" : line.startsWith("-") ? "minus" : line.startsWith("@@") ? "at" : null }, `${line}\n`))) : h("p.soft", {}, "unchanged"))));
}

function value(name, found) {
  return found === null || found === undefined ? h("span.faint", {}, "not set") : h("code", {}, flag(name, found));
}

export function promotionRecords(promotions) {
  return h("section.part", { "aria-labelledby": "promoted" }, h("header", {}, h("h2", { id: "promoted" }, "Promoted"), h("p", {}, "What was rendered for production from this study, and what its gate said.")),
    promotions.map((one) => h("article", { style: { display: "grid", gap: ".9rem", "margin-bottom": "2.5rem", "min-width": "0" } },
      h("h3", {}, `${one.name}@${one.version}`, one.current ? h("span.tag.today", { style: { "margin-left": ".6rem" } }, "runs today") : null),
      h("dl.pairs", {}, [["trial", one.trial], ["when", when(one.created_at)], ["by", one.author || MISSING], ["why", one.reason || MISSING], ["figures", `${rate(one.output_tok_s_per_gpu?.value ?? one.output_tok_s_per_gpu)} tokens/s per GPU, TTFT p95 ${seconds(one.ttft_p95_s?.value ?? one.ttft_p95_s)}`]].map(([name, text]) => [h("dt", {}, name), h("dd", {}, text)])),
      gateRecord(one.gate), one.files?.length ? files(one.files) : null)));
}

