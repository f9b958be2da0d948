// Where the data comes from: the service, or what a report's file has inside. Both answer the same questions.

class Problem extends Error {
  constructor(status, document) {
    super(document?.detail ?? document?.title ?? `The service answered ${status}`);
    this.status = status;
    this.hint = document?.hint ?? null;
    this.errors = document?.errors ?? [];
  }
}

export async function request(path, { method = "GET", body, etag } = {}) {
  const early = method === "GET" ? await taken(path) : null;
  if (early?.ok) return early.json();
  const headers = { Accept: "application/json" };
  if (method !== "GET") headers["X-Autotune"] = "1";
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (etag) headers["If-None-Match"] = etag;
  let answer;
  try {
    answer = await fetch(`/api/v1${path}`, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), credentials: "same-origin" });
  } catch {
    throw new Problem(0, { detail: "The service does not answer.", hint: "Is `autotune serve` still running?" });
  }
  if (answer.status === 401 && location.pathname !== "/login") {
    leaveFor(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
    return new Promise(() => {});
  }
  if (answer.status === 204 || answer.status === 304) return null;
  const told = await answer.json().catch(() => null);
  if (!answer.ok) throw new Problem(answer.status, told);
  return told;
}

let leaving = false;

// To another page, once: several requests may be refused at the same time.
export function leaveFor(path) {
  if (!leaving) location.assign(path);
  leaving = true;
}

// The answer that `early.js` asked for; once, as what comes later is to be fresh.
async function taken(path) {
  const early = window.autotuneEarly;
  if (!early || early.path !== path) return null;
  delete window.autotuneEarly;
  return early.answer;
}

const part = encodeURIComponent;

export class ServiceSource {
  live = true;
  page(name, which) { return request(`/studies/${part(name)}/page/${which}`); }
  trial(name, number) { return request(`/studies/${part(name)}/trials/${number}`); }
  log(name, number) { return request(`/studies/${part(name)}/trials/${number}/log?offset=-65536`); }
  curve(name, number) { return request(`/studies/${part(name)}/trials/${number}/curve`); }
  async gates(name, number) { return (await request(`/studies/${part(name)}/trials/${number}/gates`)).gates; }
  compare(a, b) { return request(`/compare?a=${part(a)}&b=${part(b)}`); }
  async promotions() { return (await request("/promotions")).promotions; }
}

export class EmbeddedSource {
  live = false;
  constructor(document_) { this.document = document_; }
  async page(name, which) { return this.document.parts[which] ?? null; }
  async trial(name, number) { return this.document.trials[number] ?? null; }
  async log() { return null; }
  async compare(a, b) {
    const key = `${a.split(":").pop()}:${b.split(":").pop()}`;
    return this.document.comparisons[key] ?? null;
  }
  async promotions() { return this.document.promotions ?? []; }
}
