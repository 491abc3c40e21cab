"use strict";
// A problem and its plan: layers, stages, what they take; other prices, limits and speeds, planned again at once.
(() => {
  const W = D.words;
  const dropped = new Map();
  D.dropped = dropped;
  const asked = (name, more) => (dropped.has(name) ? { name, text: dropped.get(name), ...more } : { file: name, ...more });
  D.asked = asked;

  const strip = (problem, plan) => {
    const places = new Map(problem.types.map((type, at) => [type.name, at]));
    const grid = D.el("div.strip", { role: "img", "aria-label": "Layers in their stages: " + plan.stages.map((stage, at) => `stage ${at + 1}, ${stage.units} ${stage.resource}, layers ${stage.first_layer + 1} to ${stage.last_layer + 1}`).join("; ") });
    const count = problem.layers.length;
    grid.style.gridTemplateColumns = `repeat(${count}, minmax(${count > 40 ? 14 : 46}px, 1fr))`;
    plan.stages.forEach((stage, number) => {
      const colour = D.colour(places.get(stage.resource));
      for (let at = stage.first_layer; at <= stage.last_layer; at++) {
        const layer = problem.layers[at], seconds = layer.seconds[stage.resource];
        const cell = D.el("div.layer", { title: `${layer.name} (${layer.kind || "layer"}): ${W.seconds(seconds)} a batch on one ${stage.resource}` },
          count > 40 ? null : [D.el("b", { text: layer.name }), D.el("i", { text: W.seconds(seconds) })]);
        cell.style.background = colour;
        cell.style.color = D.inkOn(colour);
        cell.style.gridColumn = String(at + 1);
        cell.style.gridRow = "1";
        grid.append(cell);
      }
      const words = D.el("div.stage", null, D.el("b", { text: `${W.count(stage.units)} × ${stage.resource}` }), W.seconds(stage.seconds_per_batch),
        number === plan.bottleneck ? D.el("div.slow", { text: "bottleneck" }) : null);
      words.style.gridColumn = `${stage.first_layer + 1} / ${stage.last_layer + 2}`;
      words.style.gridRow = "2";
      words.style.borderTopColor = colour;
      grid.append(words);
    });
    return D.el("div.wide", { tabindex: "0", role: "region", "aria-label": "Layers and stages" }, grid);
  };

  const stageTable = (problem, plan) => D.table("Stages", ["stage", "runs on", "layers", "#units", "#a batch", "#samples/s", "#an hour", "#memory a unit"],
    plan.stages.map((stage, at) => {
      const layers = problem.layers.slice(stage.first_layer, stage.last_layer + 1);
      const colour = D.colour(problem.types.findIndex((type) => type.name === stage.resource));
      const names = layers.length > 2 ? `${layers[0].name} … ${layers[layers.length - 1].name} (${layers.length})` : layers.map((layer) => layer.name).join(", ");
      return [String(at + 1), D.el("span", null, D.dot(colour), " " + stage.resource + " ", at === plan.bottleneck ? D.el("span.badge.alarm", { text: "bottleneck" }) : null),
        names, W.count(stage.units), W.seconds(stage.seconds_per_batch), W.count(stage.samples_per_s), W.usd(stage.cost_per_hour),
        W.bytes(stage.memory_bytes) + (stage.memory_limit_bytes ? " of " + W.bytes(stage.memory_limit_bytes) : "")];
    }), (at) => at === plan.bottleneck);

  const tiles = (plan, problem) => {
    const memory = Math.max(...plan.stages.map((stage) => stage.memory_bytes));
    const more = plan.cost > 0 ? plan.cost / plan.lower_bound - 1 : 0;
    return D.tiles([
      ["throughput", W.count(plan.samples_per_s), "samples/s" + (plan.min_samples_per_s > 0 ? `, floor ${W.count(plan.min_samples_per_s)}` : "")],
      ["cost", W.usd(plan.cost), "for " + W.count(problem.samples * problem.epochs) + " samples"],
      ["price", W.usd(plan.cost_per_hour), "an hour"],
      ["time", W.seconds(3600 * plan.hours), "to train"],
      ["memory", W.bytes(memory), "on the fullest unit"],
      ["proof", plan.optimal ? "cheapest" : plan.lower_bound > 0 ? "≤ " + W.percent(more, 2) : "none", plan.optimal ? `none costs less; ${W.seconds(plan.seconds)}` : plan.lower_bound > 0 ? "above the cheapest" : "by " + plan.method],
    ]);
  };

  // The curve of cost against speed: every point a link that makes its speed the floor.
  const curvePicture = (plans, current, choose) => {
    const holder = D.el("div");
    const draw = () => {
      const width = Math.max(260, holder.clientWidth), tall = 240, left = 62, right = 14, top = 12, bottom = 44;
      const speeds = plans.map((plan) => plan.samples_per_s), costs = plans.map((plan) => plan.cost);
      if (!speeds.length) return;
      const low = Math.log(Math.min(...speeds)), high = Math.log(Math.max(...speeds)) || 1;
      const least = Math.min(...costs), most = Math.max(...costs), room = (most - least || most || 1) * 0.12;
      const x = (speed) => left + 8 + (high > low ? (Math.log(speed) - low) / (high - low) : 0.5) * (width - left - right - 16);
      const y = (cost) => top + (1 - (cost - least + room) / (most - least + 2 * room)) * (tall - top - bottom);
      const picture = D.svg("svg", { class: "plot", viewBox: `0 0 ${width} ${tall}`, height: tall, role: "group", "aria-label": "Cost against speed; each point is a plan" });
      for (const tick of W.ticks(least - room, most + room, 4)) {
        if (tick < least - room) continue;
        picture.append(D.svg("line", { class: "axis", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }), D.svg("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, W.usd(tick)));
      }
      let last = -99;
      for (let power = Math.floor(low / Math.LN10); power <= high / Math.LN10 + 1; power++) for (const digit of [1, 2, 5]) {
        const speed = digit * 10 ** power, at = x(speed);
        if (Math.log(speed) < low - 0.01 || Math.log(speed) > high + 0.01 || at - last < 54) continue;
        last = at;
        picture.append(D.svg("text", { x: at, y: tall - 24, "text-anchor": "middle" }, W.count(speed)));
      }
      picture.append(D.svg("text", { x: (left + width - right) / 2, y: tall - 6, "text-anchor": "middle" }, "samples per second"));
      picture.append(D.svg("path", { class: "line", d: plans.map((plan, at) => (at ? "L" : "M") + x(plan.samples_per_s).toFixed(1) + " " + y(plan.cost).toFixed(1)).join("") }));
      plans.forEach((plan, at) => {
        const words = `${W.count(plan.samples_per_s)} samples/s for ${W.usd(plan.cost)}, ${W.usd(plan.cost_per_hour)} an hour`;
        const isCurrent = current && Math.abs(plan.samples_per_s / current.samples_per_s - 1) < 1e-6 && Math.abs(plan.cost / current.cost - 1) < 1e-6;
        const link = D.svg("a", { href: "#", role: "button", "aria-label": words, tabindex: 0, "aria-current": isCurrent ? "true" : null, on: {
          click: (event) => { event.preventDefault(); choose(plan, at); },
          keydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(plan, at); } } } },
        D.svg("circle", { cx: x(plan.samples_per_s), cy: y(plan.cost), r: 12, class: "target" }), D.svg("circle", { cx: x(plan.samples_per_s), cy: y(plan.cost), r: 5 }), D.svg("title", null, words));
        picture.append(link);
      });
      D.clear(holder, picture);
    };
    D.picture(holder, draw);
    requestAnimationFrame(draw);
    return holder;
  };

  const partsTable = (plan) => (plan.parts.length ? D.card("What each part takes", D.table("Seconds for a batch: all work at once, but for the step", ["part", "#a batch", "#cores"],
    plan.parts.map((part) => [part.part, W.seconds(part.seconds_per_batch), part.cores ? String(part.cores) : "–"]))) : null);
  const comparedTable = (plan) => (plan.compared.length ? D.card("Plain layouts beside it", D.table("Always compared with the chosen plan", ["layout", "#samples/s", "#an hour", "#cost"],
    plan.compared.map((each) => [each.layout, W.count(each.samples_per_s), W.usd(each.cost_per_hour), W.usd(each.cost)]))) : null);
  const methodTable = (tried, best) => D.table("What every method found", ["method", "#cost", "#× the cheapest", "#samples/s", "#stages", "#took"],
    tried.map((each) => (each.error ? [each.method, D.el("span.note", { text: each.error }), "", "", "", ""] :
      [each.method, W.usd(each.cost), W.times(best ? each.cost / best.cost : NaN), W.count(each.samples_per_s), String(each.stages.length), W.seconds(each.seconds)])),
    (at) => !tried[at].error && best && tried[at].cost <= best.cost * (1 + 1e-6));

  const control = (name, value, low, high, show, act, { whole, unit } = {}) => {
    const id = "c" + Math.random().toString(36).slice(2);
    const toPlace = (number) => Math.round(1000 * Math.log(Math.max(low, Math.min(high, number)) / low) / Math.log(high / low));
    const toValue = (place) => { const found = low * (high / low) ** (place / 1000); return whole ? Math.round(found) : Number(found.toPrecision(3)); };
    const slider = D.el("input", { type: "range", id, min: 0, max: 1000, value: String(toPlace(value)), "aria-valuetext": show(value) });
    const number = D.el("input", { type: "number", step: "any", min: 0, value: String(Number(value.toPrecision(6))), "aria-label": name + (unit ? " in " + unit : "") });
    const take = (found) => { slider.setAttribute("aria-valuetext", show(found)); act(found); };
    slider.addEventListener("input", () => { const found = toValue(Number(slider.value)); number.value = String(found); take(found); });
    number.addEventListener("change", () => { const found = Number(number.value); if (number.value !== "" && found >= 0) { slider.value = String(toPlace(found)); take(found); } });
    return { node: D.el("div.control", null, D.el("div.row", null, D.el("label", { for: id, text: name + (unit ? ", " + unit : "") }), number), slider),
      set: (found) => { number.value = String(Number(found.toPrecision(6))); slider.value = String(toPlace(found)); slider.setAttribute("aria-valuetext", show(found)); } };
  };

  const show = async (root, things, name) => {
    const names = [...things.problems, ...[...dropped.keys()].filter((each) => !things.problems.includes(each) && !D.workloads.has(each))];
    const chosen = names.includes(name) ? name : names[0];
    const body = D.el("div");
    D.clear(root, D.el("div.head", null, D.el("div.grow", null, D.el("h1", { text: chosen ? chosen : "Plan" })),
      names.length > 1 ? D.select("Problem", names.map((each) => [each, each]), chosen, (each) => D.go("plan", each)) : null,
      D.source.isLive ? D.fileButton("Open a problem") : null), body);
    if (!chosen) {
      D.clear(body, D.card("No problem is open", D.el("p", { text: "Open a problem file, TOML or JSON, or drop one on this page: layers, the machines that can be had, and what each layer takes on each." }),
        D.el("p.note", { text: "From the command line: dovetail dashboard PROBLEM. A problem of your own model is measured by dovetail profile." })));
      return null;
    }
    return D.source.isLive ? showLive(body, chosen) : showKept(body, D.source.planned(chosen));
  };

  const showKept = (body, entry) => {
    const problem = entry.problem;
    const main = D.el("div");
    const set = (plan) => D.clear(main, drawn(problem, plan), entry.curve.length ? D.card("Cost against speed", D.el("p.note", { text: "Choose a point to see its plan." }), curvePicture(entry.curve, plan, set)) : null,
      D.card("Methods compared", methodTable(entry.tried, entry.plan.error ? null : entry.plan)), partsTable(plan), comparedTable(plan));
    D.clear(body, entry.note ? D.el("p", { text: entry.note }) : null, main);
    if (entry.plan.error) D.clear(main, D.error(entry.plan)); else set(entry.plan);
    return null;
  };
  const drawn = (problem, plan) => [tiles(plan, problem), D.card("Layers and stages", strip(problem, plan),
    D.key(problem.types.map((type, at) => [type.name, D.colour(at)]))), D.card(null, stageTable(problem, plan))];

  const showLive = (body, name) => {
    let stopped = false, problem = null, busy = false, again = false, whatIf = { prices: {}, limits: {} }, plan = null, curve = [], curveBusy = false, curveAgain = false;
    const top = D.el("div", { "aria-live": "off" }), picture = D.el("div"), rest = D.el("div"), side = D.el("aside", { "aria-label": "What if" });
    const methods = D.el("div");
    D.clear(body, top, D.el("div.two", null, D.el("div", null, picture, methods, rest), side));
    const wanted = () => ({ ...(W.known(whatIf.floor) ? { min_samples_per_s: whatIf.floor } : {}), ...(W.known(whatIf.cap) ? { max_cost_per_hour: whatIf.cap } : {}), prices: whatIf.prices, limits: whatIf.limits });
    const drawCurve = () => D.clear(picture, D.card("Cost against speed", curve.length ? [D.el("p.note", { text: "Each point is the cheapest plan at its speed; choose one to make its speed the floor." }),
      curvePicture(curve, plan, (point) => { whatIf.floor = point.samples_per_s; delete whatIf.cap; controls.floor.set(point.samples_per_s); replan(); })] : D.el("p.note", { text: "There is no plan at any speed." })));
    const replan = async () => {
      if (busy) { again = true; return; }
      busy = true;
      try {
        plan = await D.source.task(asked(name, { do: "plan", what_if: wanted() }));
        if (!stopped) { D.clear(top, drawn(problem, plan)); D.clear(rest, partsTable(plan), comparedTable(plan)); drawCurve(); }
      } catch (problemFound) { plan = null; if (!stopped) { D.clear(top, D.error(problemFound)); D.clear(rest); drawCurve(); } }
      top.dataset.planned = String(Number(top.dataset.planned || 0) + 1);
      busy = false;
      if (again && !stopped) { again = false; replan(); }
    };
    const recurve = async () => {
      if (curveBusy) { curveAgain = true; return; }
      curveBusy = true;
      try { curve = (await D.source.task(asked(name, { do: "curve", what_if: { prices: whatIf.prices, limits: whatIf.limits } }))).plans; } catch { curve = []; }
      if (!stopped) drawCurve();
      curveBusy = false;
      if (curveAgain && !stopped) { curveAgain = false; recurve(); }
    };
    const controls = {};
    const drawSide = () => {
      const floor = problem.min_samples_per_s, fastest = curve.length ? curve[curve.length - 1].samples_per_s : Math.max(1, 4 * floor);
      const slowest = curve.length ? Math.min(curve[0].samples_per_s, floor || Infinity) / 4 : Math.max(1e-3, fastest / 1e3);
      controls.floor = control("at least", floor || slowest, slowest, fastest * 1.02, (v) => W.count(v) + " samples/s", (v) => { whatIf.floor = v; delete whatIf.cap; replan(); }, { unit: "samples/s" });
      const dearest = curve.length ? Math.max(...curve.map((each) => each.cost_per_hour)) : 100;
      const cheapest = curve.length ? Math.min(...curve.map((each) => each.cost_per_hour)) : 0.01;
      const cap = control("fastest for at most", dearest, cheapest, dearest, (v) => W.usd(v) + " an hour", (v) => { whatIf.cap = v; delete whatIf.floor; whatIf.floor = 0; replan(); }, { unit: "$ an hour" });
      const types = problem.types.map((type, at) => {
        const most = Math.max(4, 2 * (type.limit ?? Math.max(64, ...curve.flatMap((each) => each.stages.filter((stage) => stage.resource === type.name).map((stage) => stage.units)))));
        return D.el("fieldset", null, D.el("legend", null, D.dot(D.colour(at)), type.name),
          control("price", type.price_per_hour, type.price_per_hour / 10, type.price_per_hour * 10, (v) => W.usd(v) + " an hour", (v) => { whatIf.prices = { ...whatIf.prices, [type.name]: v }; replan(); recurve(); }, { unit: "$ an hour" }).node,
          control("to be had", type.limit ?? most, 1, most, (v) => W.count(v) + " units", (v) => { whatIf.limits = { ...whatIf.limits, [type.name]: Math.round(v) }; replan(); recurve(); }, { whole: true, unit: type.limit === null ? "units (the file has no limit)" : "units" }).node);
      });
      D.clear(side, D.card("What if", D.el("fieldset", null, D.el("legend", { text: "Speed or money" }), controls.floor.node, cap.node), types,
        D.button("As in the file", () => { whatIf = { prices: {}, limits: {} }; drawSide(); replan(); recurve(); }, "quiet")));
    };
    const drawMethods = () => {
      const table = D.el("div"), tried = [];
      const button = D.button("Compare methods", async () => {
        button.disabled = true;
        for (const method of problem.methods) {
          if (stopped) return;
          D.clear(table, tried.length ? methodTable(tried, tried.find((each) => each.method === "exact" && !each.error)) : null, D.el("p.note", { text: `planning by ${method} …` }));
          const { max_cost_per_hour: _, ...asFloor } = wanted();
          try { tried.push(await D.source.task(asked(name, { do: "plan", method, what_if: asFloor }))); } catch (found) { tried.push({ method, error: found.message }); }
        }
        D.clear(table, methodTable(tried, tried.find((each) => each.method === "exact" && !each.error)));
        tried.length = 0;
        button.disabled = false;
      }, "quiet");
      D.clear(methods, D.card("Methods compared", D.el("p.note", { text: "The exact planner beside learning, searching and rules of thumb, at the same floor. Those that learn take some seconds." }), button, table));
    };
    (async () => {
      try { problem = await D.source.task(asked(name, { do: "describe" })); } catch (found) { D.clear(top, D.error(found)); return; }
      if (problem.kind !== "problem") { D.go("simulate", name); return; }
      drawMethods();
      await replan();
      await recurve();
      if (!stopped) drawSide();
    })();
    return () => { stopped = true; };
  };
  D.views = { plan: show };
})();
