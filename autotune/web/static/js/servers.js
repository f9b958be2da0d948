// The node, what each server said of itself, what held it back, and what failed.

import { h, table } from "./dom.js";
import { LINKS, bytes, count, plural, reasonWords, seconds, share } from "./format.js";

const LIMITS = {
  kv_memory: "KV memory", sequence_cap: "sequence cap", prefill: "prefill", decode: "decode", communication: "communication between GPUs", prefix_missed: "prefix cache missed",
  api_server: "API server process", host: "host CPU", power: "power limit", client: "load client", light_load: "light load",
};

export function nodePart(study) {
  const node = study.evidence.node;
  const facts = study.front.study;
  if (!node) return h("p.soft", {}, "This study did not store its node.");
  const kinds = d3.rollups(node.gpus, (found) => found.length, (gpu) => `${gpu.name} · ${bytes(gpu.memory_bytes)}${gpu.compute_capability ? ` · compute ${gpu.compute_capability}` : ""}`);
  return h("dl.pairs", {}, [
    ["Node", `${node.name}${node.simulated ? " (simulated)" : ""}`],
    ["GPUs", kinds.length ? kinds.map(([name, number]) => `${number} × ${name}`).join("; ") : "none"],
    ["Link", node.gpus.length > 1 ? `${LINKS[node.link] ?? node.link}${node.worst_path ? `, farthest pair ${node.worst_path}` : ""}` : null],
    ["NUMA nodes", node.numa_nodes], ["/dev/shm", node.shm_bytes === null ? null : bytes(node.shm_bytes)], ["Driver", node.driver], ["vLLM", facts.vllm_version], ["Load of every config", facts.load],
  ].filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export function verdicts(study) {
  const told = study.evidence.servers.filter((one) => one.limit);
  const groups = d3.rollups(told, (found) => found, (one) => one.limit).sort((a, b) => b[1].length - a[1].length);
  if (!groups.length) return null;
  return h("div.cards", {}, groups.map(([limit, found]) => {
    const last = found.find((one) => one.number === study.pick?.number) ?? found.at(-1);
    return h("article.card", {}, h("h3", {}, LIMITS[limit] ?? limit, h("span.faint", {}, ` · ${plural(found.length, "launch", "launches")}`)), h("p", {}, last.limit_text),
      h("p.soft", {}, `Trial ${last.number}: ${last.limit_evidence.join("; ")}`), last.remedy ? h("p.soft", {}, h("b", {}, "Next: "), last.remedy) : null);
  }));
}

export function serversTable(study, { open }) {
  const servers = study.evidence.servers;
  if (!servers.length) return null;
  const most = d3.max(servers, (one) => one.kv_cache_tokens ?? 0);
  const columns = [
    { head: "trial", right: true, sort: (one) => one.number, cell: (one) => h("button.link", { type: "button", onclick: () => open(one.number), "aria-label": `Open trial ${one.number}` }, one.number) },
    { head: "KV cache, tokens", sort: (one) => one.kv_cache_tokens ?? -1, cell: (one) => (one.kv_cache_tokens === null ? "–" : [h("span.meter", { "aria-hidden": "true" }, h("i", { style: { width: `${(100 * one.kv_cache_tokens) / most}%` } })), ` ${count(one.kv_cache_tokens)}`]) },
    { head: "full-length requests", right: true, sort: (one) => one.max_concurrency ?? -1, cell: (one) => (one.max_concurrency === null ? "–" : one.max_concurrency.toFixed(1)) },
    { head: "KV used, maximum", right: true, sort: (one) => one.kv_usage_max ?? -1, cell: (one) => share(one.kv_usage_max) },
    { head: "preemptions", right: true, sort: (one) => one.preemptions ?? -1, cell: (one) => count(one.preemptions) },
    { head: "prefix hits", right: true, sort: (one) => one.prefix_hit_share ?? -1, cell: (one) => share(one.prefix_hit_share) },
    { head: "queued, mean", right: true, sort: (one) => one.queue_time_mean_s ?? -1, cell: (one) => seconds(one.queue_time_mean_s) },
    { head: "start-up", right: true, sort: (one) => one.startup_s ?? -1, cell: (one) => seconds(one.startup_s) },
    { head: "held back by", sort: (one) => one.limit ?? "", cell: (one) => (one.limit ? LIMITS[one.limit] ?? one.limit : "–") },
  ];
  return [h("h3", { style: { margin: "2rem 0 .8rem" } }, "What each server said of itself"),
    sortable(columns, servers, { caption: "What each server said of itself", most: 10, marked: (one) => one.number === study.pick?.number })];
}

export function failuresPart(study, { open }) {
  const failures = study.evidence.failures;
  return h("div.cards", {}, failures.map((one) => h("article.card", {},
    h("h3", {}, h("span.tag", { class: one.outcome === "infeasible" || one.outcome === "faulted" ? "bad" : null }, one.outcome), reasonWords(one.kind)),
    h("p.soft", {}, plural(one.trials.length, "trial"), ": ", one.trials.slice(0, 8).map((number, place) => [place ? ", " : "", h("button.link", { type: "button", onclick: () => open(number), "aria-label": `Open trial ${number}` }, number)]), one.trials.length > 8 ? ` and ${one.trials.length - 8} more` : "", one.saved_s ? `; saved about ${seconds(one.saved_s)}` : ""),
    one.outcome === "abandoned" ? h("p.soft", {}, one.kind === "dominated" ? "Ended early: another config was shown to be better in both figures." : one.kind === "saturated" ? "Ended early: requests came faster than they were served." : "Ended early.") : null,
    one.line ? h("pre", { tabindex: "0", role: "region", "aria-label": "Line of the log" }, one.line) : null,
    one.remedies.length ? [h("p.faint", {}, "In this order:"), h("ol", {}, one.remedies.map((text) => h("li", {}, text)))] : null)));
}

// A table whose heads sort it and which shows more of many rows when asked.
export function sortable(columns, rows, { caption, most = 50, marked = () => false, sorted = null } = {}) {
  let by = sorted, down = false, shown = most;
  const holder = h("div");
  const draw = (focus) => {
    const ordered = by === null ? rows : [...rows].sort((a, b) => (down ? -1 : 1) * d3.ascending(columns[by].sort(a), columns[by].sort(b)));
    const element = table(columns, ordered.slice(0, shown), { caption, marked });
    element.querySelectorAll("thead th").forEach((head, place) => {
      if (!columns[place].sort) return;
      head.setAttribute("aria-sort", by === place ? (down ? "descending" : "ascending") : "none");
      head.replaceChildren(h("button", { type: "button", onclick: () => { down = by === place ? !down : typeof columns[place].sort(rows[0]) === "number" && place > 0; by = place; draw(place); } }, columns[place].head, by === place ? (down ? " ↓" : " ↑") : ""));
    });
    holder.replaceChildren(element, ...(ordered.length > shown ? [h("p", { style: { "margin-top": ".8rem" } }, h("button", { type: "button", onclick: () => { shown += 200; draw(); } }, `Show more (${count(ordered.length - shown)} left)`))] : []));
    if (focus !== undefined) holder.querySelectorAll("thead button")[focus]?.focus();
  };
  draw();
  return holder;
}
