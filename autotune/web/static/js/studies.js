// The list of studies, live.

import { h, replace } from "./dom.js";
import { count, plural, seconds } from "./format.js";
import { gathered } from "./live.js";
import { request } from "./source.js";

export async function studiesPage(main, live) {
  document.title = "Studies – autotune";
  let rows = (await request("/studies")).studies;
  const list = h("div.studies");
  const filter = h("input", { type: "search", placeholder: "Find a study or model", "aria-label": "Find a study or model", oninput: () => draw() });
  replace(main, h("div.head", {}, h("div.line", {}, h("h1", {}, "Studies"), h("span", { style: { flex: "1" } }), rows.length > 5 ? filter : null, h("a.button.primary-link.changing", { href: "/new" }, "New study"))), list);
  main.removeAttribute("aria-busy");

  function draw() {
    const word = filter.value.trim().toLowerCase();
    const shown = rows.filter((row) => !word || `${row.name} ${row.model} ${row.workload}`.toLowerCase().includes(word))
      .sort((a, b) => Number(b.state === "running") - Number(a.state === "running") || (b.created_at ?? "").localeCompare(a.created_at ?? ""));
    if (!rows.length) { replace(list, h("div.empty", {}, h("b", {}, "There is no study yet"), h("p", {}, h("span.changing", {}, "Begin one here, or with "), h("span.looking", {}, "One is begun with "), h("code", {}, "autotune study --model … --workload chat"), "."), h("a.button.changing", { href: "/new" }, "New study"))); return; }
    replace(list, shown.length ? h("ul.rows", {}, shown.map(studyRow)) : h("p.soft", {}, "Nothing has this in its name."));
  }

  const fetchAgain = gathered(async () => { rows = (await request("/studies")).studies; draw(); }, 500);
  draw();
  return live.listen((kind, data) => {
    if (kind === "study") {
      const place = rows.findIndex((row) => row.name === data.name);
      if (place < 0) fetchAgain(); else { rows[place] = { ...rows[place], ...data }; draw(); }
    } else if (kind === "phase") {
      const row = rows.find((one) => one.name === data.study);
      if (row) { Object.assign(row, { trial: data.trial, phase: data.phase }); draw(); }
    } else if (kind === "reset" || kind === "queue") fetchAgain();
  });
}

function progress(done, wanted) {
  const part = wanted ? Math.min(1, done / wanted) : 0;
  return h("div.progress", { role: "progressbar", "aria-label": "Trials", "aria-valuemin": "0", "aria-valuemax": String(wanted ?? done), "aria-valuenow": String(done) }, h("i", { style: { width: `${part * 100}%` } }));
}

function studyRow(row) {
  const tone = { running: "running", failed: "bad", interrupted: "bad" }[row.state];
  const doing = row.state === "running" && row.trial !== null ? `trial ${row.trial} · ${row.phase ?? "waiting"}${row.elapsed_s ? ` · ${seconds(row.elapsed_s)}` : ""}` : null;
  return h("li", {}, h("a.row-link", { href: `/studies/${encodeURIComponent(row.name)}` },
    h("span.row-name", {}, row.name, " ", h("span.tag", { class: tone }, row.state), row.simulated ? [" ", h("span.tag.sim", {}, "SIMULATED")] : null),
    h("span.row-what", {}, `${row.model} · ${row.workload || "–"} · ${row.engine}`),
    h("span.row-how", {}, progress(row.done, row.wanted), h("span.num", {}, `${count(row.done)} of ${count(row.wanted)}`), h("span.faint", {}, [plural(row.measured, "measured", "measured"), row.infeasible ? `${count(row.infeasible)} infeasible` : null, doing].filter(Boolean).join(" · ")))));
}
