// Markdown as elements. It makes no HTML text: whatever a model, a tool or a stranger writes can only become one of the few
// elements below. A link leads to the web or to a mail program, says where, and everything else stays the text that it was.
import { html, number, useMemo, useState, visible } from "./core.js";

const SHOWN_MAX = 20000; // characters; the rest is shown when it is asked for
const DEPTH_MAX = 6;
const COLOURED_MAX = 12000;

const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(\s+)(?=\S)/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const opens = (line) => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);

export function Markdown({ of }) {
  const [isWhole, setWhole] = useState(false);
  const text = typeof of === "string" ? of : of === null || of === undefined ? "" : JSON.stringify(of, null, 2);
  const part = isWhole ? text : text.slice(0, SHOWN_MAX);
  const made = useMemo(() => whole(visible(part).replaceAll("\t", "    ").split("\n")), [part]);
  return html`<div class="md">${made}</div>${text.length > part.length && html`<button onClick=${() => setWhole(true)}>Show all ${number(text.length)} characters</button>`}`;
}

/** What a person typed, as it was typed: no sign of it means anything, and addresses are links. */
export function Typed({ of }) {
  const [isWhole, setWhole] = useState(false), text = String(of ?? ""), part = visible(isWhole ? text : text.slice(0, SHOWN_MAX)), made = [];
  let done = 0;
  for (const { 0: bare, index } of part.matchAll(/https?:\/\/[^\s<>]+/g)) {
    const url = trimmed(bare);
    made.push(part.slice(done, index), link(url, url, url));
    done = index + url.length;
  }
  return html`<div class="text typed">${made}${part.slice(done)}</div>${text.length > SHOWN_MAX && !isWhole && html`<button onClick=${() => setWhole(true)}>Show all ${number(text.length)} characters</button>`}`;
}

const TOP = 3; // the level below the headings of a view

/** A whole text. Its headings stand below that of the view, and none skips a level, whichever the writer began with. */
function whole(lines) {
  const used = [...new Set(lines.map((line) => HEADING.exec(line)?.[1].length).filter(Boolean))].sort();
  let last = TOP - 1;
  return blocks(lines, 0, (written) => (last = Math.min(6, last + 1, TOP + Math.max(0, used.indexOf(written)))));
}

function blocks(lines, depth, level) {
  if (depth > DEPTH_MAX) return html`<p>${lines.join("\n")}</p>`;
  const made = [];
  for (let n = 0; n < lines.length;) {
    const line = lines[n], begin = n;
    let found;
    if (!line.trim()) n += 1;
    else if ((found = FENCE.exec(line))) {
      const [, indent, mark, language] = found, closing = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}\\s*$`);
      for (n += 1; n < lines.length && !closing.test(lines[n]);) n += 1;
      const inner = lines.slice(begin + 1, n++).map((each) => (each.startsWith(indent) ? each.slice(indent.length) : each));
      made.push(html`<${Code} text=${inner.join("\n")} language=${language} />`);
    } else if ((found = HEADING.exec(line))) {
      n += 1;
      made.push(html`<${`h${level(found[1].length)}`}>${inline(found[2], 0)}</>`);
    } else if (RULE.test(line)) {
      n += 1;
      made.push(html`<hr />`);
    } else if (QUOTE.test(line)) {
      while (n < lines.length && QUOTE.test(lines[n])) n += 1;
      made.push(html`<blockquote>${blocks(lines.slice(begin, n).map((each) => each.replace(QUOTE, "")), depth + 1, level)}</blockquote>`);
    } else if (ITEM.test(line)) {
      const [list, end] = items(lines, n, depth, level);
      made.push(list);
      n = end;
    } else if (line.includes("|") && DIVIDER.test(lines[n + 1] ?? "") && lines[n + 1].includes("-") && cells(line).length === cells(lines[n + 1]).length) {
      for (n += 2; n < lines.length && lines[n].includes("|") && lines[n].trim();) n += 1;
      made.push(table(lines.slice(begin, n)));
    } else {
      for (n += 1; n < lines.length && lines[n].trim() && !opens(lines[n]);) n += 1;
      made.push(html`<p>${inline(lines.slice(begin, n).map((each) => each.trim()).join("\n"), 0)}</p>`);
    }
  }
  return made;
}

/** The list that begins at a line, and the line behind it. */
function items(lines, begin, depth, level) {
  const isOrdered = (mark) => /\d/.test(mark), [, at, first] = ITEM.exec(lines[begin]), made = [];
  let n = begin;
  while (n < lines.length) {
    const found = ITEM.exec(lines[n]);
    if (!found || found[1].length > at.length + 3 || found[1].length < at.length || isOrdered(found[2]) !== isOrdered(first) || RULE.test(lines[n])) break;
    const own = [lines[n].slice(found[0].length)], inner = found[0].length - Math.max(0, found[3].length - 4);
    for (n += 1; n < lines.length; n++) {
      const line = lines[n], indent = line.length - line.trimStart().length;
      if (!line.trim()) {
        const next = lines[n + 1] ?? "";
        if (!next.trim() || next.length - next.trimStart().length < Math.min(inner, at.length + 2)) break;
        own.push("");
      } else if (indent >= Math.min(inner, at.length + 2)) own.push(line.slice(Math.min(indent, inner)));
      else if (!opens(line) && lines[n - 1].trim()) own.push(line.trim());
      else break;
    }
    // A blank line between two items does not end the list.
    if (n + 1 < lines.length && !lines[n].trim() && ITEM.test(lines[n + 1]) && ITEM.exec(lines[n + 1])[1].length >= at.length) n += 1;
    own[0] = own[0].replace(/^\[([ xX])\] /, (_, mark) => (mark === " " ? "☐ " : "☑ "));
    const body = own.length === 1 ? inline(own[0], 0) : blocks(own, depth + 1, level);
    made.push(html`<li>${body}</li>`);
  }
  return [isOrdered(first) ? html`<ol start=${parseInt(first, 10)}>${made}</ol>` : html`<ul>${made}</ul>`, n];
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((each) => each.trim().replaceAll("\\|", "|"));

function table([head, divider, ...rows]) {
  const sides = cells(divider).map((each) => (/^-.*:$/.test(each) ? "num" : ""));
  return html`<div class="scroll" tabindex="0"><table><thead><tr>${cells(head).map((each, n) => html`<th class=${sides[n]}>${inline(each, 0)}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${sides.map((side, n) => html`<td class=${side}>${inline(cells(row)[n] ?? "", 0)}</td>`)}</tr>`)}</tbody></table></div>`;
}

const MARK = /\\([!-/:-@[-`{-~])|(`+)|(\*\*|__|~~)|([*_])|(!?)\[|<((?:https?:\/\/|mailto:)[^\s<>]+)>|(https?:\/\/[^\s<>]+)/g;
const TARGET = /((?:[^[\]\\]|\\.)*)\]\(\s*<?([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)>?(?:\s+"[^"]*")?\s*\)/y;
const PAIRS = { __proto__: null, "**": "strong", __: "strong", "~~": "del", "*": "em", _: "em" };

/** `isLabel`: of a link, in which there is no other one. */
function inline(text, depth, isLabel) {
  if (depth > DEPTH_MAX) return text;
  const made = [], unclosed = new Set(), mark = new RegExp(MARK);
  let done = 0, found;
  const put = (element, end) => {
    if (found.index > done) made.push(text.slice(done, found.index));
    made.push(element);
    mark.lastIndex = done = end;
  };
  while ((found = mark.exec(text))) {
    const [whole, escaped, ticks, pair, single, image, angled, bare] = found, from = found.index + whole.length;
    if (escaped) put(escaped, from);
    else if (ticks) {
      const end = unclosed.has(ticks) ? -1 : closingTicks(text, ticks, from);
      if (end < 0) unclosed.add(ticks);
      else put(html`<code>${text.slice(from, end).replace(/^ (.*\S.*) $/, "$1")}</code>`, end + ticks.length);
    } else if (pair ?? single) {
      const sign = pair ?? single, end = unclosed.has(sign) || !/\S/.test(text[from] ?? "") ? -1 : closing(text, sign, found.index, from);
      if (end === -1) unclosed.add(sign);
      if (end >= 0) put(html`<${PAIRS[sign]}>${inline(text.slice(from, end), depth + 1, isLabel)}</>`, end + sign.length);
    } else if (isLabel) continue;
    else if (angled) put(link(angled, angled, whole), from);
    else if (bare) {
      const url = trimmed(bare);
      put(link(url, url, url), found.index + url.length);
    } else {
      TARGET.lastIndex = from;
      const target = TARGET.exec(text);
      if (target) put(link(target[2], inline(target[1], depth + 1, true), text.slice(found.index, TARGET.lastIndex), image), TARGET.lastIndex);
    }
  }
  return done ? [...made, text.slice(done)] : text;
}

function closingTicks(text, ticks, from) {
  for (let at = from; (at = text.indexOf(ticks, at)) >= 0;) {
    let end = at;
    while (text[end] === "`") end += 1;
    if (end - at === ticks.length) return at;
    at = end;
  }
  return -1;
}

/** Where a mark is closed; -1: nowhere from here on, -2: this one opens nothing. */
function closing(text, sign, begin, from) {
  const isWord = sign[0] === "_", word = /[\p{L}\p{N}]/u;
  if (isWord && word.test(text[begin - 1] ?? "")) return -2;
  for (let at = from + 1; (at = text.indexOf(sign, at)) >= 0; at += sign.length) {
    if (/\s/.test(text[at - 1]) || (isWord && word.test(text[at + sign.length] ?? ""))) continue;
    if (sign.length === 1 && (text[at + 1] === sign || text[at - 1] === sign)) continue;
    return at;
  }
  return -1;
}

/** An address without the signs of the sentence that it ends. */
const trimmed = (bare) => bare.replace(/[.,;:!?'"*_~\]]+$|\)+[.,;:!?]*$/, (tail) => (bare.includes("(") && tail.startsWith(")") ? ")" : ""));

/** An address that may be followed; null for whatever is not plainly the web or mail, or hides a name before an @. */
export function judged(address) {
  try {
    const url = new URL(address);
    return ["https:", "http:", "mailto:"].includes(url.protocol) && !url.username && !url.password && /^[a-z]+:\S+$/i.test(address) ? url : null;
  } catch { return null; }
}

/** A link that says where it leads, or what was written. */
function link(address, label, written, isImage) {
  const url = judged(address);
  if (!url) return written;
  const isSaid = typeof label === "string" && url.host && label.includes(url.host);
  return html`<a href=${url.href} target="_blank" rel="noopener noreferrer nofollow" title=${visible(url.href)}>${isImage ? "image: " : ""}${label}</a>${!isSaid && html`<span class="host"> (${visible(url.host || url.pathname)})</span>`}`;
}

// --- code ---

const REMARKS = { __proto__: null };
for (const name of ["py", "python", "sh", "bash", "shell", "zsh", "yaml", "yml", "toml", "rb", "ruby", "dockerfile", "make", "ini", "r", "perl"]) REMARKS[name] = "#[^\\n]*";
for (const name of ["sql", "lua", "haskell", "hs"]) REMARKS[name] = "--[^\\n]*";
const OTHER_REMARKS = "\\/\\/[^\\n]*|\\/\\*[^]*?(?:\\*\\/|$)";
const WORDS = "and|as|async|await|break|case|catch|class|const|continue|def|defer|del|do|done|echo|elif|else|end|enum|except|export|extends|false|False|fi|finally|fn|for|from|func|function|go|if|impl|import|in|interface|is|lambda|let|match|mod|new|nil|None|not|null|or|package|pass|pub|raise|return|select|self|static|struct|super|switch|then|this|throw|true|True|try|type|use|var|void|where|while|with|yield|SELECT|FROM|WHERE|INSERT|UPDATE|DELETE|JOIN|ORDER|GROUP|BY|LIMIT|CREATE|TABLE|INTO|VALUES|SET|AND|OR|NOT|NULL";
const STRINGS = "\"(?:[^\"\\\\\\n]|\\\\.)*\"|'(?:[^'\\\\\\n]|\\\\.)*'|`(?:[^`\\\\]|\\\\[^])*(?:`|$)";
const PLAIN = new Set(["", "text", "txt", "console", "output", "log", "md", "markdown"]);

/** The words of a program in the colours of what they are. */
export function coloured(text, language) {
  const name = (language ?? "").toLowerCase();
  if (name === "diff" || name === "patch") return differing(text);
  if (PLAIN.has(name) || text.length > COLOURED_MAX) return text;
  const piece = new RegExp(`(${REMARKS[name] ?? OTHER_REMARKS})|(${STRINGS})|\\b(\\d[\\w.]*)\\b|\\b(${WORDS})\\b`, "g"), made = [];
  let done = 0;
  for (const found of text.matchAll(piece)) {
    if (found.index > done) made.push(text.slice(done, found.index));
    made.push(html`<span class=${found[1] ? "c-remark" : found[2] ? "c-text" : found[3] ? "c-number" : "c-word"}>${found[0]}</span>`);
    done = found.index + found[0].length;
  }
  return [...made, text.slice(done)];
}

/** Lines that were put in and taken out. */
export function differing(text) {
  return text.split("\n").map((line) => html`<span class=${/^\+(?!\+\+ )/.test(line) ? "d-in" : /^-(?!-- )/.test(line) ? "d-out" : /^(@@|\*\*\*|diff |\+\+\+|---)/.test(line) ? "d-at" : ""}>${line}\n</span>`);
}

export function Code({ text, language }) {
  return html`<div class="code"><div class="row"><span class="soft">${language || "text"}</span><span class="grow"></span><${Copy} text=${text} /></div><pre tabindex="0"><code>${coloured(text, language)}</code></pre></div>`;
}

/** Plain HTTP under a name has no clipboard for pages: there the button is left out. */
export function Copy({ text }) {
  const [isDone, setDone] = useState(false);
  if (!navigator.clipboard) return null;
  const copy = () => navigator.clipboard.writeText(text).then(() => { setDone(true); setTimeout(() => setDone(false), 1500); }, () => null);
  return html`<button class="plain" onClick=${copy}>${isDone ? "Copied" : "Copy"}</button>`;
}
