// How the front grew: over launches and over the time that they took, against random search where there was one.

import { dataTable, h } from "./dom.js";
import { responsive, surface, tipFor, watermark, xAxis, yAxis } from "./axes.js";
import { MISSING, count, seconds } from "./format.js";

export function growthCharts(study) {
  const growth = study.front.growth;
  if (growth.steps.length < 2) return null;
  const own = growth.steps, control = growth.control?.steps ?? [];
  const unit = Math.max(own.at(-1)[2], control.at(-1)?.[2] ?? 0) > 10 * 3600 ? { name: "hours", s: 3600 } : { name: "minutes", s: 60 };
  const key = control.length
    ? h("ul.legend", { style: { "margin-top": ".6rem" } }, h("li", {}, h("span.key", {}, lineKey("line-own"), "this study")), h("li", {}, h("span.key", {}, lineKey("line-control"), `random search (${growth.control.name}), under the same reference`)))
    : h("p.faint", { style: { "font-size": ".85rem", "margin-top": ".6rem" } }, "There is no random search of the same question here to hold it against; ", h("code", {}, "autotune study … --sampler random"), " makes one.");
  return h("div", {},
    h("div.two", {},
      chart(study, own, control, (step, place) => place + 1, "launches", count, Number.isInteger),
      chart(study, own, control, (step) => step[2] / unit.s, `${unit.name} of launches`, (value) => (value < 10 ? String(Number(value.toPrecision(2))) : count(value)))),
    key,
    dataTable([
      { head: "launch", right: true, cell: ([, place]) => place + 1 },
      { head: "trial", right: true, cell: ([step]) => step?.[0] ?? MISSING },
      { head: "hypervolume", right: true, cell: ([step]) => step?.[1].toFixed(3) ?? MISSING },
      { head: "time so far", right: true, cell: ([step]) => seconds(step?.[2]) },
      ...(control.length ? [{ head: "random: hypervolume", right: true, cell: ([, place]) => control[place]?.[1].toFixed(3) ?? MISSING }, { head: "random: time so far", right: true, cell: ([, place]) => seconds(control[place]?.[2]) }] : []),
    ], Array.from({ length: Math.max(own.length, control.length) }, (_, place) => [own[place], place]), "growth of the front"));
}

function lineKey(name) {
  return h("svg", { viewBox: "-9 -9 18 18", "aria-hidden": "true" }, h("path", { class: name, d: "M-9,0H9" }));
}

function chart(study, own, control, along, unit, format, shown = () => true) {
  const series = [{ name: "line-own", points: own.map((step, place) => [along(step, place), step[1]]) }];
  if (control.length) series.push({ name: "line-control", points: control.map((step, place) => [along(step, place), step[1]]) });
  const figure = responsive((width) => {
    const left = 44, right = width - 12, top = 34, bottom = 214;
    const all = series.flatMap((one) => one.points);
    const x = d3.scaleLinear([0, d3.max(all, (one) => one[0]) || 1], [left, right]);
    const high = Math.max(1.1, d3.max(all, (one) => one[1]));
    // Before the baseline is measured there is no front; what matters is how far it grows beyond the baseline alone.
    const y = d3.scaleLinear([1 - 0.06 * (high - 1), high + 0.08 * (high - 1)], [bottom, top]).clamp(true);
    const svg = surface(width, bottom + 42, `Hypervolume of the front over ${unit}: from ${own[0][1].toFixed(2)} to ${own.at(-1)[1].toFixed(2)}`);
    svg.append(...[watermark(study.simulated, width, bottom),
      xAxis({ scale: x, ticks: x.ticks(Math.min(7, width / 80)).filter(shown), format, top, bottom, title: unit }),
      yAxis({ scale: y, ticks: y.ticks(4), format: (value) => String(Number(value.toFixed(2))), left, right, title: "hypervolume, baseline alone = 1" }),
      h("line.zero", { x1: left, x2: right, y1: y(1), y2: y(1) })].filter(Boolean));
    for (const one of [...series].reverse()) svg.append(h("path", { class: one.name, d: d3.line((p) => x(p[0]), (p) => y(p[1])).curve(d3.curveStepAfter)(one.points) }));
    const dot = h("circle.dot.series-2", { r: 4, style: { display: "none" } });
    svg.append(dot);
    svg.addEventListener("pointermove", (event) => {
      const at = x.invert(d3.pointer(event, svg)[0]);
      const place = Math.max(0, d3.bisectRight(series[0].points.map((one) => one[0]), at) - 1);
      const [px, py] = [x(series[0].points[place][0]), y(series[0].points[place][1])];
      dot.style.display = "";
      dot.setAttribute("cx", px);
      dot.setAttribute("cy", py);
      tip.show([h("p", {}, h("b", {}, `after trial ${own[place][0]}`), ` ${own[place][1].toFixed(2)} × the baseline`), h("p.faint", {}, `${place + 1} launches, ${seconds(own[place][2])}`)], px, py);
    });
    svg.addEventListener("pointerleave", () => { dot.style.display = "none"; tip.hide(); });
    return svg;
  }, { label: `Growth of the front over ${unit}` });
  const tip = tipFor(figure);
  return figure;
}
