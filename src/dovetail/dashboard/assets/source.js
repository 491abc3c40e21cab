"use strict";
// Where the page gets its facts: from the server that it came from, or from the report that it is in.
(() => {
  class Problem extends Error {
    constructor(error, hint, status) { super(error); this.error = error; this.hint = hint; this.status = status; }
  }
  const answered = async (response) => {
    let found;
    try { found = await response.json(); } catch { throw new Problem("the answer is no JSON (" + response.status + ")", "is the server still there?", response.status); }
    if (!response.ok || found.error) throw new Problem(found.error || "refused (" + response.status + ")", found.hint, response.status);
    return found;
  };
  const ask = async (path, options) => {
    let response;
    try { response = await fetch(path, { cache: "no-store", ...options }); } catch { throw new Problem("the server does not answer", "is it still running?", 0); }
    return answered(response);
  };
  const query = (facts) => "?" + new URLSearchParams(facts).toString();
  const post = (path, body, headers) => ask(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json", ...headers } });

  // Server-sent events over fetch, which can send a token in a header. Comes back after the last number that was seen.
  const follow = (path, { after, headers, heard, lost }) => {
    const stopping = new AbortController();
    const run = async () => {
      let seen = after, wait_ms = 500;
      while (!stopping.signal.aborted) {
        try {
          const sent = { Accept: "text/event-stream", ...(headers ? headers() : {}) };
          if (seen) sent["Last-Event-ID"] = seen;
          const response = await fetch(path, { headers: sent, signal: stopping.signal, cache: "no-store" });
          if (!response.ok) { await answered(response); continue; }
          wait_ms = 500;
          const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
          let text = "";
          for (;;) {
            const { value, done } = await reader.read();
            if (done) break;
            text += value;
            const blocks = text.split("\n\n");
            text = blocks.pop();
            for (const block of blocks) {
              let kind = "message", data = "";
              for (const line of block.split("\n")) {
                if (line.startsWith("id: ")) seen = line.slice(4);
                else if (line.startsWith("event: ")) kind = line.slice(7);
                else if (line.startsWith("data: ")) data += line.slice(6);
              }
              if (data) heard(kind, JSON.parse(data), seen);
            }
          }
        } catch (problem) {
          if (stopping.signal.aborted) return;
          if (lost) lost(problem);
          if (problem.status === 401 || problem.status === 404) return;
        }
        await new Promise((go) => setTimeout(go, wait_ms));
        wait_ms = Math.min(2 * wait_ms, 8000);
      }
    };
    run();
    return () => stopping.abort();
  };

  const live = {
    isLive: true,
    things: () => ask("api/things"),
    task: (task) => post("api/task", task).then((found) => { if (found.error) throw new Problem(found.error, found.hint); return found.answer; }),
    runs: () => ask("api/runs").then((found) => found.runs),
    run: (name) => ask("api/run" + query({ name })),
    curve: (name) => ask("api/curve" + query({ name })),
    timeline: (name, from, to) => ask("api/timeline" + query({ name, from, to })),
    follow: (name, after, heard, lost) => follow("api/run/events" + query({ name }), { after, heard, lost }),
  };

  const inReport = (report) => {
    const named = (list, name) => list.find((each) => each.name === name) || list[0];
    const inWindow = (windows, from, to) => {
      const holds = (each) => each.from_s <= from + 1e-6 && each.to_s >= to - 1e-6;
      const fine = windows.find((each) => each.spans && holds(each));
      if (fine) return { ...fine, from_s: from, to_s: to, spans: fine.spans.filter((span) => span[3] > from && span[2] < to) };
      const whole = windows.find((each) => each.bins) || windows[0];
      return whole;
    };
    return {
      isLive: false,
      report,
      things: async () => ({
        version: report.version, problems: report.plans.map((each) => each.name), workloads: report.simulations.map((each) => each.name),
        runs: report.runs.length > 0, daemon: false, plans: report.plans.length > 0,
      }),
      planned: (name) => named(report.plans, name),
      simulated: (name) => named(report.simulations, name),
      runs: async () => report.runs.map((each) => ({ ...each.facts, name: each.name, note: each.note })),
      run: async (name) => named(report.runs, name).facts,
      curve: async (name) => ({ name, ...named(report.runs, name).facts.curves }),
      timeline: async (name, from, to) => inWindow(named(report.runs, name).windows, from, to),
      follow: () => () => {},
    };
  };

  // The daemon's own API, behind its token: held here and in no other place, unless its user has this tab keep it.
  let token = "";
  const KEPT = "dovetail-token";
  const authorization = () => (token ? { Authorization: "Bearer " + token } : {});
  D.daemon = {
    hasToken: () => { if (!token) { try { token = sessionStorage.getItem(KEPT) || ""; } catch { token = ""; } } return token !== ""; },
    useToken: (text, keep) => {
      token = text.trim();
      try { if (keep && token) sessionStorage.setItem(KEPT, token); else sessionStorage.removeItem(KEPT); } catch { /* then it is not kept */ }
    },
    get: (path) => ask(path, { headers: authorization() }),
    post: (path, body) => post(path, body, authorization()),
    follow: (after, heard, lost) => follow("/v1/stream", { after, headers: authorization, heard, lost }),
  };
  D.Problem = Problem;
  const embedded = document.getElementById("report");
  D.source = embedded ? inReport(JSON.parse(embedded.textContent)) : live;
})();
