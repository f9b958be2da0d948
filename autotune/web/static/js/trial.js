// All the evidence of one trial.

import { answersPart } from "./answers.js";
import { copyBlock, flagList, h, table } from "./dom.js";
import { openDialog, problemBox } from "./dialog.js";
import { between, bytes, chance, count, flagWords, gain, rate, reasonWords, seconds, share } from "./format.js";
import { gateRecord } from "./gate.js";
import { KINDS, failedKind, kindOf, swatch } from "./kinds.js";

export async function openTrial(study, number, actions) {
  const trial = study.trial(number);
  const config = trial ? study.configOf(trial) : null;
  const kind = !trial ? "running" : config && trial.outcome === "measured" && !trial.void ? kindOf(study, config, study.pick?.number ?? null) : failedKind(trial);
  const buttons = [];
  if (actions.compare && config) buttons.push(h("button", { type: "button", onclick: () => { opened.dialog.close(); actions.compare(study.front.baseline, config.number); } }, "Compare with baseline"));
  if (actions.promote && config) buttons.push(h("button", { type: "button", class: "primary changing", onclick: () => { opened.dialog.close(); actions.promote(config.number); } }, "Promote …"));
  const opened = openDialog([`Trial ${number}`, h("span.tag", { class: tone(kind) }, swatchOf(kind), KINDS[kind].word), study.simulated ? h("span.tag.sim", {}, "SIMULATED") : null], h("p.loading", {}, "Loading …"), { actions: buttons, onclose: actions.closed });
  try {
    const told = await study.source.trial(study.name, number);
    opened.fill(...(told ? sections(study, told, config) : brief(study, trial, config)));
    if (study.source.live && told?.outcome === "measured") await verifications(study, number, opened.dialog);
  } catch (problem) {
    opened.fill(problemBox(problem));
  }
  return opened.dialog;
}

// What a gate said of it, whatever the verdict; a promotion holds only those that passed.
async function verifications(study, number, dialog) {
  const last = (await study.source.gates(study.name, number)).findLast((one) => one.record);
  if (last) dialog.querySelector(".body").append(section(`Verified against what ran (verification ${last.count})`, gateRecord(last.record)));
}

function swatchOf(kind) {
  const mark = swatch(kind);
  mark.setAttribute("width", 13);
  mark.setAttribute("height", 13);
  return mark;
}

function tone(kind) {
  return { pick: "pick", baseline: "base", front: "front", unsure: "front", infeasible: "bad", faulted: "bad" }[kind] ?? null;
}

function section(title, ...content) {
  const kept = content.flat().filter(Boolean);
  return kept.length ? h("section", {}, title ? h("h3", {}, title) : null, kept) : null;
}

function big(value, unit, word) {
  return h("div.big", {}, h("b", {}, value, unit ? h("span.unit", {}, unit) : null), h("span", {}, word));
}

function headline(study, told, config) {
  const figures = config ?? told;
  if (figures.output_tok_s_per_gpu === null && figures.ttft_p95_s === null) return null;
  const runs = config && config.launches.length > 1 ? `means of ${config.launches.length} launches: ${config.launches.join(", ")}` : null;
  return h("section", {}, h("div", { style: { display: "flex", "flex-wrap": "wrap", gap: "1rem 3rem" } },
    config && study.goodput ? big(study.firstText(config), "req/s", ["goodput per GPU", config.goodput_rps_per_gpu_interval ? h("br") : null, between(config.goodput_rps_per_gpu_interval, rate) ?? ""]) : null,
    big(rate(figures.output_tok_s_per_gpu), "tok/s", [config && study.goodput ? "output tokens/s per GPU at that rate" : "output tokens/s per GPU", figures.output_tok_s_per_gpu_interval ? h("br") : null, between(figures.output_tok_s_per_gpu_interval, rate) ?? ""]),
    big(seconds(figures.ttft_p95_s), null, ["p95 time to first token", figures.ttft_p95_s_interval ? h("br") : null, between(figures.ttft_p95_s_interval, seconds) ?? ""])), runs ? h("p.faint", {}, runs) : null);
}

// What is known without asking, in a report that does not hold this trial's evidence.
function brief(study, trial, config) {
  return [headline(study, trial, config), facts(study, trial, config), section("Settings", flagList(flagWords(trial.flags))), serve(study, trial.number),
    h("p.faint", {}, `This file holds the evidence of the trials that matter most. \`autotune show ${study.name} ${trial.number}\` prints the rest.`)].filter(Boolean);
}

function facts(study, told, config) {
  const standing = config ? study.standing(config.number) : null;
  const rows = [
    ["Why it was launched", `${told.launched_as}: ${told.why}`],
    ["Outcome", `${study.trial(told.number)?.outcome ?? told.outcome}${told.reason ? `: ${reasonWords(told.reason)}` : ""}`],
    told.repeat_of === null ? null : ["Repeats", `trial ${told.repeat_of}`],
    told.early ? ["Ended early", `shown to be worse than trial ${told.early.rival} with ${chance(told.early.confidence)} confidence: p95 TTFT above ${seconds(told.early.ttft_s)}, after ${count(told.early.requests)} of ${count(told.early.planned)} requests`] : null,
    ["GPUs", told.gpus],
    standing ? ["How sure", `on the front with ${chance(standing.front_probability)}, the pick with ${chance(standing.pick_probability)}${standing.tied_with.length ? `; tied with ${standing.tied_with.slice(0, 5).join(", ")}${standing.tied_with.length > 5 ? ` and ${standing.tied_with.length - 5} more` : ""}` : ""}`] : null,
    standing?.expected_tok_s_per_gpu ? ["To expect", `${rate(standing.expected_tok_s_per_gpu)} tokens/s per GPU${study.goodput ? " at the goodput" : ""}, TTFT p95 ${seconds(standing.expected_ttft_p95_s)} (the luck of the best of many taken off)`] : null,
    config?.runs_today ? ["Runs today", `as ${study.front.running.promotion}`] : null,
    config?.against_running ? ["Against today", `${gain(config.against_running.throughput_ratio)} ${study.first.word}, ${gain(config.against_running.ttft_ratio)} TTFT p95`] : null,
  ].filter(Boolean);
  return section(null, h("dl.pairs", {}, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
}

function serve(study, number) {
  const line = study.front.serve[String(number)];
  return line ? section(null, copyBlock("Serve it", line)) : null;
}

function sections(study, told, config) {
  return [
    headline(study, told, config), facts(study, told, config),
    section("Settings", flagList(flagWords(told.flags))),
    told.serve ? section(null, copyBlock("Serve it", told.serve)) : null,
    failure(told), limits(told), levels(told), answers(told), server(told), resolved(told), phases(told), doubts(told), log(study, told),
  ].filter(Boolean);
}

function failure(told) {
  const found = told.failure;
  if (!found) return null;
  return section("What went wrong", h("p", {}, h("b", {}, reasonWords(found.class)), found.exit_status === null ? "" : `, exit status ${found.exit_status}`),
    found.line ? h("pre", { tabindex: "0", role: "region", "aria-label": "Line of the log" }, found.line) : null,
    h("ol", {}, (told.remedies.length ? told.remedies.map((one) => one.text) : found.remedies).map((text) => h("li", {}, text))));
}

function limits(told) {
  if (!told.limits.length) return null;
  return section("What held it back", told.limits.map((one) => h("p", {}, one.text, h("span.faint", {}, ` ${one.evidence.join("; ")}`))),
    told.remedies.length && !told.failure ? h("ol", {}, told.remedies.map((one) => h("li", {}, one.text))) : null);
}

const CELLS = [
  ["requests ok / failed", (one) => `${count(one.completed)} / ${count(one.failed)}`], ["measured over", (one) => seconds(one.steady_s)],
  ["output tokens/s", (one) => ranged(one, "output_tok_s", rate)], ["requests/s", (one) => ranged(one, "request_rps", rate)],
  ...["ttft_s", "tpot_s", "itl_s", "e2e_s"].flatMap((name) => ["p50", "p95", "p99"].map((point) => [`${name.slice(0, -2).toUpperCase()} ${point}`, (one) => (one[name] ? ranged(one[name], point, seconds) : null)])),
  ["J per 1,000 output tokens", (one) => (one.energy_j && one.output_tokens ? ((one.energy_j / one.output_tokens) * 1000).toFixed(1) : null)],
];

const COUNTED = [
  ["preemptions", (one) => count(one?.preemptions)], ["prefix hits", (one) => share(one?.prefix_hit_share)], ["queued, mean", (one) => seconds(one?.queue_time_mean_s)],
  ["KV cache used, maximum", (one) => share(one?.kv_usage_max)], ["requests running, maximum", (one) => count(one?.running_max)], ["requests waiting, maximum", (one) => count(one?.waiting_max)],
];

function ranged(found, name, format) {
  if (found[name] === null || found[name] === undefined) return null;
  const interval = between(found[`${name}_interval`], format);
  return [format(found[name]), interval ? h("span.interval", {}, ` ${interval}`) : null];
}

function levels(told) {
  const shown = told.levels.filter((one) => one.role !== "ramp");
  const ramp = told.levels.filter((one) => one.role === "ramp");
  if (!told.levels.length) return null;
  const rows = CELLS.filter(([, cell]) => shown.some((one) => { const value = cell(one); return value !== null && value !== "–"; }));
  return section(`Figures with 95 % intervals${told.simulated ? " (simulated)" : ""}`,
    shown.length ? table([{ head: "", cell: ([name]) => name }, ...shown.map((one) => ({ head: `${one.name} (${load(one)})`, cell: ([, cell]) => cell(one) ?? "–" }))], rows, { caption: "Figures of each level" }) : null,
    ramp.length ? [h("h3", { style: { "margin-top": ".6rem" } }, "Ramp that found the load"), table([
      { head: "in flight", right: true, cell: (one) => count(one.concurrency) }, { head: "output tokens/s", right: true, cell: (one) => rate(one.output_tok_s) }, { head: "requests/s", right: true, cell: (one) => rate(one.request_rps) },
      { head: "TTFT p95", right: true, cell: (one) => seconds(one.ttft_s?.p95) }, { head: "TPOT p50", right: true, cell: (one) => seconds(one.tpot_s?.p50) }], ramp, { caption: "Ramp" })] : null);
}

function answers(told) {
  const found = answersPart(told.quality);
  return found && section("Answers, beside the reference's", ...found);
}

function load(one) {
  if (one.concurrency !== null) return `${one.concurrency} in flight`;
  return one.rate_rps === null ? one.arrivals : `${one.arrivals} ${Number(one.rate_rps.toPrecision(3))}/s`;
}

function server(told) {
  const shown = told.levels.filter((one) => one.role !== "ramp" && one.server);
  return shown.length ? section("What the server counted", table([{ head: "", cell: ([name]) => name }, ...shown.map((one) => ({ head: one.name, right: true, cell: ([, cell]) => cell(one.server) }))], COUNTED, { caption: "What the server counted" })) : null;
}

function resolved(told) {
  const found = told.resolved;
  if (!found) return null;
  const rows = [["vLLM", found.vllm_version], ["KV cache", found.kv_cache_tokens === null ? null : `${count(found.kv_cache_tokens)} tokens`], ["KV memory", found.available_kv_bytes === null ? null : bytes(found.available_kv_bytes)],
    ["weights", found.weights_bytes === null ? null : bytes(found.weights_bytes)], ["requests of full length at once", found.max_concurrency === null ? null : found.max_concurrency.toFixed(1)], ["max-model-len", count(found.max_model_len)], ["max-num-seqs", count(found.max_num_seqs)],
    ["max-num-batched-tokens", count(found.max_num_batched_tokens)], ["KV cache dtype", found.kv_cache_dtype], ["attention backend", found.attention_backend], ["start-up", found.startup_s === null ? null : seconds(found.startup_s)]];
  return section("As the server resolved it", h("dl.pairs", {}, rows.filter(([, value]) => value !== null && value !== "–").map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
}

function phases(told) {
  const spent = Object.entries(told.phase_seconds ?? {});
  const all = spent.reduce((sum, [, value]) => sum + value, 0);
  if (!all) return null;
  return section(`Time spent (${told.clock} clock)`, h("div.phases", { "aria-hidden": "true" }, spent.map(([phase, value]) => h("i", { class: `ph-${phase}`, style: { width: `${(100 * value) / all}%` } }))),
    h("ul.phase-keys", {}, spent.map(([phase, value]) => h("li", {}, h("i", { class: `ph-${phase}`, "aria-hidden": "true" }), `${phase} ${seconds(value)}`))));
}

function doubts(told) {
  if (!told.caveats.length) return null;
  return section("Doubts", h("ul", { style: { margin: "0", "padding-left": "1.1rem" } }, told.caveats.map((one) => h("li", {}, one.text, h("span.faint", {}, ` ${one.remedy}`)))));
}

function log(study, told) {
  if (!study.source.live || !told.log) return null;
  const details = h("details.data", {}, h("summary", {}, "End of the server's log"));
  details.addEventListener("toggle", async () => {
    if (!details.open || details.querySelector("pre, .problem")) return;
    try {
      const found = await study.source.log(study.name, told.number);
      details.append(h("pre", { tabindex: "0", role: "region", "aria-label": "Log", style: { "max-height": "24rem" } }, found?.text ?? ""));
    } catch (problem) { details.append(problemBox(problem)); }
  });
  return section(null, details);
}
