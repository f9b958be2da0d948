// How latency rises with load, and how TTFT is spread, of the trials that are chosen.

import { dataTable, h, replace } from "./dom.js";
import { logTicks, responsive, surface, tickSeconds, tipFor, watermark, xAxis, yAxis } from "./axes.js";
import { count, plural, rate, seconds } from "./format.js";

const MOST = 6;
const ROLES = { ramp: "ramp", throughput: "throughput", ttft: "TTFT", goodput: "probe for the goodput", extra: "further level" };

// Which trials the pictures of this part compare; pick and baseline first.
export class Chosen {
  constructor(study, kept = null) {
    this.study = study;
    // A report has the curves that it has; the service is asked for those of any other trial when they are chosen.
    const own = study.evidence.curves.map((one) => one.number);
    const known = new Set(study.source.live ? [...own, ...study.evidence.servers.map((one) => one.number)] : own);
    this.missing = study.evidence.servers.filter((one) => !known.has(one.number)).length;
    const wanted = [study.pick?.number, study.front.baseline, ...study.front.front].filter((one) => one !== null && one !== undefined && known.has(one));
    this.touched = kept !== null;
    this.numbers = kept ?? [...new Set(wanted)].slice(0, 3);
    this.all = [...known].sort((a, b) => a - b);
    this.listeners = new Set();
  }
  colour(number) { return `series-${this.numbers.indexOf(number) % MOST}`; }
  toggle(number) {
    this.touched = true;
    if (this.numbers.includes(number)) this.numbers = this.numbers.filter((one) => one !== number);
    else if (this.numbers.length < MOST) this.numbers = [...this.numbers, number];
    this.tell();
    this.complete();
  }
  tell() { for (const listener of this.listeners) listener(); }
  // Asks for what is chosen and not here.
  async complete() {
    for (const number of this.numbers.filter((one) => this.study.lacks(one))) {
      try { await this.study.fetchCurve(number); this.problem = null; } catch (problem) { this.problem = problem; }
      this.tell();
    }
  }
  name(number) {
    if (number === this.study.pick?.number) return `pick · ${number}`;
    if (number === this.study.front.baseline) return `baseline · ${number}`;
    return `trial ${number}`;
  }
}

export function chooser(chosen) {
  const element = h("div.chips", { role: "group", "aria-label": "Trials to compare" });
  const draw = () => {
    const free = chosen.all.filter((number) => !chosen.numbers.includes(number));
    const adding = h("select", { "aria-label": "Add a trial", disabled: chosen.numbers.length >= MOST }, h("option", { value: "" }, chosen.numbers.length >= MOST ? `at most ${MOST}` : "add a trial …"), free.map((number) => h("option", { value: number }, chosen.name(number))));
    adding.addEventListener("change", () => { if (adding.value !== "") { chosen.toggle(Number(adding.value)); draw(); element.querySelector("select").focus(); } });
    element.replaceChildren(...chosen.numbers.map((number) => h("button", {
      type: "button", class: chosen.colour(number), style: { "border-color": "var(--c)", color: "var(--c)" }, "aria-label": `Take ${chosen.name(number)} out`,
      onclick: () => { chosen.toggle(number); draw(); element.querySelector("select").focus(); },
    }, chosen.name(number), h("span", { "aria-hidden": "true" }, "×"))), ...(free.length ? [adding] : []));
  };
  draw();
  const note = h("p.faint", { role: "status", style: { "font-size": ".85rem", "margin-bottom": ".8rem" } });
  const say = () => {
    note.textContent = chosen.problem ? `This could not be fetched: ${chosen.problem.message}` : chosen.missing ? `The curves of ${plural(chosen.missing, "more trial")} with figures are not in this file; the service (autotune serve) has those of every trial.` : "";
    note.hidden = !note.textContent;
  };
  say();
  chosen.listeners.add(say);
  return [element, note];
}

export function loadCurves(study, chosen) {
  const rows = () => chosen.numbers.flatMap((number) => (study.curve(number)?.levels ?? []).map((level) => ({ number, ...level })));
  const figure = responsive((width) => {
    const all = rows().filter((one) => one.ttft_p95_s !== null && one.request_rps_per_gpu !== null);
    const left = 58, right = width - 18, top = 34, bottom = 300;
    if (!all.length) return h("p.soft", {}, chosen.numbers.some((one) => study.lacks(one)) ? "Fetching …" : "None of these trials has a load level with figures.");
    // A goodput is a rate that was offered, and so are the rates that were probed for it.
    const along = (one) => (study.goodput ? one.rate_rps_per_gpu : null) ?? one.request_rps_per_gpu;
    const goodputs = new Map(study.goodput ? chosen.numbers.map((number) => [number, study.config(number)?.goodput_rps_per_gpu]).filter(([, value]) => value) : []);
    const x = d3.scaleLinear([0, d3.max([...all.map(along), ...goodputs.values()]) * 1.06], [left, right]);
    const [low, high] = [d3.min(all, (one) => one.ttft_p95_s) / 1.2, d3.max(all, (one) => one.ttft_p95_s) * 1.2];
    const y = d3.scaleLog([low, high], [bottom, top]);
    const svg = surface(width, bottom + 46, "p95 TTFT against requests per second per GPU");
    svg.append(...[watermark(study.simulated, width, bottom), xAxis({ scale: x, ticks: x.ticks(Math.min(8, width / 90)), format: (value) => String(Number(value.toPrecision(4))), top, bottom, title: study.goodput ? "requests/s per GPU, offered (squares: served)" : "requests/s served per GPU" }),
      yAxis({ scale: y, ticks: logTicks(low, high, 6), format: tickSeconds, left, right, title: "p95 TTFT · log scale" })].filter(Boolean));
    const limit = study.front.slo.ttft_p95_s;
    if (limit !== null && limit > low && limit < high) svg.append(h("line.slo-line", { x1: left, x2: right, y1: y(limit), y2: y(limit) }), h("text.halo-text.limit-word", { x: left + 4, y: y(limit) - 6 }, `SLO ${seconds(limit)}`));
    for (const number of chosen.numbers) {
      const levels = all.filter((one) => one.number === number);
      const group = h("g", { class: chosen.colour(number) });
      const closed = levels.filter((one) => !one.open), probed = levels.filter((one) => one.role === "goodput" || one.role === "ttft").sort((a, b) => along(a) - along(b));
      if (study.goodput && probed.length > 1) group.append(h("path.series.probes", { d: d3.line((one) => x(along(one)), (one) => y(one.ttft_p95_s))(probed) }));
      if (goodputs.has(number)) group.append(h("path.goodput", { d: `M${x(goodputs.get(number))},${bottom}v-12`, role: "img", "aria-label": `${chosen.name(number)}: goodput ${study.firstText(study.config(number))} requests/s per GPU` }));
      if (closed.length > 1) group.append(h("path.series", { d: d3.line((one) => x(one.request_rps_per_gpu), (one) => y(one.ttft_p95_s)).curve(d3.curveMonotoneX)(closed) }));
      for (const one of levels) {
        const [px, py] = [x(along(one)), y(one.ttft_p95_s)];
        const dot = h("path.dot", { class: one.open ? "solid" : null, d: d3.symbol(one.open ? d3.symbolCircle : d3.symbolSquare, 46)(), transform: `translate(${px},${py})`, role: "img", "aria-label": `${chosen.name(number)}, ${one.offered}: ${rate(one.request_rps_per_gpu)} requests/s, p95 TTFT ${seconds(one.ttft_p95_s)}` });
        dot.addEventListener("pointerenter", () => tip.show([h("p", {}, h("b", {}, chosen.name(number)), ` ${ROLES[one.role] ?? one.role}, ${one.offered}`), h("p", {}, `${rate(one.request_rps_per_gpu)} requests/s, ${rate(one.output_tok_s_per_gpu)} tokens/s per GPU`), h("p", {}, `TTFT p95 ${seconds(one.ttft_p95_s)}, p50 ${seconds(one.ttft_p50_s)}`)], px, py));
        dot.addEventListener("pointerleave", () => tip.hide());
        group.append(dot);
      }
      svg.append(group);
    }
    return svg;
  }, { label: "Latency against load" });
  const tip = tipFor(figure);
  const holder = h("div");
  const fill = () => replace(holder, figure, dataTable([
    { head: "trial", right: true, cell: (one) => one.number }, { head: "level", cell: (one) => ROLES[one.role] ?? one.role }, { head: "load", cell: (one) => one.offered }, { head: "offered/s per GPU", right: true, cell: (one) => rate(one.rate_rps_per_gpu) }, { head: "requests/s per GPU", right: true, cell: (one) => rate(one.request_rps_per_gpu) },
    { head: "tokens/s per GPU", right: true, cell: (one) => rate(one.output_tok_s_per_gpu) }, { head: "TTFT p50", right: true, cell: (one) => seconds(one.ttft_p50_s) }, { head: "TTFT p95", right: true, cell: (one) => seconds(one.ttft_p95_s) }, { head: "TPOT p50", right: true, cell: (one) => seconds(one.tpot_p50_s) },
  ], rows(), "latency against load"));
  fill();
  chosen.listeners.add(() => { figure.redraw(); fill(); });
  return holder;
}

export function spreads(study, chosen) {
  const found = (number) => study.spread(number);
  const figure = responsive((width) => {
    const shown = chosen.numbers.filter(found);
    if (!shown.length) return h("p.soft", {}, "The request records of these trials are gone or were never kept (", h("code", {}, "autotune gc"), `)${study.source.live ? "" : ", or are not in this file"}, so there is no distribution.`);
    const left = 12, right = width - 12, top = 12, row = 74;
    const bottom = top + shown.length * row;
    const edges = shown.flatMap((number) => found(number).bins.map(([place]) => place));
    const per = found(shown[0]).bins_per_decade;
    const [low, high] = [10 ** ((d3.min(edges) - 1) / per), 10 ** ((d3.max(edges) + 2) / per)];
    const x = d3.scaleLog([low, high], [left, right]);
    const svg = surface(width, bottom + 46, "Distribution of TTFT at the fixed rate");
    svg.append(...[watermark(study.simulated, width, bottom), xAxis({ scale: x, ticks: logTicks(low, high, width / 80), format: tickSeconds, top, bottom, title: "TTFT of each request · log scale" })].filter(Boolean));
    const most = d3.max(shown, (number) => d3.max(found(number).bins, ([, n]) => n / found(number).count));
    shown.forEach((number, place) => {
      const spread = found(number), base = top + (place + 1) * row - 6;
      const quantile = new Map(spread.quantiles);
      const scale = d3.scaleLinear([0, most], [0, row - 26]);
      const bars = spread.bins.map(([bin, n]) => ({ from: x(10 ** (bin / per)), to: x(10 ** ((bin + 1) / per)), up: scale(n / spread.count) }));
      const text = `${chosen.name(number)} · p50 ${seconds(quantile.get(50))} · p95 ${seconds(quantile.get(95))} · p99 ${seconds(quantile.get(99))}`;
      svg.append(h("g", { class: chosen.colour(number), role: "img", "aria-label": `${text}, ${count(spread.count)} requests` },
        bars.map((bar) => h("rect.bar", { x: bar.from, y: base - bar.up, width: Math.max(1, bar.to - bar.from - 1), height: bar.up })),
        h("line.domain", { x1: left, x2: right, y1: base, y2: base }),
        h("line.tick-p50", { x1: x(quantile.get(50)), x2: x(quantile.get(50)), y1: base, y2: base - row + 26 }),
        h("line.tick-p95", { x1: x(quantile.get(95)), x2: x(quantile.get(95)), y1: base, y2: base - row + 26 }),
        h("text.series-name.halo-text", { x: left, y: base - row + 22 }, text)));
    });
    return svg;
  }, { label: "Distribution of TTFT" });
  const holder = h("div");
  // Where some have one and others do not, it is said of which: a row that is missing would be overlooked.
  const without = () => { const none = chosen.numbers.filter((one) => !found(one)); return none.length && none.length < chosen.numbers.length ? h("p.faint", { style: { "font-size": ".85rem" } }, `No request records of ${none.map((one) => chosen.name(one)).join(", ")}.`) : null; };
  const fill = () => replace(holder, figure, without(), dataTable([
    { head: "trial", right: true, cell: (one) => one }, ...[5, 25, 50, 75, 90, 95, 99].map((percent) => ({ head: `p${percent}`, right: true, cell: (one) => seconds(new Map(found(one)?.quantiles ?? []).get(percent)) })), { head: "requests", right: true, cell: (one) => count(found(one)?.count) },
  ], chosen.numbers, "TTFT of each request"));
  fill();
  chosen.listeners.add(() => { figure.redraw(); fill(); });
  return holder;
}
