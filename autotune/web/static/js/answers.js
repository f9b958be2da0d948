// What the quality guard found: a cell of its column, and every figure of one launch.

import { h, table } from "./dom.js";
import { MISSING, between, count, seconds, share } from "./format.js";

export const TONES = { held: "pick", lost: "bad", undecided: "base" };

// Whether there is a column at all: the guard asks where a flag changes numerics.
export function wereAsked(rows) { return rows.some((one) => one.answers); }

export function answersCell(one) {
  const found = one.answers;
  if (!found) return MISSING;
  const [state, ...rest] = found.text.split(", ");
  return h("span", { title: found.why }, h("span.tag", { class: TONES[found.state] ?? null }, state), rest.length ? h("span.faint", {}, ` ${rest.join(", ")}`) : null);
}

export function guarded(found, format) {
  if (!found) return MISSING;
  const interval = between(found.low !== null && found.high !== null ? [found.low, found.high] : null, format);
  return [format(found.value), interval ? h("span.interval", {}, ` ${interval}`) : null];
}

export const three = (value) => value.toFixed(3);
export const alike = (value) => share(value, 1);

// All of it, for the evidence of one launch; null where nobody asked.
export function answersPart(found) {
  if (!found) return null;
  const figures = [["perplexity ratio", found.perplexity_ratio, three], ["log-probability gap, nats", found.logprob_gap, three], ["greedy agreement", found.agreement, alike]].filter(([, value]) => value);
  const subjects = Object.entries(found.agreement_by_subject ?? {}).filter(([, value]) => value !== null);
  const asked = found.prompts ? `${count(found.prompts)} prompts of ${found.prompt_set}${found.reference ? `, against ${found.reference}` : ""}${found.seconds === null ? "" : `, in ${seconds(found.seconds)}`}` : null;
  return [
    h("p", {}, h("span.tag", { class: TONES[found.state] ?? null }, found.state === "lossless" ? "unchanged" : found.state.replaceAll("_", " ")), " ", found.why, found.simulated ? h("span.faint", {}, " (simulated)") : null),
    found.lossy.length ? h("p", {}, `Changes numerics by ${found.lossy.join(", ")}.`) : null,
    figures.length ? table([{ head: "", cell: ([name]) => name }, { head: "against the reference", cell: ([, value, format]) => guarded(value, format) }], figures, { caption: "What the quality guard found" }) : null,
    subjects.length > 1 ? h("p.soft", {}, `Agreement by subject: ${subjects.map(([name, value]) => `${name} ${alike(value)}`).join(", ")}.`) : null,
    asked ? h("p.faint", {}, asked) : null,
  ];
}
