import { MISSING, rate } from "./format.js";

// What a study's first objective is called and where its figures stand.
const THROUGHPUT = { key: "output_tok_s_per_gpu", word: "throughput", unit: "tok/s per GPU", whole: "tokens/s per GPU", head: "tokens/s per GPU", axis: "output tokens/s per GPU" };
const GOODPUT = { key: "goodput_rps_per_gpu", word: "goodput", unit: "req/s per GPU", whole: "requests/s per GPU of goodput", head: "goodput, requests/s per GPU", axis: "goodput: requests/s per GPU that meet the SLO" };

// A study as its pictures need it: the parts that have come, and the pick under the limit that is set now.

export class Study {
  constructor(name, source) {
    this.name = name;
    this.source = source;
    this.front = null;
    this.certainty = null;
    this.evidence = null;
    this.learned = null;
    this.limit_s = null;
    this.asked = null;
    this.listeners = new Set();
    this.fetched = new Map();
  }

  take(part, document_) {
    this[part] = document_;
    if (part === "front" && this.asked === null) this.limit_s = document_.slo.ttft_p95_s;
    if (part === "front") {
      this.configs = new Map(document_.configs.map((one) => [one.number, one]));
      this.trials = new Map(document_.trials.map((one) => [one.number, one]));
      const launched = new Map(document_.configs.flatMap((one) => one.launches.map((number) => [number, one])));
      this.byHash = new Map(document_.trials.filter((one) => launched.has(one.number)).map((one) => [one.config_hash, launched.get(one.number)]));
    }
    if (part === "certainty" && document_) this.standings = new Map(document_.standings.map((one) => [one.number, one]));
  }

  get goodput() { return this.front?.study.objective === "goodput"; }
  get first() { return this.goodput ? GOODPUT : THROUGHPUT; }
  // The first objective of a config in words; "≥" where every rate that was tried met the SLO.
  firstText(config) {
    const value = config?.[this.first.key] ?? null;
    return value === null ? MISSING : `${config.goodput_open ? "≥ " : ""}${rate(value)}`;
  }
  // What a trial was measured at, of this document or fetched since.
  curve(number) { return this.fetched.get(number)?.curve ?? this.evidence?.curves.find((one) => one.number === number) ?? null; }
  spread(number) { return this.fetched.get(number)?.spread ?? this.evidence?.spreads[String(number)] ?? null; }
  // Whether anything of a trial may still be asked for.
  lacks(number) { return this.source.live && !this.fetched.has(number) && (!this.curve(number) || !this.spread(number)); }
  async fetchCurve(number) {
    const { spread, ...curve } = await this.source.curve(this.name, number);
    this.fetched.set(number, { curve, spread });
  }
  get simulated() { return this.front?.study.simulated ?? false; }
  standing(number) { return this.standings?.get(number) ?? null; }
  config(number) { return this.configs?.get(number) ?? null; }
  trial(number) { return this.trials?.get(number) ?? null; }
  configOf(trial) { return this.byHash.get(trial.config_hash) ?? null; }
  get movable() { return Boolean(this.front?.slo.movable && this.certainty?.slo_steps.length); }

  // The step of the product's own rule that a limit falls into; null where no config meets it.
  step(limit_s) {
    let found = null;
    for (const [from_s, number, best, meeting] of this.certainty?.slo_steps ?? []) {
      if (from_s > limit_s) break;
      found = { from_s, number, best, meeting };
    }
    return found;
  }

  // Whether a config surely keeps to the limit that is set now; by the same figure that the pick is chosen by.
  keeps(number) {
    if (this.limit_s === null || !this.certainty) return true;
    const from_s = this.standing(number)?.keeps_from_s ?? null;
    return from_s !== null && from_s <= this.limit_s;
  }

  // {number, reason, meeting} or null: what is recommended under the limit that is set now.
  get pick() {
    const own = this.front?.pick ?? null;
    if (!this.front || this.limit_s === this.front.slo.ttft_p95_s || !this.certainty) return own ? { ...own, own: true } : null;
    if (this.limit_s === null) return this.certainty.free_pick;
    const step = this.step(this.limit_s);
    return step ? { number: step.number, best: step.best, meeting: step.meeting, own: false } : null;
  }

  setLimit(limit_s) {
    this.asked = true;
    this.limit_s = limit_s;
    for (const listener of this.listeners) listener();
  }
}
