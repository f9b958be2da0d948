// Every launch in a table.

import { answersCell, wereAsked } from "./answers.js";
import { flagList, h } from "./dom.js";
import { between, flagWords, rate, reasonWords, seconds } from "./format.js";
import { KINDS, failedKind, kindOf, swatch } from "./kinds.js";
import { sortable } from "./servers.js";

export function trialsTable(study, { open }) {
  const pick = study.pick?.number ?? null;
  const kind = (trial) => { const config = study.configOf(trial); return trial.outcome === "measured" && !trial.void && config ? kindOf(study, config, pick) : failedKind(trial); };
  const goodput = study.goodput;
  const columns = [
    { head: "trial", right: true, sort: (one) => one.number, cell: (one) => h("button.link", { type: "button", onclick: () => open(one.number), "aria-label": `Open trial ${one.number}` }, one.number) },
    { head: "outcome", sort: (one) => Object.keys(KINDS).indexOf(kind(one)), cell: (one) => { const found = kind(one), mark = swatch(found); mark.setAttribute("width", 14); mark.setAttribute("height", 14); mark.style.verticalAlign = "-2px"; return h("span", { style: { "white-space": "nowrap" } }, mark, " ", one.repeat_of === null ? KINDS[found].word : `repeat of ${one.repeat_of}`, one.reason ? h("span.faint", {}, `: ${reasonWords(one.reason)}`) : null); } },
    ...(goodput ? [{ head: study.first.head, right: true, sort: (one) => one.goodput_rps_per_gpu ?? -1, cell: (one) => figure(one, "goodput_rps_per_gpu", rate) }] : []),
    { head: goodput ? "tokens/s per GPU (closed loop)" : "tokens/s per GPU", right: true, sort: (one) => one.output_tok_s_per_gpu ?? -1, cell: (one) => figure(one, "output_tok_s_per_gpu", rate) },
    { head: "TTFT p95", right: true, sort: (one) => one.ttft_p95_s ?? Infinity, cell: (one) => figure(one, "ttft_p95_s", seconds) },
    ...(wereAsked(study.front.trials) ? [{ head: "answers", sort: (one) => one.answers?.state ?? "", cell: answersCell }] : []),
    { head: "took", right: true, sort: (one) => one.seconds ?? -1, cell: (one) => seconds(one.seconds) },
    { head: "against the baseline", cell: (one) => { const config = study.configOf(one); return config ? flagList(config.changes, config.number === study.front.baseline ? "vLLM's defaults" : "as the baseline") : flagList(flagWords(one.flags)); } },
  ];
  return sortable(columns, study.front.trials, { caption: "Every launch with its own figures", most: 20, marked: (one) => study.configOf(one)?.number === pick && pick !== null && one.outcome === "measured" });
}

function figure(trial, name, format) {
  const interval = between(trial[`${name}_interval`], format);
  return [format(trial[name]), interval ? h("br") : null, interval ? h("span.interval", {}, interval) : null];
}
