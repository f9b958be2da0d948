// The record of a verification: the verdict, every criterion with its figures, and every launch.

import { TONES, alike, guarded, three } from "./answers.js";
import { h, table } from "./dom.js";
import { MISSING, between, bytes, count, flagWords, gain, rate, reasonWords, seconds, share, when } from "./format.js";

const VERDICTS = { pass: ["pick", "passed"], fail: ["bad", "failed"], inconclusive: ["base", "inconclusive"], skipped: ["bad", "skipped"] };
const STATES = { held: "pick", broken: "bad", undecided: "base", not_applicable: null };
const NAMES = { slo: "SLO", ttft_as_claimed: "TTFT as claimed" };
const LEVELS = { throughput: "throughput", longest: "longest request", "rate-plus": "+20 % rate" };

// `brief`: the verdict alone, the rest where it is opened.
export function gateRecord(gate, { brief = false } = {}) {
  if (!gate) return h("p.soft", {}, "Nobody verified this config against what ran before.");
  const [tone, word] = VERDICTS[gate.verdict] ?? [null, gate.verdict];
  const verdict = h("p", {}, h("span.tag", { class: tone }, `gate ${word}`), gate.simulated ? [" ", h("span.tag.sim", {}, "SIMULATED")] : null, ` ${gate.reason}`);
  if (brief) return h("div.gate", {}, verdict, h("details.data", {}, h("summary", {}, "Its record"), h("div.gate", {}, criteria(gate))));
  return h("div.gate", {}, verdict, criteria(gate));
}

function criteria(gate) {
  return [
    gate.order ? h("p.faint", {}, `Launched in the order ${gate.order}: A is ${gate.against?.label ?? "what runs"}, B ${gate.candidate.label}.`) : null,
    gate.criteria.length ? table([
      { head: "criterion", cell: (one) => NAMES[one.name] ?? reasonWords(one.name) }, { head: "", cell: (one) => h("span.tag", { class: STATES[one.state] }, one.state.replaceAll("_", " ")) }, { head: "asked", cell: (one) => one.asked }, { head: "found", cell: (one) => one.found },
    ], gate.criteria, { caption: "Criteria of the gate", stacked: true }) : null,
    gate.doubts.length ? h("ul.plain-list", { "aria-label": "Doubts" }, gate.doubts.map((text) => h("li", {}, text))) : null,
    gate.launches.length ? whole(gate) : null];
}

// Opened by whoever wants to see it all: made only then.
function whole(gate) {
  const details = h("details.data", {}, h("summary", {}, `The whole record: every figure with its interval, ${gate.launches.length} launches`));
  details.addEventListener("toggle", () => {
    if (details.open && !details.querySelector(".gate")) details.append(h("div.gate", {}, circumstances(gate), figures(gate), launches(gate), levels(gate), quality(gate), looks(gate), doubtsOf(gate)));
  });
  return details;
}

function circumstances(gate) {
  const took = (new Date(gate.ended_at) - new Date(gate.started_at)) / 1000;
  const side = (one) => (one ? [`${one.label}, ${count(one.gpus)} GPU${one.gpus === 1 ? "" : "s"}`, one.tok_s_per_gpu ? `; the study claims ${rate(one.tok_s_per_gpu.value)} tokens/s per GPU, TTFT p95 ${seconds(one.ttft_p95_s?.value)}` : "", h("br"), h("code", {}, flagWords(Object.fromEntries(one.config.params)).join(" ") || "vLLM's defaults")] : null);
  const rows = [["study", gate.study], ["A", side(gate.against)], ["B", side(gate.candidate)], ["SLO", gate.slo], ["node", gate.node], ["engine", gate.engine], ["vLLM", gate.vllm_version],
    ["begun", when(gate.started_at)], ["took", `${seconds(took)}${gate.clock === "virtual" ? " (figures are of a virtual clock)" : ""}`], ["seeds", gate.gate_seed === null ? null : `${gate.gate_seed} for prompts and arrivals; the study's ${gate.study_seed}`],
    ["launches differ by", gate.throughput_sd === null ? null : `${share(gate.throughput_sd, 1)} in throughput, ${share(gate.ttft_sd, 1)} in TTFT (standard deviation)`]];
  return h("dl.pairs", {}, rows.filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function figures(gate) {
  const rows = gate.criteria.flatMap((criterion) => criterion.figures.map((one) => ({ criterion: NAMES[criterion.name] ?? reasonWords(criterion.name), ...one })));
  if (!rows.length) return null;
  return part("Every figure that was decided by", table([
    { head: "criterion", cell: (one) => one.criterion }, { head: "figure", cell: (one) => one.name }, { head: "value", right: true, cell: (one) => told(one.unit, one.estimate.value) },
    { head: "95 % interval", right: true, cell: (one) => range(one.estimate, (value) => told(one.unit, value)) }, { head: "held against", right: true, cell: (one) => (one.bound === null ? MISSING : told(one.unit, one.bound)) },
  ], rows, { caption: "Figures of the criteria", stacked: true }));
}

function told(unit, value) {
  if (unit === "ratio") return gain(value, 1);
  if (unit === "s") return seconds(value);
  if (unit === "share") return share(value, 1);
  if (unit === "bytes") return bytes(value);
  return unit ? `${rate(value)} ${unit}` : count(value);
}

function range(estimate, format) {
  return between(estimate && estimate.low !== null && estimate.high !== null ? [estimate.low, estimate.high] : null, format) ?? MISSING;
}

function launches(gate) {
  const answered = (one) => (one.longest_prompt_tokens === null ? MISSING : `${one.longest_answered ? "answered" : "NOT answered"}, ${count(one.longest_prompt_tokens)} tokens`);
  return part("Launches", table([
    { head: "launch", cell: (one) => `${one.place} · ${one.side}` }, { head: "of", cell: (one) => (one.side === "B" ? gate.candidate.label : gate.against?.label ?? MISSING) }, { head: "start", right: true, cell: (one) => seconds(one.startup_s) },
    { head: "stop", right: true, cell: (one) => (one.stopped_cleanly === null ? MISSING : one.stopped_cleanly ? seconds(one.stop_s) : "NOT clean") }, { head: "longest request", cell: answered },
    { head: "GPU memory", right: true, cell: (one) => (one.memory_used_bytes === null ? MISSING : `${bytes(one.memory_used_bytes)} of ${bytes(one.memory_total_bytes)}`) },
    { head: "failed", cell: (one) => (one.failure === null ? "no" : h("span.wrapped", {}, `${one.failure_kind ? `${reasonWords(one.failure_kind)}: ` : ""}${one.failure}`)) },
  ], gate.launches, { caption: "Launches of the gate", stacked: true }));
}

function levels(gate) {
  const rows = gate.launches.flatMap((launch) => launch.levels.map((level) => ({ launch, level })));
  if (!rows.length) return null;
  const word = (name) => LEVELS[name] ?? (name.startsWith("ttft") ? `TTFT, window ${name.split("-")[1] ?? 1}` : name);
  const load = ({ concurrency, rate_rps }) => (concurrency !== null ? `${concurrency} in flight` : rate_rps !== null ? `${Number(rate_rps.toPrecision(3))}/s` : "");
  const figure = (found, format) => (found ? [format(found.value), found.low === null ? null : h("span.interval", {}, ` ${range(found, format)}`)] : MISSING);
  return part("Every level of every launch", table([
    { head: "launch", cell: ({ launch }) => `${launch.place} · ${launch.side}` }, { head: "level", cell: ({ level }) => [word(level.level.name), h("span.faint", {}, ` ${load(level.level)}`)] }, { head: "requests ok / failed", right: true, cell: ({ level }) => `${count(level.completed)} / ${count(level.failed)}` },
    { head: "tokens/s per GPU", right: true, cell: ({ level }) => figure(level.tok_s_per_gpu, rate) }, { head: "TTFT p95", right: true, cell: ({ level }) => figure(level.ttft_p95_s, seconds) }, { head: "preemptions", right: true, cell: ({ level }) => count(level.preemptions) },
  ], rows, { caption: "Levels of each launch of the gate", stacked: true }));
}

function quality(gate) {
  const rows = gate.launches.filter((one) => one.quality);
  if (!rows.length) return part("Quality guard", h("p.soft", {}, gate.criteria.find((one) => one.name === "quality")?.found ?? "Not asked."));
  return part("Quality guard", table([
    { head: "launch", cell: (one) => `${one.place} · ${one.side}` }, { head: "", cell: ({ quality: found }) => h("span.tag", { class: TONES[found.state] ?? null }, found.state.replaceAll("_", " ")) }, { head: "why", cell: ({ quality: found }) => found.why },
    { head: "perplexity ratio", right: true, cell: ({ quality: found }) => guarded(found.perplexity_ratio, three) }, { head: "log-probability gap, nats", right: true, cell: ({ quality: found }) => guarded(found.logprob_gap, three) },
    { head: "agreement", right: true, cell: ({ quality: found }) => guarded(found.agreement, alike) }, { head: "prompts", right: true, cell: ({ quality: found }) => count(found.prompts) },
  ], rows, { caption: "What the quality guard found", stacked: true }));
}

function looks(gate) {
  if (gate.looks.length < 2) return null;
  return part("When it was judged", h("ul.plain-list", {}, gate.looks.map((one) => h("li", {}, `after ${one.launches} launches: ${VERDICTS[one.verdict]?.[1] ?? one.verdict}${one.outlook ? ` – ${one.outlook}` : ""}`))));
}

function doubtsOf(gate) {
  const found = new Map();
  for (const launch of gate.launches) for (const caveat of [...launch.caveats, ...launch.levels.flatMap((one) => one.caveats)]) found.set(caveat.text, [...(found.get(caveat.text) ?? []), launch.place]);
  if (!found.size) return null;
  return part("Doubts about single figures", h("ul.plain-list", {}, [...found].map(([text, places]) => h("li", {}, text, h("span.faint", {}, ` (launch ${[...new Set(places)].join(", ")})`)))));
}

function part(title, content) {
  return h("section", { style: { "min-width": "0" } }, h("h3", { style: { "margin-bottom": ".4rem" } }, title), content);
}
