// Which cases and results a query selects, and their totals.
"use strict";

const FEWEST_TERMS = 4; // fewer words are not compared as a message

/** The cells of the page, with indexes that every key press needs. */
class Cells {
  constructor(data) {
    Object.assign(this, data);
    for (const { axes } of this.cases) if (axes) Object.setPrototypeOf(axes, null); // an axis can have any name
    this.members = this.groups.map(() => []); // case numbers, by group
    this.cases.forEach((one, i) => this.members[one.group].push(i));
    this.byTheme = this.themes.map(() => []); // group numbers, by theme
    this.groups.forEach((group, i) => this.byTheme[group.theme].push(i));
    this.numbers = new Map(this.cases.map((one, i) => [one.id, i]));
    this.seriesOf = []; // series numbers, by column; none for a target with one release
    this.series.forEach(({ columns }, number) => columns.forEach((column) => (this.seriesOf[column] = number)));
    this.caseTexts = []; // lower-case texts of the cases, made when first searched
    this.texts = new Map(); // lower-case texts of parts of results
    this.words = new Map(); // the words of messages
  }

  /** A text or the values of an object as lower-case text. */
  #text(value) {
    return remembered(this.texts, value, () => (typeof value === "string" ? value : Object.values(value).join("\n")).toLowerCase());
  }

  #caseText(i) {
    const { id, group, why, tags, links } = this.cases[i];
    const { title, theme } = this.groups[group];
    const { question } = this.themes[theme];
    const texts = [why, tags, links].map((value) => (value == null ? "" : this.#text(value)));
    return (this.caseTexts[i] ??= [id, title, question, ...texts].join("\n").toLowerCase());
  }

  /** Whether a result contains a word; `found` has the answer for each text. */
  #contains(result, word, found) {
    return [result.message, result.reason, result.expectation, result.stderr].some(
      (value) => value != null && remembered(found, value, () => this.#text(value).includes(word)),
    );
  }

  /** Whether a result has the message; `found` has the answer for each text. */
  #says({ message }, wanted, found) {
    if (message == null) return false;
    return remembered(found, message, () => isLike(remembered(this.words, message, () => messageWords(message)), wanted));
  }

  /**
   * The columns that a query shows, and which of them stand for all releases of a series: `folded`
   * has the series by column. A series that is not unfolded is shown by its newest release that
   * was tried; of one that is, the newest comes first.
   */
  #columns(query) {
    const [columns, folded, seen] = [[], new Map(), new Set()];
    const wanted = (name) => !query.target.size || query.target.has(name);
    this.targets.forEach(({ label }, column) => {
      const number = this.seriesOf[column];
      const series = this.series[number];
      if (!series && wanted(label)) columns.push(column);
      if (!series || seen.has(number)) return;
      seen.add(number);
      const newestFirst = [...series.columns].reverse();
      if (!wanted(series.label)) columns.push(...newestFirst.filter((one) => wanted(this.targets[one].label)));
      else if (query.releases.has(series.label)) columns.push(...newestFirst);
      else {
        columns.push(series.newest);
        folded.set(series.newest, number);
      }
    });
    return { columns, folded };
  }

  /** The history of a case in a series. */
  historyOf(i, number) {
    return this.cases[i].history[number];
  }

  /** Whether a case has one of the values of the filter `history` in one of the series. */
  #hasHistory(i, values, numbers) {
    return numbers.some((number) => this.historyOf(i, number).filters.some((value) => values.has(value)));
  }

  /**
   * What a query selects: `columns` to show and `folded` ones; `candidates[i]`, whether a case has the words, tag and
   * dtype, where a message of any release of a shown target counts; `shown[i]`, whether one of its results also matches; the numbers of both; and
   * `matches(result)`, whether a result has one of the verdicts and the marks.
   */
  select(query) {
    const { columns, folded } = this.#columns(query);
    const every = columns.flatMap((column) => (folded.has(column) ? this.series[folded.get(column)].columns : [column]));
    const series = [...new Set(every.map((column) => this.seriesOf[column]))].filter((number) => number != null);
    const words = searchTerms(query.q).map((word) => ({ word, found: new Map() }));
    const [wanted, said] = [messageWords(words.length < FEWEST_TERMS ? "" : query.q), new Map()];
    const candidates = new Uint8Array(this.cases.length);
    const shown = new Uint8Array(this.cases.length);
    const byResult = ["verdict", "score", "wrong", "symptom"].some((name) => query[name].size) || query.unexpected || query.silent || query.changed;
    const matches = ({ look, symptom, change }) =>
      (!query.verdict.size || query.verdict.has(look.verdict)) &&
      (!query.score.size || query.score.has(look.part)) &&
      (!query.wrong.size || [...query.wrong].some((value) => isWrongIn(look.wrong, value))) &&
      (!query.symptom.size || query.symptom.has(symptom)) &&
      (!query.unexpected || look.mark === "unexpected") &&
      (!query.silent || look.silent) &&
      (!query.changed || change);
    let cases = 0;
    let results = 0;
    this.cases.forEach((one, i) => {
      const present = columns.map((column) => one.results[column]).filter(Boolean);
      const all = words.length ? every.map((column) => one.results[column]).filter(Boolean) : present;
      if (query.dtype.size && !query.dtype.has(one.dtype)) return;
      if (query.theme.size && !query.theme.has(this.themes[this.groups[one.group].theme].name)) return;
      if (query.basis.size && !query.basis.has(this.basisOf(i))) return;
      if (query.tag.size && !(one.tags ?? []).some((tag) => query.tag.has(tag))) return;
      const lacking = words.filter(({ word }) => !this.#caseText(i).includes(word));
      const hasWords = lacking.every(({ word, found }) => all.some((one) => this.#contains(one, word, found)));
      if (!hasWords && !all.some((one) => this.#says(one, wanted, said))) return;
      candidates[i] = 1;
      if (query.history.size && !this.#hasHistory(i, query.history, series)) return;
      if (query.differs && !verdictsDiffer(every.map((column) => one.results[column]).filter(Boolean))) return;
      const matching = present.filter(matches);
      if (byResult && !matching.length) return;
      shown[i] = 1;
      cases += 1;
      results += matching.length;
    });
    return { columns, folded, candidates, shown, cases, results, matches };
  }

  /**
   * Of these cases on a target: how many have each verdict, colour, mark and flag, the worst look of all
   * and of each dtype, and the case to open first; null if there is no result.
   */
  tally(cases, column) {
    const tally = { total: 0, tried: 0, asked: 0, right: 0, verdicts: {}, colours: {}, marks: {}, flags: {}, worst: null, worstAsked: null, first: null };
    const [endings, dtypes] = [new Set(), new Map()]; // endings of the processes, such as SIGSEGV
    const count = (counts, name) => (counts[name] = (counts[name] ?? 0) + 1);
    for (const i of cases) {
      const { results, dtype } = this.cases[i];
      const look = results[column]?.look;
      if (!look) continue;
      tally.total += 1;
      if (look.part) tally.tried += 1;
      if (look.asked) tally.asked += 1;
      if (look.asked && look.part === "right") tally.right += 1;
      count(tally.verdicts, look.verdict);
      count(tally.colours, look.colour);
      count(tally.marks, look.mark);
      for (const flag of look.flags) count(tally.flags, flag);
      if (look.ended_by) endings.add(look.ended_by);
      if (!tally.worst || look.severity < tally.worst.severity) tally.worst = look;
      if (look.asked && !(tally.worstAsked?.severity <= look.severity)) tally.worstAsked = look;
      if (look.part && !(dtypes.get(dtype)?.severity <= look.severity)) dtypes.set(dtype, look);
      if (tally.first == null || isWorse(look, this.cases[tally.first].results[column].look)) tally.first = i;
    }
    return tally.total ? { ...tally, endings: [...endings], dtypes: dtypesApart(dtypes) } : null;
  }

  /**
   * Of these cases, how many were right in an earlier release of a series and are not now, how many
   * were broken for a time, and the version since which all of them are right, if they are.
   */
  historyTally(cases, number) {
    const { versions } = this.series[number];
    let [regressed, mended, since, earliest] = [0, 0, -1, true];
    let right = cases.length > 0;
    for (const i of cases) {
      const history = this.historyOf(i, number);
      if (history.filters.includes("regressed")) regressed += 1;
      if (history.filters.includes("mended")) mended += 1;
      if (history.since == null) right = false;
      const at = versions.indexOf(history.since);
      if (at > since) [since, earliest] = [at, history.earliest];
      else if (at === since && !history.earliest) earliest = false;
    }
    return { regressed, mended, since: right ? `${earliest ? "≤" : ""}${shortVersion(versions[since])}` : "" };
  }

  /** What the contract of a case rests on; a case without a description counts as specified. */
  basisOf(i) {
    return this.cases[i].contract?.basis ?? "specified";
  }

  /** A sort key by severity on any of the columns: smaller is worse. Skipped results do not count. */
  sortKey(cases, columns) {
    let [unexpected, worst, number] = [0, Infinity, 0];
    for (const i of cases) {
      for (const column of columns) {
        const look = this.cases[i].results[column]?.look;
        if (!look?.part) continue;
        if (look.mark === "unexpected") unexpected += 1;
        if (look.severity < worst) [worst, number] = [look.severity, 1];
        else if (look.severity === worst) number += 1;
      }
    }
    return [-unexpected, worst, -number];
  }
}

/** The value of a key in a map, made when it is first asked for. */
function remembered(map, key, make) {
  if (!map.has(key)) map.set(key, make());
  return map.get(key);
}

/** Whether one look comes before the other: unexpected ones first, then the worst. */
function isWorse(one, other) {
  const [first, second] = [one, other].map(({ mark }) => mark === "unexpected");
  return first === second ? one.severity < other.severity : first;
}

/** Whether a result is wrong in an output, or, where `value` begins with `only:`, in exactly those. */
function isWrongIn(wrong, value) {
  return value.startsWith("only:") ? `only:${wrong.join()}` === value : wrong.includes(value);
}

/** Whether the targets that were tried differ in their verdicts, or in how bad these are. */
function verdictsDiffer(results) {
  return new Set(results.filter(({ look }) => look.part).map(({ look }) => `${look.verdict} ${look.colour}`)).size > 1;
}

/** The dtypes with each verdict, `float32 float16 pass`; none if all have the same. */
function dtypesApart(looks) {
  const byVerdict = new Map();
  for (const [dtype, { word }] of looks) byVerdict.set(word, [...(byVerdict.get(word) ?? []), dtype]);
  return byVerdict.size > 1 ? [...byVerdict].map(([word, dtypes]) => `${dtypes.join(" ")} ${word}`) : [];
}

/** Compares two sort keys, lists of numbers, for `Array.sort`. */
function compareKeys(one, other) {
  const at = one.findIndex((value, i) => value !== other[i]);
  return at < 0 ? 0 : one[at] - other[at];
}

/** A version without a last part that is 0. */
const shortVersion = (version) => version.replace(/(\..*)\.0$/, "$1");
