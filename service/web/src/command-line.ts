// A command as people type it, and as the list of its words. No shell is involved: only quotes and backslashes have a meaning.

const SHELL_ONLY = "|&;<>()$`\n";

/** The words of a line; a sentence where a quote is not closed, or where only a shell could do what is written. */
export function wordsOf(line: string): string[] | string {
  const words: string[] = [];
  let word = "";
  let begun = false;
  let quote = "";
  const text = line.trim();
  for (let place = 0; place < text.length; place += 1) {
    const letter = text[place] as string;
    const acts = quote ? quote === '"' && "$`".includes(letter) : SHELL_ONLY.includes(letter);
    if (acts) return `${letter === "\n" ? "a second line" : `'${letter}'`} needs a shell, and none is used; write sh -c '...'`;
    if (letter === "\\" && quote !== "'" && text[place + 1] === "\n") {
      place += 1;
    } else if (quote) {
      if (letter === quote) quote = "";
      else if (letter === "\\" && quote === '"' && /["\\$`]/.test(text[place + 1] ?? "")) word += text[(place += 1)];
      else word += letter;
    } else if (letter === "'" || letter === '"') {
      quote = letter;
      begun = true;
    } else if (/\s/.test(letter)) {
      if (begun) words.push(word);
      word = "";
      begun = false;
    } else {
      word += letter === "\\" && place + 1 < text.length ? text[(place += 1)] : letter;
      begun = true;
    }
  }
  if (quote) return "has a quote that is not closed";
  return begun ? [...words, word] : words;
}

/** The line whose words these are. */
export function lineOf(words: readonly string[]): string {
  return words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`)).join(" ");
}
