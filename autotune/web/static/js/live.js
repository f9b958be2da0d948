// What the service tells while studies run. The browser connects again by itself and says where it stopped.

export class Live {
  constructor() {
    this.handlers = [];
    this.stream = null;
  }

  // `handler(kind, data)`; answers how to end it.
  listen(handler) {
    this.handlers.push(handler);
    if (!this.stream) this.open();
    return () => { this.handlers = this.handlers.filter((one) => one !== handler); };
  }

  open() {
    this.stream = new EventSource("/api/v1/events");
    for (const kind of ["study", "trial", "phase", "queue", "promotion", "reset"]) {
      this.stream.addEventListener(kind, (event) => {
        let data = {};
        try { data = JSON.parse(event.data); } catch { return; }
        for (const handler of [...this.handlers]) handler(kind, data);
      });
    }
    this.stream.addEventListener("error", () => {
      // A stream that was refused is not tried again by the browser.
      if (this.stream?.readyState === EventSource.CLOSED) { this.stream = null; setTimeout(() => { if (this.handlers.length && !this.stream) this.open(); }, 5000); }
    });
  }
}

// Calls that come close together become one, at most once in `pause` ms.
export function gathered(call, pause) {
  let waiting = null, busy = false, again = false;
  const run = async () => {
    waiting = null;
    if (busy) { again = true; return; }
    busy = true;
    try { await call(); } catch { /* the next event tries again */ } finally {
      busy = false;
      if (again) { again = false; waiting = setTimeout(run, pause); }
    }
  };
  return () => { if (waiting === null) waiting = setTimeout(run, pause); };
}
