"use strict";
// A daemon's cluster: who holds what, who waits, what was decided; jobs submitted, resized and cancelled with its token.
(() => {
  const W = D.words;
  const STATES = { queued: "warn", running: "good.live", done: "good", failed: "alarm", cancelled: "" };
  const badge = (state) => D.el("span.badge" + (STATES[state] ? "." + STATES[state] : ""), { text: state });
  const MOST_EVENTS = 20000, MOST_ROWS = 200;
  // The words of a command line: quotes keep spaces together.
  const wordsOf = (text) => [...text.matchAll(/"((?:[^"\\]|\\.)*)"|'([^']*)'|(\S+)/g)].map(([, double, single, plain]) => (double !== undefined ? double.replace(/\\(.)/g, "$1") : single !== undefined ? single : plain));

  const show = async (root) => {
    if (!D.daemon.hasToken()) return askToken(root, null);
    try { await D.daemon.get("/v1/cluster"); } catch (problem) { if (problem.status === 401) { D.daemon.useToken("", false); return askToken(root, problem); } throw problem; }
    return showCluster(root);
  };

  const askToken = (root, problem) => {
    const field = D.el("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false" });
    const keep = D.el("input", { type: "checkbox", id: "keep" });
    const use = (event) => { event.preventDefault(); if (field.value.trim()) { D.daemon.useToken(field.value, keep.checked); field.value = ""; D.go("cluster"); } };
    D.clear(root, D.el("div.head", null, D.el("h1", { text: "Cluster" })), problem ? D.error(problem) : null,
      D.card("The daemon asks for its token", D.el("p", { text: "It is in the file `token` in the daemon's folder. The page keeps it until it is closed, and sends it in a header alone." }),
        D.el("form.form", { on: { submit: use } }, D.el("div", null, D.el("label", { for: "token", text: "Token" }), field), D.el("button", { type: "submit", text: "Use it" }),
          D.el("div.full.checks", null, D.el("label", null, keep, "keep it for this tab, through reloads")))));
    field.focus({ preventScroll: true });
    return null;
  };

  const showCluster = async (root) => {
    let stopped = false, events = [], jobs = [], cluster = null, decision = null, ahead_s = 0, due = null;
    const problem = D.el("div"), top = D.el("div"), list = D.el("div.jobs"), lower = D.el("div"), log = D.el("div");
    const allocation = D.allocation({ label: "Workers held by jobs over time; arrow keys read it", height: 130 });
    const now_s = () => Date.now() / 1000 + ahead_s;

    const drawTop = () => {
      const held = cluster.types.reduce((sum, each) => sum + each.held, 0), all = cluster.types.reduce((sum, each) => sum + each.workers, 0);
      D.clear(top, D.tiles([
        ["workers held", `${W.count(held)} of ${W.count(all)}`, cluster.types.map((each) => `${each.type} ${each.held}/${each.workers}`).join(", ")],
        ["running", W.count(cluster.jobs.running), "jobs"], ["waiting", W.count(cluster.jobs.queued), "jobs"],
        ["over", W.count(cluster.jobs.done), `done; ${W.count(cluster.jobs.failed)} failed, ${W.count(cluster.jobs.cancelled)} cancelled`],
        ["policy", cluster.policy, cluster.drain === "off" ? "" : "drained: nothing starts"],
        ["up", W.seconds(cluster.up_s), ""]]));
    };
    const act = async (words, ask) => { try { await ask(); D.say(words); } catch (found) { D.say(found.message + (found.hint ? "; " + found.hint : "")); } refresh(); };
    const named = (button, name) => { button.setAttribute("aria-label", name); return button; };
    const row = (job) => {
      const isOpen = job.state === "queued" || job.state === "running";
      const size = D.el("input", { type: "number", min: 1, step: 1, value: job.pinned ? String(job.pinned) : "", "aria-label": "workers of " + job.id, placeholder: "policy" });
      const resize = () => { const workers = size.value === "" ? null : Number(size.value); act(workers === null ? `${job.id} is the policy's again` : `${job.id} is held to ${workers}`, () => D.daemon.post(`/v1/jobs/${encodeURIComponent(job.id)}/resize`, { workers })); };
      return [D.button(job.id, () => showJob(job.id), "link"), badge(job.state), job.type ? `${job.workers} ${job.type}` : "–",
        W.known(job.total) && job.total > 0 ? D.meter(job.done / job.total, W.percent((job.done || 0) / job.total, 0)) : W.known(job.done) ? W.count(job.done) : "–",
        W.count(job.samples_per_s), W.figure(job.loss), job.user || "–", W.figure(job.priority, 3), W.day(job.submitted_s),
        isOpen ? D.el("div.buttons", null, size, named(D.button("Resize", resize, "quiet.small"), "Resize " + job.id),
          named(D.button("Cancel", () => { if (confirm(`Cancel ${job.id}?`)) act(`${job.id} is cancelled`, () => D.daemon.post(`/v1/jobs/${encodeURIComponent(job.id)}/cancel`, {})); }, "quiet.small"), "Cancel " + job.id))
          : job.error ? D.el("span.note", { text: job.error }) : ""];
    };
    const COLUMNS = ["job", "state", "holds", "#done", "#samples/s", "#loss", "user", "#priority", "submitted", ""];
    const drawJobs = () => {
      if (list.contains(document.activeElement) && /INPUT/.test(document.activeElement.tagName)) return;
      const open = jobs.filter((job) => job.state === "running"), queue = jobs.filter((job) => job.state === "queued");
      const over = jobs.filter((job) => !["running", "queued"].includes(job.state)).reverse();
      const part = (title, caption, rows) => D.card(title, rows.length ? D.table(caption, COLUMNS, rows.slice(0, MOST_ROWS).map(row)) : D.el("p.note", { text: "none" }), rows.length > MOST_ROWS ? D.el("p.note", { text: `${W.count(rows.length - MOST_ROWS)} more are not shown` }) : null);
      D.clear(list, part("Running", "Jobs that hold workers", open), part("Queue", "Jobs that wait, in the order of their submission", queue), over.length ? part("Over", "The last first", over) : null);
    };
    const shownEvents = () => events.filter((event) => ["started", "resized", "done", "failed", "cancelled", "stopped", "lost", "queued"].includes(event.what) || event.workers !== null);
    const drawAllocation = () => {
      if (!cluster) return;
      const changes = [], held = new Set();
      for (const event of events) {
        if (!event.job) continue;
        if (event.what === "started" || event.what === "resized") { changes.push([event.t_s, event.job, event.type, event.workers]); held.add(event.job); }
        else if (held.has(event.job) && !["submitted", "pinned", "unpinned", "told", "cancel"].includes(event.what)) { changes.push([event.t_s, event.job, event.type || "", 0]); held.delete(event.job); }
      }
      const to = now_s(), from = Math.min(to - 60, changes.length ? Math.max(changes[0][0], to - span) : to - 60);
      const inside = changes.map(([t, ...rest]) => [Math.max(t, from), ...rest]);
      allocation.set({ capacity: Object.fromEntries(cluster.types.map((each) => [each.type, each.workers])), changes: inside, from, to, tick: W.clock });
    };
    let span = 3600;
    const drawLog = () => D.clear(log, D.card("What was decided, and what happened", D.el("ol.happened", { tabindex: "0" }, events.slice(-300).reverse().map((event) => D.el("li", null, D.el("span.when", { text: W.clock(event.t_s) }),
      D.el("span" + (event.what === "failed" ? ".fault" : ""), { text: [event.job || "the daemon", event.what, W.known(event.workers) ? `${event.workers} ${event.type || ""}` : "", event.detail ? `(${event.detail})` : ""].filter(Boolean).join(" ") }))))));
    const drawDecision = () => {
      if (!decision || !decision.jobs) { D.clear(lower); return; }
      const curve = (speeds) => Object.entries(speeds).map(([type, sizes]) => `${type} ` + Object.entries(sizes).map(([size, value]) => `${size}: ${W.count(value)}`).join(", ")).join("; ");
      D.clear(lower, D.card("The last decision", D.el("p.note", { text: `${W.clock(decision.t_s)}, by ${decision.policy} in ${W.seconds(decision.seconds)}: ${decision.why}. What it went by: the work that is left and the speed on each size, as told, measured or guessed; before anything was measured one worker counts as 1.` }),
        D.table("What the policy was told of each job, and what it answered", ["job", "held", "answer", "#left, at what it has", "speed by size"],
          decision.jobs.map((each) => [each.id, each.workers ? `${each.workers} ${each.type}` : "–", each.wanted_workers ? `${each.wanted_workers} ${each.wanted_type}` : each.workers ? "stops" : "waits", W.seconds(each.left_s), curve(each.speeds)]))));
    };
    const showJob = async (id) => {
      try {
        const [job, text] = await Promise.all([D.daemon.get("/v1/jobs/" + encodeURIComponent(id)), D.daemon.get(`/v1/jobs/${encodeURIComponent(id)}/log`)]);
        const dialog = D.el("dialog.card", { "aria-label": id }, D.el("h2", { text: id }), D.el("p.note", { text: job.folder }), job.error ? D.error({ error: job.error }) : null,
          D.el("details", null, D.el("summary", { text: "As it was submitted" }), D.el("pre", { tabindex: "0", text: JSON.stringify(job.submission, null, 1) })),
          D.el("h3", { text: "Its log, from the beginning" }), D.el("pre", { tabindex: "0", text: text.text || "it has said nothing" }), D.button("Close", () => dialog.close(), "quiet"));
        dialog.addEventListener("close", () => dialog.remove());
        root.append(dialog);
        dialog.showModal();
      } catch (found) { D.say(found.message); }
    };

    const field = (name, label, props) => D.el("div", { class: props && props.full ? "full" : null }, D.el("label", { for: "f-" + name, text: label }), D.el(props && props.full ? "textarea" : "input", { id: "f-" + name, name, type: props && props.full ? null : "text", rows: props && props.full ? 3 : null, spellcheck: "false", ...(props || {}), full: null }));
    const submit = async (event) => {
      event.preventDefault();
      const form = new FormData(event.target), text = (name) => (form.get(name) || "").trim(), job = { name: text("name") };
      try {
        const what = text("what");
        if (what.startsWith("{")) job.run = JSON.parse(what); else job.command = wordsOf(what);
        if (text("folder")) job.folder = text("folder");
        for (const name of ["min_workers", "max_workers", "priority"]) if (text(name)) job[name] = Number(text(name));
        if (text("user")) job.user = text("user");
        job.key = crypto.randomUUID ? crypto.randomUUID() : [...crypto.getRandomValues(new Uint8Array(16))].map((each) => each.toString(16).padStart(2, "0")).join("");
        const found = await D.daemon.post("/v1/jobs", job);
        D.clear(answer, D.el("p", { text: `${found.id} is submitted` }));
        refresh();
      } catch (found) { D.clear(answer, D.error(found instanceof SyntaxError ? { error: "the run file is no JSON: " + found.message, hint: "dovetail submit takes TOML" } : found)); }
    };
    const answer = D.el("div", { "aria-live": "polite" });
    const form = D.el("details.card", null, D.el("summary", { text: "Submit a job" }), D.el("form.form", { on: { submit } },
      field("name", "name", { required: true, pattern: "[A-Za-z0-9_][A-Za-z0-9_\\-]{0,47}" }), field("folder", "folder on the daemon's machine", { placeholder: "/" }), field("min_workers", "fewest workers", { type: "number", min: 1 }), field("max_workers", "most workers", { type: "number", min: 1 }), field("priority", "priority", { type: "number", step: "any", min: 0, placeholder: "1" }), field("user", "user"),
      field("what", "a command, or a run file as JSON: {\"model\": …}", { full: true, required: true, placeholder: "sleep 60" }), D.el("button", { type: "submit", text: "Submit" })), answer);

    const refresh = async () => {
      try {
        const [found, all] = await Promise.all([D.daemon.get("/v1/cluster"), D.daemon.get("/v1/jobs?last=2000")]);
        try { decision = await D.daemon.get("/v1/decision"); } catch { decision = null; }
        if (stopped) return;
        cluster = found; jobs = all.jobs;
        drawTop(); drawJobs(); drawAllocation(); drawDecision();
        D.clear(problem);
      } catch (found) { if (!stopped) { if (found.status === 401) { D.go("cluster"); return; } D.clear(problem, D.error(found)); } }
    };
    const soon = () => { if (!due) due = setTimeout(() => { due = null; if (!stopped) { refresh(); drawLog(); } }, 250); };
    D.clear(root, D.el("div.head", null, D.el("div.grow", null, D.el("h1", { text: "Cluster" })), D.button("Forget the token", () => { D.daemon.useToken("", false); D.go("cluster"); }, "quiet")),
      problem, top, D.card("Who held what", D.el("div.buttons", null, D.el("span.muted", { text: "The last " }), D.select("Span", [["600", "10 minutes"], ["3600", "hour"], ["86400", "day"], ["31536000", "year"]], String(span), (each) => { span = Number(each); drawAllocation(); })), allocation.node), form, list, lower, log);
    await refresh();
    const stopFollowing = D.daemon.follow("0", (kind, data, number) => {
      root.dataset.events = number;
      if (kind === "time") { ahead_s = data.unix_s - Date.now() / 1000; return; }
      if (kind !== "event") return;
      events.push(data);
      if (events.length > MOST_EVENTS) events = events.slice(-MOST_EVENTS / 2);
      soon();
    }, (found) => { if (found.status === 401) D.go("cluster"); else D.clear(problem, D.el("p.note", { text: found.message + "; it is asked again" })); });
    const timer = setInterval(refresh, 2000);
    return () => { stopped = true; stopFollowing(); clearInterval(timer); clearTimeout(due); };
  };
  D.views.cluster = show;
})();
