// Every config as a line over its flags and figures; a click on a value keeps only the lines that have it.

import { h, announce } from "./dom.js";
import { logTicks, responsive, surface, tickRate, tickSeconds, tipFor, watermark } from "./axes.js";
import { plural, rate, seconds, valueWord } from "./format.js";
import { KINDS, failedKind, kindOf } from "./kinds.js";

const ORDER = ["infeasible", "faulted", "void", "abandoned", "running", "interrupted", "dominated", "tied", "unsure", "front", "baseline", "pick"];

// Why there are no lines to draw; null where there are.
export function tooFew(study) {
  const parameters = study.front.parameters;
  if (!parameters.length) return study.front.trials.length ? "Only one config was launched so far." : "No config was launched yet.";
  return parameters.length === 1 && !study.front.configs.length ? `All configs differ in ${parameters[0].name} alone, and none has figures.` : null;
}

export function parallelPart(study, { open }) {
  const parameters = study.front.parameters;
  const chosen = new Map();
  const said = h("p.soft", { role: "status" });
  const figure = responsive((width) => drawn(width), { label: "Flags and figures of every config" });
  const tip = tipFor(figure);

  function lines() {
    const seen = new Set();
    const pick = study.pick?.number ?? null;
    return study.front.trials.filter((trial) => !seen.has(trial.config_hash) && seen.add(trial.config_hash)).map((trial) => {
      const config = study.configOf(trial);
      const kind = config ? kindOf(study, config, pick) : failedKind(trial);
      return { trial, config, kind };
    }).sort((a, b) => ORDER.indexOf(a.kind) - ORDER.indexOf(b.kind));
  }

  function drawn(width) {
    const all = lines();
    const axes = parameters.map((one) => ({ ...one, keys: one.values.map((value) => JSON.stringify(value)) }));
    const least = 104, wide = Math.max(width, least * (axes.length + (study.front.configs.length ? 2 : 0)));
    const top = 64, bottom = 330;
    const configs = study.front.configs;
    const places = d3.scalePoint([...axes.map((one) => `p:${one.name}`), ...(configs.length ? ["ttft", "rate"] : [])], axes.length + configs.length > 1 ? [46, wide - 52] : [wide / 2, wide / 2]);
    const ttft = d3.scaleLog(configs.length ? d3.extent(configs, (one) => one.ttft_p95_s).map((one, place) => one * (place ? 1.03 : 0.97)) : [0.1, 1], [top, bottom]);
    const flow = d3.scaleLinear(configs.length ? d3.extent(configs, (one) => one[study.first.key]) : [0, 1], [bottom, top]);
    const svg = surface(wide, bottom + 26, "Flags and figures of every config");
    svg.style.width = `${wide}px`;
    svg.style.maxWidth = "none";
    const mark = watermark(study.simulated, wide, bottom);
    if (mark) svg.append(mark);
    const spots = axes.map((one) => ({ ...one, at: d3.scalePoint(one.keys, [bottom, top]).padding(one.keys.length === 1 ? 0.5 : 0.12) }));
    const nodes = all.map(({ trial, config, kind }) => {
      const points = spots.map((one) => [places(`p:${one.name}`), one.at(JSON.stringify(trial.flags[one.name] ?? null))]);
      if (config) points.push([places("ttft"), ttft(config.ttft_p95_s)], [places("rate"), flow(config[study.first.key])]);
      const colour = kind === "unsure" ? "front" : kind;
      const node = h("path.pc", { class: `k-${colour}`, d: d3.line().curve(d3.curveMonotoneX)(points), "aria-hidden": "true" });
      const keeps = [...chosen].every(([name, key]) => JSON.stringify(trial.flags[name] ?? null) === key);
      if (!keeps) node.classList.add("dim");
      svg.append(node);
      return { node, trial, config, kind, points, keeps };
    });
    for (const one of spots) svg.append(axisOf(one, places(`p:${one.name}`), top, bottom));
    if (configs.length) svg.append(scaleOf("p95 TTFT", places("ttft"), ttft, apart(ttft, logTicks(...ttft.domain(), 6)), tickSeconds, top, bottom), scaleOf(study.goodput ? "goodput req/s per GPU" : "tokens/s per GPU", places("rate"), flow, apart(flow, flow.ticks(5)), tickRate, top, bottom, true));
    hovering(svg, nodes);
    const kept = nodes.filter((one) => one.keeps);
    said.textContent = chosen.size ? `${plural(kept.length, "config")} with ${[...chosen].map(([name, key]) => `${name} ${valueWord(JSON.parse(key))}`).join(" and ")}: ${kept.filter((one) => one.config).length} with figures${kept.some((one) => one.config) ? `, best ${rate(d3.max(kept, (one) => one.config?.[study.first.key]))} ${study.first.whole} and ${seconds(d3.min(kept, (one) => one.config?.ttft_p95_s))}` : ""}.` : "Choose a value on an axis to see only the configs that have it.";
    return h("div", { style: { "overflow-x": "auto" }, tabindex: "0", role: "region", "aria-label": "Parallel coordinates, scrolls sideways" }, svg);
  }

  function axisOf(one, x, top, bottom) {
    const lines_ = split(one.name);
    // Of a flag with more values than have room only some are named; all are in the lines.
    const each = Math.ceil(one.values.length / ((bottom - top) / 19));
    return h("g", {}, h("line.domain", { x1: x, x2: x, y1: top, y2: bottom }),
      lines_.map((line, place) => h("text", { class: "axis", x, y: 16 + place * 14, "text-anchor": "middle" }, line)),
      one.values.map((value, place) => {
        if (place % each && place !== one.values.length - 1) return null;
        if (each > 1 && place !== one.values.length - 1 && one.at(one.keys[place]) - one.at(one.keys.at(-1)) < 19) return null;
        const key = one.keys[place], y = one.at(key), word = cut(valueWord(value)), wide = Math.max(26, word.length * 7 + 10);
        const pressed = chosen.get(one.name) === key;
        const toggle = () => { if (pressed) chosen.delete(one.name); else chosen.set(one.name, key); figure.redraw(); announce(said.textContent); figure.querySelector(`[data-value="${CSS.escape(`${one.name}=${key}`)}"]`)?.focus({ preventScroll: true }); };
        return h("g.pc-value", { class: pressed ? "chosen" : null, tabindex: "0", role: "button", "aria-pressed": String(pressed), "aria-label": `${one.name} ${valueWord(value)}`, "data-value": `${one.name}=${key}`,
          onclick: toggle, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(); } } },
        h("rect", { x: x - wide / 2, y: y - 10, width: wide, height: 20, rx: 6, style: { "fill-opacity": ".88" } }), h("text", { x, y: y + 4, "text-anchor": "middle" }, word));
      }));
  }

  function hovering(svg, nodes) {
    let hot = null;
    const set = (found, x, y) => {
      if (found !== hot) { hot?.node.classList.remove("hot"); found?.node.classList.add("hot"); hot = found; }
      if (found) tip.show([h("p", {}, h("b", {}, `Trial ${found.trial.number}`), ` ${KINDS[found.kind].word}`), found.config ? h("p", {}, `${study.firstText(found.config)} ${study.first.whole}, ${seconds(found.config.ttft_p95_s)} p95 TTFT`) : null].filter(Boolean), x, y); else tip.hide();
    };
    svg.addEventListener("pointermove", (event) => {
      const [x, y] = d3.pointer(event, svg);
      let best = null, least = 144;
      for (const one of nodes) {
        if (!one.keeps) continue;
        for (let place = 1; place < one.points.length; place += 1) {
          const [a, b] = [one.points[place - 1], one.points[place]];
          if (x < a[0] || x > b[0]) continue;
          const at = a[1] + ((b[1] - a[1]) * (x - a[0])) / (b[0] - a[0] || 1);
          if ((at - y) ** 2 <= least) { least = (at - y) ** 2; best = one; }
        }
      }
      set(best, x - svg.parentElement.scrollLeft, y);
    });
    svg.addEventListener("pointerleave", () => set(null));
    svg.addEventListener("click", (event) => { if (hot && !event.target.closest(".pc-value")) open(hot.trial.number); });
  }

  const element = h("div", {}, said, figure);
  return { element, update: () => figure.redraw() };
}

function split(name) {
  const words = name.replace(/^env:/, "").split(/[-_ ]/), lines = [""];
  for (const word of words) {
    if (lines.at(-1) && `${lines.at(-1)} ${word}`.length > 15 && lines.length < 3) lines.push(word);
    else lines[lines.length - 1] = `${lines.at(-1)} ${word}`.trim();
  }
  return lines.map((line) => cut(line, 16));
}

function cut(text, most = 12) { return text.length > most ? `${text.slice(0, most - 1)}…` : text; }

// Ticks whose words do not meet.
function apart(scale, ticks) {
  const told = [];
  for (const tick of ticks) if (!told.length || Math.abs(scale(tick) - scale(told.at(-1))) >= 16) told.push(tick);
  return told;
}

function scaleOf(title, x, scale, ticks, format, top, bottom, right = false) {
  return h("g", { "aria-hidden": "true" }, h("line.domain", { x1: x, x2: x, y1: top, y2: bottom }),
    split(title).map((line, place) => h("text", { class: "axis strong", x, y: 16 + place * 14, "text-anchor": "middle" }, line)),
    ticks.map((tick) => h("text.halo-text", { x: x + (right ? 8 : -8), y: scale(tick) + 4, "text-anchor": right ? "start" : "end" }, format(tick))));
}
