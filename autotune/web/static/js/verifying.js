// A verification while it runs: its place in the queue, what it says, and the way to stop it.

import { h, replace } from "./dom.js";
import { problemBox } from "./dialog.js";
import { request } from "./source.js";

const POLL_MS = 1000;
const OPEN = ["queued", "running", "stopping", "interrupted"];

// Shows a verification's state and what it says until its end, then what `finished(job, holder)` puts there; answers how to
// end the showing. The job itself goes on when nobody looks.
export function followed(job, { outcome, stopper, live, closed, finished }) {
  const state = h("p", { role: "status" }), said = h("pre", { tabindex: "0", role: "region", "aria-label": "What it says", class: "said" }), record = h("div");
  const aside = h("p.faint", {}, "It goes on when this is closed; the queue shows it, and a pass is among the promotions.");
  replace(outcome, h("h3", {}, "Verification"), state, said, aside, record);
  stopper.hidden = stopper.disabled = false;
  stopper.onclick = () => { stopper.disabled = true; request(`/jobs/${encodeURIComponent(job.id)}`, { method: "DELETE" }).catch((problem) => replace(record, problemBox(problem))); };
  let busy = false;
  const draw = (now) => replace(state, h("span.tag", { class: OPEN.includes(now.state) ? "running" : now.state === "finished" ? "pick" : "bad" }, now.state), ` ${now.message ?? (now.position ? `place ${now.position} in the queue` : "")}`);
  draw(job);
  outcome.scrollIntoView({ block: "nearest" });
  const look = async () => {
    if (busy) return;
    busy = true;
    try {
      const now = await request(`/jobs/${encodeURIComponent(job.id)}`);
      const told = await request(`/jobs/${encodeURIComponent(job.id)}/log?offset=-65536`);
      const low = said.scrollTop + said.clientHeight >= said.scrollHeight - 8;
      said.textContent = told.text || "It has said nothing yet.";
      if (low) said.scrollTop = said.scrollHeight;
      draw(now);
      if (OPEN.includes(now.state)) return;
      stop();
      stopper.hidden = aside.hidden = true;
      await finished(now, record).catch((problem) => replace(record, problemBox(problem)));
      record.scrollIntoView({ block: "nearest" });
    } finally { busy = false; }
  };
  const timer = setInterval(() => { if (!closed()) look().catch(() => {}); }, POLL_MS);
  const unlisten = live.listen((kind) => { if (kind === "queue") look().catch(() => {}); });
  function stop() { clearInterval(timer); unlisten(); }
  return stop;
}
