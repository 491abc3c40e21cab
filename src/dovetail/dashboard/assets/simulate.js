"use strict";
// A workload under several policies, side by side, played over time.
(() => {
  const W = D.words;
  const show = async (root, things, name) => {
    const names = [...things.workloads, ...[...D.dropped.keys()].filter((each) => D.workloads.has(each) && !things.workloads.includes(each))];
    const chosen = names.includes(name) ? name : names[0];
    const body = D.el("div");
    D.clear(root, D.el("div.head", null, D.el("div.grow", null, D.el("h1", { text: chosen || "Simulate" })),
      names.length > 1 ? D.select("Workload", names.map((each) => [each, each]), chosen, (each) => D.go("simulate", each)) : null,
      D.source.isLive ? D.fileButton("Open a workload") : null), body);
    if (!chosen) {
      D.clear(body, D.card("No workload is open", D.el("p", { text: "Open a workload, JSON or TOML, or drop one on this page: the nodes of a cluster, and the jobs that share it." }), D.el("p.note", { text: "From the command line: dovetail dashboard WORKLOAD" })));
      return null;
    }
    let workload, stopped = false;
    const trials = new Map();
    const kept = D.source.isLive ? null : D.source.simulated(chosen);
    if (kept) { workload = kept.workload; for (const [policy, trial] of Object.entries(kept.trials)) trials.set(policy, trial); }
    else workload = await D.source.task(D.asked(chosen, { do: "describe" }));
    if (workload.kind !== "workload") { D.go("plan", chosen); return null; }

    const ticked = new Set(workload.first_policies), said = D.el("p.note"), outcome = D.el("div"), pictures = D.el("div");
    let playing = null, at = null, speed = 1;
    const shown = new Map();
    const end = () => Math.max(1, ...[...trials.values()].map((trial) => trial.makespan_s + begin));
    const begin = Math.min(...workload.jobs.map((job) => job.submit_s));
    const slider = D.el("input", { type: "range", min: 0, max: 1000, value: "1000", "aria-label": "Moment", on: { input: () => { halt(); go(begin + Number(slider.value) / 1000 * (end() - begin)); } } });
    const moment = D.el("span.muted");
    const table = () => {
      const best = Math.min(...[...trials.values()].map((trial) => trial.mean_jct_s));
      const rows = [...trials.entries()].sort((a, b) => a[1].mean_jct_s - b[1].mean_jct_s);
      D.clear(outcome, rows.length ? D.card("What came of it", D.table("The least mean completion time first", ["policy", "#mean", "#× the least", "#median", "#p99", "#makespan", "#restarts", "#workers held", "#a decision"],
        rows.map(([policy, trial]) => [policy, W.seconds(trial.mean_jct_s), W.times(trial.mean_jct_s / best), W.seconds(trial.p50_jct_s), W.seconds(trial.p99_jct_s), W.seconds(trial.makespan_s), W.count(trial.restarts), W.percent(trial.utilization), W.seconds(trial.decision_s_mean)]), (row) => row === 0)) : null);
    };
    const counts = (trial, now) => {
      let waits = 0, works = 0, done = 0, spent = 0;
      const submitted = new Map(workload.jobs.map((job) => [job.id, job.submit_s]));
      for (const job of trial.jobs) {
        if (submitted.get(job.id) > now) continue;
        if (job.finish_s <= now) { done++; spent += job.finish_s - submitted.get(job.id); } else if (job.start_s <= now) works++; else waits++;
      }
      return `${done} done, ${works} begun, ${waits} wait` + (done ? `; so far ${W.seconds(spent / done)} a job` : "");
    };
    const go = (now) => {
      at = Math.max(begin, Math.min(end(), now));
      slider.value = String(Math.round(1000 * (at - begin) / (end() - begin)));
      slider.setAttribute("aria-valuetext", W.seconds(at - begin));
      moment.textContent = W.moment(at - begin) + " of " + W.moment(end() - begin);
      for (const [policy, { picture, words }] of shown) { picture.play(at >= end() ? null : at); words.textContent = counts(trials.get(policy), at); }
    };
    const halt = () => { if (playing) cancelAnimationFrame(playing); playing = null; button.textContent = "Play"; };
    const button = D.button("Play", () => {
      if (playing) { halt(); return; }
      if (at === null || at >= end()) go(begin);
      let before = performance.now();
      button.textContent = "Pause";
      const step = (now) => {
        go(at + (now - before) / 1000 * speed * (end() - begin) / 20);
        before = now;
        if (at >= end()) { halt(); return; }
        playing = requestAnimationFrame(step);
      };
      playing = requestAnimationFrame(step);
    });
    const hues = new Map(workload.jobs.map((job, at) => [job.id, at]));
    const draw = () => {
      table();
      shown.clear();
      const cards = [...trials.entries()].map(([policy, trial]) => {
        const picture = D.allocation({ label: `Workers held by jobs under ${policy}; arrow keys read it`, height: 96 });
        const words = D.el("p.note");
        shown.set(policy, { picture, words });
        return D.card(policy, words, picture.node, trial.changes.length < trial.all_changes ? D.el("p.note", { text: `${W.count(trial.changes.length)} of ${W.count(trial.all_changes)} changes are drawn` }) : null);
      });
      D.clear(pictures, trials.size ? D.card("Played over time", D.el("div.play", null, button, slider, moment, D.select("Speed", [["1", "20 s"], ["4", "5 s"], ["0.25", "80 s"]], String(speed), (each) => { speed = Number(each); }))) : null, cards);
      for (const [policy, { picture }] of shown) picture.set({ capacity: workload.capacity, changes: trials.get(policy).changes, from: begin, to: end(), at: null, hues });
      if (trials.size) go(end());
    };
    const run = D.button("Simulate", async () => {
      run.disabled = true;
      halt();
      for (const policy of [...trials.keys()]) if (!ticked.has(policy)) trials.delete(policy);
      for (const policy of workload.policies.filter((each) => ticked.has(each))) {
        if (stopped) return;
        if (trials.has(policy)) continue;
        said.textContent = `simulating ${policy} …`;
        try { trials.set(policy, await D.source.task(D.asked(chosen, { do: "simulate", policy }))); } catch (problem) { said.textContent = `${policy}: ${problem.message}`; D.say(`${policy}: ${problem.message}`); continue; }
        if (stopped) return;
        draw();
      }
      said.textContent = "";
      run.disabled = false;
      root.dataset.simulated = String(trials.size);
    });
    const total = Object.entries(workload.capacity).map(([type, count]) => `${W.count(count)} ${type}`).join(" + ");
    D.clear(body, kept && kept.note ? D.el("p", { text: kept.note }) : null, D.card(`${W.plural(workload.jobs.length, "job")} on ${total}`,
      kept ? null : [D.el("div.checks", { role: "group", "aria-label": "Policies" }, workload.policies.map((policy) => D.el("label", null, D.el("input", { type: "checkbox", checked: ticked.has(policy), on: { change: (event) => { if (event.target.checked) ticked.add(policy); else ticked.delete(policy); } } }), policy))),
        D.el("div.buttons", null, run, said)]), outcome, pictures);
    if (kept) draw(); else run.click();
    return () => { stopped = true; halt(); };
  };
  D.views.simulate = show;
})();
