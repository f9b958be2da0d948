// Figures as the command line prints them; what is missing is a dash, never 0.

export const MISSING = "–";
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export function count(value) {
  return value === null || value === undefined ? MISSING : whole.format(value);
}

export function rate(value) {
  if (value === null || value === undefined) return MISSING;
  return value >= 100 ? whole.format(value) : value.toPrecision(3);
}

export function seconds(value) {
  if (value === null || value === undefined) return MISSING;
  if (value >= 0.00005 && value < 0.00995) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 1) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  const all = Math.round(value);
  const two = (n) => String(n).padStart(2, "0");
  if (all < 3600) return `${Math.floor(all / 60)} min ${two(all % 60)} s`;
  const minutes = Math.floor(all / 60);
  return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
}

export function bytes(value) {
  if (value === null || value === undefined) return MISSING;
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (Math.abs(value) >= size) return Math.abs(value) < 1000 * size ? `${Number((value / size).toPrecision(3))} ${unit}` : `${whole.format(value / size)} ${unit}`;
  }
  return `${value} B`;
}

export function share(value, digits = 0) {
  return value === null || value === undefined ? MISSING : `${(value * 100).toFixed(digits)} %`;
}

export function gain(ratio, digits = 0) {
  if (ratio === null || ratio === undefined) return MISSING;
  const percent = (ratio - 1) * 100;
  const text = Math.abs(percent).toFixed(digits);
  return `${Number(text) === 0 ? "±" : percent < 0 ? "−" : "+"}${text} %`;
}

export function between(interval, format) {
  return interval ? `${format(interval[0])} to ${format(interval[1])}` : null;
}

export function chance(value) {
  if (value === null || value === undefined) return MISSING;
  if (value < 0.005) return "<1 %";
  return value > 0.995 ? ">99 %" : `${(value * 100).toFixed(0)} %`;
}

// One flag as it stands on the command line.
export function flag(name, value) {
  if (name.startsWith("env:")) return `${name.slice(4)}=${typeof value === "boolean" ? Number(value) : value}`;
  if (typeof value === "boolean") return value ? `--${name}` : `--no-${name}`;
  return `--${name} ${value}`;
}

export function flagWords(flags) {
  return Object.entries(flags).filter(([, value]) => value !== null).map(([name, value]) => flag(name, value));
}

export function valueWord(value) {
  if (value === null || value === undefined) return "default";
  if (typeof value === "boolean") return value ? "on" : "off";
  return String(value);
}

// A knob's value: the sizes of a layout together.
export function knobWord(values) {
  const sizes = { "tensor-parallel-size": "TP", "pipeline-parallel-size": "PP", "data-parallel-size": "DP" };
  const entries = Object.entries(values ?? {}).filter(([, value]) => value !== null);
  if (!entries.length) return "default";
  const layout = entries.filter(([name, value]) => sizes[name] && value !== 1).map(([name, value]) => `${sizes[name]} ${value}`);
  if (entries.some(([name]) => sizes[name])) {
    if (entries.some(([name, value]) => name === "enable-expert-parallel" && value === true)) layout.push("EP");
    return layout.join(" x ") || "one GPU";
  }
  return entries.map(([, value]) => valueWord(value)).join(", ");
}

// A reason as it is stored, in words: `kv_cache_too_small` is "KV cache too small".
const SHORT = { kv: "KV", oom: "OOM", nccl: "NCCL", slo: "SLO", gpu: "GPU", cuda: "CUDA", api: "API", ttft: "TTFT", hf: "HF", shm: "shared memory", numa: "NUMA" };
export function reasonWords(reason) {
  return reason.split(/[_ ]/).map((word) => SHORT[word] ?? word).join(" ");
}

export function plural(number, noun, more = `${noun}s`) {
  return `${whole.format(number)} ${number === 1 ? noun : more}`;
}

export function when(iso) {
  if (!iso) return MISSING;
  const at = new Date(iso);
  return Number.isNaN(at.getTime()) ? iso : `${at.toISOString().slice(0, 16).replace("T", " ")} UTC`;
}

export const LINKS = { nvlink: "NVLink", pcie: "PCIe", none: "none" };

