// All about one cell: what was asked, what is demanded, what came of it, how to see it again.
"use strict";

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

let reportsToCome;
/** Scripts and bug reports: most of the text of the page, unpacked when the first is looked at. */
const allReports = () => (reportsToCome ??= unpack($("#reports")));

/** The parts of the panel, top to bottom, for the case `row` on the target `column`. */
class Details {
  constructor(cells, row, column) {
    Object.assign(this, { cells, row, column, pool: cells.pool });
    this.about = cells.cases[row];
    this.result = this.about.results[column];
    this.group = cells.groups[this.about.group];
    this.target = cells.targets[column];
    this.known = this.about.contract != null; // a case may have results and no description
    this.contract = this.known ? this.pool[this.about.contract] : { mentions: [] };
  }

  parts() {
    return [
      make("p.reason", make("bdi", this.pool[this.result.reason])),
      this.expectation(),
      this.before(),
      this.message(),
      this.numbers(),
      this.pictures(),
      this.relation(),
      this.demanded(),
      this.call(),
      this.reproduction(),
      this.circumstances(),
      this.result.stderr != null && [make("h3", "End of its stderr"), said(this.pool[this.result.stderr], "stderr")],
      this.origin(),
    ];
  }

  /** What to say beside the verdict, by its mark. */
  expectation() {
    const { result } = this;
    const expected = this.pool[result.expectation];
    if (!expected && !result.unexpected) return null;
    const from = expected && make("span.gone", ` (${expected.file}, line ${expected.line})`);
    const note = result.unexpected
      ? expected
        ? ["Unexpected: ", make("b", expected.verdict), " was on file", from, ". "]
        : ["Unexpected: nothing on file speaks of this."]
      : ["Known to go wrong: "];
    const page = expected && findingOf(expected.link);
    return [
      make(
        `p.note${result.unexpected ? ".unexpected" : ""}`,
        note,
        expected && [make("bdi", expected.why), " ", !page && link(expected.link), !result.unexpected && from],
      ),
      page,
    ];
  }

  /** What it was in the run that this one is held against. */
  before() {
    const { change } = this.result;
    return change && make("p.note", make("b", change.kind), ": ", make("bdi", change.sentence));
  }

  message() {
    const { result } = this;
    const text = this.pool[result.message];
    if (!text || result.message === result.reason) return null;
    const where = [result.stage && `at ${result.stage}`, result.code].filter(Boolean).join(", ");
    const mentions = this.contract.mentions.join(", ") || "the words that would help";
    return [
      make("h3", "What the runtime said ", make("span.said", where)),
      said(text, "What the runtime said"),
      result.vague && make("p.why", "Vague: it names none of ", make("bdi", mentions), "."),
    ];
  }

  errors() {
    const { error_fields } = this.cells;
    const errors = (this.pool[this.result.errors] ?? []).map((values) =>
      Object.fromEntries(values.map((value, i) => [error_fields[i], value])),
    );
    const size = ({ share }) => (typeof share === "string" ? Infinity : (share ?? Infinity));
    return errors.sort((one, other) => size(other) - size(one) || 0);
  }

  numbers() {
    const errors = this.errors();
    if (!errors.length) return null;
    const over = errors.filter((error) => error.share == null || !within(error.share)).length;
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
      const own = error.got == null ? null : Math.abs(error.got - error.want); // NaN where one is no number
      const off = num([line(number(own != null && Number.isFinite(own) ? own : error.absolute)), quiet(number(error.budget))]);
      if (error.relative != null) {
        off.title = `largest of all elements: ${number(error.absolute)}, relative ${number(error.relative)}`;
      }
      return [
        num([line(error.output, loop && ` of call ${error.step}`), error.index && quiet(`[${error.index.join(", ")}]`)]),
        num([line(apart(error.got, error.want)), line(apart(error.want, error.got))]),
        off,
        num(share(error.share)),
        num(number(error.needed)),
      ];
    };
    const sum = (field) => errors.reduce((all, error) => all + (error[field] ?? 0), 0);
    const undefinedOnes = sum("undefined");
    return [
      make("h3", "Numbers"),
      table("Worst elements", heads(), first.map(row)),
      rest.length > 0 &&
        make(
          "details",
          make("summary", `${rest.length} more, all within their budget`),
          table("Worst elements of outputs within their budget", heads(), rest.map(row)),
        ),
      make(
        "p.why",
        `${sum("compared").toLocaleString("en")} elements compared`,
        undefinedOnes > 0 && `, ${undefinedOnes.toLocaleString("en")} left alone because the operator defines no value`,
        ".",
      ),
    ];
  }

  /** Where the error sits, for each output beyond its budget. */
  pictures() {
    const maps = this.errors().filter(({ where }) => where);
    return maps.length > 0 && [make("h3", "Where it is wrong"), maps.map((error) => heatMap(error))];
  }

  relation() {
    const relation = this.pool[this.result.relation];
    if (!relation) return null;
    const how = relation.identical ? "to the bit" : within(relation.share) ? "within what is allowed" : "no";
    return [
      make("h3", "The same call in another form"),
      make("p", "The same call ", make("bdi", relation.what), " must agree: ", make(how === "no" ? "b.over" : "b", how === "no" ? "it does not" : `it does, ${how}`), "."),
      make("p.why", make("bdi", relation.sentence)),
    ];
  }

  demanded() {
    if (!this.known) return null;
    const { demands, basis, source, why, mentions } = this.contract;
    return [
      make("h3", "What is demanded"),
      make("p", `The call ${DEMANDS[demands] ?? demands}. `, make("bdi", why ?? "")),
      list([
        ["basis", BASIS[basis] ?? basis],
        ["source", link(source)],
        ["a refusal names", demands !== "computes" && mentions.length > 0 && make("bdi", `one of: ${mentions.join(", ")}`)],
      ]),
    ];
  }

  /** Inputs and outputs in one table, so that their columns agree; what is omitted is struck out. */
  call() {
    if (!this.known) return null;
    const about = this.pool[this.about.call];
    const shape = (port) => (port.shape ? (port.shape.length ? port.shape.join(" × ") : "scalar") : "");
    const row = (port) =>
      port.state === "connected"
        ? [num(port.name), num(shape(port)), num(port.dtype), make("bdi", port.values ?? "")]
        : [num(make("s", port.name)), num(make("s", shape(port))), num(make("s", port.dtype ?? "")), make("td.gone", "omitted: an empty name")];
    const rows = (numbers) => {
      const ports = numbers.map((index) => this.pool[index]);
      const left = ports.filter((port) => port.state === "trailing");
      const end = make("td.gone", "left off at the end: ", left.map((port, i) => [i ? ", " : "", make("s.id", port.name)]));
      end.colSpan = 4;
      return [...ports.filter((port) => port.state !== "trailing").map(row), ...(left.length ? [[end]] : [])];
    };
    const attributes = Object.entries(about.attributes);
    const [inputs, outputs] = [rows(about.inputs), rows(about.outputs)];
    return [
      make("h3", about.steps > 1 ? `The first of ${about.steps} calls in a loop` : "The call"),
      table("Inputs and outputs", ["input", "shape", "dtype", "values"], inputs, ["output", "shape", "dtype", ""], outputs),
      attributes.length > 0 &&
        make("div.attributes", attributes.map(([name, value]) => make("code", make("bdi", `${name} = ${value}`)))),
    ];
  }

  reproduction() {
    const { result } = this;
    const reported = result.report != null && make("div");
    if (reported) this.report(reported);
    return [
      make("h3", "To repeat it"),
      copyable(result.reproduce, "command"),
      !reported &&
        this.known &&
        result.outcome !== "unavailable" &&
        result.reproduce && [
          make("p.why", "The same without this suite: the model, its inputs, and a script that needs the runtime alone."),
          copyable(result.reproduce.replace(/^gqa run ((?:'[^']*'|"[^"]*"|[^\s'"])+)/, "gqa export $1 repro"), "export"),
        ],
      reported,
    ];
  }

  /** Puts the script and the bug report into `box`, as soon as they are unpacked. */
  async report(box) {
    const { pool, reports } = await allReports();
    const [script, issue] = reports[this.result.report].map((blocks) =>
      blocks.map((index) => pool[index]).join("\n\n"),
    );
    box.append(
      make(
        "details",
        make("summary", "Without this suite: ", make("code", make("bdi", this.target.script))),
        copyable(script, "script"),
      ),
      make("details", make("summary", "A bug report, ready to send"), copyable(issue, "bug report")),
    );
  }

  /** Which other columns returned the very same, to the bit, and which did not. */
  bits() {
    const { bits } = this.result;
    if (!bits) return null;
    const others = this.about.results.flatMap((other, i) =>
      other?.bits && i !== this.column ? [[other.bits === bits, this.cells.targets[i].label]] : [],
    );
    const names = (same) => others.filter(([equal]) => equal === same).map(([, label]) => label).join(", ");
    return [names(true) && `the same as on ${names(true)}`, names(false) && `not the same as on ${names(false)}`]
      .filter(Boolean)
      .join("; ");
  }

  circumstances() {
    const { result, target } = this;
    const times = ["load", "run", "total"]
      .filter((part) => result.ms?.[part] != null)
      .map((part) => `${part} ${number(result.ms[part], 3)} ms`);
    const stage = result.outcome === "rejected" && result.stage ? ` at ${result.stage}` : "";
    const outcome = OUTCOMES[result.outcome] ?? result.outcome;
    return [
      make("h3", "How it went"),
      list([
        ["outcome", result.outcome === "rejected" ? `${outcome}${stage}.` : outcome],
        ["device", target.device && make("bdi", target.device)],
        ["placed on", result.placement != null && make("bdi", this.pool[result.placement])],
        ["values", { true: "right all the same", false: "wrong" }[result.values_right]],
        ["bits", this.bits()],
        ["times", times.join(", ")],
      ]),
    ];
  }

  origin() {
    const { about, pool } = this;
    if (!this.known) return null;
    return [
      make("h3", "The case"),
      list([
        ["why", make("bdi", pool[about.why])],
        ["must agree with", pool[about.relation] && make("bdi", pool[about.relation])],
        ["file", make("code", make("bdi", pool[about.file]))],
        ["tags", make("bdi", pool[about.tags].join(", "))],
        ["links", pool[about.links].length > 0 && make("ul", pool[about.links].map((text) => make("li", link(text))))],
      ]),
    ];
  }
}

/** The project's page about a fault, folded; null if it is not in here. */
function findingOf(name, open = false) {
  const page = $$("template").find(({ id }) => id === `page:${name}`);
  if (!page) return null;
  const box = make("details.finding", make("summary", "What was found out, and the way round: ", make("bdi", name)), page.content.cloneNode(true));
  box.open = open;
  return box;
}

const within = (value) => value == null || (typeof value === "number" && value <= 1);

function share(value) {
  if (value == null) return "";
  return make(within(value) ? "span" : "span.over", `${number(value, value < 10 ? 2 : 3)} ×`);
}

const num = (text) => make("td.num", text);

function explained(text, title) {
  const cell = make("th", text);
  cell.title = title;
  return cell;
}

/** A table of one or more parts: heads and rows in turn. */
function table(caption, ...parts) {
  const line = (cells, tag) =>
    make("tr", cells.map((cell) => (cell instanceof HTMLTableCellElement ? cell : make(tag, cell))));
  const bodies = [];
  for (let i = 0; i < parts.length; i += 2) {
    const head = line(parts[i].map((text) => text || make("td")), "th");
    for (const cell of head.querySelectorAll("th")) cell.scope = "col";
    bodies.push(make("tbody", head, parts[i + 1].map((row) => line(row, "td"))));
  }
  const box = make("div.tablebox", make("table", make("caption.unseen", caption), bodies));
  box.tabIndex = 0; // so that keys can scroll it
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", caption);
  return box;
}

/** Heads down, positions across; the more an element is beyond its budget, the stronger. */
function heatMap({ output, step, where }) {
  const { rows, heads, positions } = where;
  const wide = rows[0]?.length ?? 0;
  const size = Math.max(4, Math.min(14, Math.floor(560 / Math.max(wide, 1))));
  const box = { class: "map", width: wide * size, height: rows.length * size, viewBox: `0 0 ${wide} ${rows.length}`, role: "img" };
  const marks = rows.flatMap((row, y) =>
    [...row].flatMap((digit, x) => {
      if (digit === ".") return [draw("rect", { class: "undefined", x, y, width: 1, height: 1 })];
      if (digit === "0") return [];
      return [draw("rect", { x, y, width: 1, height: 1, "fill-opacity": Math.min(1, 0.3 + 0.1 * Number(digit)) })];
    }),
  );
  const picture = draw("svg", box, draw("rect", { class: "ground", width: wide, height: rows.length }), ...marks);
  const wrong = (digit) => digit > "0" && digit <= "9";
  const down = rows.flatMap((row, y) => ([...row].some(wrong) ? [y] : []));
  const across = [...Array(wide).keys()].filter((x) => rows.some((row) => wrong(row[x])));
  const counted = (hit, shown, all, noun) =>
    `${hit.length} of ${shown < all ? `${many(shown, "block")} of ${many(all, noun)}` : many(shown, noun)}`;
  const words =
    `${step ? `Call ${step}, ` : ""}${output}: ` +
    `beyond its budget in ${counted(down, rows.length, heads, "head")}, ` +
    `at ${counted(across, wide, positions, "position")}`;
  picture.setAttribute("aria-label", words);
  const legend = "Heads down (batch by batch), positions across; the stronger, the more times its budget: up to 10, 100, 1000 …";
  return make("figure", make("figcaption", words, "."), picture, make("p.why", legend));
}
