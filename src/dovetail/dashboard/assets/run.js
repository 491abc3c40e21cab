"use strict";
// A run as it goes on or as it went: curves, workers, stages, servers, timeline, tables, links, what was foretold.
(() => {
  const W = D.words;
  const MOST_POINTS = 2500;
  const STATES = { running: ["Live", "good.live"], done: ["Done", "good"], stopped: ["Stopped", "warn"], "not begun": ["Not begun", "warn"], unknown: ["Not known", "warn"] };
  const badge = (state) => { const [text, kind] = STATES[state] || [state, "warn"]; return D.el("span.badge." + kind, { text }); };
  const isFault = (text) => /\b(died|ended|lost|gone|silent|killed|goes back|came back|gave back|begins again|done again|alive, but|waits for the others|not started)\b/.test(text);

  const show = async (root, things, name) => {
    const runs = await D.source.runs();
    if (!runs.length) {
      D.clear(root, D.el("h1", { text: "Run" }), D.card("There is no run yet", D.el("p", { text: "Train one, and it appears here while it goes on: dovetail train ctr-dnn" }),
        D.el("p.note", { text: "dovetail dashboard RUN shows a run, dovetail dashboard FOLDER all runs in a folder." })));
      const timer = setInterval(async () => { try { if ((await D.source.runs()).length) { clearInterval(timer); D.go("run"); } } catch { /* it is asked again */ } }, 2000);
      return () => clearInterval(timer);
    }
    if (name === undefined && runs.length > 1) return showAll(root, runs);
    const chosen = runs.some((each) => each.name === name) ? name : runs[0].name;
    return showOne(root, runs, chosen);
  };

  // -- side by side ---------------------------------------------------------------------------------------------------
  const showAll = (root, runs) => {
    let stopped = false, by = "ran_s";
    const ticked = new Set(runs.slice(0, 4).map((each) => each.name));
    const list = D.el("div"), pictures = D.el("div");
    const kept = new Map();
    const draw = async () => {
      D.clear(list, D.table("Runs, the newest first; those that are ticked are drawn", ["run", "", "drawn", "model", "mode", "#workers", "#samples", "#samples/s", "#loss", "#AUC", "#ran", "begun"],
        runs.map((each) => [
          D.el("a", { href: "#run/" + encodeURIComponent(each.name), text: each.name }), badge(each.state),
          D.el("input", { type: "checkbox", checked: ticked.has(each.name), "aria-label": "draw " + each.name, on: { change: (event) => { if (event.target.checked) ticked.add(each.name); else ticked.delete(each.name); drawCurves(); } } }),
          each.model || "–", each.mode || "–", each.workers ? String(each.workers) : "–", W.count(each.samples), W.count(each.mean_samples_per_s), W.figure(each.loss), W.figure(each.auc), W.seconds(each.ran_s), W.day(each.begun_unix_s)])));
    };
    const charts = [["samples_per_s", "Samples per second", W.count], ["loss", "Loss", W.figure], ["auc", "AUC", W.figure]].map(([key, title, words]) => ({ key, chart: D.curve({ title, show: words, across: (v) => (by === "ran_s" ? W.seconds(v) : W.count(v)) }) }));
    // A run that went back to a checkpoint saw some samples twice: over samples, what came of it last counts.
    const line = (curve, key) => {
      const points = [];
      for (let at = curve[by].length - 1, least = Infinity; at >= 0; at--) if (W.known(curve[by][at]) && curve[by][at] < least) { least = curve[by][at]; points.push(at); }
      points.reverse();
      return { name: curve.name, x: points.map((at) => curve[by][at]), y: points.map((at) => curve[key][at]) };
    };
    const drawCurves = async () => {
      const wanted = runs.filter((each) => ticked.has(each.name)).slice(0, 12);
      for (const each of wanted) if (!kept.has(each.name)) { try { kept.set(each.name, { ...(await D.source.curve(each.name)), name: each.name }); } catch { /* it is gone */ } }
      if (stopped) return;
      const curves = wanted.map((each) => kept.get(each.name)).filter(Boolean);
      for (const { key, chart } of charts) chart.set(curves.map((curve) => line(curve, key)));
    };
    D.clear(pictures, D.el("div.buttons", null, D.el("span.muted", { text: "Across: " }), D.select("Across", [["ran_s", "the time it ran"], ["samples", "samples"]], by, (each) => { by = each; drawCurves(); })),
      D.el("div.grid", null, charts.map(({ chart }) => chart.card)));
    D.clear(root, D.el("div.head", null, D.el("h1", { text: "Runs side by side" })), D.card(null, list), pictures);
    draw();
    requestAnimationFrame(drawCurves);
    const timer = D.source.isLive ? setInterval(async () => {
      try {
        runs = await D.source.runs();
        if (stopped) return;
        if (!list.contains(document.activeElement)) draw();
        for (const each of runs) if (each.state === "running") kept.delete(each.name);
        if (runs.some((each) => each.state === "running" && ticked.has(each.name))) drawCurves();
      } catch { /* it is asked again */ }
    }, 4000) : null;
    return () => { stopped = true; clearInterval(timer); };
  };

  // -- one run --------------------------------------------------------------------------------------------------------
  const showOne = async (root, runs, name) => {
    let stopped = false, run = null, timeline = null, looked_s = 0, stopFollowing = () => {}, due = null;
    const head = D.el("div"), problem = D.el("div"), figures = D.el("div"), curves = D.el("div.grid"), middle = D.el("div"), still = D.el("div");
    const charts = {};
    const chart = (key, title, words, unit) => (charts[key] = charts[key] || D.curve({ title, unit, show: words, across: W.seconds }));
    const marks = () => run.happened.filter((each) => W.known(each.ran_s)).map((each) => ({ at: each.ran_s, unix_s: each.unix_s, text: each.text, isFault: isFault(each.text) }))
      .concat(run.replanned.filter((each) => W.known(each.ran_s)).map((each) => ({ at: each.ran_s, isFault: true })));

    const drawHead = () => {
      const state = D.el("span", { id: "run-state" }, badge(run.state));
      D.clear(head, D.el("div.head", null, D.el("div.grow", null, D.el("h1", null, name, " ", state),
        D.el("div.note", { text: [run.model, run.mode, run.optimizer, run.batch ? "batch " + W.count(run.batch) : null, run.place ? "rows: " + run.place : null, run.id].filter(Boolean).join(" · ") })),
      runs.length > 1 ? D.el("a.button.quiet", { href: "#run", text: "All runs" }) : null,
      runs.length > 1 ? D.select("Run", runs.map((each) => [each.name, each.name]), name, (each) => D.go("run", each)) : null,
      run.has_plan && D.source.isLive ? D.el("a.button.quiet", { href: "#plan/" + encodeURIComponent(name + "/problem.json"), text: "Its plan" }) : null),
      progress);
      drawProgress();
    };
    const progress = D.el("div");
    const drawProgress = () => {
      const part = run.total_samples ? run.samples / run.total_samples : null;
      D.clear(progress, part === null ? null : D.el("div.card", null, D.progress(part, "samples done"), D.el("div.note", { text: `${W.count(run.samples)} of ${W.count(run.total_samples)} samples, ${W.percent(part, 0)}` })));
    };
    const drawFigures = () => {
      const line = run.figures || {}, last = run.summary || line;
      D.clear(figures, D.tiles([
        ["speed", W.count(run.state === "running" ? line.samples_per_s : run.mean_samples_per_s), run.state === "running" ? "samples/s now" : "samples/s while it trained"],
        ["loss", W.figure(last.loss), "of the last seconds"],
        ["AUC", W.figure(last.auc), "of the last seconds"],
        ...Object.entries(line.metrics || {}).map(([key, value]) => [key, W.figure(value), ""]),
        ["step", W.count(line.step), W.known(line.epoch) && run.samples !== run.total_samples ? "epoch " + (line.epoch + 1) : ""],
        ["ran", W.seconds(run.ran_s), run.begun_unix_s ? "since " + W.day(run.begun_unix_s) : ""],
        W.known(line.gradient_norm) ? ["gradient norm", W.figure(line.gradient_norm, 3), "of the last step"] : null,
        W.known(line.learning_rate) ? ["learning rate", W.figure(line.learning_rate, 3), ""] : null,
      ]));
    };
    const drawCurves = () => {
      const columns = run.curves, x = columns.ran_s, all = marks();
      chart("samples_per_s", "Samples per second", W.count).set([{ name: "samples/s", x, y: columns.samples_per_s }], all);
      chart("loss", "Loss", W.figure).set([{ name: "loss", x, y: columns.loss }], all);
      if (columns.auc.some(W.known)) chart("auc", "AUC", W.figure).set([{ name: "AUC", x, y: columns.auc }], all);
      for (const [key, column] of Object.entries(run.metric_curves)) if (column.some(W.known)) chart("metric " + key, key, W.figure).set([{ name: key, x, y: column }], all);
      const cards = Object.values(charts).map((each) => each.card);
      if (curves.childElementCount !== cards.length) D.clear(curves, cards);
    };
    const stageOf = (worker) => {
      const found = run.worker_facts.find((each) => worker === each.name || (each.name && worker.startsWith(each.name + "-")));
      return found && W.known(found.stage) ? found.stage : null;
    };
    const drawMiddle = () => {
      const line = run.figures || {}, whole = run.state !== "running" && run.summary;
      const workers = Object.entries((whole ? run.summary.workers : line.workers) || {}).sort((a, b) => (a[0] < b[0] ? -1 : 1));
      const staged = run.worker_facts.some((each) => each.stage > 0);
      const speed = (worker) => (whole ? worker.samples / worker.busy_s : worker.samples_per_s);
      const dataPart = (worker) => (whole ? worker.data_s / Math.max(1e-9, worker.busy_s + worker.idle_s) : worker.data);
      const lists = [];
      lists.push(D.card("Workers", workers.length ? D.table(whole ? "Over the whole run" : "Over the last eight seconds", ["worker", ...(staged ? ["stage"] : []), "#share", "#samples/s while busy", "#idle", "#waits for data", "#rows kept"],
        workers.map(([key, worker]) => [key, ...(staged ? [stageOf(key) === null ? "–" : String(stageOf(key) + 1)] : []), D.meter(worker.share, W.percent(worker.share)), W.count(speed(worker)), D.meter(worker.idle, W.percent(worker.idle)), W.percent(dataPart(worker)),
          whole ? (worker.looked_up_rows ? W.percent(worker.kept_rows / worker.looked_up_rows) : "–") : W.percent(worker.kept)]))
        : D.el("p.note", { text: "No worker has done anything yet." })));
      const stages = run.summary && run.summary.stages.length ? run.summary.stages : null;
      if (stages) {
        const total = stages.reduce((sum, each) => sum + each.busy_s, 0);
        lists.push(D.card("Stages", D.table("Over the whole run", ["stage", "on", "layers", "#workers", "#samples", "#busy", "#of all work"],
          stages.map((each, at) => [String(at + 1), each.resource, `${each.first_layer + 1}–${each.last_layer + 1}`, String(each.workers), W.count(each.samples), W.seconds(each.busy_s), D.meter(each.busy_s / total, W.percent(each.busy_s / total))]))));
      }
      const servers = Object.entries((whole ? run.summary.servers : line.servers) || {});
      if (servers.length) lists.push(D.card("Servers", D.table("Since they were started", ["server", "#rows", "#updates", "#busy", "#on the log", "#log"], servers.map(([key, each]) => [key, W.count(each.rows), W.count(each.pushed_keys), W.seconds(each.busy_s), W.seconds(each.log_s), W.bytes(each.log_bytes)]))));
      D.clear(middle, D.el("div.grid.wider", null, lists));
    };
    const linkRows = () => {
      const found = new Map(Object.entries((run.summary && run.summary.links) || {}).map(([key, each]) => [key, { bits: each.bits, gain: each.gain, changes: each.changes }]));
      if (!found.size) for (const each of run.widths) {
        const key = `${each.worker} ${each.link}`, before = found.get(key) || { changes: 0 };
        found.set(key, { bits: each.bits, gain: each.gain, changes: before.changes + (each.before !== each.bits ? 1 : 0) });
      }
      return [...found.entries()];
    };
    const drawStill = () => {
      const cards = [], missing = [];
      if (run.parts) cards.push(D.card("Predicted and measured",
        D.el("p", null, `Predicted ${W.count(run.parts.predicted_samples_per_s)} samples/s, measured ${W.count(run.parts.measured_samples_per_s)}: ${W.times(run.parts.measured_samples_per_s / run.parts.predicted_samples_per_s)}.`),
        D.table("Seconds for a batch", ["part", "#cores", "#predicted", "#measured", "#measured / predicted"], run.parts.parts.map((each) => [each.part, W.known(each.cores) ? String(each.cores) : "–", W.seconds(each.predicted_seconds_per_batch), W.seconds(each.measured_seconds_per_batch), W.times(each.measured_seconds_per_batch / each.predicted_seconds_per_batch)]))));
      else missing.push("predicted against measured: the run had no plan (dovetail run, or dovetail train --plan)");
      const tables = (run.summary && run.summary.tables) || [];
      if (tables.length) cards.push(D.card("Tables and their tiers", D.table("Where rows ended, and how many look-ups found theirs on the device", ["table", "#on the device", "#in memory", "#on disk", "#found on the device", "#came up", "#went down"],
        tables.map((each, at) => [(run.tables[at] && run.tables[at].name) || "table " + (at + 1), W.count(each.device_rows), W.count(each.host_rows), W.count(each.disk_rows), D.meter(each.hit_ratio, W.percent(each.hit_ratio)), W.count(each.lifted), W.count(each.lowered)]))));
      else missing.push("tiers and hit rates of tables: they are in the summary of a run whose rows lie on a device" + (run.summary ? "" : ", once it is over"));
      const links = linkRows();
      if (links.length) cards.push(D.card("Bits on each link", D.table("As chosen last", ["link", "#bits", "#times as fast", "#changes"], links.map(([key, each]) => [key, String(each.bits), W.times(each.gain), String(each.changes)]))));
      else missing.push("bits on links: no width was chosen (compression in the run file)");
      if (run.validated.length) cards.push(D.card("Tried on other data", D.table("Each time the model was validated", ["#step", ...Object.keys(run.validated[0]).filter((key) => typeof run.validated[0][key] === "number" && !["step", "unix_s", "ran_s"].includes(key)).map((key) => "#" + key)],
        run.validated.map((each) => [W.count(each.step), ...Object.keys(run.validated[0]).filter((key) => typeof run.validated[0][key] === "number" && !["step", "unix_s", "ran_s"].includes(key)).map((key) => W.figure(each[key]))]))));
      if (run.replanned.length) cards.push(D.card("Planned again", D.el("ul", null, run.replanned.map((each) => D.el("li", { text: Object.entries(each).filter(([, value]) => typeof value !== "object").map(([key, value]) => `${key.replaceAll("_", " ")}: ${typeof value === "number" ? W.figure(value) : value}`).join(", ") })))));
      if (run.happened.length) cards.push(D.card("What happened", D.el("ol.happened", { tabindex: "0" }, [...run.happened].reverse().map((each) => D.el("li", null, D.el("span.when", { text: W.clock(each.unix_s) }), D.el("span" + (isFault(each.text) ? ".fault" : ""), { text: each.text }))))));
      if (run.timeline) timeline = timeline || D.timeline(name, run.timeline, marks); else missing.push("a timeline: train with --timeline FILE.html, which keeps what every worker does");
      D.clear(still, timeline ? timeline.card : null, D.el("div.grid.wider", null, cards), missing.length ? D.card("Not in this run's folder", D.el("ul.note", null, missing.map((each) => D.el("li", { text: each })))) : null);
    };
    const drawAll = () => { drawHead(); drawFigures(); drawCurves(); drawMiddle(); drawStill(); };
    const load = async () => {
      run = await D.source.run(name);
      if (stopped) return;
      drawAll();
      stopFollowing();
      stopFollowing = D.source.follow(name, run.at, heard, (problemFound) => D.clear(problem, D.el("p.note", { text: problemFound.message + "; it is asked again" })));
    };
    let dirty = new Set();
    const soon = (...what) => {
      for (const each of what) dirty.add(each);
      if (due) return;
      due = setTimeout(() => {
        due = null;
        if (stopped) return;
        const now = dirty;
        dirty = new Set();
        if (now.has("progress")) drawProgress();
        if (now.has("figures")) { drawFigures(); drawCurves(); drawMiddle(); }
        if (now.has("still")) drawStill();
      }, 200);
    };
    const heard = (kind, data) => {
      D.clear(problem);
      root.dataset.events = String(Number(root.dataset.events || 0) + 1);
      if (kind === "reset") { load(); return; }
      if (kind === "figures") {
        run.figures = data;
        run.samples = data.samples; run.total_samples = data.total_samples; run.ran_s = data.ran_s;
        for (const [key, column] of Object.entries(run.curves)) column.push(W.known(data[key]) ? data[key] : null);
        for (const key of Object.keys(data.metrics || {})) if (!run.metric_curves[key]) run.metric_curves[key] = new Array(run.curves.ran_s.length - 1).fill(null);
        for (const [key, column] of Object.entries(run.metric_curves)) column.push((data.metrics || {})[key] ?? null);
        if (run.curves.ran_s.length > MOST_POINTS) { load(); return; }
        if (timeline && data.ran_s - looked_s >= 2) { looked_s = data.ran_s; timeline.refresh(); }
        soon("progress", "figures");
      } else if (kind === "state") { if (data.state !== run.state) load(); }
      else {
        ({ happened: run.happened, width: run.widths, validated: run.validated, replanned: run.replanned })[kind].push(data);
        soon("figures", "still");
      }
    };
    D.clear(root, head, problem, figures, curves, middle, still);
    await load();
    return () => { stopped = true; stopFollowing(); clearTimeout(due); };
  };
  D.views.run = show;
})();
