// The page of one study.

import { copyBlock, h, replace } from "./dom.js";
import { problemBox } from "./dialog.js";
import { count, gain, plural, rate, reasonWords, seconds, when } from "./format.js";
import { frontChart, rounded } from "./front.js";
import { growthCharts } from "./growth.js";
import { knobsPart, untold } from "./knobs.js";
import { Chosen, chooser, loadCurves, spreads } from "./load.js";
import { Study } from "./model.js";
import { parallelPart, tooFew } from "./parallel.js";
import { failuresPart, nodePart, serversTable, verdicts } from "./servers.js";
import { trialsTable } from "./trials.js";
import { openTrial } from "./trial.js";
import { openCompare } from "./compare.js";

// `host` gives what only one of service and report has: links, promotion, buttons of a live study.
export async function studyPage(main, name, source, host) {
  const study = new Study(name, source);
  const open = (number) => { host.opened?.(number); openTrial(study, number, actions); };
  const actions = { compare: (a, b) => openCompare(study, a, b, {}), promote: host.promote ? (number) => host.promote(study, number) : null, closed: () => host.closed?.() };
  study.take("front", await source.page(name, "front"));
  const page = assembled(main, study, { open, actions, host });
  const parts = load("certainty", page.certain).then(() => load("evidence", page.evident)).then(() => (study.front.study.state === "running" && source.live ? page.learnt(null) : load("learned", page.learnt)));

  async function load(part, then) {
    try {
      const told = await source.page(name, part);
      if (told) study.take(part, told);
      then(null);
    } catch (problem) { then(problem); }
  }

  return {
    study, open, parts, actions,
    // Another state of a study that runs: pictures stay where they are and show it.
    async refresh() {
      study.take("front", await source.page(name, "front"));
      try { study.take("certainty", await source.page(name, "certainty")); } catch { /* the figures stay as they are */ }
      page.again();
      page.certain(null);
    },
    async refreshRest() { await load("evidence", page.evident); },
    // Seconds of work for the service: not while a study runs.
    async refreshLearned() { await load("learned", page.learnt); },
  };
}

function assembled(main, study, { open, actions, host }) {
  const facts = study.front.study;
  const holders = Object.fromEntries(["head", "front", "verdict", "growth", "knobs", "parallel", "load", "spread", "chooser", "node", "verdicts", "servers", "failures", "trials"].map((key) => [key, h("div")]));
  holders.beneath = h("div.beneath");
  const sections = new Map();
  const section = (id, title, lead, ...content) => {
    const element = h("section.part", { "aria-labelledby": id }, h("header", {}, h("h2", { id }, title), lead ? h("p", {}, lead) : null), ...content);
    sections.set(id, { element, title, why: null });
    return element;
  };
  const absent = h("section.part", { "aria-labelledby": "absent", hidden: true });
  // A part that has nothing to show is one line at the end, with the reason; null shows it again.
  function lacking(id, why) {
    const own = sections.get(id);
    own.why = why;
    own.element.hidden = why !== null;
    const gone = [...sections.values()].filter((one) => one.why !== null);
    absent.hidden = !gone.length;
    replace(absent, h("header", {}, h("h2", { id: "absent" }, "Not shown")), h("dl.pairs", {}, gone.map((one) => [h("dt", {}, one.title), h("dd", {}, one.why)])));
  }
  const hero = h("section.hero", { "aria-label": "Front and pick" }, holders.front, holders.verdict, holders.beneath);
  document.title = `${study.name} – autotune`;
  replace(main, holders.head,
    facts.simulated ? h("p.simulated", { role: "note" }, h("b", {}, "SIMULATED"), "Every figure on this page comes from a model of vLLM; none was measured on a server.") : null,
    hero,
    section("growth", "How the front grew", `Area that the front covers in log ${study.first.word} and log TTFT, with each config's final figures from its first launch on.`, holders.growth),
    section("knobs", "What each flag does", "One change of the baseline at a time, with 95 % intervals. Filled marks were launched just so; hollow ones are inferred from other launches or expected by the model.", holders.knobs),
    section("configs", "Every config", "Each line is one config: its flags from left to right, then its figures.", holders.parallel),
    section("curves", "Under load", `How p95 TTFT rises with the requests served, and how the TTFT of single requests is spread at the study's fixed rate. Squares are closed loops, circles open ones.${study.goodput ? " The search for the goodput drove a circle at each rate that it probed; the bar below is the goodput that it found." : ""}`, holders.chooser, h("div.two", {}, h("div", {}, h("h3", {}, "Latency against load"), holders.load), h("div", {}, h("h3", {}, "TTFT of each request"), holders.spread))),
    section("servers", "Node and servers", null, h("div.two", {}, holders.node, h("div")), holders.verdicts, holders.servers),
    section("failed", "What failed, and what to turn", null, holders.failures),
    section("launches", "Every launch", "Each with its own figures; front and pick are decided by the means of all launches of a config.", holders.trials),
    absent, footer(study, host));
  main.removeAttribute("aria-busy");
  const waiting = (holder) => replace(holder, h("p.faint", {}, "Working it out …"));
  [holders.knobs, holders.load, holders.spread, holders.node, holders.servers, holders.failures].forEach(waiting);
  let picture = null, coordinates = null, chosen = null;

  function drawFront() {
    hero.classList.toggle("bare", !study.front.configs.length);
    replace(holders.head, heading(study, host));
    if (study.front.configs.length) {
      picture = frontChart(study, { open, hidden: picture?.hidden });
      replace(holders.front, picture.element);
    } else {
      picture = null;
      replace(holders.front, emptyFront(study, open));
    }
    replace(holders.verdict, verdict(study, { open, actions, host }));
    replace(holders.beneath, beneath(study));
  }

  function later() {
    replace(holders.growth, growthCharts(study));
    lacking("growth", study.front.growth.steps.length > 1 ? null : study.front.growth.steps.length ? "One launch so far: the front is the baseline alone." : "Without a measured baseline there is nothing to grow from.");
    const alike = tooFew(study);
    coordinates = alike ? null : parallelPart(study, { open });
    replace(holders.parallel, coordinates?.element);
    lacking("configs", alike);
    replace(holders.trials, trialsTable(study, { open }));
    lacking("launches", study.front.trials.length ? null : "No trial was launched yet.");
  }

  study.listeners.add(() => {
    picture?.update();
    updateVerdict();
    host.limit?.(study.limit_s);
    clearTimeout(study.settling);
    study.settling = setTimeout(() => { coordinates?.update(); replace(holders.trials, trialsTable(study, { open })); }, 250);
  });

  function updateVerdict() {
    replace(holders.verdict, verdict(study, { open, actions, host }));
    replace(holders.beneath, beneath(study));
  }

  drawFront();
  // The first picture is painted before the rest is drawn.
  let rest = requestAnimationFrame(() => { rest = requestAnimationFrame(() => { rest = null; setTimeout(later, 0); }); });
  return {
    again() { if (rest !== null) cancelAnimationFrame(rest); drawFront(); later(); },
    certain(problem) {
      if (problem) return;
      picture?.update();
      updateVerdict();
      coordinates?.update();
    },
    evident(problem) {
      const parts = [holders.load, holders.spread, holders.node, holders.servers, holders.failures];
      if (problem) { parts.forEach((holder) => replace(holder, problemBox(problem))); return; }
      if (!study.evidence) { parts.forEach((holder) => replace(holder, h("p.soft", {}, "Not in this file."))); return; }
      chosen = new Chosen(study, chosen?.touched ? chosen.numbers : null);
      replace(holders.chooser, chosen.all.length ? chooser(chosen) : null);
      replace(holders.load, loadCurves(study, chosen));
      replace(holders.spread, spreads(study, chosen));
      replace(holders.node, nodePart(study));
      replace(holders.verdicts, verdicts(study));
      replace(holders.servers, serversTable(study, { open }));
      replace(holders.failures, failuresPart(study, { open }));
      lacking("curves", chosen.all.length ? null : "No load level with figures was measured.");
      lacking("failed", study.evidence.failures.length ? null : "Nothing failed, and nothing was abandoned.");
    },
    learnt(problem) {
      const why = problem ? null : untold(study.learned, study.front.study.state === "running");
      replace(holders.knobs, problem ? problemBox(problem) : why ? null : knobsPart(study.learned, { simulated: study.simulated }));
      lacking("knobs", why);
    },
  };
}

function heading(study, host) {
  const facts = study.front.study;
  const counts = Object.entries(facts.counts).filter(([, number]) => number).map(([outcome, number]) => `${count(number)} ${outcome}`);
  if (facts.running) counts.push(`${facts.running} ${facts.state === "running" ? "running" : "interrupted"}`);
  const pair = (name, value) => (value ? h("span", {}, h("b", {}, name), value) : null);
  return h("div.head", {},
    host.crumb ? h("p.crumb", {}, host.crumb) : null,
    h("div.line", {}, h("h1", {}, study.name), h("span.tag", { class: facts.state === "running" ? "running" : null }, facts.state), facts.simulated ? h("span.tag.sim", {}, "SIMULATED") : null),
    h("div.facts", {}, pair("model", facts.model), pair("workload", facts.workload), pair("node", facts.node), pair("engine", facts.engine), pair("vLLM", facts.vllm_version)),
    h("div.facts", {}, pair("trials", `${count(facts.counted)} of ${count(facts.target)}${counts.length ? ` (${counts.join(", ")})` : ""}`), study.goodput ? pair("objective", "goodput") : null, pair("sampler", facts.sampler), pair("SLO", study.front.slo.text), pair("begun", when(facts.created_at))),
    host.buttons ? h("div.buttons", {}, host.buttons(study)) : null);
}

function emptyFront(study, open) {
  const trials = study.front.trials;
  const failed = trials.filter((one) => !["running", "interrupted"].includes(one.outcome));
  if (!trials.length) return h("div.empty", {}, h("b", {}, "No trial was launched yet"), h("p", {}, "The baseline comes first: vLLM's own defaults, to have something to hold the rest against."));
  if (!failed.length && study.front.study.state !== "running") return h("div.empty", {}, h("b", {}, "The first trial was interrupted"), h("p", {}, "It is begun again when the study goes on."));
  if (!failed.length) return h("div.empty", {}, h("b", {}, "The first trial runs"), h("p", {}, "As soon as it is measured, the front begins here."));
  const words = d3.rollups(failed, (found) => found.length, (one) => one.reason ?? one.outcome).map(([reason, number]) => `${count(number)} × ${reasonWords(reason)}`);
  return h("div.empty", {}, h("b", {}, "No trial could be measured"), h("p", {}, words.join(", ")), h("p", {}, "What failed and what to turn stands below."), h("div.buttons", {}, h("button", { type: "button", onclick: () => open(failed[0].number) }, `Open trial ${failed[0].number}`)));
}

function verdict(study, { open, actions, host }) {
  const pick = study.pick;
  const parts = [study.front.configs.length ? limitField(study) : null];
  if (!pick) {
    if (study.front.configs.length) parts.unshift(h("div", {}, h("h2", { style: { color: "var(--bad)" } }, "No config meets it"), h("p.why", {}, lowest(study))));
    return h("div.verdict", {}, parts.filter(Boolean));
  }
  const config = study.config(pick.number), base = study.config(study.front.baseline), doubt = study.certainty?.pick?.doubt;
  const own = pick.own;
  const expected = own ? study.certainty?.pick : null;
  const ratio = (one, name) => (base && config ? config[name] / base[name] : null);
  parts.unshift(h("div", {},
    h("h2", {}, `Pick: trial ${pick.number}`, study.simulated ? h("small", {}, "simulated") : null, own && doubt ? h("small", {}, doubt) : null)),
  h("div.figures", {},
    h("div.big", {}, h("b", {}, study.firstText(config), h("span.unit", {}, study.first.unit)), study.goodput ? h("span", {}, `goodput; ${rate(config?.output_tok_s_per_gpu)} output tokens/s per GPU at that rate`) : null, h("span", {}, against(config, base, ratio(config, "output_tok_s_per_gpu"), expected?.expected_throughput_gain_interval))),
    h("div.big", {}, h("b", {}, seconds(config?.ttft_p95_s), h("span.unit", {}, "p95 TTFT")), h("span", {}, against(config, base, ratio(config, "ttft_p95_s"), expected?.expected_ttft_gain_interval)))));
  parts.push(
    h("div.buttons", {}, actions.promote ? h("button", { type: "button", class: "primary changing", onclick: () => actions.promote(pick.number) }, "Promote …") : null,
      h("button", { type: "button", onclick: () => open(pick.number) }, "Evidence"),
      base && pick.number !== study.front.baseline ? h("button", { type: "button", onclick: () => actions.compare(study.front.baseline, pick.number) }, "Compare with baseline") : null),
    h("p.why", {}, reason(study, pick)),
    study.front.running_lines.length ? h("p.why", {}, study.front.running_lines.join(" ")) : null,
);
  return h("div.verdict", {}, parts.filter(Boolean));
}

// What is long to read: how sure the pick is, and its command line.
function beneath(study) {
  const pick = study.pick, line = pick ? study.front.serve[String(pick.number)] : null;
  const lines = pick?.own && study.certainty ? study.certainty.lines : [];
  if (!line && !lines.length) return null;
  return h("div.two", {}, lines.length ? h("div", {}, h("h3", {}, "How sure this is"), h("ul", {}, lines.map((text) => h("li", {}, text)))) : null, line ? copyBlock("Serve it", line) : null);
}

function against(config, base, ratio, interval) {
  if (!config || !base || ratio === null) return "the baseline has no figures to compare with";
  if (config === base) return "this is the baseline itself";
  return [`${gain(ratio)} against the baseline`, interval ? h("span.expect", {}, `to expect: ${gain(interval[0])} to ${gain(interval[1])}`) : null];
}

// Said here only where the limit was moved: the study's own pick brings its reason.
function reason(study, pick) {
  if (pick.reason) return `${pick.reason[0].toUpperCase()}${pick.reason.slice(1)}.`;
  const best = study.config(pick.best), limit = seconds(study.limit_s);
  const others = study.front.slo.others.length ? ` and ${study.front.slo.others.join(", ")}` : "";
  if (pick.best === pick.number) return `${pick.meeting === 1 ? "The only config" : `The highest throughput of the ${pick.meeting} configs`} whose p95 TTFT keeps to ${limit}${others} by the upper bound of its interval.`;
  return `Statistically tied with trial ${pick.best} and plainer; trial ${pick.best} has the highest ${study.first.word} (${study.firstText(best)} ${study.first.unit}) of the ${plural(pick.meeting, "config")} that keep to ${limit}${others}.`;
}

function lowest(study) {
  const step = study.certainty?.slo_steps[0];
  if (!step) return "No measured config qualifies.";
  return `The lowest limit that any config surely keeps to is ${seconds(step[0])}, of trial ${step[1]}.`;
}

function limitField(study) {
  if (!study.front.slo.movable) return h("div.limit", {}, h("p.soft", {}, `Goodput was searched within ${study.front.slo.text}; that limit cannot be moved afterwards.`));
  const ready = study.movable;
  const apply = () => { const value = Number(input.value); study.setLimit(input.value.trim() === "" || !(value > 0) ? null : rounded(value / 1000)); };
  const input = h("input", { id: "limit", type: "number", min: "1", step: "any", inputmode: "decimal", value: study.limit_s === null ? "" : String(Number((study.limit_s * 1000).toPrecision(4))), placeholder: "none", disabled: !ready, onchange: apply });
  const own = study.front.slo.ttft_p95_s;
  return h("div.limit", {}, h("label", { for: "limit" }, "Limit of the p95 TTFT, in ms"), h("div.row", {}, input,
    study.limit_s !== own ? h("button", { type: "button", id: "limit-own", onclick: () => study.setLimit(own) }, own === null ? "No limit" : `Back to ${seconds(own)}`) : null,
    study.limit_s !== null && own !== null && study.certainty?.free_pick ? h("button", { type: "button", id: "limit-none", class: "quiet", onclick: () => study.setLimit(null) }, "No limit") : null),
  h("p.faint", { style: { "font-size": ".82rem" } }, ready ? "Or drag the line in the picture; the pick follows." : "The pick for other limits is being worked out …"));
}

function footer(study, host) {
  return h("footer.page", {}, host.footer ? host.footer(study) : null, h("span", {}, `seed ${study.front.study.seed}`));
}
