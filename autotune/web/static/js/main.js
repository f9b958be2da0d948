// The service's page: which view an address is, and what all views share.

import { h, replace, announce } from "./dom.js";
import { problemBox } from "./dialog.js";
import { seconds } from "./format.js";
import { Live, gathered } from "./live.js";
import { newPage } from "./new.js";
import { promoteDialog } from "./promote.js";
import { promotionsPage } from "./promoted.js";
import { jobLog, nodesPage, queuePage } from "./queue.js";
import { ServiceSource, leaveFor, request } from "./source.js";
import { studiesPage } from "./studies.js";
import { studyPage } from "./study.js";
import { openCompare } from "./compare.js";
import { applyTheme, themeButton } from "./theme.js";

const live = new Live();
const source = new ServiceSource();
let leave = () => {};
let turn = 0;

const VIEWS = [
  [/^\/$/, (main) => studiesPage(main, live)],
  [/^\/studies\/([^/]+)(?:\/trials\/(\d+))?$/, (main, name, number) => oneStudy(main, decodeURIComponent(name), number === undefined ? null : Number(number))],
  [/^\/compare$/, (main) => comparePage(main)],
  [/^\/promotions(?:\/([^/]+))?$/, (main, name) => promotionsPage(main, name === undefined ? null : decodeURIComponent(name), live)],
  [/^\/queue$/, (main) => queuePage(main, live)],
  [/^\/nodes$/, (main) => nodesPage(main)],
  [/^\/new$/, (main) => newPage(main, go)],
];

function go(path) {
  history.pushState(null, "", path);
  show();
}

async function show() {
  turn += 1;
  const own = turn, main = document.getElementById("main");
  leave();
  leave = () => {};
  document.querySelectorAll("dialog").forEach((one) => one.remove());
  bar();
  const found = VIEWS.map(([form, view]) => [location.pathname.match(form), view]).find(([match]) => match);
  main.setAttribute("aria-busy", "true");
  try {
    const end = found ? await found[1](main, ...found[0].slice(1)) : unknown(main);
    if (own === turn) leave = end ?? (() => {}); else end?.();
  } catch (problem) {
    if (own === turn) replace(main, problemBox(problem));
  }
  main.removeAttribute("aria-busy");
}

function unknown(main) {
  replace(main, h("div.empty", {}, h("b", {}, "There is nothing at this address"), h("a.button", { href: "/" }, "All studies")));
}

function bar() {
  const here = location.pathname;
  const links = [["Studies", "/", here === "/" || here.startsWith("/studies")], ["Promotions", "/promotions", here.startsWith("/promotions")], ["Queue", "/queue", here === "/queue"], ["Nodes", "/nodes", here === "/nodes"], ["New study", "/new", here === "/new"]];
  replace(document.getElementById("top"), h("a.name", { href: "/" }, "autotune"), h("nav", { "aria-label": "Main" }, links.map(([word, path, current]) => h("a", { href: path, class: ["/queue", "/new"].includes(path) ? "changing" : null, "aria-current": current ? "page" : null }, word))), looking, logout, themeButton());
}

const looking = h("span.tag.look-tag", { title: "This service shows, and changes nothing: it was started with --look-only." }, "Look only");
const logout = h("button", { type: "button", class: "quiet", hidden: true, onclick: async () => { await request("/session", { method: "DELETE" }); leaveFor("/login"); } }, "Log out");

async function oneStudy(main, name, number) {
  const query = new URLSearchParams(location.search);
  const doing = h("span.soft", { role: "status" });
  const path = `/studies/${encodeURIComponent(name)}`;
  const known = request(`${path}/summary`).catch(() => null); // a study that is not there yet is told below
  const host = {
    crumb: h("a", { href: "/" }, "Studies"),
    promote: (study, chosen) => promoteDialog(study, chosen, live),
    opened: (chosen) => history.replaceState(null, "", `${path}/trials/${chosen}${location.search}`),
    closed: () => { if (location.pathname.startsWith(`${path}/trials/`)) history.replaceState(null, "", `${path}${location.search}`); },
    limit: (limit_s) => history.replaceState(null, "", `${location.pathname}${limit_s === null ? "" : `?ttft_p95=${Number((limit_s * 1000).toPrecision(6))}ms`}`),
    buttons: (study) => [h("span.changing", {}, steering(study, madeHere)), doing],
  };
  const madeHere = (await known)?.made_here ?? true;
  let page;
  try {
    page = await studyPage(main, name, source, host);
  } catch (problem) {
    const job = problem.status === 404 ? await jobOf(name) : null;
    if (!job) throw problem;
    return waitingPage(main, name, job);
  }
  const asked = /^([\d.]+)ms$/.exec(query.get("ttft_p95") ?? "");
  page.parts.then(() => { if (asked) page.study.setLimit(Number(asked[1]) / 1000); });
  if (number !== null) page.open(number);
  const again = gathered(() => page.refresh(), 700);
  const rest = gathered(() => page.refreshRest(), 4000);
  return live.listen((kind, data) => {
    if (kind === "trial" && data.study === name) {
      again();
      if (data.outcome !== "running") { rest(); announce(`Trial ${data.number} ended: ${data.outcome}`); }
    }
    if (kind === "study" && data.name === name && data.state !== page.study.front.study.state) { again(); rest(); doing.textContent = ""; if (data.state !== "running") page.refreshLearned(); }
    if (kind === "phase" && data.study === name) doing.textContent = `trial ${data.trial} · ${data.phase}${data.elapsed_s ? ` · ${seconds(data.elapsed_s)}` : ""}`;
    if (kind === "reset") { again(); rest(); }
  });
}

// The latest job of a study that is not in the database yet; null where nobody asked for one.
async function jobOf(name) {
  const { jobs } = await request("/jobs");
  return jobs.find((job) => job.kind === "study" && job.study === name) ?? null;
}

// A study that was asked for and has not begun: what it waits for, until it does.
function waitingPage(main, name, first) {
  document.title = `${name} – autotune`;
  const draw = (job) => replace(main, h("div.head", {}, h("p.crumb", {}, h("a", { href: "/" }, "Studies")), h("div.line", {}, h("h1", {}, name), h("span.tag", { class: job.state === "running" ? "running" : job.state === "failed" ? "bad" : null }, job.state))),
    h("div.empty", { role: "status" }, h("b", {}, job.state === "running" ? "It begins" : job.state === "queued" ? `It waits, place ${job.position ?? 1} in the queue` : "It did not begin"), h("p.wrapped", {}, job.message ?? "Its plan is made: node, space, what the rules refuse."), h("div.buttons", {}, h("button", { type: "button", onclick: () => jobLog(job) }, "What it says"), h("a.button", { href: "/queue" }, "The queue"))));
  draw(first);
  const look = gathered(async () => {
    const { studies } = await request("/studies");
    if (studies.some((one) => one.name === name)) { show(); return; }
    const job = await jobOf(name);
    if (job) draw(job);
  }, 300);
  const timer = setInterval(look, 2000);
  const unlisten = live.listen(() => look());
  return () => { clearInterval(timer); unlisten(); };
}

function steering(study, madeHere) {
  const state = study.front.study.state, path = `/studies/${encodeURIComponent(study.name)}`;
  const act = (verb, body) => async (event) => {
    const button = event.currentTarget;
    button.disabled = true;
    try { await request(`${path}/${verb}`, { method: "POST", body }); announce("Asked for"); } catch (problem) { button.closest(".head").append(problemBox(problem)); button.disabled = false; }
  };
  if (state === "running") return [h("button", { type: "button", onclick: act("stop", { now: false }) }, "Stop after this trial")];
  if (!madeHere) return [h("span.soft", {}, "Its own command goes on with it: it was not made through this service.")];
  return [h("button", { type: "button", onclick: act("start", { trials: study.front.study.counted >= study.front.study.target ? "+10" : null }) }, study.front.study.counted >= study.front.study.target ? "Ten more trials" : "Go on")];
}

async function comparePage(main) {
  const query = new URLSearchParams(location.search);
  const side = (text) => /^(.*):(\d+)$/.exec(text ?? "");
  const a = side(query.get("a")), b = side(query.get("b"));
  if (!a || !b) { replace(main, h("div.empty", {}, h("b", {}, "Which two?"), h("p", {}, "/compare?a=STUDY:TRIAL&b=STUDY:TRIAL"))); return () => {}; }
  const page = await studyPage(main, b[1], source, { crumb: h("a", { href: "/" }, "Studies") });
  openCompare(page.study, query.get("a"), query.get("b"), {});
  return () => {};
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || link.target || link.origin !== location.origin) return;
  if (link.getAttribute("href").startsWith("#") || link.pathname.startsWith("/api/") || link.pathname.startsWith("/static/")) return;
  event.preventDefault();
  go(link.pathname + link.search);
  document.getElementById("main").focus({ preventScroll: true });
  window.scrollTo(0, 0);
});
window.addEventListener("popstate", show);
applyTheme();
show();
request("/session").then((told) => { logout.hidden = !told.token_required; document.documentElement.classList.toggle("look-only", told.look_only); }).catch(() => {});
