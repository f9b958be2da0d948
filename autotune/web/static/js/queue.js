// The queue: one node runs one job at a time. And the nodes that studies know.

import { h, replace, table } from "./dom.js";
import { openDialog, problemBox } from "./dialog.js";
import { LINKS, bytes, when } from "./format.js";
import { request } from "./source.js";

export async function queuePage(main, live) {
  document.title = "Queue – autotune";
  const holder = h("div");
  replace(main, h("div.head", {}, h("h1", {}, "Queue"), h("p.soft", {}, "One node runs one study or verification at a time; the others wait here.")), holder);
  main.removeAttribute("aria-busy");
  const draw = (told) => {
    const jobs = inOrder(told.jobs);
    replace(holder, told.waiting_for ? h("p.soft", { style: { "margin-bottom": "1rem" } }, told.waiting_for) : null,
      jobs.length ? table([
        { head: "job", cell: (job) => h("span.nowrap", {}, job.id) }, { head: "", cell: (job) => h("span.tag", { class: { running: "running", failed: "bad", interrupted: "bad" }[job.state] }, job.state) },
        { head: "what", cell: (job) => (job.kind === "promotion" ? ["promotion ", job.deployment ?? "", " of ", link(job.study), job.trial === null ? "" : `, trial ${job.trial}`] : ["study ", link(job.study)]) },
        { head: "place", right: true, cell: (job) => job.position ?? "–" }, { head: "asked for", cell: (job) => h("span.nowrap", {}, when(job.created_at)) }, { head: "said", cell: (job) => h("span.wrapped", {}, job.message ?? "–") },
        { head: "", cell: (job) => h("div.buttons.one-row", {}, h("button", { type: "button", "aria-label": `Log of ${job.id}`, onclick: () => jobLog(job) }, "Log"), ["queued", "running"].includes(job.state) ? h("button", { type: "button", class: "danger", "aria-label": `${job.state === "queued" ? "Take out" : "Stop"} ${job.id}`, onclick: () => end(job) }, job.state === "queued" ? "Take out" : "Stop") : null) },
      ], jobs, { caption: "Jobs: what runs, what waits in its order, then what has ended", stacked: true }) : h("div.empty", {}, h("b", {}, "Nothing waits and nothing runs"), h("a.button", { href: "/new" }, "New study")));
  };
  async function end(job) {
    try { await request(`/jobs/${encodeURIComponent(job.id)}`, { method: "DELETE" }); draw(await request("/jobs")); } catch (problem) { openDialog("This could not be done", problemBox(problem)); }
  }
  draw(await request("/jobs"));
  return live.listen(async (kind) => { if (["queue", "reset", "study"].includes(kind)) draw(await request("/jobs")); });
}

// What runs, then what waits in the order in which it will run, then what has ended, the latest first.
export function inOrder(jobs) {
  const rank = (job) => (job.position !== null ? job.position : ["running", "stopping"].includes(job.state) ? 0 : Infinity);
  return [...jobs].sort((a, b) => (rank(a) === rank(b) ? 0 : rank(a) - rank(b)));
}

function link(study) { return study ? h("a", { href: `/studies/${encodeURIComponent(study)}` }, study) : "–"; }

export async function jobLog(job) {
  const opened = openDialog(`Log of ${job.id}`, h("p.loading", {}, "Loading …"));
  try {
    const told = await request(`/jobs/${encodeURIComponent(job.id)}/log?offset=-65536`);
    opened.fill(h("pre", { tabindex: "0", role: "region", "aria-label": "Log", style: { "max-height": "60vh" } }, told.text || "It has said nothing yet."));
  } catch (problem) { opened.fill(problemBox(problem)); }
}

function alike(gpus) {
  return d3.rollups(gpus, (found) => found.length, (gpu) => `${gpu.name}, ${bytes(gpu.memory_bytes)}${gpu.compute_capability ? `, compute ${gpu.compute_capability}` : ""}`);
}

export async function nodesPage(main) {
  document.title = "Nodes – autotune";
  const { nodes } = await request("/nodes");
  replace(main, h("div.head", {}, h("h1", {}, "Nodes"), h("p.soft", {}, "This machine first, then those that studies in this database ran on.")), h("div.cards", {}, nodes.map((node) => h("article.card", {},
    h("h3", {}, node.name, " ", node.here ? h("span.tag.today", {}, "here") : null, node.simulated ? [" ", h("span.tag.sim", {}, "SIMULATED")] : null),
    h("p.soft", {}, node.gpus.length ? alike(node.gpus).map(([name, number]) => `${number} × ${name}`).join("; ") : "no GPU"),
    h("p.faint", {}, `${node.gpus.length > 1 ? `link ${LINKS[node.link] ?? node.link}` : ""}${node.driver ? `${node.gpus.length > 1 ? " · " : ""}driver ${node.driver}` : ""}`),
    node.studies.length ? h("p", {}, node.studies.map((name, place) => [place ? ", " : "", link(name)])) : null))));
  main.removeAttribute("aria-busy");
  return () => {};
}
