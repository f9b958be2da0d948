// The promotion dialog: what would be written, what it changes, then the gate and its record.

import { h, replace } from "./dom.js";
import { openDialog, problemBox } from "./dialog.js";
import { seconds } from "./format.js";
import { gateRecord } from "./gate.js";
import { difference, files } from "./promotions.js";
import { request } from "./source.js";
import { followed } from "./verifying.js";

export async function promoteDialog(study, number, live) {
  const config = study.config(number), spent = study.trial(number)?.seconds;
  const opened = openDialog([`Promote trial ${number}`, study.simulated ? h("span.tag.sim", {}, "SIMULATED") : null], h("p.loading", {}, "Loading …"), { onclose: () => ended() });
  let closed = false, shown = 0, stop = () => {};
  function ended() { closed = true; stop(); }
  let policy;
  try { policy = (await request("/service")).policy; } catch (problem) { opened.fill(problemBox(problem)); return; }

  const preview = h("section", { "aria-live": "polite" });
  const outcome = h("section", { "aria-label": "Verification" });
  const before = h("section", { hidden: true });
  const targets = policy.targets.map((target) => ({ target, box: h("input", { type: "checkbox", id: `target-${target}`, checked: ["compose", "kubernetes"].includes(target), onchange: () => show() }) }));
  const name = h("input", { type: "text", id: "promote-name", value: study.name, autocomplete: "off", spellcheck: "false", onchange: () => show() });
  const reason = h("input", { type: "text", id: "promote-reason", autocomplete: "off" });
  const author = h("input", { type: "text", id: "promote-author", autocomplete: "off" });
  const skip = h("input", { type: "checkbox", id: "promote-skip", onchange: () => { button.textContent = skip.checked ? "Promote without the gate" : "Verify and promote"; } });
  const simulated = h("input", { type: "checkbox", id: "promote-simulated", onchange: () => show() });
  const against = h("select", { id: "promote-against" }, h("option", { value: "" }, "today's, else the baseline"), h("option", { value: "current" }, "what runs today"), h("option", { value: "baseline" }, "the baseline"));
  const first = h("input", { type: "number", id: "promote-launches", min: "2", max: "100", step: "2", value: "4" });
  const most = h("input", { type: "number", id: "promote-most", min: "2", max: "100", step: "2", value: "40" });
  const button = h("button", { type: "button", class: "primary", onclick: () => go() }, "Verify and promote");
  const stopper = h("button", { type: "button", class: "danger", hidden: true }, "Stop the verification");

  const body = () => ({
    study: study.name, trial: number, targets: targets.filter((one) => one.box.checked).map((one) => one.target), name: name.value.trim() || undefined,
    reason: reason.value.trim() || undefined, author: author.value.trim() || undefined, slo: limitWords(study), skip_gate: skip.checked, allow_simulated: simulated.checked,
    against: against.value || undefined, gate_launches: Number(first.value), gate_most_launches: Math.max(Number(first.value), Number(most.value)),
  });

  opened.fill(
    h("section", {}, h("p", {}, `${study.firstText(config)} ${study.first.whole} at ${seconds(config?.ttft_p95_s)} p95 TTFT. The gate launches it and what runs today in turn, with prompts that the study never used, before anything is written; each launch takes ${spent ? `${seconds(spent)} or longer` : "some minutes"}.`)),
    h("section", {}, h("div.form", {}, entry("promote-name", "Name of the deployment", name), entry("promote-reason", "Why", reason), entry("promote-author", "Who", author),
      h("fieldset", { class: "wide plain" }, h("legend", {}, "Rendered for"), h("div.buttons", {}, targets.map((one) => h("label.check", { for: `target-${one.target}` }, one.box, one.target)))),
      study.simulated ? h("label.check", { class: "wide", for: "promote-simulated" }, simulated, "Although no server produced these figures (recorded loudly in every file)") : null,
      h("fieldset", { class: "wide plain" }, h("legend", {}, "The gate"), h("div.form", {}, entry("promote-against", "Held against", against), entry("promote-launches", "Launches before the first verdict", first), entry("promote-most", "At most, where more may decide it", most))),
      h("label.check", { class: "wide", for: "promote-skip" }, skip, "Without the gate (recorded loudly in the history)"))),
    before, preview, outcome, h("div.acts", {}, h("div.buttons", {}, button, stopper)));
  show();
  verified().then((found) => { if (found) { before.hidden = false; replace(before, h("h3", {}, `Verified before (verification ${found.count})`), gateRecord(found.record, { brief: true })); } }).catch(() => {});

  function entry(id, label, control) { return h("div.field", {}, h("label", { for: id }, label), control); }

  async function show() {
    shown += 1;
    const own = shown, wanted = body();
    if (study.simulated && !simulated.checked) { replace(preview, h("h3", {}, "What is written"), h("p.soft", {}, "Simulated figures are not promoted unless it is said above.")); button.disabled = true; return; }
    if (!wanted.targets.length) { replace(preview, h("p.soft", {}, "Choose what it is rendered for.")); button.disabled = true; return; }
    button.disabled = false;
    if (!preview.querySelector("pre")) replace(preview, h("p.faint", {}, "Rendering …"));
    try {
      const { reason: _reason, author: _author, skip_gate: _skip, against: _against, gate_launches: _first, gate_most_launches: _most, ...asked } = wanted;
      const told = await request("/previews", { method: "POST", body: asked });
      if (own !== shown) return;
      replace(preview, h("h3", {}, "What is written"), h("p.soft", {}, "The gate has not run, and the head says so; what is written has the gate's record there, or that it was skipped."), files(told.files), h("h3", {}, "What changes against what runs today"), difference(told.diff));
    } catch (problem) { if (own === shown) replace(preview, problemBox(problem)); }
  }

  async function go() {
    button.disabled = true;
    try {
      const job = await request("/promotions", { method: "POST", body: body() });
      stop = followed(job, { outcome, stopper, live, closed: () => closed, finished });
    } catch (problem) { replace(outcome, problemBox(problem)); button.disabled = false; }
  }

  // The latest verification of this trial that came to a verdict.
  async function verified() {
    return (await study.source.gates(study.name, number)).findLast((one) => one.record) ?? null;
  }

  // Whatever the verdict, its record is shown; only a pass was written.
  async function finished(now, record) {
    if (now.state === "finished") {
      const { promotions } = await request(`/promotions/${encodeURIComponent(now.deployment ?? (name.value.trim() || study.name))}`);
      const last = promotions.at(-1);
      replace(record, h("p", {}, "Promoted as ", h("a", { href: `/promotions/${encodeURIComponent(last.name)}` }, last.label), "."), gateRecord(last.gate));
      return;
    }
    button.disabled = false;
    const found = JUDGED.includes(now.exit_code) ? await verified() : null;
    replace(record, h("p", { style: { "margin-bottom": ".6rem" } }, "Nothing was written."), found ? gateRecord(found.record) : null);
  }
}

// Exit codes of a gate that failed and of one that could not decide.
const JUDGED = [33, 35];

// The SLO that the gate checks: as the page has it now.
function limitWords(study) {
  const others = study.front.slo.others;
  const own = study.limit_s === null ? [] : [`ttft_p95<=${Number((study.limit_s * 1000).toPrecision(6))}ms`];
  return [...own, ...others].join(",") || undefined;
}
