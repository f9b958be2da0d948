// A new study: the few things that have to be said; the rest has defaults.

import { h, replace } from "./dom.js";
import { problemBox } from "./dialog.js";
import { request } from "./source.js";

export async function newPage(main, go) {
  document.title = "New study – autotune";
  const service = await request("/service");
  const policy = service.policy;
  const allowed = new Set(policy.fields);
  const wrong = new Map();
  const fields = [];

  function field(key, label, hint, control, { wide = false, read = (value) => value || undefined } = {}) {
    if (!allowed.has(key)) return null;
    const id = `new-${key}`, mistake = h("span.wrong", { id: `${id}-wrong`, role: "alert" });
    control.setAttribute("id", id);
    control.setAttribute("aria-describedby", `${id}-hint ${id}-wrong`);
    wrong.set(key, mistake);
    fields.push({ key, control, read });
    return h("div.field", { class: wide ? "wide" : null }, h("label", { for: id }, label), control, h("span.hint", { id: `${id}-hint` }, hint), mistake);
  }

  const options = (values, none, chosen) => [none === undefined ? null : h("option", { value: "" }, none), ...values.map((value) => h("option", { value, selected: value === chosen }, value))];
  const models = policy.models.length && !policy.models.includes("*") ? `Allowed here: ${policy.models.join(", ")}.` : "A name on the hub or a folder of the service's machine.";
  const problem = h("div");
  const form = h("form.form.changing", { novalidate: true, onsubmit: submit },
    field("model", "Model", models, h("input", { type: "text", required: true, placeholder: "meta-llama/Llama-3.1-8B-Instruct", autocomplete: "off", spellcheck: "false" }), { wide: true }),
    field("workload", "Workload", "Which requests arrive.", h("select", {}, options(policy.workloads, undefined, "chat"))),
    field("slo", "SLO", "What the pick must keep to; may be left empty.", h("input", { type: "text", placeholder: "ttft_p95<=500ms", autocomplete: "off", spellcheck: "false" })),
    field("objective", "Objective", "goodput: requests/s that keep to the SLO, searched for each config.", h("select", {}, options(["throughput", "goodput"]))),
    field("trials", "Trials", "How many configs to try.", h("input", { type: "number", min: "1", step: "1", placeholder: "24" }), { read: (value) => (value ? Number(value) : undefined) }),
    field("max_time_s", "At most, minutes", "What runs then is finished.", h("input", { type: "number", min: "1", step: "any", placeholder: "no limit" }), { read: (value) => (value ? Number(value) * 60 : undefined) }),
    field("node", "Node", policy.simulated_only ? "This service simulates only." : "A node to simulate, or this one.", h("select", {}, options(policy.nodes, policy.simulated_only ? undefined : `this one (${service.node?.name ?? "unknown"})`))),
    field("sampler", "Sampler", "prior knows the physics; random is the control.", h("select", {}, options(policy.samplers, "default"))),
    field("executor", "Where trials run", "local: one node. ray: the nodes of a Ray cluster, several trials at once.", h("select", {}, options(policy.executors)), { read: (value) => (value && value !== "local" ? value : undefined) }),
    field("parallel", "Trials at once", "auto: as many as fit, where configs need fewer GPUs than a node has.", h("select", {}, options(["auto"], "one on a node"))),
    field("ray_address", "Ray cluster", "With ray. auto: the one of the service's machine; others are the operator's to allow.", h("select", {}, options(policy.ray_addresses)), { read: (value) => (value && value !== "auto" ? value : undefined) }),
    field("space", "Space", "auto is made for node and model.", h("select", {}, options(policy.spaces))),
    field("repeats", "Repeats", "Launches of baseline and finalists at the end.", h("input", { type: "number", min: "0", step: "1", placeholder: "default" }), { read: (value) => (value === "" ? undefined : Number(value)) }),
    field("name", "Name", "Default: from model and workload.", h("input", { type: "text", autocomplete: "off", spellcheck: "false" })),
    h("div.wide", {}, problem, h("div.buttons", {}, h("button", { type: "submit", class: "primary" }, "Begin"), h("a.button", { href: "/" }, "Not now"))));
  replace(main, h("div.head", {}, h("h1", {}, "New study"), h("p.soft.changing", {}, "It is put into the queue, and can be watched as soon as it runs."), h("p.soft.looking", {}, "This service shows, and changes nothing.")), form);
  main.removeAttribute("aria-busy");

  async function submit(event) {
    event.preventDefault();
    problem.replaceChildren();
    for (const mistake of wrong.values()) mistake.textContent = "";
    const body = {};
    for (const { key, control, read } of fields) {
      const value = read(control.value.trim());
      control.removeAttribute("aria-invalid");
      if (value !== undefined) body[key] = value;
    }
    if (!body.model) { say("model", "A study needs a model."); return; }
    try {
      const job = await request("/studies", { method: "POST", body });
      go(job.study ? `/studies/${encodeURIComponent(job.study)}` : "/queue");
    } catch (refused) {
      const known = refused.errors.filter((one) => wrong.has(one.key));
      for (const one of known) say(one.key, `${one.value === undefined || one.value === null ? "" : `${one.value}: `}allowed is ${one.allowed}`);
      if (!known.length) problem.append(problemBox(refused));
    }
  }

  function say(key, text) {
    wrong.get(key).textContent = text;
    const control = document.getElementById(`new-${key}`);
    control.setAttribute("aria-invalid", "true");
    control.focus();
  }
  return () => {};
}
