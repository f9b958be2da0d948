// What a trial is in a picture: its kind, shape and words. Shapes alone tell kinds apart, colours help.

import { h } from "./dom.js";

export const KINDS = {
  pick: { word: "pick", shape: "star", size: 190 },
  baseline: { word: "baseline", shape: "diamond", size: 115 },
  front: { word: "on the front", shape: "circle", size: 100 },
  unsure: { word: "on the front, within noise", shape: "circle", size: 84, hollow: true },
  tied: { word: "tied with the front", shape: "triangle", size: 66, hollow: true },
  dominated: { word: "dominated", shape: "circle", size: 34, hollow: true },
  abandoned: { word: "abandoned early", shape: "chevron", size: 48, thin: true },
  infeasible: { word: "infeasible", shape: "times", size: 52, thin: true },
  faulted: { word: "faulted", shape: "plus", size: 52, thin: true },
  void: { word: "void: the client was the limit", shape: "square", size: 40, thin: true },
  running: { word: "running", shape: "square", size: 50, hollow: true },
  interrupted: { word: "interrupted: goes on with the study", shape: "square", size: 50, hollow: true },
};

const CHEVRON = { draw(context, size) { const r = Math.sqrt(size) * 0.6; context.moveTo(-r * 0.5, -r); context.lineTo(r * 0.6, 0); context.lineTo(-r * 0.5, r); } };

const outlines = new Map();

// The path of a kind's shape around the origin.
export function outline(kind) {
  if (!outlines.has(kind)) outlines.set(kind, made(kind));
  return outlines.get(kind);
}

function made(kind) {
  const found = KINDS[kind];
  const types = {
    star: d3.symbolStar, diamond: d3.symbolDiamond, circle: d3.symbolCircle, triangle: d3.symbolTriangle,
    times: d3.symbolTimes, plus: d3.symbolPlus, square: d3.symbolSquare, chevron: CHEVRON,
  };
  return d3.symbol(types[found.shape], found.size)();
}

export function classesOf(kind) {
  const found = KINDS[kind];
  const colour = kind === "unsure" ? "front" : kind;
  return `mark k-${colour}${found.hollow ? " hollow" : ""}${found.thin ? " thin" : ""}`;
}

export function swatch(kind) {
  return h("svg", { viewBox: "-9 -9 18 18", "aria-hidden": "true" }, h("g", { class: classesOf(kind) }, h("path.shape", { d: outline(kind) })));
}

// The kind of a config with figures.
export function kindOf(study, config, pick) {
  if (config.number === pick) return "pick";
  if (config.number === study.front.baseline) return "baseline";
  const standing = study.standing(config.number);
  if (config.on_front) return standing && !standing.sure ? "unsure" : "front";
  return standing?.place === "tied" ? "tied" : "dominated";
}

// The kind of a launch without figures that count.
export function failedKind(trial) {
  return trial.void ? "void" : trial.outcome;
}
