// The picture that everything is about: throughput per GPU against p95 TTFT, with a limit that can be moved.

import { answersCell, wereAsked } from "./answers.js";
import { dataTable, flagList, h, announce } from "./dom.js";
import { logTicks, responsive, surface, tickRate, tickSeconds, tipFor, watermark, xAxis, yAxis } from "./axes.js";
import { between, chance, gain, plural, rate, reasonWords, seconds } from "./format.js";
import { KINDS, classesOf, failedKind, kindOf, outline, swatch } from "./kinds.js";

const ORDER = ["dominated", "tied", "unsure", "front", "baseline", "pick"];
const MOST_WHISKERS = 12;

// `hidden`: the kinds that the reader hid in the picture that this one replaces.
export function frontChart(study, { open, hidden = new Set() }) {
  const figure = responsive((width) => drawn(width), { label: `Front of ${study.name}: ${study.first.axis} against p95 time to first token` });
  const tip = tipFor(figure);
  let current = null;

  function drawn(width) {
    const box = frame(study, width);
    const pick = study.pick?.number ?? null;
    const svg = surface(width, box.height, describe(study));
    const front = study.front.front.map((number) => study.config(number)).filter(Boolean);
    svg.append(
      ...[watermark(study.simulated, width, box.bottom),
        xAxis({ scale: box.x, ticks: box.xTicks, format: tickSeconds, top: box.top, bottom: box.bottom, title: "p95 time to first token · log scale · left is better" }),
        yAxis({ scale: box.y, ticks: box.yTicks, format: tickRate, left: box.left, right: box.right, title: `${study.first.axis} · up is better`, titleAt: box.narrow ? 14 : undefined })].filter(Boolean),
      zone(study, box), ...stair(study, front, box));
    const marks = [];
    const kinds = study.front.configs.map((config) => ({ config, kind: kindOf(study, config, pick) }));
    kinds.sort((a, b) => ORDER.indexOf(a.kind) - ORDER.indexOf(b.kind));
    for (const { config, kind } of kinds) {
      const { node, dress } = point(study, box, config, kind, kinds.length);
      if (hidden.has(kind)) node.classList.add("off");
      svg.append(node);
      marks.push({ node, x: box.x(config.ttft_p95_s), y: box.y(config[study.first.key]), number: config.number, dress, content: () => configTip(study, config, kind), shown: !hidden.has(kind) });
    }
    marks.push(...bounds(study, box, svg, hidden), ...strip(study, box, svg, hidden));
    svg.append(...labels(study, box, kinds.filter(({ kind }) => !hidden.has(kind))));
    const grip = limitGrip(study, box, figure);
    if (grip) svg.append(grip);
    pointing(svg, marks, grip);
    return svg;
  }

  function pointing(svg, marks, grip) {
    const shown = marks.filter((one) => one.shown);
    const ordered = [...shown].sort((a, b) => a.x - b.x || a.y - b.y);
    const places = new Map(ordered.map((one, place) => [one.node, place]));
    const entry = ordered.find((one) => one.number === current) ?? ordered[0];
    for (const one of ordered) one.node.setAttribute("tabindex", one === entry ? "0" : "-1");
    const at = (event) => places.get(event.target.closest?.(".mark"));
    svg.addEventListener("focusin", (event) => {
      const place = at(event);
      if (place === undefined) return;
      for (const one of ordered) if (one.node.getAttribute("tabindex") === "0") one.node.setAttribute("tabindex", "-1");
      const one = ordered[place];
      one.dress?.();
      current = one.number;
      one.node.setAttribute("tabindex", "0");
      tip.show(one.content(), one.x, one.y);
    });
    svg.addEventListener("focusout", (event) => { if (at(event) !== undefined) tip.hide(); });
    svg.addEventListener("click", (event) => { const place = at(event); if (place !== undefined) open(ordered[place].number); });
    svg.addEventListener("keydown", (event) => {
      const place = at(event);
      if (place === undefined) return;
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const next = step ? (place + step + ordered.length) % ordered.length : { Home: 0, End: ordered.length - 1 }[event.key];
      if (next !== undefined) { ordered[next].node.focus(); event.preventDefault(); }
      if (event.key === "Enter" || event.key === " ") { open(ordered[place].number); event.preventDefault(); }
      if (event.key === "Escape") tip.hide();
    });
    let hot = null;
    svg.addEventListener("pointermove", (event) => {
      if (grip?.dragging) return;
      const [x, y] = d3.pointer(event, svg);
      const near = d3.least(shown, (one) => (one.x - x) ** 2 + (one.y - y) ** 2);
      const found = near && (near.x - x) ** 2 + (near.y - y) ** 2 < 28 ** 2 ? near : null;
      if (found !== hot) {
        hot?.node.classList.remove("hot");
        found?.dress?.();
        found?.node.classList.add("hot");
        hot = found;
        if (found) tip.show(found.content(), found.x, found.y); else tip.hide();
      }
    });
    svg.addEventListener("pointerleave", () => { hot?.node.classList.remove("hot"); hot = null; tip.hide(); });
  }

  const legend = h("ul.legend", { "aria-label": "What is shown" });
  function drawLegend() {
    const pick = study.pick?.number ?? null;
    const counts = d3.rollup(study.front.configs, (found) => found.length, (config) => kindOf(study, config, pick));
    for (const trial of study.front.trials) {
      if (trial.outcome !== "measured" || trial.void) counts.set(failedKind(trial), (counts.get(failedKind(trial)) ?? 0) + 1);
    }
    legend.replaceChildren(...Object.keys(KINDS).filter((kind) => counts.has(kind)).map((kind) => h("li", {}, h("button", {
      type: "button", "aria-pressed": String(!hidden.has(kind)),
      onclick: () => { if (!hidden.delete(kind)) hidden.add(kind); drawLegend(); figure.redraw(); legend.querySelector(`[data-kind="${kind}"]`)?.focus(); },
      "data-kind": kind,
    }, swatch(kind), KINDS[kind].word, counts.get(kind) > 1 || !["pick", "baseline"].includes(kind) ? h("span.faint", {}, ` ${counts.get(kind)}`) : null))),
    ...(study.front.running && study.front.configs.some((one) => one.runs_today) ? [h("li", {}, h("span.key", {}, todayKey(), `runs today (${study.front.running.promotion})`))] : []));
  }

  drawLegend();
  return {
    element: h("div", {}, legend, figure, frontTable(study)), hidden,
    update() { drawLegend(); figure.redraw(); },
  };
}

function describe(study) {
  const front = study.front.front.map((number) => study.config(number)).filter(Boolean);
  const mark = study.simulated ? "Simulated. " : "";
  if (!front.length) return `${mark}No trial was measured yet.`;
  const word = (one) => `${study.firstText(one)} ${study.goodput ? "requests/s of goodput" : "output tokens/s"} per GPU at ${seconds(one.ttft_p95_s)} p95 TTFT`;
  const pick = study.pick ? ` The pick is trial ${study.pick.number}.` : " There is no pick.";
  return `${mark}${plural(front.length, "config")} on the front: from trial ${front[0].number} with ${word(front[0])} to trial ${front.at(-1).number} with ${word(front.at(-1))}.${pick} Use the arrow keys to go from trial to trial, Enter to open one.`;
}

function frame(study, width) {
  const narrow = width < 520;
  const left = narrow ? 44 : 54, right = width - 14, top = narrow ? 58 : 34;  // on a phone the limit's grip has a row of its own
  const bottom = top + (narrow ? 290 : 400);
  const configs = study.front.configs;
  const lows = configs.map((one) => one.ttft_p95_s_interval?.[0] ?? one.ttft_p95_s);
  const highs = configs.map((one) => one.ttft_p95_s_interval?.[1] ?? one.ttft_p95_s);
  const limits = [study.front.slo.ttft_p95_s].filter((one) => one !== null);
  let low = Math.min(...lows, ...limits), high = Math.max(...highs, ...limits);
  const room = Math.max((high / low) ** 0.06, 1.05);
  [low, high] = [low / room, high * room];
  const values = configs.flatMap((one) => [...(one[`${study.first.key}_interval`] ?? []), one[study.first.key]]);
  const [least, most] = d3.extent(values);
  const spread = Math.max(most - least, 0.05 * most);
  const x = d3.scaleLog([low, high], [left, right]).clamp(true);
  const y = d3.scaleLinear([Math.max(0, least - 0.1 * spread), most + 0.12 * spread], [bottom, top]).clamp(true);
  const failed = study.front.trials.filter((trial) => (trial.outcome !== "measured" || trial.void) && !bounded(study, trial, { x, y }));
  const rows = failed.length ? 1 : 0;
  return { x, y, left, right, top, bottom, narrow, xTicks: logTicks(low, high, narrow ? 4 : 9), yTicks: y.ticks(narrow ? 5 : 7), height: bottom + 46 + rows * (narrow ? 52 : 40), stripY: bottom + 66, failed };
}

function stair(study, front, box) {
  if (!front.length) return [];
  const at = front.map((one) => [box.x(one.ttft_p95_s), box.y(one[study.first.key])]);
  // Between two trials of the front nothing better was seen: the line is the stair that they dominate.
  const area = d3.area().curve(d3.curveStepAfter).y0(box.bottom)([...at, [box.right, at.at(-1)[1]]]);
  return [h("path.front-area", { d: area, "aria-hidden": "true" }), h("path.front-line", { d: d3.line().curve(d3.curveStepAfter)(at), "aria-hidden": "true" })];
}

function point(study, box, config, kind, all) {
  const cx = box.x(config.ttft_p95_s), cy = box.y(config[study.first.key]);
  const minor = kind === "dominated" || kind === "tied";
  const [low, high] = config.ttft_p95_s_interval ?? [], [bad, good] = config[`${study.first.key}_interval`] ?? [];
  const whiskers = () => [
    low !== undefined ? h("line.whisker", { x1: box.x(low), x2: box.x(high), y1: cy, y2: cy }) : null,
    bad !== undefined ? h("line.whisker", { x1: cx, x2: cx, y1: box.y(bad), y2: box.y(good) }) : null];
  // Of many minor ones what shows only under the pointer or the focus is made when it comes there.
  let bare = minor && all > MOST_WHISKERS;
  const inner = h("g", { transform: `translate(${cx},${cy})` },
    bare ? null : h("circle.ring", { r: 13 }),
    kind === "pick" ? h("circle.halo", { r: 14 }) : null,
    config.runs_today ? h("rect.today-ring", { x: -9.5, y: -9.5, width: 19, height: 19, rx: 3 }) : null,
    h("path.shape", { d: outline(kind) }));
  const node = h("g", { class: `${classesOf(kind)}${kind === "dominated" && all > 300 ? " crowd" : ""}${minor ? (all > MOST_WHISKERS ? " quiet" : " minor") : ""}${study.keeps(config.number) ? "" : " misses"}`, role: "button", "aria-label": words(study, config, kind), "data-number": config.number }, bare ? null : whiskers(), inner);
  const dress = () => {
    if (!bare) return;
    bare = false;
    node.prepend(...whiskers().filter(Boolean));
    inner.prepend(h("circle.ring", { r: 13 }));
  };
  return { node, dress };
}

function words(study, config, kind) {
  const today = config.runs_today ? ", runs today" : "";
  return `Trial ${config.number}, ${KINDS[kind].word}${today}: ${study.firstText(config)} ${study.goodput ? "requests/s of goodput" : "tokens/s"} per GPU, p95 TTFT ${seconds(config.ttft_p95_s)}`;
}

// An abandoned trial was shown to be slower than this: its mark points to where it would lie.
function bounds(study, box, svg, hidden) {
  const told = [];
  for (const trial of study.front.trials) {
    if (!bounded(study, trial, box)) continue;
    const at = Math.max(trial.early.ttft_s, 1e-6);
    const [x, y] = [box.x(at), box.y(trial.output_tok_s_per_gpu)];
    const node = h("g", { class: classesOf("abandoned"), role: "button", "data-number": trial.number, "aria-label": `Trial ${trial.number}, abandoned early: ${rate(trial.output_tok_s_per_gpu)} tokens/s per GPU, p95 TTFT above ${seconds(at)}` },
      h("g", { transform: `translate(${x},${y})` }, h("circle.ring", { r: 12 }), h("path.shape", { d: outline("abandoned") })));
    if (hidden.has("abandoned")) node.classList.add("off");
    svg.append(node);
    told.push({ node, x, y, number: trial.number, shown: !hidden.has("abandoned"), content: () => failedTip(trial, `p95 TTFT above ${seconds(at)}`) });
  }
  return told;
}

// Whether an abandoned trial has a place in the picture.
function bounded(study, trial, box) {
  if (study.goodput) return false;  // it has a throughput, and no goodput
  if (trial.outcome !== "abandoned" || trial.output_tok_s_per_gpu === null || !trial.early) return false;
  const inside = (scale, value) => value >= d3.min(scale.domain()) && value <= d3.max(scale.domain());
  return inside(box.x, trial.early.ttft_s) && inside(box.y, trial.output_tok_s_per_gpu);
}

// Launches without figures that count (none, or of a level that was ended early), in the order in which they were tried.
function strip(study, box, svg, hidden) {
  if (!box.failed.length) return [];
  const from = box.left + (box.narrow ? 0 : 118);
  const step = Math.min(20, (box.right - from - 8) / Math.max(1, box.failed.length));
  const small = Math.min(1, Math.max(0.45, step / 11));
  svg.append(h("text.strip-label", { x: box.narrow ? box.left : box.left, y: box.stripY + (box.narrow ? -6 : 4), "aria-hidden": "true" }, "no full figures"));
  return box.failed.map((trial, place) => {
    const kind = failedKind(trial), x = from + 8 + place * step, y = box.stripY + (box.narrow ? 14 : 0);
    const node = h("g", { class: classesOf(kind), role: "button", "data-number": trial.number, "aria-label": `Trial ${trial.number}, ${KINDS[kind].word}${trial.reason ? `: ${reasonWords(trial.reason)}` : ""}` },
      h("g", { transform: `translate(${x},${y}) scale(${small})` }, h("circle.ring", { r: 10 }), h("path.shape", { d: outline(kind) })));
    if (hidden.has(kind)) node.classList.add("off");
    svg.append(node);
    return { node, x, y, number: trial.number, shown: !hidden.has(kind), content: () => failedTip(trial) };
  });
}

function labels(study, box, kinds) {
  const placed = [], told = [];
  const points = kinds.slice(-200).map(({ config }) => ({ left: box.x(config.ttft_p95_s) - 7, right: box.x(config.ttft_p95_s) + 7, top: box.y(config[study.first.key]) - 7, bottom: box.y(config[study.first.key]) + 7 }));
  const wanted = kinds.filter(({ config, kind }) => !["dominated", "tied"].includes(kind) || config.runs_today)
    .sort((a, b) => ORDER.indexOf(b.kind) - ORDER.indexOf(a.kind));
  for (const { config, kind } of wanted) {
    const word = kind === "pick" ? `pick · ${config.number}` : kind === "baseline" ? `baseline · ${config.number}` : config.runs_today ? `runs today · ${config.number}` : String(config.number);
    const wide = word.length * 6.6 + 6;
    const x = box.x(config.ttft_p95_s), y = box.y(config[study.first.key]);
    const spots = [[-13, -11, "end"], [13, -11, "start"], [13, 21, "start"], [-13, 21, "end"], [0, -19, "middle"], [0, 29, "middle"]].map(([dx, dy, anchor]) => {
      const left = x + dx - (anchor === "end" ? wide : anchor === "middle" ? wide / 2 : 0);
      const own = { left, right: left + wide, top: y + dy - 11, bottom: y + dy + 4 };
      const inside = own.left > box.left - 6 && own.right < box.right + 10 && own.top > 0 && own.bottom < box.bottom;
      const cost = d3.sum(placed, (other) => (meets(own, other) ? 10 : 0)) + d3.sum(points, (other) => (meets(own, other) ? 1 : 0)) + (inside ? 0 : 100);
      return { dx, dy, anchor, own, cost };
    });
    const best = d3.least(spots, (one) => one.cost);
    // A number in a crowd says nothing; pick and baseline are always named.
    if (best.cost >= (word === String(config.number) ? 1 : 10)) continue;
    placed.push(best.own);
    const name = kind === "pick" ? "label-pick" : kind === "baseline" ? "label-base" : config.runs_today ? "label-today" : "axis";
    told.push(h("text.halo-text", { class: name, x: x + best.dx, y: y + best.dy, "text-anchor": best.anchor, "aria-hidden": "true", style: { "pointer-events": "none" } }, word));
  }
  return told;
}

function meets(one, other) {
  return one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom;
}

function zone(study, box) {
  if (study.limit_s === null || !study.front.slo.movable) return h("g");
  const at = box.x(study.limit_s);
  return h("rect.slo-zone", { x: at, y: box.top, width: Math.max(0, box.right - at), height: box.bottom - box.top, "aria-hidden": "true" });
}

// The limit: drag it, or move it with the arrow keys; past the right edge there is none.
function limitGrip(study, box, figure) {
  if (!study.movable) return null;
  const unset = study.limit_s === null;
  const at = unset ? box.right : box.x(study.limit_s);
  const word = unset ? "set a limit" : `≤ ${seconds(study.limit_s)}`;
  const wide = Math.max(66, word.length * 7 + 18);
  const start = Math.min(Math.max(at - wide / 2, box.left), box.right - wide + 14);
  const [low, high] = box.x.domain();
  const grip = h("g.slo-grip", {
    class: unset ? "unset" : null, tabindex: "0", role: "slider", "aria-label": "Limit of the p95 TTFT", "aria-orientation": "horizontal",
    "aria-valuemin": Math.round(low * 1000), "aria-valuemax": Math.round(high * 1000), "aria-valuenow": Math.round((unset ? high : study.limit_s) * 1000),
    "aria-valuetext": unset ? "no limit" : `${seconds(study.limit_s)}, ${study.pick ? `pick is trial ${study.pick.number}` : "no config meets it"}`,
  },
  unset ? null : h("line.slo-line", { x1: at, x2: at, y1: box.top - 6, y2: box.bottom }),
  h("rect", { x: at - 9, y: box.top, width: 18, height: box.bottom - box.top, style: { opacity: "0" } }),
  h("rect", { x: start, y: box.top - 30, width: wide, height: 24, rx: 12 }),
  h("text", { x: start + wide / 2, y: box.top - 14, "text-anchor": "middle" }, word));
  const set = (limit_s) => {
    study.setLimit(limit_s === null || limit_s >= high * 0.999 ? null : Math.max(low, limit_s));
    figure.querySelector(".slo-grip")?.focus({ preventScroll: true });
  };
  grip.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    grip.dragging = true;
    const move = (moved) => {
      const svg = figure.querySelector("svg");
      const bounds_ = svg.getBoundingClientRect();
      const x = (moved.clientX - bounds_.left) * (svg.viewBox.baseVal.width / bounds_.width);
      set(x > box.right + 2 ? null : rounded(box.x.invert(Math.max(box.left, Math.min(box.right, x)))));
    };
    const end = () => { window.removeEventListener("pointermove", move); window.removeEventListener("pointerup", end); window.removeEventListener("pointercancel", end); said(study); };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", end);
    window.addEventListener("pointercancel", end);
  });
  grip.addEventListener("keydown", (event) => {
    const now = study.limit_s ?? high;
    const next = { ArrowLeft: now / 1.02, ArrowDown: now / 1.02, ArrowRight: now * 1.02, ArrowUp: now * 1.02, PageDown: now / 1.2, PageUp: now * 1.2, Home: low, End: high }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    set(event.key === "End" ? null : rounded(next));
    said(study);
  });
  return grip;
}

// A limit as people would write it: three digits of milliseconds.
export function rounded(limit_s) {
  return Number((Math.max(limit_s, 1e-6)).toPrecision(3));
}

function said(study) {
  const limit = study.limit_s === null ? "No limit" : `Limit ${seconds(study.limit_s)}`;
  announce(`${limit}: ${study.pick ? `the pick is trial ${study.pick.number}` : "no config meets it"}`);
}

function configTip(study, config, kind) {
  const standing = study.standing(config.number);
  const line = (name, value, extra) => [h("dt", {}, name), h("dd", {}, value, extra ? h("span.interval", {}, ` ${extra}`) : null)];
  return [
    h("p", {}, h("b", {}, `Trial ${config.number}`), ` ${KINDS[kind].word}${config.runs_today ? " · runs today" : ""}${study.simulated ? " · simulated" : ""}`),
    h("dl", {},
      study.goodput ? line(study.first.head, study.firstText(config), between(config.goodput_rps_per_gpu_interval, rate)) : null,
      line(study.goodput ? "tokens/s per GPU at that rate" : "tokens/s per GPU", rate(config.output_tok_s_per_gpu), between(config.output_tok_s_per_gpu_interval, rate)),
      line("TTFT p95", seconds(config.ttft_p95_s), between(config.ttft_p95_s_interval, seconds)),
      line("launches", String(config.launches.length)),
      config.answers ? line("answers", config.answers.text) : null,
      study.limit_s !== null && !study.keeps(config.number) ? line("limit", "not surely kept") : null,
      standing ? line("on the front with", chance(standing.front_probability)) : null,
      standing?.tied_with.length ? line("tied with", `${standing.tied_with.slice(0, 4).join(", ")}${standing.tied_with.length > 4 ? ` and ${standing.tied_with.length - 4} more` : ""}`) : null,
      config.against_running ? line("against today", `${gain(config.against_running.throughput_ratio)} ${study.goodput ? "goodput" : "tok/s"}, ${gain(config.against_running.ttft_ratio)} TTFT`) : null),
    flagList(config.changes, kind === "baseline" ? "vLLM's defaults" : "as the baseline"),
  ];
}

function failedTip(trial, bound) {
  return [
    h("p", {}, h("b", {}, `Trial ${trial.number}`), ` ${KINDS[failedKind(trial)].word}${trial.reason ? `: ${reasonWords(trial.reason)}` : ""}${bound ? ` · ${bound}` : ""}`),
    flagList(Object.entries(trial.flags).map(([name, value]) => `${name}=${value}`)),
  ];
}

function todayKey() {
  return h("svg", { viewBox: "-9 -9 18 18", "aria-hidden": "true" }, h("rect.today-ring", { x: -6.5, y: -6.5, width: 13, height: 13, rx: 2 }));
}

function frontTable(study) {
  const rows = study.front.configs.slice().sort((a, b) => Number(b.on_front) - Number(a.on_front) || a.ttft_p95_s - b.ttft_p95_s);
  return dataTable([
    { head: "trial", right: true, cell: (one) => one.number },
    { head: "place", cell: (one) => KINDS[kindOf(study, one, study.pick?.number ?? null)].word },
    { head: study.first.head, right: true, cell: (one) => study.firstText(one) },
    { head: "95 % interval", right: true, cell: (one) => between(one[`${study.first.key}_interval`], rate) ?? "–" },
    ...(study.goodput ? [{ head: "tokens/s per GPU at that rate", right: true, cell: (one) => rate(one.output_tok_s_per_gpu) }] : []),
    { head: "TTFT p95", right: true, cell: (one) => seconds(one.ttft_p95_s) },
    { head: "95 % interval", right: true, cell: (one) => between(one.ttft_p95_s_interval, seconds) ?? "–" },
    ...(wereAsked(rows) ? [{ head: "answers", cell: answersCell }] : []),
    { head: "changes", cell: (one) => flagList(one.changes, "none") },
  ], rows, "configs with figures");
}
