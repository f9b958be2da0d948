// Asks for the first part of a study before the page's modules are there; `source.js` takes the answer. No module itself,
// so that nothing has to be loaded before it.

(() => {
  const found = /^\/studies\/([^/]+)(?:\/trials\/\d+)?$/.exec(location.pathname);
  if (!found) return;
  const path = `/studies/${found[1]}/page/front`;
  window.autotuneEarly = { path, answer: fetch(`/api/v1${path}`, { headers: { Accept: "application/json" }, credentials: "same-origin" }).catch(() => null) };
})();
