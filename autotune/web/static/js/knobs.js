// What each flag does: one change at a time against the baseline, with intervals, and how it is known.

import { dataTable, h } from "./dom.js";
import { responsive, surface, tipFor, watermark } from "./axes.js";
import { gain, knobWord, share } from "./format.js";

const MEANING = {
  real: "measured: two servers that differ in nothing else", inferred: "inferred: launched together with other changes",
  expected: "expected: the model alone says so", "within noise": "within noise: no difference that anybody would see", "not known yet": "not known yet: both better and worse are possible",
};

const told = (learned) => learned.changes.filter((one) => one.throughput || one.refused || one.failure);

// Why nothing can be said of flags; null where something can.
export function untold(learned, running) {
  if (!learned) return running ? ["Worked out when the study ends; ", h("code", {}, "autotune explain"), " says it at any time."] : "Not worked out yet.";
  if (learned.failed) return `This cannot be told: ${learned.failed}.`;
  return told(learned).length ? null : "Too few trials were measured to say what a flag does.";
}

export function knobsPart(learned, { simulated }) {
  const rows = told(learned);
  const shown = rows.filter((one) => one.throughput && !one.same_server);
  const left = rows.filter((one) => !one.throughput && (one.refused || one.failure));
  return h("div", {},
    shown.length ? forest(shown, learned.objective, simulated) : null,
    keys(),
    left.length ? h("p.soft", {}, `Cannot be changed alone: ${left.map((one) => `${one.parameter} = ${knobWord(one.to)} (${one.refused ?? one.failure})`).join("; ")}.`) : null,
    table(rows, learned),
    shares(learned));
}

function forest(rows, objective, simulated) {
  const columns = [
    { key: "throughput", title: objective === "goodput" ? "goodput" : "throughput", better: 1 },
    { key: "ttft_p95", title: "p95 TTFT", better: -1 },
  ];
  const figure = responsive((width) => {
    const narrow = width < 640;
    const names = narrow ? width : Math.min(330, width * 0.34);
    const rowHeight = narrow ? 46 : 30, top = 42;
    const plots = narrow ? [[0, width / 2 - 12], [width / 2 + 12, width]] : [[names + 10, names + 10 + (width - names - 40) / 2], [names + 40 + (width - names - 40) / 2 - 10, width]];
    const svg = surface(width, top + rows.length * rowHeight + 26, "What one change of the baseline does to throughput and p95 TTFT");
    const mark = watermark(simulated, width, top + rows.length * rowHeight);
    if (mark) svg.append(mark);
    columns.forEach((column, place) => {
      // As far as what is known goes; what is not known reaches beyond the edges.
      const known = rows.filter((row) => row[column.key].standing !== "not known yet").flatMap((row) => row[column.key].interval);
      const bounds = [...known, ...rows.map((row) => row[column.key].ratio)].map((one) => Math.max(one, 1 / one));
      const reach = Math.min(4, Math.max(1.12, ...bounds) * 1.12);
      const scale = d3.scaleLog([1 / reach, reach], plots[place]).clamp(true);
      const ticks = percents(scale);
      svg.append(
        h("text", { class: "strong", x: plots[place][0], y: 12 }, column.title),
        h("text", { x: plots[place][1], y: 12, "text-anchor": "end" }, column.better > 0 ? "more is better →" : "← less is better"),
        ...ticks.map((tick) => h("g", { "aria-hidden": "true" }, h("line", { class: tick === 1 ? "zero" : "gridline", x1: scale(tick), x2: scale(tick), y1: top - 10, y2: top + rows.length * rowHeight }), h("text", { x: scale(tick), y: top - 16, "text-anchor": "middle" }, tick === 1 ? "0" : gain(tick)))));
      rows.forEach((row, line) => {
        const y = top + line * rowHeight + (narrow ? 34 : 18);
        if (place === 0) svg.append(name(row, rows[line - 1], narrow ? 0 : names, y, narrow));
        svg.append(effect(row, row[column.key], column, scale, y, tip));
      });
    });
    return svg;
  }, { label: "What each change does, one at a time" });
  const tip = tipFor(figure);
  return figure;
}

// Round percents on both sides of none: the widest apart first, and none where its words would meet another's.
function percents(scale) {
  const [low, high] = scale.domain();
  const told = [1];
  for (const one of [1, 0.5, 2, 0.2, 0.1, 0.05, 0.02]) {
    for (const tick of [1 + one, one >= 1 ? 1 / (1 + one) : 1 - one]) {
      if (tick > low && tick < high && told.every((other) => Math.abs(scale(other) - scale(tick)) > 48)) told.push(tick);
    }
  }
  return told.sort((p, q) => p - q);
}

function name(row, before, right, y, narrow) {
  const repeated = before?.parameter === row.parameter;
  if (narrow) return h("text", { class: "axis", x: 0, y: y - 16 }, h("tspan", { style: { "font-weight": "600" } }, row.parameter), ` ${knobWord(row.from)} → ${knobWord(row.to)}`);
  return h("g", {}, repeated ? null : h("text", { class: "axis", x: 0, y: y + 4 }, cut(row.parameter, 28)), h("text", { class: "axis", x: right, y: y + 4, "text-anchor": "end" }, cut(`${knobWord(row.from)} → ${knobWord(row.to)}`, 22)));
}

function cut(text, most) { return text.length > most ? `${text.slice(0, most - 1)}…` : text; }

function effect(row, found, column, scale, y, tip) {
  const clear = ["real", "inferred", "expected"].includes(found.standing);
  const good = Math.sign(found.ratio - 1) === column.better;
  const tone = found.standing === "within noise" ? "none" : found.standing === "not known yet" ? "unknown" : good ? "good" : "worse";
  const group = h("g", { class: `effect ${tone} ${found.basis === "measured" && clear ? "solid" : ""}`, role: "img", "aria-label": `${row.parameter} ${knobWord(row.from)} to ${knobWord(row.to)}: ${column.title} ${gain(found.ratio)}, ${found.standing}` },
    h("line.ci", { x1: scale(found.interval[0]), x2: scale(found.interval[1]), y1: y, y2: y }),
    h("circle", { cx: scale(found.ratio), cy: y, r: 4.5 }),
    h("rect", { x: scale.range()[0], y: y - 13, width: scale.range()[1] - scale.range()[0], height: 26, style: { fill: "transparent" } }));
  group.addEventListener("pointerenter", () => tip.show([
    h("p", {}, h("b", {}, `${row.parameter}: ${knobWord(row.from)} → ${knobWord(row.to)}`)),
    h("p", {}, `${column.title} ${gain(found.ratio)}, between ${gain(found.interval[0])} and ${gain(found.interval[1])}`),
    h("p.faint", {}, MEANING[found.standing] ?? found.standing),
  ], scale(found.ratio), y));
  group.addEventListener("pointerleave", () => tip.hide());
  return group;
}

function keys() {
  const key = (tone, solid, word) => h("li", {}, h("span.key", {}, h("svg", { viewBox: "-9 -9 18 18", "aria-hidden": "true" }, h("g", { class: `effect ${tone} ${solid}` }, h("line.ci", { x1: -8, x2: 8, y1: 0, y2: 0 }), h("circle", { r: 4 }))), word));
  return h("ul.legend", {}, key("good", "solid", "better, measured"), key("good", "", "better, inferred or expected"), key("worse", "solid", "worse, measured"), key("worse", "", "worse, inferred or expected"), key("none", "", "within noise"), key("unknown", "", "not known yet"));
}

function table(rows, learned) {
  const cell = (found) => (found ? `${gain(found.ratio)}, ${gain(found.interval[0])} to ${gain(found.interval[1])}, ${found.standing}` : "–");
  return dataTable([
    { head: "flag", cell: (one) => one.parameter }, { head: "from", cell: (one) => knobWord(one.from) }, { head: "to", cell: (one) => knobWord(one.to) },
    { head: learned.objective, cell: (one) => cell(one.throughput) }, { head: "TTFT p95", cell: (one) => cell(one.ttft_p95) },
    { head: "known from", cell: (one) => (one.refused ? `cannot start: ${one.refused}` : one.same_server ? "the same server" : one.trials.length ? `trial ${one.trials.join(", ")}` : "the model") },
  ], rows, "one change at a time");
}

function shares(learned) {
  if (!learned.parameters.length) return null;
  const most = learned.parameters.filter((one) => Math.max(one.throughput.share, one.ttft_p95.share) >= 0.005);
  const idle = learned.no_effect.filter((one) => one.how === "within noise").map((one) => one.parameter);
  const bar = (value) => [h("span.meter", { "aria-hidden": "true" }, h("i", { style: { width: `${Math.min(100, value * 100)}%` } })), ` ${share(value)}`];
  return h("div", { style: { "margin-top": "2rem" } },
    h("h3", {}, "Which flags matter at all"),
    h("p.soft", {}, "Share of the differences expected over all configs that may start; flags that act together count for each.",
      idle.length ? ` Made no difference beyond noise: ${idle.join(", ")}.` : ""),
    h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Which flags matter" }, h("table", {}, h("thead", {}, h("tr", {}, ["flag", "values measured", learned.objective, "TTFT p95"].map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, most.map((one) => h("tr", {}, h("th", { scope: "row" }, one.parameter), h("td", {}, `${one.measured_values} of ${one.values}`), h("td", {}, bar(one.throughput.share)), h("td", {}, bar(one.ttft_p95.share))))))));
}
