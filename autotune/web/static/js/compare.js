// An honest A against B.

import { h, table } from "./dom.js";
import { openDialog, problemBox } from "./dialog.js";
import { MISSING, flag, gain, plural, rate, seconds, share } from "./format.js";

export async function openCompare(study, a, b, { closed } = {}) {
  const opened = openDialog([typeof a === "number" ? `Trial ${a} against trial ${b}` : `${a} against ${b}`, study.simulated ? h("span.tag.sim", {}, "SIMULATED") : null], h("p.loading", {}, "Loading …"), { onclose: closed });
  const inside = (side) => (typeof side === "string" && side.startsWith(`${study.name}:`) ? Number(side.slice(study.name.length + 1)) : side);
  const pickers = chooser(study, inside(a), inside(b), (one, other) => { opened.dialog.close(); openCompare(study, one, other, { closed }); });
  try {
    const found = await study.source.compare(whole(study, a), whole(study, b));
    opened.fill(pickers, ...(found ? comparison(found) : [h("p.soft", {}, `This pair is not in this file. \`autotune compare ${study.name} ${a} ${b}\` prints it.`)]));
  } catch (problem) {
    opened.fill(pickers, problemBox(problem));
  }
}

// A side of this study by its number, or `STUDY:TRIAL` of any.
function whole(study, side) {
  return typeof side === "number" ? `${study.name}:${side}` : side;
}

function chooser(study, a, b, go) {
  if (typeof a !== "number" || typeof b !== "number") return null;  // of two studies: the address says which
  const options = (chosen) => study.front.configs.map((one) => h("option", { value: one.number, selected: one.number === chosen }, `${one.number}${one.number === study.front.baseline ? " (baseline)" : one.number === study.pick?.number ? " (pick)" : ""}`));
  const one = h("select", { "aria-label": "A" }, options(a)), other = h("select", { "aria-label": "B" }, options(b));
  return h("section", {}, h("div.buttons", { style: { "align-items": "center" } }, h("span.faint", {}, "A: trial"), one, h("span.faint", {}, "B: trial"), other, h("button", { type: "button", onclick: () => go(Number(one.value), Number(other.value)) }, "Compare")));
}

function comparison(found) {
  const value = (row, figure) => (figure === null ? MISSING : row.unit === "s" ? seconds(figure) : `${rate(figure)}${row.unit && row.unit !== "tok/s" ? ` ${row.unit}` : ""}`);
  return [
    found.differing_studies.length ? h("section", {}, h("h3", {}, "The studies differ, so the figures do not compare flags alone"), table([{ head: "", cell: (one) => one.key }, { head: "A", cell: (one) => one.a }, { head: "B", cell: (one) => one.b }], found.differing_studies, { caption: "What differs" })) : null,
    h("section", {}, h("h3", {}, "Flags"), found.flags.length ? table([{ head: "flag", cell: (one) => one.name }, { head: "A", cell: (one) => word(one.name, one.a) }, { head: "B", cell: (one) => word(one.name, one.b) }], found.flags, { caption: "Flags that differ" }) : h("p.soft", {}, "Both run with the same flags.")),
    h("section", {}, h("h3", {}, `Figures${found.a.simulated || found.b.simulated ? " (simulated)" : ""}`), table([
      { head: "", cell: (row) => row.name }, { head: "A", right: true, cell: (row) => value(row, row.a) }, { head: "B", right: true, cell: (row) => value(row, row.b) }, { head: "B against A", right: true, cell: (row) => (row.ratio === null ? MISSING : gain(row.ratio)) },
      { head: "95 % interval", cell: (row) => interval(row) }, { head: "", cell: (row) => h("span", { class: row.verdict === "better" ? "tag pick" : row.verdict === "worse" ? "tag bad" : "faint" }, row.verdict ?? MISSING, row.launches_needed ? `; about ${plural(row.launches_needed, "launch", "launches")} of each would tell` : "") },
    ], found.figures, { caption: "Figures of A and B", stacked: true })),
    h("p.faint", {}, `Launches: A ${found.a.launches.join(", ")}; B ${found.b.launches.join(", ")}. Between launches of one config throughput is taken to vary by ${share(found.noise.throughput_sd, 1)} and TTFT by ${share(found.noise.ttft_sd)} (${found.noise.repeats ? `learnt from ${plural(found.noise.repeats, "repeated launch", "repeated launches")} and an assumption` : "assumed, because nothing was launched twice"}).`),
  ].filter(Boolean);
}

function word(name, value) {
  return value === null ? h("span.faint", {}, "vLLM's default") : h("code", {}, flag(name, value));
}

// The interval as a bar around no difference.
function interval(row) {
  if (row.low === null) return MISSING;
  const reach = Math.max(1.1, ...[row.low, row.high].map((one) => Math.max(one, 1 / one)));
  const x = d3.scaleLog([1 / reach, reach], [4, 132]).clamp(true);
  const tone = row.verdict === "better" ? "good" : row.verdict === "worse" ? "worse" : "none";
  return h("span.nowrap", {}, h("svg", { width: 136, height: 14, viewBox: "0 0 136 14", "aria-hidden": "true", style: { "vertical-align": "middle" } }, h("line", { class: "zero", x1: x(1), x2: x(1), y1: 0, y2: 14, style: { stroke: "var(--rule)" } }), h("g", { class: `effect solid ${tone}` }, h("line.ci", { x1: x(row.low), x2: x(row.high), y1: 7, y2: 7 }), h("circle", { cx: x(row.ratio), cy: 7, r: 3.5 }))), h("span.interval", {}, ` ${gain(row.low)} to ${gain(row.high)}`));
}
