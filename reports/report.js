// What the page does: folding and filtering the table, and the panel with a cell's details.
// Every text is set as text, never as markup.
"use strict";
document.documentElement.classList.add("js");

document.addEventListener("DOMContentLoaded", () => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const { columns, devices, cases, pool, error_fields } = JSON.parse($("#details").textContent);
  const panel = $("#panel");

  // ── Building elements ─────────────────────────────────────────────────────────────────────────

  /** An element; `kind` is `tag.class.class`, children are elements, texts or nothing. */
  function make(kind, ...children) {
    const [tag, ...classes] = kind.split(".");
    const element = document.createElement(tag);
    element.className = classes.filter(Boolean).join(" ");
    element.append(...children.flat().filter((child) => child != null && child !== false));
    return element;
  }

  function icon(name) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
    use.setAttribute("href", `#${name}`);
    svg.setAttribute("aria-hidden", "true");
    svg.append(use);
    return svg;
  }

  function button(label, act, kind = "button.plain") {
    const element = make(kind, label);
    element.addEventListener("click", act);
    return element;
  }

  /** A link if it is one to the web, else the text as it is. */
  function link(text) {
    if (!/^https?:\/\/[^\s]+$/i.test(text)) return make("bdi", text);
    const issue = text.match(/^https:\/\/github\.com\/([\w.-]+\/[\w.-]+)\/(?:issues|pull)\/(\d+)$/);
    const element = make("a", make("bdi", issue ? `${issue[1]}#${issue[2]}` : text));
    element.href = text;
    element.rel = "noopener noreferrer";
    return element;
  }

  function number(value, digits = 4) {
    if (value == null) return "";
    if (typeof value === "string") return value; // nan, inf, -inf
    const short = Number(value.toPrecision(digits));
    const size = Math.abs(short);
    return size && (size < 1e-4 || size >= 1e7) ? short.toExponential() : String(short);
  }

  function share(value) {
    if (value == null) return "";
    return make(within(value) ? "span" : "span.over", `${number(value, value < 10 ? 2 : 3)} ×`);
  }

  const within = (value) => value == null || (typeof value === "number" && value <= 1);

  /** A table of one or more parts: heads and rows in turn. */
  function table(...parts) {
    const line = (cells, tag) =>
      make("tr", cells.map((cell) => (cell instanceof HTMLTableCellElement ? cell : make(tag, cell))));
    const bodies = [];
    for (let i = 0; i < parts.length; i += 2) {
      const head = line(parts[i].map((text) => text || make("td")), "th");
      for (const cell of head.querySelectorAll("th")) cell.scope = "col";
      bodies.push(make("tbody", head, parts[i + 1].map((row) => line(row, "td"))));
    }
    const box = make("div.tablebox", make("table", bodies));
    box.tabIndex = 0; // so that keys can scroll it
    return box;
  }

  const num = (text) => make("td.num", text);

  function explained(text, title) {
    const cell = make("th", text);
    cell.title = title;
    return cell;
  }

  function list(pairs) {
    return make(
      "dl",
      pairs
        .filter(([, content]) => content)
        .map(([term, content]) => make("div", make("dt", term), make("dd", content))),
    );
  }

  function said(text) {
    const element = make("pre", text);
    element.tabIndex = 0;
    return element;
  }

  // ── The panel ─────────────────────────────────────────────────────────────────────────────────

  const OUTCOMES = {
    ran: "It ran.",
    rejected: "It was refused",
    crashed: "The process died.",
    timed_out: "It did not answer in time.",
    unavailable: "It could not be tried.",
  };
  const DEMANDS = {
    computes: "must compute the right values",
    rejects: "must be refused, with a message that helps",
    either: "may compute the right values or be refused, and nothing else",
  };
  const BASIS = {
    specified: "specified: documentation or a released decision says so",
    requested: "requested: somebody asks for it, nobody promised it",
  };

  /** What to say beside the verdict, by its mark. */
  function expectation(result, expected) {
    if (!expected && !result.unexpected) return null;
    const from = expected && ` (${expected.file}, line ${expected.line})`;
    const note = result.unexpected
      ? expected
        ? ["Unexpected: ", make("b", expected.verdict), ` was expected${from}. `]
        : ["Unexpected: nothing on file expects this."]
      : ["Known: ", make("b", expected.verdict), ` is expected${from}. `];
    return make(
      `p.note${result.unexpected ? ".unexpected" : ""}`,
      note,
      expected && [make("bdi", expected.why), " ", link(expected.link)],
    );
  }

  function message(result, contract) {
    if (!pool[result.message] || result.message === result.reason) return null;
    const where = [result.stage && `at ${result.stage}`, result.code].filter(Boolean).join(", ");
    return [
      make("h3", "What the runtime said ", make("span.said", where)),
      said(pool[result.message]),
      result.vague &&
        make(
          "p.why",
          "Vague: it names none of ",
          make("bdi", contract.mentions.join(", ") || "the words that would help"),
          ".",
        ),
    ];
  }

  /** As many digits as tell two numbers apart, seven at least. */
  function apart(value, other) {
    let digits = 7;
    while (digits < 17 && value !== other && number(value, digits) === number(other, digits)) digits++;
    return number(value, digits);
  }

  function numbers(result) {
    const errors = (pool[result.errors] ?? []).map((values) =>
      Object.fromEntries(values.map((value, i) => [error_fields[i], value])),
    );
    if (!errors.length) return null;
    const size = ({ share }) => (typeof share === "string" ? Infinity : (share ?? -1));
    errors.sort((one, other) => size(other) - size(one) || 0);
    const over = errors.filter((error) => !within(error.share)).length;
    const first = errors.slice(0, Math.max(over, 3));
    const rest = errors.slice(first.length);
    const loop = errors.some((error) => error.step);
    const line = (...texts) => make("div", texts);
    const quiet = (text) => make("div.gone", text);
    const heads = () => [
      explained("worst element", "the one that uses most of its error budget"),
      explained("got, wanted", "the runtime's value and the oracle's"),
      explained("off by, allowed", "the error of this element, and the largest allowed there"),
      explained("of budget", "error divided by the error allowed there; above 1 is wrong"),
      explained("needed", "the smallest tolerance constant that would have passed"),
    ];
    const row = (error) => {
      const own = Math.abs(error.got - error.want); // NaN where one of them is no number
      const off = num([
        line(number(Number.isFinite(own) ? own : error.absolute)),
        quiet(number(error.budget)),
      ]);
      if (error.relative != null) {
        off.title =
          `largest of all elements: ${number(error.absolute)}, ` +
          `relative ${number(error.relative)}`;
      }
      return [
        num([
          line(error.output, loop && ` of call ${error.step}`),
          error.index && quiet(`[${error.index.join(", ")}]`),
        ]),
        num([line(apart(error.got, error.want)), line(apart(error.want, error.got))]),
        off,
        num(share(error.share)),
        num(number(error.needed)),
      ];
    };
    const sum = (field) => errors.reduce((all, error) => all + (error[field] ?? 0), 0);
    return [
      make("h3", "Numbers"),
      table(heads(), first.map(row)),
      rest.length > 0 &&
        make(
          "details",
          make("summary", `${rest.length} more, all within their budget`),
          table(heads(), rest.map(row)),
        ),
      make(
        "p.why",
        `${sum("compared")} elements compared`,
        sum("undefined") > 0 && `, ${sum("undefined")} left alone because the operator defines no value`,
        ".",
      ),
    ];
  }

  /** Inputs and outputs in one table, so that their columns agree. */
  function call(about) {
    const shape = (port) => (port.shape ? (port.shape.length ? port.shape.join(" × ") : "scalar") : "");
    const row = (port) =>
      port.state === "connected"
        ? [num(port.name), num(shape(port)), num(port.dtype), make("bdi", port.values ?? "")]
        : [
            num(make("s", port.name)),
            num(make("s", shape(port))),
            num(make("s", port.dtype ?? "")),
            make("td.gone", "omitted: an empty name"),
          ];
    const rows = (numbers) => {
      const ports = numbers.map((number) => pool[number]);
      const left = ports.filter((port) => port.state === "trailing");
      const end = make(
        "td.gone",
        "left off at the end: ",
        left.flatMap((port, i) => [i ? ", " : "", make("s.id", port.name)]),
      );
      end.colSpan = 4;
      return [
        ...ports.filter((port) => port.state !== "trailing").map(row),
        ...(left.length ? [[end]] : []),
      ];
    };
    const attributes = Object.entries(about.attributes);
    const [inputs, outputs] = [rows(about.inputs), rows(about.outputs)];
    return [
      make("h3", about.steps > 1 ? `The first of ${about.steps} calls in a loop` : "The call"),
      table(["input", "shape", "dtype", "values"], inputs, ["output", "", "", ""], outputs),
      attributes.length > 0 &&
        make(
          "div.attributes",
          attributes.map(([name, value]) => make("code", make("bdi", `${name} = ${value}`))),
        ),
    ];
  }

  function contract(about) {
    const { demands, basis, source, why, mentions } = about;
    return [
      make("h3", "What is demanded"),
      make("p", `The call ${DEMANDS[demands] ?? demands}. `, make("bdi", why ?? "")),
      list([
        ["basis", BASIS[basis] ?? basis],
        ["source", link(source)],
        ["a refusal names", demands !== "computes" && mentions.length && `one of: ${mentions.join(", ")}`],
      ]),
    ];
  }

  /** Which other columns returned the very same, to the bit, and which did not. */
  function bits(result, row) {
    const others = cases[row].results.flatMap((other, i) => (other?.bits && other !== result ? [[other, columns[i]]] : []));
    if (!result.bits || others.length === 0) return null;
    const names = (same) => others.filter(([other]) => (other.bits === result.bits) === same).map(([, name]) => name);
    const [equal, different] = [names(true), names(false)];
    return [
      equal.length ? `the same as on ${equal.join(", ")}` : "",
      different.length ? `not the same as on ${different.join(", ")}` : "",
    ].filter(Boolean).join("; ");
  }

  function circumstances(result, column, row) {
    const ms = result.ms ?? {};
    const times = ["load", "run", "total"]
      .filter((part) => ms[part] != null)
      .map((part) => `${part} ${number(ms[part], 3)} ms`);
    return [
      make("h3", "How it went"),
      list([
        ["outcome", outcome(result)],
        ["device", devices[column] && make("bdi", devices[column])],
        ["placed on", result.placement != null && make("bdi", pool[result.placement])],
        ["values", { true: "right all the same", false: "wrong" }[result.values_right]],
        ["bits", bits(result, row)],
        ["times", times.join(", ")],
      ]),
    ];
  }

  function outcome(result) {
    if (result.outcome !== "rejected") return OUTCOMES[result.outcome] ?? result.outcome;
    return `${OUTCOMES.rejected}${result.stage ? ` at ${result.stage}` : ""}.`;
  }

  async function copy(text, shown, control) {
    let done = false;
    try {
      await navigator.clipboard.writeText(text);
      done = true;
    } catch {
      getSelection().selectAllChildren(shown); // at least it is one key press away
      done = document.execCommand("copy");
    }
    control.textContent = done ? "Copied" : "Press Ctrl+C";
    setTimeout(() => (control.textContent = "Copy"), 2000);
  }

  function reproduction(result) {
    const shown = said(result.reproduce);
    const control = button("Copy", () => copy(result.reproduce, shown, control), "button.copy");
    return [make("h3", "To repeat it"), make("div.command", shown, control)];
  }

  function describe(about, result, column, several, row) {
    const known = about.contract != null; // a case may have results and no description
    const verdict = make(
      `span.v.${result.verdict}${result.unexpected ? ".unexpected" : ""}`,
      icon(result.verdict),
      result.verdict,
    );
    const close = button("Close", shut, "button.close");
    return [
      make("div.top", verdict, make("span", "on ", make("bdi.target", columns[column])), close),
      make("h2", make("bdi", about.id)),
      several && make("p.why", `one of ${several} cases, and the one to look at first`),
      make("p.reason", make("bdi", pool[result.reason])),
      expectation(result, pool[result.expectation]),
      message(result, known ? pool[about.contract] : { mentions: [] }),
      numbers(result),
      reproduction(result),
      known && [contract(pool[about.contract]), call(pool[about.call])],
      circumstances(result, column, row),
      result.stderr != null && [make("h3", "End of its stderr"), said(pool[result.stderr])],
      known && [
        make("h3", "The case"),
        list([
          ["why", make("bdi", pool[about.why])],
          ["must agree with", pool[about.relation] && make("bdi", pool[about.relation])],
          ["file", make("code", make("bdi", pool[about.file]))],
          ["tags", pool[about.tags].join(", ")],
          ["links", pool[about.links].length && make("ul", pool[about.links].map((text) => make("li", link(text))))],
        ]),
      ],
    ].flat(2);
  }

  let opener = null;

  /** Do what changes the layout, and keep `tr` where it is on the screen. */
  function steady(tr, change) {
    const before = tr.getBoundingClientRect().top;
    change();
    scrollBy(0, tr.getBoundingClientRect().top - before);
  }

  function mark(cell) {
    $("#matrix [aria-current]")?.removeAttribute("aria-current");
    cell?.setAttribute("aria-current", "true");
  }

  /** Show a cell's details. `from`: what was clicked, a group's cell perhaps. */
  function open(row, column, from) {
    const result = cases[row]?.results[column];
    if (!result) return;
    const { tr, group } = lines[row];
    const cell = $("button", tr.cells[column + 1]);
    opener = from ?? cell;
    steady(opener.closest("tr") ?? tr, () => {
      unfold(group);
      mark(cell);
      const several = opener.matches("td [data-r]") && group.members.length;
      panel.replaceChildren(...describe(cases[row], result, column, several, row).filter(Boolean));
      panel.hidden = false;
      panel.scrollTop = 0;
      document.documentElement.classList.add("beside");
    });
    panel.focus({ preventScroll: true });
    address(`${cases[row].id}@${columns[column]}`, row);
  }

  function shut() {
    const tr = opener.closest("tr") ?? lines[panel.dataset.r].tr;
    steady(tr, () => {
      panel.hidden = true;
      document.documentElement.classList.remove("beside");
    });
    mark(null);
    opener.focus({ preventScroll: true });
    address(cases[panel.dataset.r].id, panel.dataset.r);
  }

  function address(name, row) {
    panel.dataset.r = row;
    history.replaceState(null, "", `#${encodeURI(name)}`);
  }

  // ── Folding and filtering ─────────────────────────────────────────────────────────────────────

  /** Groups with their rows; a single case is a group of one that cannot be folded. */
  const groups = [];
  const lines = []; // by row number
  for (const tr of $$("#matrix tbody tr:not(.theme)")) {
    if (tr.classList.contains("group")) {
      groups.push({ tr, fold: $(".fold", tr), members: [], legend: null, open: false });
    } else if (tr.classList.contains("legend")) {
      groups.at(-1).legend = tr;
    } else {
      if (tr.classList.contains("single")) groups.push({ tr: null, members: [], open: true });
      const group = groups.at(-1);
      const number = Number(tr.dataset.r);
      const { id, results } = cases[number];
      const line = {
        tr,
        group,
        id: id.toLowerCase(),
        verdicts: new Set(results.filter(Boolean).map((result) => result.verdict)),
        unexpected: results.some((result) => result?.unexpected),
        // An unexpected pass is no reason to show a row of which `wrong` was asked for.
        alarms: new Set(results.filter((result) => result?.unexpected).map((result) => result.verdict)),
      };
      lines[number] = line;
      group.members.push(line);
    }
  }
  const chips = $$(".chips [data-verdict]");
  const only = $(".chips [data-unexpected]");
  const search = $("#search");

  function apply() {
    const verdicts = chips.filter(pressed).map((chip) => chip.dataset.verdict);
    const unexpected = pressed(only);
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const filtering = verdicts.length > 0 || unexpected || words.length > 0;
    const wanted = (line) => {
      const among = unexpected ? line.alarms : line.verdicts;
      return (
        (verdicts.length ? verdicts.some((verdict) => among.has(verdict)) : among.size > 0 || !unexpected) &&
        words.every((word) => line.id.includes(word))
      );
    };
    let shown = 0;
    for (const group of groups) {
      const there = new Set(group.members.filter(wanted));
      const open = group.open || filtering;
      shown += there.size;
      if (group.tr) {
        group.tr.hidden = there.size === 0;
        group.fold.setAttribute("aria-expanded", String(open));
        group.legend?.classList.toggle("open", open && there.size > 0);
      }
      for (const line of group.members) {
        if (group.tr) line.tr.classList.toggle("open", open && there.has(line));
        else line.tr.hidden = !there.has(line);
      }
    }
    for (const body of $("#matrix").tBodies) {
      body.hidden = ![...body.rows].some((tr) => !tr.matches(".theme, .member") && !tr.hidden);
    }
    $("#shown").textContent = filtering
      ? `${shown} of ${cases.length} cases`
      : `${cases.length} cases`;
    $("#reset").hidden = !filtering;
    $("#unfold").hidden = filtering;
    $("#nothing").hidden = shown > 0;
  }

  const pressed = (control) => control.getAttribute("aria-pressed") === "true";
  const press = (control, on) => control.setAttribute("aria-pressed", String(on));

  function unfold(group) {
    if (group.open) return;
    group.open = true;
    apply();
  }

  function reset() {
    for (const control of [...chips, only]) press(control, false);
    search.value = "";
    apply();
  }

  for (const control of [...chips, only]) {
    control.addEventListener("click", () => {
      press(control, !pressed(control));
      apply();
    });
  }
  search.addEventListener("input", apply);
  $("#reset").addEventListener("click", () => {
    reset();
    search.focus();
  });
  $("#unfold").addEventListener("click", (event) => {
    const all = !pressed(event.target);
    press(event.target, all);
    event.target.textContent = all ? "Fold all" : "Unfold all";
    for (const group of groups) if (group.tr) group.open = all;
    apply();
  });

  // ── Clicks, keys and the address ──────────────────────────────────────────────────────────────

  $("#matrix").addEventListener("click", (event) => {
    const fold = event.target.closest(".fold");
    const cell = event.target.closest("td .v");
    if (fold) {
      const group = groups.find((one) => one.fold === fold);
      group.open = !group.open;
      apply();
    } else if (cell) {
      const row = cell.dataset.r ?? cell.closest("tr").dataset.r;
      open(Number(row), cell.closest("td").cellIndex - 1, cell);
    }
  });
  $(".findings").addEventListener("click", (event) => {
    const found = event.target.closest("a[data-r]");
    if (!found) return;
    event.preventDefault();
    open(Number(found.dataset.r), Number(found.dataset.c), found);
    aim(lines[found.dataset.r].tr);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !panel.hidden) shut();
  });

  /** Bring a row into view, whatever hides it. */
  function aim(tr) {
    const line = lines[tr.dataset.r];
    if (line) unfold(line.group);
    if (!tr.checkVisibility()) reset();
    $("#matrix .aimed")?.classList.remove("aimed");
    tr.classList.add("aimed");
    tr.scrollIntoView({ block: "center" });
  }

  /** The address names a row (`#case-id`) or a cell (`#case-id@target`). */
  function follow() {
    let name;
    try {
      name = decodeURIComponent(location.hash.slice(1));
    } catch {
      return;
    }
    const tr = document.getElementById(name);
    if (tr?.matches("#matrix tr")) return aim(tr);
    const row = cases.findIndex(({ id }) => name.startsWith(`${id}@`));
    if (row < 0) return;
    open(row, columns.indexOf(name.slice(cases[row].id.length + 1)));
    aim(lines[row].tr);
  }

  addEventListener("hashchange", follow);
  apply();
  follow();
});
