// The promotion dialog: what would be written, what it changes, then the gate and its record.

import { h, replace } from "./dom.js";
import { openDialog, problemBox } from "./dialog.js";
import { rate, seconds } from "./format.js";
import { difference, files, gateRecord } from "./promotions.js";
import { jobLog } from "./queue.js";
import { request } from "./source.js";

const POLL_MS = 1000;

export async function promoteDialog(study, number, live) {
  const config = study.config(number);
  const opened = openDialog([`Promote trial ${number}`, study.simulated ? h("span.tag.sim", {}, "SIMULATED") : null], h("p.loading", {}, "Loading …"), { onclose: () => ended() });
  let closed = false, shown = 0, stop = () => {};
  function ended() { closed = true; stop(); }
  let policy;
  try { policy = (await request("/service")).policy; } catch (problem) { opened.fill(problemBox(problem)); return; }

  const preview = h("section", { "aria-live": "polite" });
  const outcome = h("section");
  const targets = policy.targets.map((target) => ({ target, box: h("input", { type: "checkbox", id: `target-${target}`, checked: ["compose", "kubernetes"].includes(target), onchange: () => show() }) }));
  const name = h("input", { type: "text", id: "promote-name", value: study.name, autocomplete: "off", spellcheck: "false", onchange: () => show() });
  const reason = h("input", { type: "text", id: "promote-reason", autocomplete: "off" });
  const author = h("input", { type: "text", id: "promote-author", autocomplete: "off" });
  const skip = h("input", { type: "checkbox", id: "promote-skip", onchange: () => { button.textContent = skip.checked ? "Promote without the gate" : "Verify and promote"; } });
  const simulated = h("input", { type: "checkbox", id: "promote-simulated", onchange: () => show() });
  const button = h("button", { type: "button", class: "primary", onclick: () => go() }, "Verify and promote");

  const body = () => ({
    study: study.name, trial: number, targets: targets.filter((one) => one.box.checked).map((one) => one.target), name: name.value.trim() || undefined,
    reason: reason.value.trim() || undefined, author: author.value.trim() || undefined, slo: limitWords(study), skip_gate: skip.checked, allow_simulated: simulated.checked,
  });

  opened.fill(
    h("section", {}, h("p", {}, `${rate(config?.output_tok_s_per_gpu)} tokens/s per GPU at ${seconds(config?.ttft_p95_s)} p95 TTFT. The gate launches it and what runs today in turn, with prompts that the study never used, before anything is written.`)),
    h("section", {}, h("div.form", {}, entry("promote-name", "Name of the deployment", name), entry("promote-reason", "Why", reason), entry("promote-author", "Who", author),
      h("fieldset", { class: "wide plain" }, h("legend", {}, "Rendered for"), h("div.buttons", {}, targets.map((one) => h("label.check", { for: `target-${one.target}` }, one.box, one.target)))),
      study.simulated ? h("label.check", { class: "wide", for: "promote-simulated" }, simulated, "Although no server produced these figures (recorded loudly in every file)") : null,
      h("label.check", { class: "wide", for: "promote-skip" }, skip, "Without the gate (recorded loudly in the history)"))),
    preview, outcome, h("div.acts", {}, h("div.buttons", {}, button)));
  show();

  function entry(id, label, control) { return h("div.field", {}, h("label", { for: id }, label), control); }

  async function show() {
    shown += 1;
    const own = shown, wanted = body();
    if (study.simulated && !simulated.checked) { replace(preview, h("h3", {}, "What is written"), h("p.soft", {}, "Simulated figures are not promoted unless it is said above.")); button.disabled = true; return; }
    if (!wanted.targets.length) { replace(preview, h("p.soft", {}, "Choose what it is rendered for.")); button.disabled = true; return; }
    button.disabled = false;
    if (!preview.querySelector("pre")) replace(preview, h("p.faint", {}, "Rendering …"));
    try {
      const { reason: _reason, author: _author, skip_gate: _skip, ...asked } = wanted;
      const told = await request("/previews", { method: "POST", body: asked });
      if (own !== shown) return;
      replace(preview, h("h3", {}, "What is written"), files(told.files), h("h3", {}, "What changes against what runs today"), difference(told.diff));
    } catch (problem) { if (own === shown) replace(preview, problemBox(problem)); }
  }

  async function go() {
    button.disabled = true;
    try {
      const job = await request("/promotions", { method: "POST", body: body() });
      follow(job);
    } catch (problem) { replace(outcome, problemBox(problem)); button.disabled = false; }
  }

  function follow(job) {
    const draw = (now) => replace(outcome, h("h3", {}, "Verification"), h("p", { role: "status" }, h("span.tag", { class: now.state === "running" || now.state === "queued" ? "running" : now.state === "finished" ? "pick" : "bad" }, now.state), ` ${now.message ?? (now.position ? `place ${now.position} in the queue` : "")}`), h("div.buttons", {}, h("button", { type: "button", onclick: () => jobLog(now) }, "What it says")));
    draw(job);
    outcome.scrollIntoView({ block: "nearest" });
    const look = async () => {
      const now = await request(`/jobs/${encodeURIComponent(job.id)}`);
      draw(now);
      if (["queued", "running", "stopping"].includes(now.state)) return;
      stop();
      if (now.state === "finished") {
        const { promotions } = await request(`/promotions/${encodeURIComponent(now.deployment ?? (name.value.trim() || study.name))}`);
        const last = promotions.at(-1);
        outcome.append(h("p", {}, "Promoted as ", h("a", { href: `/promotions/${encodeURIComponent(last.name)}` }, last.label), "."), gateRecord(last.gate));
      } else button.disabled = false;
    };
    const timer = setInterval(() => { if (!closed) look().catch(() => {}); }, POLL_MS);
    const unlisten = live.listen((kind) => { if (kind === "queue") look().catch(() => {}); });
    stop = () => { clearInterval(timer); unlisten(); };
  }
}

// The SLO that the gate checks: as the page has it now.
export function limitWords(study) {
  const others = study.front.slo.others;
  const own = study.limit_s === null ? [] : [`ttft_p95<=${Number((study.limit_s * 1000).toPrecision(6))}ms`];
  return [...own, ...others].join(",") || undefined;
}
