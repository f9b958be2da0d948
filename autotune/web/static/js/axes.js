// The frame of every picture: size, axes, grid and a tip. Colours live in the style sheet, so that light and dark need
// no second drawing.

import { focusedIn, h } from "./dom.js";
import { rate, seconds } from "./format.js";

// Draws again when its width changes; `paint(width)` answers what to show.
export function responsive(paint, { label, describedBy } = {}) {
  const figure = h("figure.chart", { role: "group", "aria-label": label, "aria-describedby": describedBy });
  let width = 0;
  const draw = () => {
    const now = Math.round(figure.clientWidth);
    if (now > 0) {
      width = now;
      const kept = figure.querySelector(".tip");
      const focused = focusedIn(figure);
      figure.replaceChildren(paint(width), ...(kept ? [kept] : []));
      if (focused) figure.querySelector(focused)?.focus({ preventScroll: true });
    }
  };
  const seen = new ResizeObserver(() => { if (Math.abs(Math.round(figure.clientWidth) - width) > 1) draw(); });
  seen.observe(figure);
  figure.redraw = draw;
  return figure;
}

export function surface(width, height, title) {
  return h("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": title });
}

// Round numbers of a logarithmic axis of seconds: 1, 2, 5 of each decade, or finer where the axis is short.
export function logTicks(low, high, most) {
  for (const steps of [[1, 2, 5], [1, 1.5, 2, 3, 5, 7], [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9]]) {
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      for (const step of steps) {
        const value = Number((step * 10 ** power).toPrecision(6));
        if (value >= low && value <= high) ticks.push(value);
      }
    }
    if (ticks.length >= 3) return thinned(ticks, most);
  }
  return thinned(d3.ticks(low, high, Math.max(2, most)), most);
}

function thinned(ticks, most) {
  const step = Math.ceil(ticks.length / Math.max(2, most));
  return ticks.filter((_, place) => place % step === 0);
}

export function tickSeconds(value) {
  if (value < 0.01) return `${Number((value * 1000).toPrecision(3))} ms`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 120) return `${Number(value.toPrecision(3))} s`;
  return seconds(value);
}

export function tickRate(value) {
  return value >= 100 ? rate(value) : String(Number(value.toPrecision(3)));
}

export function xAxis({ scale, ticks, format, top, bottom, title }) {
  const [left, right] = scale.range();
  return h("g", { "aria-hidden": "true" },
    ticks.map((tick) => h("line.gridline", { x1: scale(tick), x2: scale(tick), y1: top, y2: bottom })),
    h("line.domain", { x1: left, x2: right, y1: bottom, y2: bottom }),
    ticks.map((tick) => h("text", { x: scale(tick), y: bottom + 18, "text-anchor": "middle" }, format(tick))),
    title ? h("text.axis", { x: right, y: bottom + 38, "text-anchor": "end" }, title) : null);
}

export function yAxis({ scale, ticks, format, left, right, title, titleAt = scale.range()[1] - 14 }) {
  return h("g", { "aria-hidden": "true" },
    ticks.map((tick) => h("line.gridline", { x1: left, x2: right, y1: scale(tick), y2: scale(tick) })),
    ticks.map((tick) => h("text", { x: left - 8, y: scale(tick) + 4, "text-anchor": "end" }, format(tick))),
    title ? h("text.axis", { x: 0, y: titleAt }, title) : null);
}

// One tip a picture, beside what it speaks of and inside the picture.
export function tipFor(figure) {
  const tip = h("div.tip", { hidden: true, role: "tooltip" });
  return {
    show(content, x, y) {
      tip.replaceChildren(...content);
      if (!tip.isConnected) figure.append(tip);
      tip.hidden = false;
      const box = figure.getBoundingClientRect();
      const own = tip.getBoundingClientRect();
      const left = x + 16 + own.width > box.width ? Math.max(0, x - own.width - 16) : x + 16;
      tip.style.left = `${Math.min(left, Math.max(0, box.width - own.width))}px`;
      tip.style.top = `${Math.max(-20, y - own.height / 2)}px`;
    },
    hide() { tip.hidden = true; },
  };
}

// Watermark of pictures whose figures no server produced.
export function watermark(simulated, width, height) {
  if (!simulated) return null;
  const size = Math.max(20, Math.min(64, width / 11));
  return h("text.watermark", { x: width / 2, y: height / 2, "text-anchor": "middle", style: { "font-size": `${size}px` }, "aria-hidden": "true" }, "SIMULATED");
}
